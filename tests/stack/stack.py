"""The running stack as a person with a shell on the host sees it: containers, ports, processes."""

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Opens a TCP connection and says whether it could; run in a container's network namespace.
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.5).close()"


def until(what: str, probe: Callable[[], T | None], *, seconds: float, every: float = 0.25) -> T:
    """The first truthy answer of `probe`, asked every `every` seconds; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s (last answer {answer!r})"
        time.sleep(every)


@dataclass(frozen=True)
class Stack:
    """A started copy of the project.

    `home` is its folder, `environment` what its commands run with, `ports` the published ports by name in
    .env, `hook` the address at which the alert receiver shows what it got.
    """

    home: Path
    project: str
    environment: Mapping[str, str]
    ports: Mapping[str, int]
    hook: str

    def run(
        self, *command: str | Path, check: bool = True, timeout: float = 240, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One command in the project's copy; with `check`, its output is shown when it fails."""
        done = subprocess.run(
            command, cwd=self.home, env=dict(self.environment), timeout=timeout, capture_output=True,
            text=True, input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{command} exited {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        return done

    def compose(self, *arguments: str, timeout: float = 240) -> str:
        return self.run("docker", "compose", *arguments, timeout=timeout).stdout

    def ops(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """What `make <name> ARGS=...` runs."""
        return self.run(sys.executable, "-m", "ops", *arguments, check=check)

    def create_key(self, name: str) -> dict[str, Any]:
        """A new API key's record with its `key`."""
        made: dict[str, Any] = json.loads(self.ops("keys", "create", "--name", name, "--json").stdout)
        return made

    @cached_property
    def config(self) -> dict[str, Any]:
        """The stack's definition as compose understands it."""
        found: dict[str, Any] = json.loads(self.compose("config", "--format", "json"))
        return found

    @property
    def services(self) -> list[str]:
        """Names of the services that stay up."""
        return sorted(self.compose("ps", "--services").split())

    def container(self, service: str) -> dict[str, Any]:
        """`docker inspect` of the service's one container, running or not."""
        identity = self.compose("ps", "--all", "--quiet", service).split()
        assert len(identity) == 1, f"{service}: containers {identity}"
        found: dict[str, Any] = json.loads(self.run("docker", "inspect", identity[0]).stdout)[0]
        return found

    def pid(self, service: str) -> int:
        """The container's first process, as the host numbers it."""
        return int(self.container(service)["State"]["Pid"])

    def healthy(self, service: str) -> bool:
        return bool(self.container(service)["State"].get("Health", {}).get("Status") == "healthy")

    def addresses(self, service: str) -> dict[str, str]:
        """The container's IPv4 address on each of its networks, by the network's name in compose.yaml."""
        networks = self.container(service)["NetworkSettings"]["Networks"]
        return {name.removeprefix(f"{self.project}_"): net["IPAddress"] for name, net in networks.items()}

    def connects(self, service: str, address: str, port: int) -> bool:
        """Whether a TCP connection opens from inside the service's network namespace."""
        inside = ("nsenter", f"--net=/proc/{self.pid(service)}/ns/net")
        return (
            self.run(*inside, sys.executable, "-c", CONNECT, address, str(port), check=False).returncode == 0
        )

    def get(self, port: str, path: str) -> bytes:
        """GET from one of the loopback ports; raises HTTPError for a status from 400."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}{path}", timeout=10) as reply:
            body: bytes = reply.read()
        return body

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query to Prometheus."""
        reply = self.get("PROMETHEUS_PORT", "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        samples: list[dict[str, Any]] = json.loads(reply)["data"]["result"]
        return samples

    def value(self, expression: str) -> float | None:
        """The value of a query that gives one sample; None when it gives none."""
        samples = self.query(expression)
        return float(samples[0]["value"][1]) if samples else None
