"""The command line: what is printed, where, and with which exit code."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from ops.commands import HostCommands, Result
from tests.capabilities import ROOT
from tests.unit.ops.conftest import Checkout, Terminal
from tests.unit.ops.fake_commands import DAEMON_DOWN, NO_COMPOSE

READINESS = "docker compose exec -T gateway python -c"


def container(service: str, state: str = "running", health: str = "healthy", code: int = 0) -> dict[str, Any]:
    return {"Service": service, "State": state, "Health": health, "ExitCode": code, "Image": f"{service}:1"}


def lines(*containers: dict[str, Any]) -> str:
    return "\n".join(json.dumps(entry) for entry in containers)


def test_an_expected_failure_is_one_line_on_stderr_with_code_1(
    checkout: Checkout, terminal: Terminal
) -> None:
    checkout.commands.on("docker info", DAEMON_DOWN)
    code, out, errors = terminal.run("status")
    assert (code, out) == (1, "")
    assert errors == "error: The Docker daemon does not answer. Start it: sudo systemctl start docker\n"


@pytest.mark.parametrize(
    "arguments", [["nope"], ["keys", "create"], ["logs", "--tail", "-1"], ["up", "--nope"]]
)
def test_wrong_usage_is_code_2(terminal: Terminal, arguments: list[str]) -> None:
    code, _, errors = terminal.run(*arguments)
    assert code == 2
    assert "Usage" in errors


def test_an_interrupt_is_code_130(checkout: Checkout, terminal: Terminal) -> None:
    checkout.commands.on("docker compose down", KeyboardInterrupt)
    code, _, errors = terminal.run("down")
    assert code == 130
    assert "run it again" in errors


def test_a_file_that_cannot_be_read_is_one_line(checkout: Checkout, terminal: Terminal) -> None:
    (checkout.root / ".env").unlink()
    (checkout.root / ".env").mkdir()
    code, _, errors = terminal.run("setup")
    assert code == 1
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


def test_setup_can_be_repeated(terminal: Terminal) -> None:
    code, out, _ = terminal.run("setup")
    assert code == 0
    assert "left .env as it is" in out


def test_status_shows_services_and_the_gateways_readiness(checkout: Checkout, terminal: Terminal) -> None:
    done = container("engine-dirs", "exited", "")
    checkout.commands.on("docker compose ps", out=lines(done, container("vllm"), container("gateway")))
    checkout.commands.on(READINESS, out='{"status": "degraded", "reasons": ["store down"]}\n')
    code, out, _ = terminal.run("status")
    assert code == 0
    assert "gateway: degraded (store down)" in out
    code, out, _ = terminal.run("status", "--json")
    assert [service["service"] for service in json.loads(out)["services"]] == [
        "engine-dirs",
        "gateway",
        "vllm",
    ]
    assert code == 0


@pytest.mark.parametrize(
    ("containers", "readiness"),
    [
        ([container("vllm", health="unhealthy"), container("gateway")], '{"status": "ready"}'),
        ([container("caddy", "exited", "", 1), container("gateway")], '{"status": "ready"}'),
        ([container("gateway")], '{"status": "unavailable", "reasons": ["no engine answers"]}'),
        ([container("gateway")], "no JSON"),
        ([container("vllm")], ""),
        ([], ""),
    ],
)
def test_status_is_code_1_while_something_is_wrong(
    checkout: Checkout, terminal: Terminal, containers: list[dict[str, Any]], readiness: str
) -> None:
    checkout.commands.on("docker compose ps", out=lines(*containers))
    checkout.commands.on(READINESS, out=readiness)
    assert terminal.run("status")[0] == 1


def test_nothing_running_names_the_command(checkout: Checkout, terminal: Terminal) -> None:
    checkout.commands.on("docker compose ps", out="")
    assert "nothing runs: make up" in terminal.run("status")[1]


def test_the_certificate_is_written_and_explained(checkout: Checkout, terminal: Terminal) -> None:
    code, out, _ = terminal.run("ca")
    path = checkout.root / "build" / "ca" / "root.crt"
    assert code == 0
    assert path.stat().st_mode & 0o777 == 0o644
    assert f"SSL_CERT_FILE={path}" in out
    for system in ("Debian", "macOS", "Windows", "Node.js"):
        assert system in out
    assert json.loads(terminal.run("ca", "--json")[1]) == {"path": str(path)}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (Result(1, err='service "caddy" is not running\n'), "Caddy is not running"),
        (
            Result(1, err="cat: can't open '/data/x': No such file or directory\n"),
            "not made its authority yet",
        ),
        (Result(0, "garbage"), "is not one"),
        (NO_COMPOSE, "no compose plugin"),
    ],
)
def test_a_certificate_that_cannot_be_had_is_said(
    checkout: Checkout, terminal: Terminal, result: Result, message: str
) -> None:
    checkout.commands.on("docker compose exec -T caddy cat", result)
    code, _, errors = terminal.run("ca")
    assert code == 1
    assert message in errors


def test_with_a_public_certificate_there_is_nothing_to_trust(checkout: Checkout, terminal: Terminal) -> None:
    with (checkout.root / ".env").open("a") as env:
        env.write("TLS_MODE=acme\n")
    assert "nothing to trust" in terminal.run("ca")[2]


def test_logs_and_down_go_to_compose(checkout: Checkout, terminal: Terminal) -> None:
    checkout.commands.on("docker compose logs")
    checkout.commands.on("docker compose down")
    assert terminal.run("logs", "caddy", "--no-follow", "--tail", "5")[0] == 0
    assert checkout.commands.ran("docker compose logs")[0][3:] == ["--tail", "5", "caddy"]
    assert terminal.run("down")[0] == 0
    assert "kept in their volumes" in terminal.run("down")[1]
    assert checkout.commands.ran("docker compose down")[0][3:] == ["--remove-orphans"]
    checkout.commands.on("docker compose logs", Result(1))
    checkout.commands.on("docker compose down", Result(1))
    assert terminal.run("logs")[0] == terminal.run("down")[0] == 1


def test_model_goes_to_the_container_or_to_a_directory(checkout: Checkout, terminal: Terminal) -> None:
    commands = checkout.commands
    commands.on_json("docker compose --profile model config", {"services": {"model": {"image": "m:1"}}})
    commands.on("docker image inspect")
    commands.on("docker compose --profile model run")
    assert terminal.run("model", "--verify")[0] == 0
    assert commands.ran("docker compose --profile model run")[0][-1] == "--verify"
    commands.on(sys.executable)
    assert terminal.run("model", "--host-dir", str(checkout.root / "models"))[0] == 0
    assert commands.environs[-1]["MODEL_DIR"] == str(checkout.root / "models")


def test_up_takes_its_options(checkout: Checkout, terminal: Terminal) -> None:
    commands = checkout.commands
    commands.on_json(
        "docker compose config", {"services": {"vllm": {"image": "s:1", "build": {"context": "."}}}}
    )
    for command in ("docker ps", "ss", "docker compose build", "docker compose up"):
        commands.on(command)
    code, out, _ = terminal.run("up", "--build", "--no-wait")
    assert (code, out.splitlines()[-1]) == (0, "starting the stack")
    assert commands.ran("docker compose build")


def test_help_of_the_demo_is_its_own(terminal: Terminal) -> None:
    code, out, _ = terminal.run("demo", "--help")
    assert code == 0
    assert "--port" in out


def test_python_m_ops_is_this_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ops", "nope"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_command_line_starts_in_half_a_second_of_work() -> None:
    """In processor time, which other processes on the machine do not stretch."""
    code = "import time, ops.cli; print(time.process_time())"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert float(out) < 0.5


def test_real_programs_are_run_captured_followed_and_ended(checkout: Checkout) -> None:
    commands = HostCommands(checkout.root, {"PATH": "/usr/bin:/bin"})
    assert commands.run(["sh", "-c", "cat; echo bad >&2; exit 3"], stdin="in") == Result(3, "in", "bad\n")
    assert commands.run(["no-such-program"]).code == 127
    assert commands.show(["no-such-program"]).code == 127
    assert commands.attach(["no-such-program"]) == 127
    assert commands.run(["sleep", "5"], timeout=0.1).code == 124
    assert commands.show(["sh", "-c", "echo bad >&2; exit 4"]) == Result(4, err="bad\n")
    assert commands.attach(["sh", "-c", 'exit "$CODE"'], {"CODE": "7"}) == 7
    started = time.monotonic()
    with commands.follow(["sh", "-c", "echo one; echo two >&2; exec sleep 30"]) as followed:
        assert {next(followed), next(followed)} == {"one\n", "two\n"}
    assert time.monotonic() - started < 10
