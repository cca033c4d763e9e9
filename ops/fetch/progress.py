"""Progress as plain lines, which read the same in a terminal, in a container and in a log."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

GIB = 1024**3
MIB = 1024**2


def size_text(count: float) -> str:
    """`count` bytes for people."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def progress_text(done: int, total: int, bytes_per_second: float) -> str:
    """One line: how much of `total` bytes is there, how fast it grows, how long the rest takes."""
    share = 100 * done // total if total else 100
    line = f"{size_text(done)} of {size_text(total)} ({share} %), {size_text(bytes_per_second)}/s"
    if bytes_per_second <= 0:
        return line
    left = (total - done) / bytes_per_second
    return f"{line}, {left / 60:.0f} min left" if left >= 90 else f"{line}, {left:.0f} s left"


def bytes_in(directory: Path) -> int:
    """Bytes of the files in `directory`, finished or not."""
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed by a download just now
            continue
    return total


class Progress:
    """Says every `interval` seconds how far the files in `directory` have grown, while the block runs.

    It looks at the disk, so it needs no hook in the libraries that download.
    """

    def __init__(
        self, directory: Path, total: int, say: Callable[[str], None], interval: float = 5.0
    ) -> None:
        self._directory, self._total, self._say, self._interval = directory, total, say, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before, at = bytes_in(self._directory), time.monotonic()
        while not self._stop.wait(self._interval):
            now, clock = bytes_in(self._directory), time.monotonic()
            self._say(
                progress_text(min(now, self._total), self._total, max(0.0, (now - before) / (clock - at)))
            )
            before, at = now, clock
