"""The processes of a measurement: the engine, and what is put before it."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.load import Target
from standin.config import DEFAULT_MODEL

START_SECONDS = 30.0
STOP_SECONDS = 10.0
ROOT = Path(__file__).parent.parent

# The plan that is measured: every kind of limit, so that each is checked, and none that a load could meet.
PLANS = MappingProxyType(
    {
        "default_plan": "measured",
        "plans": {
            "measured": {
                "limits": {
                    "requests_per_minute": 10**9,
                    "tokens_per_minute": 10**12,
                    "parallel_requests": 10**6,
                    "tokens_per_day": 10**14,
                    "tokens_per_month": 10**14,
                },
                "output": {"cap": 4096, "default": 1024},
            }
        },
    }
)


class NotStarted(Exception):
    """A process did not come up; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class System:
    """Something that answers chat requests, and the process whose CPU it costs."""

    name: str
    pid: int
    target: Target

    def cpu_seconds(self) -> float:
        """User and system time of the whole process so far: its CPU clock, see clock_getcpuclockid(3)."""
        return time.clock_gettime((~self.pid << 3) | 2)


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the measured systems have, and which the rest; the same where there is but one."""

    measured: frozenset[int]
    rest: frozenset[int]

    @classmethod
    def of_this_machine(cls) -> "Cores":
        usable = sorted(os.sched_getaffinity(0))
        return cls(frozenset(usable[:1]), frozenset(usable[1:] or usable))


@contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """This process, and what it starts meanwhile, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def engine(folder: Path, tokens: int, cores: Cores) -> Iterator[System]:
    """The mock engine."""
    ready = folder / "engine.json"
    arguments = ["bench.mock_engine", "--tokens", str(tokens), "--ready-file", str(ready)]
    with on(cores.rest), _running(arguments, ready, os.environ) as ports:
        yield System("engine", ports["pid"], Target(ports["port"]))


@contextmanager
def bare_relay(
    folder: Path, client: str, engine_port: int, cores: Cores, *, name: str = ""
) -> Iterator[System]:
    """A bare relay on the named HTTP client; `name` is for the tables, the client's where it is empty."""
    ready = folder / f"relay-{client}.json"
    url = f"http://127.0.0.1:{engine_port}"
    arguments = ["bench.bare_relay", "--client", client, "--engine", url, "--ready-file", str(ready)]
    with on(cores.measured), _running(arguments, ready, os.environ) as ports:
        yield System(name or client, ports["pid"], Target(ports["port"]))


@contextmanager
def gateway(folder: Path, engine_port: int, cores: Cores) -> Iterator[System]:
    """The gateway as it is shipped, with a key that no limit stops; its access log goes to a file."""
    ready = folder / "gateway.json"
    environ = gateway_environment(folder, engine_port, ready)
    with on(cores.measured), _running(["gateway"], ready, environ) as ports:
        key = _create_key(ports["admin"], (folder / "admin_token").read_text())
        yield System("gateway", ports["pid"], Target(ports["public"], (("authorization", f"Bearer {key}"),)))


def gateway_environment(folder: Path, engine_port: int, ready: Path) -> Mapping[str, str]:
    """Writes the gateway's files into `folder`; the environment that points to them, and to nothing else."""
    for name in ("key_pepper", "admin_token", "engine_api_key"):
        (folder / name).write_text(secrets.token_urlsafe(32))
    profile = {"served-model-name": [DEFAULT_MODEL], "max-model-len": 8192, "max-num-seqs": 4}
    upstreams = {"upstreams": [{"name": "mock", "url": f"http://127.0.0.1:{engine_port}"}]}
    (folder / "profile.yaml").write_text(json.dumps(profile))  # JSON is YAML
    (folder / "upstreams.yaml").write_text(json.dumps(upstreams))
    (folder / "plans.yaml").write_text(json.dumps(dict(PLANS)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return MappingProxyType(
        kept
        | {
            "GATEWAY_HOST": "127.0.0.1",
            "GATEWAY_PORT": "0",
            "GATEWAY_METRICS_PORT": "0",
            "GATEWAY_ADMIN_PORT": "0",
            "GATEWAY_DATA_DIR": str(folder),
            "GATEWAY_SECRETS_DIR": str(folder),
            "GATEWAY_ENGINE_PROFILE": str(folder / "profile.yaml"),
            "GATEWAY_UPSTREAMS_FILE": str(folder / "upstreams.yaml"),
            "GATEWAY_PLANS_FILE": str(folder / "plans.yaml"),
            "GATEWAY_READY_FILE": str(ready),
        }
    )


def _create_key(admin_port: int, token: str) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{admin_port}/admin/keys",
        data=json.dumps({"name": "bench", "requests_per_minute": 1_000_000}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=STOP_SECONDS) as answer:
        return str(json.load(answer)["key"])


@contextmanager
def _running(
    arguments: Sequence[str], ready: Path, environ: Mapping[str, str]
) -> Iterator[Mapping[str, int]]:
    """`python -m ARGUMENTS` from its ready file on until the block ends. Raises NotStarted."""
    log = ready.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, env=environ, stdout=out, stderr=out
        )
    try:
        yield _wait_ready(process, ready, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> Mapping[str, int]:
    give_up = time.monotonic() + START_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise NotStarted(f"{process.args!r} did not start: {log.read_text()[-2000:]}")
        time.sleep(0.02)
    ports: dict[str, int] = json.loads(ready.read_text())
    return ports
