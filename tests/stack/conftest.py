"""Starts the true compose.yaml once, from a copy of the project, and takes it away at the end."""

import json
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.capabilities import ROOT
from tests.stack import outside, receiver
from tests.stack.client import Client
from tests.stack.stack import Stack, until

COMPOSE_FILES = "compose.yaml:compose.standin.yaml:tests/stack/compose.test.yaml"
# What the stack's networks get: the two with fixed subnets, and the pool of the test bed's engine.
SUBNETS = {"EDGE_SUBNET": "172.29.240.0/24", "LOOPBACK_SUBNET": "172.29.241.0/24"}
ADDRESSES = ("172.29.240.0/22", "172.30.0.0/16")
TESTBED = Path(__file__).with_name("testbed")
# With the number of the process that runs the tests, the names of what it makes.
PROJECT = "gatehouse-test-"
MACHINE = "gh"
PORTS = ("HTTP_PORT", "HTTPS_PORT", "VLLM_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.requires("docker"))
            # The first test waits for the build and the start of the whole stack.
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def another_machine(docker: Mapping[str, str]) -> Iterator[outside.Outside]:
    with outside.machine(f"{MACHINE}{os.getpid()}") as machine, outside.own_addresses_only(ADDRESSES):
        yield machine


@pytest.fixture(scope="session")
def docker(capability: Callable[[str], Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """The environment in which `docker` talks to the test bed's engine, which ends as it was found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMPOSE_", "DOCKER_"))}
    environment = {**kept, **capability("docker")}
    remove_leftovers(environment)
    yield environment
    if environment["ENGINE_WAS"] == "not running":
        subprocess.run((TESTBED / "engine.sh", "stop"), check=True, capture_output=True)


def remove_leftovers(environment: Mapping[str, str]) -> None:
    """Stacks and outside machines of runs that were killed: they would hold addresses that this one needs."""
    listed = subprocess.run(
        ("docker", "compose", "ls", "--all", "--format", "json"),
        env=dict(environment),
        check=True,
        capture_output=True,
    ).stdout
    for project in (found["Name"] for found in json.loads(listed)):
        if project.startswith(PROJECT) and not is_running(project.removeprefix(PROJECT)):
            down = ("docker", "compose", "--project-name", project, "down", "--volumes", "--timeout", "1")
            subprocess.run(down, env=dict(environment), check=True, capture_output=True)
    for namespace in Path("/run/netns").glob(f"{MACHINE}*"):
        if not is_running(namespace.name.removeprefix(MACHINE)):
            outside.ip("netns", "del", namespace.name)


def is_running(owner: str) -> bool:
    """Whether a process has the number that `owner` begins with."""
    return Path("/proc", owner.partition("-")[0]).exists()


@pytest.fixture(scope="session")
def hook(another_machine: outside.Outside) -> Iterator[str]:
    """Where alerts go: a receiver on another machine."""
    process = subprocess.Popen(
        another_machine.command(sys.executable, Path(receiver.__file__)), stderr=subprocess.DEVNULL
    )
    yield f"http://{another_machine.address}:{receiver.PORT}/"
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone of the project would hold, uncommitted changes included."""
    home = tmp_path_factory.mktemp("checkout")
    copy_project(home)
    return home


def copy_project(home: Path) -> None:
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, home / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@pytest.fixture(scope="session")
def stack(checkout: Path, docker: Mapping[str, str], hook: str) -> Iterator[Stack]:
    ports = {name: free_port() for name in PORTS}
    stack = Stack(checkout, f"{PROJECT}{os.getpid()}", docker, ports, hook)
    stack.ops("setup")
    write_env(
        checkout / ".env",
        {
            **{name: str(port) for name, port in ports.items()},
            "COMPOSE_FILE": COMPOSE_FILES,
            "COMPOSE_PROJECT_NAME": stack.project,
            **SUBNETS,
            "ALERT_WEBHOOK_URL": hook,
        },
    )
    stack.ops("setup")
    change(checkout, "gateway/config/plans.yaml", {r"requests_per_minute: 60$": "requests_per_minute: 600"})
    hurry_alerts(checkout)
    with ExitStack() as at_end:
        at_end.callback(
            stack.compose, "--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5"
        )
        began = time.monotonic()
        stack.compose("build", timeout=500)
        built = time.monotonic()
        stack.ops("up")
        stack.compose("up", "--detach", "--wait", timeout=240)
        print(f"\nbuild {built - began:.0f} s, start {time.monotonic() - built:.0f} s")
        yield stack


def free_port() -> int:
    """A port below the range that the kernel itself hands out: nobody gets it by chance before it is used."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port


def write_env(path: Path, settings: Mapping[str, str]) -> None:
    """Sets variables in an .env file; the last line that names one wins in compose and in ours."""
    lines = [line for line in path.read_text().splitlines() if line.partition("=")[0] not in settings]
    path.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in settings.items())]) + "\n")


def hurry_alerts(home: Path) -> None:
    """The copy's rules and scrapes in seconds instead of minutes; what they ask and compare stays."""
    changes = {
        "prometheus/prometheus.yml": {
            r"(scrape_interval|scrape_timeout|evaluation_interval): \S+": r"\1: 2s",
        },
        "prometheus/rules/alerts.yml": {r"\bfor: \S+": "for: 4s"},
        "secrets/alertmanager.yml": {r"(group_wait|group_interval): \S+": r"\1: 2s"},
    }
    for name, expressions in changes.items():
        change(home, name, expressions)


def change(home: Path, name: str, expressions: Mapping[str, str]) -> None:
    """Replaces what these expressions find in one of the copy's files; each must find something."""
    text = (home / name).read_text()
    for expression, replacement in expressions.items():
        text, count = re.subn(expression, replacement, text, flags=re.MULTILINE)
        assert count, f"{name} holds nothing like {expression!r}"
    (home / name).write_text(text)


@pytest.fixture(scope="session")
def trust(stack: Stack) -> ssl.SSLContext:
    """What a client of this host must trust: the authority that `make ca` exports, and no other."""
    exported: str = json.loads(stack.ops("ca", "--json").stdout)["path"]
    return ssl.create_default_context(cafile=exported)


@pytest.fixture(scope="session")
def client(stack: Stack, trust: ssl.SSLContext) -> Client:
    return Client(stack.ports["HTTPS_PORT"], trust, stack.create_key("tests")["key"])


@pytest.fixture
def disturbed(stack: Stack) -> Iterator[Stack]:
    """The stack for a test that stops or kills something: whole again for the next one."""
    yield stack
    stack.compose("up", "--detach", "--wait")
    until("the gateway sees the engine", lambda: stack.value("min(gateway_upstream_up)") == 1, seconds=30)
