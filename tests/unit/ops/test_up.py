"""`make up`: every check stops with its own line before anything is changed; then the engine is watched."""

import copy
import itertools
import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import RETIRED
from ops.commands import Result
from ops.errors import OpsError
from ops.fetch.listing import RemoteFile
from ops.fetch.manifest import Manifest, Origin
from ops.setup import Choice, setup
from ops.up import Pace, up
from tests.unit.ops.conftest import Checkout
from tests.unit.ops.fake_commands import (
    DAEMON_DOWN,
    NO_COMMAND,
    NO_COMPOSE,
    NOT_ALLOWED,
    ONE_3090,
)
from tests.unit.ops.test_docker import CONFIG

MODEL = "Qwen/Qwen2.5-14B-Instruct-AWQ"
GPU_INFO = {"ServerVersion": "28.5.2", "Runtimes": {"runc": {}, "nvidia": {}}}
PS = "docker compose ps --all --format json"


def manifest(revision: str = "main") -> Result:
    body = {
        "source": "hub",
        "repo": MODEL,
        "revision": revision,
        "commit": "c",
        "digest": "d",
        "created": "now",
        "files": [],
    }
    return Result(0, json.dumps(body))


def engine(state: str = "running", health: str = "starting", code: int = 0) -> Result:
    return Result(0, json.dumps({"Service": "vllm", "State": state, "Health": health, "ExitCode": code}))


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    """A site after `make setup` and `make model`, on a host where all is well."""
    commands = checkout.commands
    commands.on("nvidia-smi", out=ONE_3090)
    setup(checkout.site, Choice())
    checkout.said.clear()
    commands.calls.clear()
    commands.on_json("docker info", GPU_INFO)
    commands.on("docker compose version", out="2.40.3\n")
    commands.on_json("docker compose config", CONFIG)
    commands.on("docker ps", out="")
    commands.on("ss", out="")
    commands.on("docker image inspect", out="sha256:0\n")
    commands.on("docker compose run", manifest())
    commands.on("docker compose up")
    commands.on("docker compose ps --all --quiet", out="4711\n")
    commands.on("docker inspect", out="0\n")
    commands.on(PS, engine(health="healthy"))
    return checkout


def start(checkout: Checkout, **options: Any) -> None:
    up(checkout.site, pace=Pace(poll=0), **options)


def refusal(checkout: Checkout, **options: Any) -> OpsError:
    with pytest.raises(OpsError) as caught:
        start(checkout, **options)
    assert not checkout.commands.ran("docker compose up")
    return caught.value


def without_gpu() -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(CONFIG)
    del config["services"]["vllm"]["deploy"]
    return config


def test_all_is_well_and_the_stack_starts(ready: Checkout) -> None:
    start(ready)
    assert ready.commands.ran("docker compose up") == [
        ["docker", "compose", "up", "--detach", "--remove-orphans"]
    ]
    assert ready.said[-1].startswith("ready.")


@pytest.mark.parametrize(
    ("command", "answer", "message"),
    [
        ("docker info", NO_COMMAND, "not installed"),
        ("docker info", DAEMON_DOWN, "does not answer"),
        ("docker info", NOT_ALLOWED, "may not talk"),
        ("docker compose version", NO_COMPOSE, "no compose plugin"),
        ("docker compose config", Result(1, err="yaml: line 3: did not find expected key"), "line 3"),
    ],
)
def test_docker_is_checked_first(ready: Checkout, command: str, answer: Result, message: str) -> None:
    ready.commands.on(command, answer)
    assert message in refusal(ready).message


def test_without_env_or_secrets_setup_is_named(ready: Checkout) -> None:
    (ready.root / "secrets" / "admin_token").unlink()
    error = refusal(ready)
    assert "admin_token" in error.message
    assert "make setup" in error.fix
    (ready.root / ".env").unlink()
    assert "There is no .env yet" in refusal(ready).message


def test_a_weak_secret_stops_the_start(ready: Checkout) -> None:
    token = ready.root / "secrets" / "admin_token"
    token.unlink()
    token.write_text("changeme")
    assert "placeholder" in refusal(ready).message


def test_a_secret_that_the_containers_cannot_read_stops_the_start(ready: Checkout) -> None:
    (ready.root / "secrets" / "key_pepper").chmod(0o600)
    assert "chmod 444 secrets/key_pepper" in refusal(ready).fix


def test_a_misspelt_setting_stops_the_start_instead_of_having_no_effect(ready: Checkout) -> None:
    env = ready.root / ".env"
    env.write_text(env.read_text() + "GATEWAY_MAX_BODY_BYTE=5\n")
    assert "GATEWAY_MAX_BODY_BYTES" in refusal(ready).fix


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_setting_that_went_into_the_plans_says_where(ready: Checkout, name: str) -> None:
    env = ready.root / ".env"
    env.write_text(env.read_text() + f"{name}=5\n")
    error = refusal(ready)
    assert error.message == f"{name} in .env is no longer a setting."
    assert "gateway/config/plans.yaml" in error.fix


def test_a_mistake_in_the_plans_stops_the_start_with_its_place(ready: Checkout) -> None:
    plans = ready.root / "gateway" / "config" / "plans.yaml"
    plans.write_text(plans.read_text().replace("priority: 5", "priority: 50"))
    assert "plans.standard.priority" in refusal(ready).message


def test_a_plan_with_a_model_that_is_not_served_stops_the_start(ready: Checkout) -> None:
    plans = ready.root / "gateway" / "config" / "plans.yaml"
    plans.write_text(plans.read_text().replace('models: ["*"]', "models: [team]", 1))
    assert "qwen2.5-14b-instruct-awq" in refusal(ready).message
    env = ready.root / ".env"
    aliases = '{"team": "qwen2.5-14b-instruct-awq"}'
    env.write_text(env.read_text() + f"GATEWAY_MODEL_ALIASES='{aliases}'\n")
    start(ready)


def test_the_reader_of_the_log_ends_quietly_when_the_log_is_closed_under_it(
    ready: Checkout, tmp_path: Path
) -> None:
    log = (tmp_path / "log").open("w+")
    log.close()
    # A traceback in the reader's thread fails this test: pytest makes it an error.
    ready.commands.log = itertools.chain.from_iterable(map(iter, [log]))
    start(ready)
    for thread in threading.enumerate():
        if thread.name == "engine-log":
            thread.join(5)


def test_an_unknown_profile_names_those_there_are(ready: Checkout) -> None:
    env = ready.root / ".env"
    env.write_text(env.read_text().replace("single-3090-awq", "quad"))
    error = refusal(ready)
    assert "quad" in error.message
    assert "dual-3090-bf16, single-3090-awq" in error.fix


def test_a_missing_gpu_names_the_standin(ready: Checkout) -> None:
    ready.commands.on("nvidia-smi", NO_COMMAND)
    error = refusal(ready)
    assert "No NVIDIA GPU" in error.message
    assert "compose.standin.yaml" in error.fix


def test_a_docker_without_nvidia_names_the_toolkit(ready: Checkout) -> None:
    ready.commands.on_json("docker info", {"ServerVersion": "28.5.2", "Runtimes": {"runc": {}}})
    ready.commands.on("nvidia-container-runtime-hook", NO_COMMAND)
    assert "nvidia-container-toolkit" in refusal(ready).fix


@pytest.mark.parametrize(
    "info",
    [
        {"ServerVersion": "28.5.2", "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]},
        {"ServerVersion": "28.5.2", "Runtimes": {}},
    ],
    ids=["by CDI", "by the hook"],
)
def test_gpus_come_by_other_ways_too(ready: Checkout, info: dict[str, Any]) -> None:
    ready.commands.on_json("docker info", info)
    ready.commands.on("nvidia-container-runtime-hook", Result(2))
    start(ready)


def test_a_profile_for_more_gpus_than_there_are_is_refused(ready: Checkout) -> None:
    env = ready.root / ".env"
    env.write_text(env.read_text().replace("single-3090-awq", "dual-3090-bf16"))
    assert "wants 2 GPUs; this host has 1" in refusal(ready).message


def test_an_old_driver_names_the_image_that_it_can_run(ready: Checkout) -> None:
    ready.commands.on("nvidia-smi", out="NVIDIA GeForce RTX 3090, 24576, 570.86.10\n")
    error = refusal(ready)
    assert "570.86.10" in error.message
    assert "VLLM_VERSION=v0.32.0-cu129" in error.fix
    with (ready.root / ".env").open("a") as env:
        env.write("VLLM_VERSION=v0.32.0-cu129\n")
    start(ready)


def test_a_taken_port_names_its_holder_and_the_variable(ready: Checkout) -> None:
    ready.commands.on(
        "ss",
        out="LISTEN 0 128 0.0.0.0:8080 0.0.0.0:*\n"
        'LISTEN 0 511 0.0.0.0:80 0.0.0.0:* users:(("nginx",pid=812,fd=6))\n',
    )
    error = refusal(ready)
    assert error.message == "Port 80 is taken by nginx (process 812)."
    assert "HTTP_PORT" in error.fix


def test_a_port_on_another_address_is_free_for_the_loopback(ready: Checkout) -> None:
    ready.commands.on("ss", out="LISTEN 0 128 192.168.1.5:8000 0.0.0.0:*\n")
    start(ready)


def test_ports_that_the_running_stack_holds_are_no_obstacle(ready: Checkout) -> None:
    ready.commands.on("docker ps", out="0.0.0.0:80->80/tcp, 127.0.0.1:8000->8000/tcp\n")
    ready.commands.on("ss", out='LISTEN 0 4096 0.0.0.0:80 0.0.0.0:* users:(("docker-proxy",pid=1,fd=7))\n')
    start(ready)


def test_missing_images_are_pulled_and_built_and_others_are_not(ready: Checkout) -> None:
    ready.commands.on("docker image inspect --format {{.Id}} vllm/vllm-openai:v0.32.0", Result(1))
    ready.commands.on("docker image inspect --format {{.Id}} gatehouse-gateway:0.1.0", Result(1))
    ready.commands.on("docker pull")
    ready.commands.on("docker compose build")
    start(ready)
    assert ready.commands.ran("docker pull") == [["docker", "pull", "vllm/vllm-openai:v0.32.0"]]
    assert ready.commands.ran("docker compose build") == [["docker", "compose", "build", "gateway"]]


def test_an_image_that_cannot_be_pulled_is_named_with_the_reason(ready: Checkout) -> None:
    ready.commands.on("docker image inspect", Result(1))
    ready.commands.on("docker pull", Result(1, err="Error response from daemon: manifest unknown"))
    error = refusal(ready)
    assert error.message == "caddy:2.11.7-alpine cannot be pulled. The registry does not have it."


def test_a_failed_build_is_said(ready: Checkout) -> None:
    ready.commands.on("docker compose build", Result(1))
    assert "could not be built" in refusal(ready, build=True).message


def test_without_a_model_make_model_is_named(ready: Checkout) -> None:
    ready.commands.on(
        "docker compose run", Result(1, err="cat: can't open '/dirs/models/x': No such file or directory")
    )
    error = refusal(ready)
    assert MODEL in error.message
    assert error.fix == "Run `make model`."
    assert not ready.commands.ran("docker compose --profile model")


def test_a_model_that_was_put_there_by_hand_is_accepted(ready: Checkout) -> None:
    ready.commands.on("docker compose run", Result(0, '{"model_type": "qwen2"}'))
    start(ready)


def test_another_revision_is_noted_and_starts(ready: Checkout) -> None:
    ready.commands.on("docker compose run", manifest("v1"))
    start(ready)
    assert "`make model` fetches that" in ready.said.text


def test_a_model_directory_of_the_host_is_looked_at_directly(ready: Checkout) -> None:
    models = ready.root / "models"
    with (ready.root / ".env").open("a") as env:
        env.write("MODEL_DIR=./models\n")
    assert "There is no model in" in refusal(ready).message
    target = models / MODEL
    target.mkdir(parents=True)
    (target / "w.safetensors").write_bytes(b"1234")
    Manifest(Origin("hub", MODEL, "main"), "c", "d", (RemoteFile("w.safetensors", 4),), "now").write(target)
    start(ready)
    (target / "w.safetensors").write_bytes(b"123")
    with pytest.raises(OpsError, match="damaged"):
        start(ready)


def test_the_standin_needs_neither_gpu_nor_model(ready: Checkout) -> None:
    ready.commands.on_json("docker compose config", without_gpu())
    ready.commands.on("nvidia-smi", NO_COMMAND)
    ready.commands.on("docker compose run", Result(1, err="No such file"))
    start(ready)
    assert not ready.commands.ran("docker compose run")


def test_a_failing_start_is_explained(ready: Checkout) -> None:
    ready.commands.on(
        "docker compose up", Result(1, err="Bind for 0.0.0.0:443 failed: port is already allocated")
    )
    with pytest.raises(OpsError, match="port"):
        start(ready)


def test_the_phases_are_shown_once_each_until_the_engine_is_ready(ready: Checkout) -> None:
    ready.commands.log = [
        "INFO 11-30 [gpu_model_runner.py:3000] Starting to load model /models/x...\n",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2\n",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2\n",
        "INFO 11-30 Model loading took 9.3820 GiB memory and 5.1 seconds\n",
        "INFO 11-30 GPU KV cache size: 52,352 tokens\n",
    ]
    ready.commands.on(PS, engine(), engine(), engine(), *[engine()] * 50, engine(health="healthy"))
    up(ready.site, pace=Pace(poll=0.005))
    assert [line for line in ready.said if line.startswith("engine: ")] == [
        "engine: loading the weights",
        "engine: loading the weights: 50 %",
        "engine: weights loaded: 9.3820 GiB",
        "engine: KV cache: 52,352 tokens",
    ]


@pytest.mark.parametrize(
    ("found", "restarts"),
    [(engine("exited", "", 1), "0"), (engine("restarting", "", 0), "0"), (engine(), "1")],
    ids=["exited", "restarting", "restarted between two looks"],
)
def test_a_failing_engine_shows_its_last_lines_and_the_cause(
    ready: Checkout, found: Result, restarts: str
) -> None:
    ready.commands.on(PS, found)
    ready.commands.on("docker inspect", Result(0, "0\n"), Result(0, f"{restarts}\n"))
    ready.commands.on(
        "docker compose logs",
        out="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nlast line\n",
    )
    with pytest.raises(OpsError, match="stopped while it started") as caught:
        start(ready)
    assert "memory is full" in caught.value.fix
    assert "  | last line" in ready.said


def test_ctrl_c_while_waiting_leaves_the_stack_running(ready: Checkout) -> None:
    ready.commands.on(PS, engine(), KeyboardInterrupt)
    start(ready)
    assert "keeps running" in ready.said[-1]
    assert not ready.commands.ran("docker compose down")


def test_a_limit_ends_the_wait(ready: Checkout) -> None:
    ready.commands.on(PS, engine())
    ticks: Iterator[int] = count()
    with pytest.raises(OpsError, match="not ready in time"):
        up(ready.site, pace=Pace(now=lambda: float(next(ticks)), poll=0, limit=3))


def test_not_waiting_ends_after_the_start(ready: Checkout) -> None:
    start(ready, wait=False)
    assert ready.said[-1] == "starting the stack"
