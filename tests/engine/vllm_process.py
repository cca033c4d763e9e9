"""A real vLLM in a process of its own."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2

SCRIPT = Path(__file__).parent / "vllm" / "serve.sh"
START_SECONDS = 180.0
END_SECONDS = 20.0
# Not the client's requests: what Prometheus and the gateway ask for themselves.
_OWN = ('handler="/metrics"', 'handler="/health"')


class VllmProcess:
    """Started by `start`, ended with everything it started by `stop`."""

    def __init__(self, version: str, log: Path, *, key: str, model: str) -> None:
        self.version = version
        self.key = key
        self.model = model
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it is healthy."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [SCRIPT, self.version, str(self.port), "--served-model-name", self.model],
                env=os.environ | {"VLLM_API_KEY": self.key},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            assert self._process.poll() is None, f"vLLM ended at start: see {self._log}"
            assert time.monotonic() < deadline, f"vLLM was not healthy in time: see {self._log}"
            time.sleep(0.25)

    def healthy(self) -> bool:
        """Whether GET /health answers 200."""
        try:
            return httpx2.get(f"{self.url}/health", timeout=2).status_code == 200
        except httpx2.TransportError:
            return False

    def stop(self) -> None:
        """End all that was started: also the engine core, if it has lost its parent."""
        if self._process is None:
            return
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while self._members() and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(0.1)
        self._signal_all(signal.SIGKILL)
        self._process.wait()

    def ensure_started(self) -> None:
        """Start it again if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()
            self.start()

    def core(self) -> int:
        """The process id of the engine core, in which the model runs."""
        cores = [pid for pid in self._members() if b"EngineCore" in _command(pid)]
        assert len(cores) == 1, f"{len(cores)} engine cores"
        return cores[0]

    def exit_code(self, seconds: float) -> int:
        """Wait for it to end by itself."""
        assert self._process
        return self._process.wait(seconds)

    def requests_seen(self) -> int:
        """Requests that reached a route, or none, so far; those without the key are not counted by vLLM."""
        return int(self._sum("http_requests_total"))

    def requests_running(self) -> int:
        """Requests that are computed or wait."""
        return int(self._sum("vllm:num_requests_running") + self._sum("vllm:num_requests_waiting"))

    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return int(self._sum("vllm:generation_tokens_total"))

    def prefix_hits(self) -> int:
        """Prompt tokens that were found in the prefix cache so far."""
        return int(self._sum("vllm:prefix_cache_hits_total"))

    def _sum(self, name: str) -> float:
        page = httpx2.get(f"{self.url}/metrics", timeout=10).text
        samples = re.findall(rf"^{re.escape(name)}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
        return sum(float(value) for labels, value in samples if not any(own in labels for own in _OWN))

    def _members(self) -> list[int]:
        """Every process that descends from the one that was started, from /proc."""
        assert self._process
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                fields = _stat(int(entry.name))
                if fields and int(fields[3]) == self._process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def _stat(pid: int) -> list[str]:
    """State, parent, process group, session, … of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
