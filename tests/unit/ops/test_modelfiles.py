"""`make model` on the host's side: what it refuses, what it runs, what it hands over."""

import sys
from pathlib import Path
from typing import Any

import pytest

from ops.commands import Result
from ops.errors import OpsError
from ops.modelfiles import fetch_in_container, fetch_on_host
from tests.unit.ops.conftest import Checkout
from tests.unit.ops.fake_commands import DAEMON_DOWN

RUN = "docker compose --profile model run"


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    (checkout.root / ".env").write_text("GATEHOUSE_PROFILE=single-3090-awq\n")
    commands = checkout.commands
    commands.on_json("docker info", {"ServerVersion": "28.5.2"})
    commands.on("docker compose version", out="2.40.3\n")
    config: dict[str, Any] = {"services": {"model": {"image": "gatehouse-model:0.1.0", "build": {}}}}
    commands.on_json("docker compose --profile model config", config)
    commands.on("docker image inspect", out="sha256:0\n")
    commands.on(RUN)
    return checkout


def configure(checkout: Checkout, lines: str) -> None:
    with (checkout.root / ".env").open("a") as env:
        env.write(lines)


def test_the_one_shot_service_runs_with_the_terminal(ready: Checkout) -> None:
    fetch_in_container(ready.site, verify=False)
    assert ready.commands.ran(RUN) == [
        ["docker", "compose", "--profile", "model", "run", "--rm", "model", "python", "-m", "ops.fetch"]
    ]
    assert "Qwen/Qwen2.5-14B-Instruct-AWQ main from hub" in ready.said.text


def test_verify_is_passed_on(ready: Checkout) -> None:
    fetch_in_container(ready.site, verify=True)
    assert ready.commands.ran(RUN)[0][-1] == "--verify"


def test_a_token_reaches_the_container_but_no_command_line(ready: Checkout) -> None:
    configure(ready, "HF_TOKEN=hf_very_private\n")
    fetch_in_container(ready.site, verify=False)
    call = ready.commands.ran(RUN)[0]
    assert call[6:8] == ["--env", "HF_TOKEN"]
    assert not any("hf_very_private" in word for call in ready.commands.calls for word in call)
    assert ready.commands.environs[-1] == {"HF_TOKEN": "hf_very_private"}


def test_a_missing_image_is_built_first(ready: Checkout) -> None:
    ready.commands.on("docker image inspect", Result(1))
    ready.commands.on("docker compose --profile model build")
    fetch_in_container(ready.site, verify=False)
    assert ready.commands.ran("docker compose --profile model build")[0][-1] == "model"


def test_a_failed_fetch_is_not_taken_for_success(ready: Checkout) -> None:
    ready.commands.on(RUN, Result(1))
    with pytest.raises(OpsError, match="not complete") as caught:
        fetch_in_container(ready.site, verify=False)
    assert "goes on where it stopped" in caught.value.fix


def test_an_interrupted_fetch_is_an_interrupt(ready: Checkout) -> None:
    ready.commands.on(RUN, Result(130))
    with pytest.raises(KeyboardInterrupt):
        fetch_in_container(ready.site, verify=False)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("MODEL_SOURCE=ftp\n", "MODEL_SOURCE=ftp"),
        ("MODEL_SOURCE=local\n", "MODEL_LOCAL_DIR is not set"),
        ("MODEL_SOURCE=local\nMODEL_LOCAL_DIR=/nowhere\n", "/nowhere"),
        ("GATEHOUSE_PROFILE=quad\n", "quad"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(
    ready: Checkout, lines: str, message: str
) -> None:
    configure(ready, lines)
    with pytest.raises(OpsError, match=message):
        fetch_in_container(ready.site, verify=False)
    assert not ready.commands.ran(RUN)


def test_docker_and_env_are_checked(ready: Checkout) -> None:
    (ready.root / ".env").unlink()
    with pytest.raises(OpsError, match=r"There is no \.env yet"):
        fetch_in_container(ready.site, verify=False)
    ready.commands.on("docker info", DAEMON_DOWN)
    with pytest.raises(OpsError, match="does not answer"):
        fetch_in_container(ready.site, verify=False)


def test_without_docker_a_process_of_this_host_fetches(ready: Checkout, tmp_path: Path) -> None:
    configure(ready, "MODEL_REVISION=v2\nHF_ENDPOINT=https://hub.lan\nGATEWAY_LOG_LEVEL=debug\n")
    ready.commands.on(sys.executable)
    fetch_on_host(ready.site, tmp_path / "models", verify=False)
    assert ready.commands.calls[-1][1:] == ["-m", "ops.fetch"]
    assert ready.commands.environs[-1] == {
        "MODEL_REVISION": "v2",
        "HF_ENDPOINT": "https://hub.lan",
        "MODEL_PROFILE": str(ready.root / "vllm" / "profiles" / "single-3090-awq.yaml"),
        "MODEL_DIR": str(tmp_path / "models"),
    }
    assert ready.said[-1] == f"for the engine: MODEL_DIR={tmp_path / 'models'} in .env"
