"""Spool files: usage that is settled and not yet in the store, one JSON line per request.

Each process appends to a file of its own and holds its lock. The lock goes with the process, so a file that
can be locked was left by a dead one, and whoever locks it counts it. A kill leaves every line that was
written; a power cut may take the last ones, or leave a torn line, which is skipped.
"""

import errno
import fcntl
import os
import secrets
from pathlib import Path

_PREFIX = "usage-"


class Spool:
    """One locked file. `size`: bytes of whole lines. `applied`: bytes that are known to be in the store."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.name = path.name
        self.size = os.fstat(fd).st_size
        self.applied = 0
        self._fd = fd
        self._torn = False

    @classmethod
    def create(cls, directory: Path) -> "Spool":
        """A new file for this process. Raises OSError."""
        while True:
            path = directory / f"{_PREFIX}{secrets.token_hex(16)}.jsonl"
            spool = cls._lock(path, _open(path, os.O_CREAT | os.O_EXCL))
            if spool is not None:  # else another process took it for a dead one's, between two steps
                return spool

    @classmethod
    def left_behind(cls, directory: Path) -> "list[Spool]":
        """The files of dead processes, now locked by this one. Raises OSError."""
        found = []
        for path in sorted(directory.glob(f"{_PREFIX}*.jsonl")):
            try:
                spool = cls._lock(path, _open(path))
            except FileNotFoundError:  # its owner has just counted all of it
                continue
            if spool is not None:
                found.append(spool)
        return found

    @classmethod
    def _lock(cls, path: Path, fd: int) -> "Spool | None":
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A file that its last owner has counted and deleted meanwhile must not be counted again.
            if os.fstat(fd).st_nlink:
                return cls(path, fd)
        except BlockingIOError:
            pass
        os.close(fd)
        return None

    def append(self, line: bytes) -> None:
        """Raises OSError where the line is not in the file as a whole; then nothing of it will be read."""
        if self._torn:
            os.ftruncate(self._fd, self.size)
            self._torn = False
        written = os.write(self._fd, line)
        if written != len(line):
            self._torn = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written

    def read(self, offset: int, most: int) -> bytes:
        """Whole lines from `offset` on, of `most` bytes together; no bytes: there are no more. What holds no
        line in as many bytes is handed over as it is. Raises OSError.
        """
        data = os.pread(self._fd, min(most, max(self.size - offset, 0)), offset)
        end = data.rfind(b"\n") + 1
        return data if not end and len(data) == most else data[:end]

    def sync(self) -> None:
        """Survives a power cut from here on. Blocks. Raises OSError."""
        os.fdatasync(self._fd)

    def delete(self) -> None:
        """Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leaves the file to whoever looks for those of dead processes."""
        os.close(self._fd)


def _open(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
