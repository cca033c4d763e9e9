"""What `make up` says when something is missing: one line with the fix, no traceback, and nothing started."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stack.conftest import write_env
from tests.stack.stack import Stack

PORTS = {
    "HTTP_PORT": "0",
    "HTTPS_PORT": "0",
    "VLLM_PORT": "0",
    "PROMETHEUS_PORT": "0",
    "ALERTMANAGER_PORT": "0",
}


@pytest.fixture
def spare(stack: Stack, tmp_path: Path) -> Stack:
    """A second copy of the project, set up like the first, with ports of its own, not started."""
    home = tmp_path / "spare"
    stack.run("cp", "--archive", str(stack.home), str(home))
    project = f"{stack.project}-spare"
    subnets = {"EDGE_SUBNET": "172.29.242.0/24", "LOOPBACK_SUBNET": "172.29.243.0/24"}
    write_env(home / ".env", {"COMPOSE_PROJECT_NAME": project, **PORTS, **subnets})
    return Stack(home, project, stack.environment, stack.ports, stack.hook)


def refusal(spare: Stack, environment: Mapping[str, str] | None = None) -> str:
    """The one line that `make up` ends with."""
    done = replace(spare, environment={**spare.environment, **(environment or {})}).ops("up", check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "Traceback" not in output
    assert spare.compose("ps", "--all", "--quiet") == ""
    return done.stderr.strip().splitlines()[-1]


def only(tmp_path: Path, **programs: str) -> str:
    """A PATH on which nothing is found but these programs, each an executable or the text of a script."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, program in programs.items():
        if program.startswith("#!"):
            (folder / name).write_text(program)
            (folder / name).chmod(0o755)
        else:
            (folder / name).symlink_to(program)
    return str(folder)


def docker_program(stack: Stack) -> str:
    return stack.run(sys.executable, "-c", "import shutil; print(shutil.which('docker'))").stdout.strip()


def test_without_docker_it_says_how_to_install_it(spare: Stack, tmp_path: Path) -> None:
    line = refusal(spare, {"PATH": only(tmp_path)})
    assert "Docker" in line
    assert "install" in line.lower()


def test_without_a_running_engine_it_says_how_to_start_it(spare: Stack, tmp_path: Path) -> None:
    line = refusal(spare, {"DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"})
    assert "Docker" in line
    assert "start" in line.lower()


def test_without_a_gpu_it_names_the_driver_and_the_stand_in(spare: Stack, tmp_path: Path) -> None:
    write_env(spare.home / ".env", {"COMPOSE_FILE": "compose.yaml"})
    line = refusal(spare, {"PATH": only(tmp_path, docker=docker_program(spare))})
    assert "No NVIDIA GPU" in line
    assert "compose.standin.yaml" in line


def test_without_dockers_nvidia_runtime_it_names_the_toolkit(spare: Stack, tmp_path: Path) -> None:
    write_env(spare.home / ".env", {"COMPOSE_FILE": "compose.yaml"})
    smi = "#!/bin/sh\necho 'NVIDIA GeForce RTX 3090, 24576, 590.44.01'\n"
    line = refusal(spare, {"PATH": only(tmp_path, docker=docker_program(spare), **{"nvidia-smi": smi})})
    assert "nvidia-container-toolkit" in line


def test_an_image_that_cannot_be_had_is_named(spare: Stack) -> None:
    absent = "gatehouse-registry.invalid/prometheus:v0"
    override = spare.home / "absent.yaml"
    override.write_text(f"services:\n  prometheus:\n    image: {absent}\n")
    write_env(spare.home / ".env", {"COMPOSE_FILE": "compose.yaml:compose.standin.yaml:absent.yaml"})
    assert absent in refusal(spare)


def test_a_port_that_is_taken_is_named_with_its_variable(stack: Stack, spare: Stack) -> None:
    write_env(spare.home / ".env", {"HTTPS_PORT": str(stack.ports["HTTPS_PORT"])})
    line = refusal(spare)
    assert str(stack.ports["HTTPS_PORT"]) in line
    assert "HTTPS_PORT" in line


def test_a_missing_secret_is_named_with_the_command_that_makes_it(spare: Stack) -> None:
    (spare.home / "secrets" / "key_pepper").unlink()
    line = refusal(spare)
    assert "key_pepper" in line
    assert "make setup" in line


def test_compose_alone_says_what_to_do_before_setup(spare: Stack) -> None:
    (spare.home / ".env").unlink()
    done = spare.run("docker", "compose", "up", "--detach", check=False)
    assert done.returncode != 0
    assert "make setup" in done.stderr
