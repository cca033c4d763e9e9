"""The real Caddy with the project's own configuration, on free ports of 127.0.0.1."""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).resolve().parents[3]
CADDY = Path(sys.executable).parent / "caddy"
START_SECONDS = 20.0
BODY_CAP = 10_000


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def caddy(*arguments: str, env: Mapping[str, str], data: Path) -> "subprocess.CompletedProcess[str]":
    """One finished run of the binary, with nothing of this machine's own Caddy, if it has one."""
    return subprocess.run(
        [str(CADDY), *arguments], env=environment(env, data), capture_output=True, text=True, check=False
    )


def environment(env: Mapping[str, str], data: Path) -> dict[str, str]:
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(data),
        "XDG_DATA_HOME": str(data),
        "XDG_CONFIG_HOME": str(data),
    }
    return own | dict(env)


@dataclass(frozen=True)
class Caddy:
    config: Path
    env: Mapping[str, str]
    data: Path
    output: Path
    process: "subprocess.Popen[bytes]"

    @property
    def https(self) -> int:
        return int(self.env["CADDY_HTTPS_PORT"])

    @property
    def http(self) -> int:
        return int(self.env["CADDY_HTTP_PORT"])

    @property
    def url(self) -> str:
        return f"https://localhost:{self.https}"

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """Believes this Caddy's own authority and nobody else."""
        return ssl.create_default_context(cafile=str(self.data / "caddy/pki/authorities/local/root.crt"))

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, verify=self.trust, timeout=20)

    def raw(self, request: bytes, *, server_name: str = "localhost", connect: str = "127.0.0.1") -> bytes:
        """The whole answer to bytes sent as they are, which no HTTP client tidies up first."""
        with socket.create_connection((connect, self.https), timeout=20) as plain:
            with self.trust.wrap_socket(plain, server_hostname=server_name) as connection:
                connection.sendall(request)
                return _read_all(connection)

    def logs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def reload(self) -> "subprocess.CompletedProcess[str]":
        return caddy(
            "reload", "--force", "--address", self.env["CADDY_ADMIN"], "--config", str(self.config),
            "--adapter", "caddyfile", env=self.env, data=self.data,
        )  # fmt: skip


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def site_environment(gateway: str, grafana: str, **more: str) -> dict[str, str]:
    """The variables of caddy/Caddyfile, its ports free ones."""
    http, https, admin, metrics = free_ports(4)
    return {
        "SITE_ADDRESS": "localhost",
        "SITE_DEFAULT_ADDRESS": "localhost",
        "TLS_MODE": "internal",
        "HTTPS_PORT": str(https),
        "CADDY_HTTP_PORT": str(http),
        "CADDY_HTTPS_PORT": str(https),
        "CADDY_ADMIN": f"localhost:{admin}",
        "CADDY_METRICS_PORT": str(metrics),
        "GATEWAY_ADDRESS": gateway,
        "GRAFANA_ADDRESS": grafana,
        "GATEWAY_MAX_BODY_BYTES": str(BODY_CAP),
    } | more


@contextmanager
def running_caddy(config: str, env: Mapping[str, str], data: Path, *, health_port: int) -> Iterator[Caddy]:
    """Caddy with one of the project's configurations, from when it is healthy and has its certificates."""
    output = data / "caddy.log"
    path = ROOT / "caddy" / config
    with output.open("wb") as log:
        process = subprocess.Popen(
            [str(CADDY), "run", "--config", str(path), "--adapter", "caddyfile"],
            env=environment(env, data), stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            _wait_for(lambda: _healthy(health_port), process, output)
            if "CADDY_HTTPS_PORT" in env:
                names = env["SITE_ADDRESS"].replace(",", " ").split()
                _wait_for(
                    lambda: all(_shakes_hands(int(env["CADDY_HTTPS_PORT"]), n) for n in names),
                    process,
                    output,
                )
            yield Caddy(path, env, data, output, process)
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline or process.poll() is not None:
            raise AssertionError(f"caddy did not start:\n{output.read_text()}")
        time.sleep(0.05)


def _healthy(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=1).status_code == 200
    except httpx2.TransportError:
        return False


def _shakes_hands(port: int, name: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            with context.wrap_socket(plain, server_hostname=name):
                return True
    except OSError:
        return False
