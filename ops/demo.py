"""`make demo`: the gateway here, in front of a stand-in engine, until Ctrl-C. Leaves nothing behind."""

import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated

import httpx2
import typer

from ops.errors import OpsError

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"
PREFERRED_PORT = 8080
MODEL = "qwen2.5-14b-instruct-awq"
ALIAS = "demo"
START_SECONDS = 30.0
# Streams get a moment to end; a demo that is told to stop should be gone in a few seconds.
DRAIN_SECONDS = 1
KILL_AFTER_SECONDS = 5.0
POLL_SECONDS = 0.05
LOG_LINES = 15


class StopAsked(Exception):
    """Someone asked the demo to stop; raised only between steps, so no step is cut in half."""


@dataclass
class Stop:
    """Remembers that a signal asked to stop. The handler sets a flag and nothing else.

    An exception out of a signal handler could fall between the start of a child and the note of its pid,
    or into the clean-up.
    """

    asked: bool = False

    def __call__(self, _signum: int, _frame: FrameType | None) -> None:
        self.asked = True

    def check(self) -> None:
        if self.asked:
            raise StopAsked


@dataclass
class Child:
    """One process of the demo, with a log of its own.

    It is in a process group of its own: Ctrl-C is for the demo, which then stops its children in order.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raises OpsError, with the end of its log, if the process is gone."""
        code = self.process.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise OpsError(
                f"The {self.name} stopped by itself (exit code {code}).",
                "\n  ".join(["Its log ends:", *lines]),
            )

    def end(self) -> None:
        """SIGTERM, and SIGKILL for what is still there after `KILL_AFTER_SECONDS`."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(KILL_AFTER_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@dataclass
class Demo:
    """The demo's files, all under `home`, and its processes."""

    home: Path
    stop: Stop
    children: list[Child] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        log = self.home / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raises StopAsked, or OpsError if a child is gone."""
        self.stop.check()
        for child in self.children:
            child.check()

    def ports(self, child: Child, ready_file: Path) -> dict[str, int]:
        """What the ready file says, once it is there."""
        deadline = time.monotonic() + START_SECONDS
        while not ready_file.exists():
            self.check()
            if time.monotonic() > deadline:
                raise OpsError(
                    f"The {child.name} is not up after {START_SECONDS:.0f} s.",
                    "Is the machine busy? Try again.",
                )
            time.sleep(POLL_SECONDS)
        ready: dict[str, int] = json.loads(ready_file.read_text())
        return ready

    def end(self) -> None:
        while self.children:
            self.children.pop().end()


def demo(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; another free one if it is taken.")
    ] = PREFERRED_PORT,
) -> None:
    """Run the gateway here, without Docker or a GPU, in front of a stand-in engine."""
    try:
        with stop_signals() as stop:
            run(port, stop, say)
    except StopAsked:
        say("\nStopped. Nothing is left.\n")


def run(port: int, stop: Stop, tell: Callable[[str], None]) -> None:
    """Starts all, tells how to use it, and watches until StopAsked (or OpsError) is raised."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatehouse-demo-")))
        running = Demo(home, stop)
        stack.callback(running.end)
        base_url, key = start(running, port)
        tell(introduction(base_url, key))
        for text in answer(base_url, key):
            running.check()
            tell(text)
        tell("\n\nCtrl-C stops it and removes everything it made.\n")
        while True:
            running.check()
            time.sleep(POLL_SECONDS)


def start(running: Demo, port: int) -> tuple[str, str]:
    """Starts the stand-in engine and the gateway, and creates a key. Returns the base URL and the key."""
    home = running.home
    token = write_secrets(home / "secrets")
    engine_ready, gateway_ready = home / "engine.json", home / "gateway.json"
    engine = running.start(
        "stand-in engine",
        [
            *("standin", "--host", LOOPBACK, "--port", "0", "--ready-file", str(engine_ready)),
            *("--served-model-name", MODEL, "--api-key-file", str(home / "secrets" / "engine_api_key")),
            *("--delay", "0.02", "--embeddings"),
        ],
        os.environ,
    )
    engine_port = running.ports(engine, engine_ready)["port"]
    gateway = running.start(
        "gateway", ["gateway"], gateway_environment(home, port, engine_port, gateway_ready)
    )
    import_module("openai")  # now: it takes as long as the gateway does, and there are two cores
    ports = running.ports(gateway, gateway_ready)
    return f"http://{LOOPBACK}:{ports['public']}/v1", create_key(ports["admin"], token)


def write_secrets(directory: Path) -> str:
    """Fresh secrets for this run, readable by this user alone. Returns the admin token."""
    directory.mkdir(mode=0o700)
    token = secrets.token_urlsafe(48)
    values = {
        "admin_token": token,
        "key_pepper": secrets.token_urlsafe(48),
        "engine_api_key": secrets.token_urlsafe(48),
    }
    for name, value in values.items():
        path = directory / name
        path.touch(mode=0o600)
        path.write_text(value)
    return token


def gateway_environment(home: Path, port: int, engine_port: int, ready_file: Path) -> dict[str, str]:
    """The gateway's settings for the demo, and none of the caller's own."""
    data, profile, upstreams = home / "data", home / "profile.yaml", home / "upstreams.yaml"
    data.mkdir()
    # YAML is a superset of JSON.
    profile.write_text(json.dumps({"served-model-name": [MODEL], "max-model-len": 8192, "max-num-seqs": 4}))
    engine = {"name": "standin", "url": f"http://{LOOPBACK}:{engine_port}", "key_file": "engine_api_key"}
    upstreams.write_text(json.dumps({"upstreams": [engine]}))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return inherited | {
        "GATEWAY_HOST": LOOPBACK,
        "GATEWAY_PORT": str(port if is_free(port) else 0),
        "GATEWAY_METRICS_PORT": "0",
        "GATEWAY_ADMIN_PORT": "0",
        "GATEWAY_DATA_DIR": str(data),
        "GATEWAY_SECRETS_DIR": str(home / "secrets"),
        "GATEWAY_ENGINE_PROFILE": str(profile),
        "GATEWAY_UPSTREAMS_FILE": str(upstreams),
        "GATEWAY_PLANS_FILE": str(ROOT / "gateway" / "config" / "plans.yaml"),
        "GATEWAY_MODEL_ALIASES": json.dumps({ALIAS: MODEL}),
        "GATEWAY_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "GATEWAY_READY_FILE": str(ready_file),
    }


def is_free(port: int) -> bool:
    """Whether the gateway could listen on the port."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def create_key(admin_port: int, token: str) -> str:
    """A key from the admin API. Raises OpsError if there is none."""
    try:
        with httpx2.Client(trust_env=False) as client:
            reply = client.post(
                f"http://{LOOPBACK}:{admin_port}/admin/keys",
                json={"name": "demo"},
                headers={"Authorization": f"Bearer {token}"},
            )
            reply.raise_for_status()
    except httpx2.HTTPError as error:
        raise OpsError("The gateway made no key:", str(error)) from error
    key: str = reply.json()["key"]
    return key


def answer(base_url: str, key: str) -> Iterator[str]:
    """The pieces of one streamed answer, as the official SDK gives them. Raises OpsError."""
    import openai  # noqa: PLC0415 - `start` has imported it meanwhile

    try:
        with openai.DefaultHttpxClient(trust_env=False) as http:
            client = openai.OpenAI(base_url=base_url, api_key=key, http_client=http, max_retries=0)
            with client.chat.completions.create(
                model=ALIAS, messages=[{"role": "user", "content": "Hello!"}], stream=True
            ) as stream:
                for chunk in stream:
                    yield from (choice.delta.content or "" for choice in chunk.choices)
    except openai.OpenAIError as error:
        raise OpsError("The gateway gave no answer:", str(error)) from error


def introduction(base_url: str, key: str, python: str = sys.executable) -> str:
    """How to use what runs, to be pasted into another terminal."""
    return f"""
Gatehouse runs on this machine only, in front of a stand-in engine: the words are made up, all else is real.

OPENAI_BASE_URL={base_url}
OPENAI_API_KEY={key}

With curl, from another terminal:

curl -N {base_url}/chat/completions \\
  -H "Authorization: Bearer {key}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{ALIAS}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

With the official Python SDK:

{shlex.quote(python)} - <<'EOF'
from openai import OpenAI

client = OpenAI(
    base_url="{base_url}",
    api_key="{key}",
)
stream = client.chat.completions.create(
    model="{ALIAS}", messages=[{{"role": "user", "content": "Hello!"}}], stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
EOF

An answer, streamed just now:

"""


def say(text: str) -> None:
    print(text, end="", flush=True)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Turns SIGINT, SIGTERM and SIGHUP into a flag. A SIGHUP that is ignored (nohup) stays ignored."""
    stop = Stop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
