"""A real Valkey server, which can be frozen, killed and started again."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

START_SECONDS = 10.0
PASSWORD = "a-password"


class ValkeyServer:
    """Listens on loopback, keeps nothing on disk. `offers`: what tests/provide/valkey printed."""

    def __init__(self, offers: Mapping[str, str]) -> None:
        self._command = offers["VALKEY_COMMAND"]
        self._home = tempfile.TemporaryDirectory(prefix="gatehouse-valkey-")
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"valkey://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns once it answers."""
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", PASSWORD)
        nothing_kept = ("--save", "", "--appendonly", "no", "--dir", self._home.name)
        with (Path(self._home.name) / "log").open("ab") as log:
            self._process = subprocess.Popen([self._command, *options, *nothing_kept], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert self._process.poll() is None, "Valkey ended"
                assert time.monotonic() < deadline, "Valkey did not start"
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """SIGKILL: what it held is gone."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Its connections stay, and nothing answers."""
        assert self._process
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._home.cleanup()
