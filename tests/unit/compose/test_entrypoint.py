"""vllm/entrypoint.sh and vllm/dirs.sh, with programs in place of vllm, python3 and chown."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KEY = "engine-key-of-the-test"
Start = Callable[..., "subprocess.CompletedProcess[str]"]

# Prints what it was started with, as JSON.
FAKE_VLLM = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "key": os.environ.get("VLLM_API_KEY")}))
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two shards, all of it there."""
    directory = tmp_path / "models/owner/name"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for shard in shards:
        (directory / shard).write_text("weights")
    index = {"metadata": {"total_size": 14}, "weight_map": {"a": shards[0], "b": shards[1], "c": shards[1]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


@pytest.fixture
def profile(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(f"# comment\nmodel: {model}  # where it is\nserved-model-name: name\n")
    return path


@pytest.fixture
def environment(tmp_path: Path, profile: Path) -> dict[str, str]:
    key_file = tmp_path / "engine_api_key"
    key_file.write_text(KEY)
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    program(bin_directory / "vllm", FAKE_VLLM)
    return {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "GATEHOUSE_ENGINE_PROFILE": str(profile),
        "GATEHOUSE_ENGINE_KEY_FILE": str(key_file),
        "GATEHOUSE_FAILURE_PAUSE": "0",
    }


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Start:
    """Runs the entrypoint in front of a vLLM of the given version."""

    def run(version: str = "0.32.0", **more: str) -> "subprocess.CompletedProcess[str]":
        program(
            tmp_path / "bin/python3",
            f'#!/bin/sh\n[ "$1" = -c ] && echo {version} || exec {sys.executable} "$@"\n',
        )
        return subprocess.run(
            ["/bin/sh", str(ROOT / "vllm/entrypoint.sh")],
            env=environment | more, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_vllm_gets_the_profile_and_the_key_in_its_environment_alone(start: Start, profile: Path) -> None:
    started = start()
    assert started.returncode == 0, started.stderr
    seen = json.loads(started.stdout)
    assert seen["argv"][:3] == ["serve", "--config", str(profile)]
    assert seen["key"] == KEY
    assert KEY not in " ".join(seen["argv"])


@pytest.mark.parametrize("version", ["0.18.0", "0.32.0", "0.33.0+cu129", "1.0.0", "0.32.1rc1"])
def test_a_stopping_engine_may_finish_what_it_has_begun(start: Start, version: str) -> None:
    argv = json.loads(start(version, GATEHOUSE_DRAIN_SECONDS="45").stdout)["argv"]
    assert argv[argv.index("--shutdown-timeout") + 1] == "45"


@pytest.mark.parametrize("version", ["0.16.0", "0.16.0+cu130", "0.17.1"])
def test_an_older_engine_is_not_given_a_flag_that_it_refuses(start: Start, version: str) -> None:
    assert "--shutdown-timeout" not in json.loads(start(version).stdout)["argv"]


def test_without_a_model_it_says_what_to_do(start: Start, model: Path) -> None:
    for file in model.iterdir():
        file.unlink()
    model.rmdir()
    refused = start()
    assert refused.returncode == 1
    assert refused.stderr == f"engine: no model in {model}: run make model\n"
    assert refused.stdout == ""


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model-00002-of-00002.safetensors"])
def test_an_incomplete_model_is_not_started(start: Start, model: Path, missing: str) -> None:
    (model / missing).unlink()
    refused = start()
    assert refused.returncode == 1
    assert refused.stderr == f"engine: the model in {model} is not complete: run make model\n"


def test_an_empty_shard_is_no_shard(start: Start, model: Path) -> None:
    (model / "model-00001-of-00002.safetensors").write_text("")
    assert "not complete" in start().stderr


def test_a_model_in_one_file_needs_no_index(start: Start, model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    assert start().returncode == 0
    for shard in model.glob("*.safetensors"):
        shard.unlink()
    assert "not complete" in start().stderr


def test_without_a_key_it_does_not_start(start: Start, environment: dict[str, str]) -> None:
    Path(environment["GATEHOUSE_ENGINE_KEY_FILE"]).write_text("")
    refused = start()
    assert refused.returncode == 1
    assert refused.stderr.endswith("run make setup\n")


def test_a_refusal_waits_before_it_ends_and_can_be_stopped(environment: dict[str, str], model: Path) -> None:
    (model / "config.json").unlink()
    with subprocess.Popen(
        ["/bin/sh", str(ROOT / "vllm/entrypoint.sh")],
        env=environment | {"GATEHOUSE_FAILURE_PAUSE": "30"}, stderr=subprocess.PIPE, start_new_session=True,
    ) as waiting:  # fmt: skip
        assert waiting.stderr is not None
        assert b"not complete" in waiting.stderr.readline()
        time.sleep(0.3)
        assert waiting.poll() is None
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(5) == 1
        os.killpg(waiting.pid, signal.SIGKILL)  # the sleep, that a container's end would take with it


@pytest.fixture
def owners(tmp_path: Path) -> Callable[[], str]:
    """Runs dirs.sh with a chown that only says what it was asked, and gives back what was said."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program(directory / "chown", '#!/bin/sh\necho "$@"\n')
    for name in ("models", "vllm-cache", "caddy-data"):
        (tmp_path / "dirs" / name).mkdir(parents=True)

    def run() -> str:
        return subprocess.run(
            ["/bin/sh", str(ROOT / "vllm/dirs.sh")],
            env={"PATH": f"{directory}:{os.environ['PATH']}", "GATEHOUSE_DIRS": str(tmp_path / "dirs")},
            capture_output=True, text=True, check=True,
        ).stdout.replace(str(tmp_path / "dirs"), "")  # fmt: skip

    return run


def test_new_volumes_are_given_to_their_users(owners: Callable[[], str]) -> None:
    assert owners().splitlines() == [
        "-R 2002:2002 /caddy-data",
        "-R 2000:0 /vllm-cache",
        "-R 2000:0 /models",
    ]


def test_every_engines_cache_is_found(owners: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "dirs/vllm-cache-replica").mkdir()
    assert "-R 2000:0 /vllm-cache-replica" in owners().splitlines()


def test_a_directory_of_models_that_is_in_use_stays_as_it_is(
    owners: Callable[[], str], tmp_path: Path
) -> None:
    (tmp_path / "dirs/models/owner").mkdir()
    assert "/models" not in owners()
