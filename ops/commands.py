"""The seam to other programs: everything this package runs goes through a `Commands`."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NOT_FOUND = 127
TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Result:
    """What a program said. `code` is its exit status: 127 if it does not exist, 124 if it took too long."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


class Commands(Protocol):
    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60) -> Result:
        """Runs to the end, `timeout` seconds at most, and captures both streams."""

    def show(self, argv: Sequence[str]) -> Result:
        """Runs with standard output on the terminal, for its progress; captures errors, to explain them."""

    def attach(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
        """Runs with the terminal as its own, `environ` added. Returns the exit status."""

    def follow(self, argv: Sequence[str]) -> AbstractContextManager[Iterator[str]]:
        """Lines of both streams as they come; the program ends with the block."""


class HostCommands:
    """Runs programs on this host, in `directory`."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory, self._environ = directory, dict(environ)

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60) -> Result:
        if self._find(argv) is None:
            return Result(NOT_FOUND, err=f"{argv[0]}: not found")
        try:
            done = subprocess.run(
                argv,
                cwd=self._directory,
                env=self._environ,
                input=stdin if stdin is not None else "",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Result(TIMED_OUT, err=f"{argv[0]} took longer than {timeout:.0f} s")
        return Result(done.returncode, done.stdout, done.stderr)

    def show(self, argv: Sequence[str]) -> Result:
        if self._find(argv) is None:
            return Result(NOT_FOUND, err=f"{argv[0]}: not found")
        with subprocess.Popen(
            argv, cwd=self._directory, env=self._environ, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            _, errors = process.communicate()
        return Result(process.returncode, err=errors)

    def attach(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
        if self._find(argv) is None:
            return NOT_FOUND
        with subprocess.Popen(argv, cwd=self._directory, env={**self._environ, **(environ or {})}) as process:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal sent it the same signal: let it end in its own way, then pass it on.
                process.wait()
                raise

    @contextmanager
    def follow(self, argv: Sequence[str]) -> Iterator[Iterator[str]]:
        with subprocess.Popen(
            argv,
            cwd=self._directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            try:
                yield iter(process.stdout or ())
            finally:
                process.terminate()

    def _find(self, argv: Sequence[str]) -> str | None:
        return shutil.which(argv[0], path=self._environ.get("PATH"))
