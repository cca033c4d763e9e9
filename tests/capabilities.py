"""What a test may need beside Python: a Docker engine, promtool, a real vLLM.

A test names its need with ``@pytest.mark.requires("docker")`` (a module with
``pytestmark = pytest.mark.requires("docker")``). Each capability is provided by the executable
``tests/provide/<name>``, which is run once per test session, before the first test, and

- exits 0 when the thing is there, having installed it if that was possible; every line ``NAME=value`` on
  its standard output is handed to the tests by the fixture ``capability``: ``capability("docker")["NAME"]``;
- exits otherwise when it cannot be had; the last line on its standard error says why, and how to get it.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
PROVIDERS = ROOT / "tests" / "provide"
TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True)
class Provided:
    """The outcome of one provider: what it offers, or why it offers nothing."""

    name: str
    offers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    missing: str | None = None


@dataclass(frozen=True)
class Capabilities:
    """Runs each provider at most once; `say` gets one line per provider."""

    say: Callable[[str], None]
    providers: Path = PROVIDERS
    timeout: float = TIMEOUT_SECONDS
    seen: dict[str, Provided] = field(default_factory=dict)

    def get(self, name: str) -> Provided:
        """The capability's outcome; the provider runs on the first call only."""
        if name not in self.seen:
            started = time.monotonic()
            found = run_provider(self.providers / name, self.timeout)
            self.seen[name] = found
            self.say(f"{name}: {found.missing or 'ready'} ({time.monotonic() - started:.0f} s)")
        return self.seen[name]


def run_provider(script: Path, timeout: float) -> Provided:
    """Runs one provider, for at most `timeout` seconds."""
    name = script.name
    if not os.access(script, os.X_OK):
        return Provided(name, missing=f"nothing provides {name}: {script} is no executable file")
    logs = ROOT / "build" / "provide"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{name}.lock").open("w") as lock:
        # Test processes side by side (pytest-xdist, two terminals) must not install the same thing at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return outcome(script, timeout, logs / f"{name}.out", logs / f"{name}.err")


def outcome(script: Path, timeout: float, out: Path, err: Path) -> Provided:
    """Output goes to files, so that a service which the provider leaves running can't hold a pipe open."""
    name = script.name
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [script], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, process_group=0
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Provided(name, missing=f"{name} was not ready after {timeout:.0f} s (see {err})")
        finally:
            # Too late, or interrupted: what it has started for itself goes with it.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code != 0:
        return Provided(name, missing=last_line(err) or f"{script} failed ({code}), without a word")
    pairs = (line.partition("=") for line in out.read_text(errors="replace").splitlines())
    offers = {key: value for key, eq, value in pairs if eq and key.isidentifier()}
    return Provided(name, MappingProxyType(offers))


def last_line(path: Path) -> str:
    """The last line of a log that is not blank, or an empty string."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")
