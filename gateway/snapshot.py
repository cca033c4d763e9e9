"""The last good state of the keys on disk, for a start without the store."""

import fcntl
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiter
import orjson

from gateway.settings import Configuration
from gateway.store import KeyRecord

SNAPSHOT = "keys.snapshot"
VERSION = 1
_BYTES = ("digest", "previous_digest")
_TUPLES = ("scopes", "models")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`taken_at`: when the store last answered, in seconds since the epoch."""

    taken_at: float
    records: Sequence[KeyRecord]


class SnapshotFile:
    """One file, replaced as a whole: a line with the HMAC-SHA256 of what follows, then JSON."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key

    @classmethod
    def of(cls, configuration: Configuration) -> "SnapshotFile":
        """The gateway's, in its data directory, sealed with a key that is derived from the pepper."""
        return cls(configuration.settings.data_dir / SNAPSHOT, configuration.secrets.derived("key snapshot"))

    def save(self, snapshot: Snapshot) -> None:
        """Several processes may share the file. Raises OSError and leaves the file as it was."""
        body = orjson.dumps(
            {"version": VERSION, "taken_at": snapshot.taken_at, "keys": [_plain(r) for r in snapshot.records]}
        )
        part = self._path.with_name(self._path.name + ".part")
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # one writer at a time: they share the name of the part
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._mac(body) + b"\n" + body)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
            os.fsync(directory)
        finally:
            os.close(directory)

    def load(self) -> Snapshot | None:
        """None where there is no file, or one that was changed, cut off or made with another key."""
        try:
            mac, _, body = self._path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        held = jiter.from_json(body)
        if held["version"] != VERSION:
            return None
        return Snapshot(held["taken_at"], [_record(fields) for fields in held["keys"]])

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256").hex().encode()


def _plain(record: KeyRecord) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in KeyRecord.__slots__}
    fields["overrides"] = dict(record.overrides)
    return fields | {name: value.hex() for name in _BYTES if (value := fields[name]) is not None}


def _record(fields: dict[str, Any]) -> KeyRecord:
    known = {name: fields[name] for name in KeyRecord.__slots__ if name in fields}
    known |= {name: bytes.fromhex(known[name]) for name in _BYTES if known[name] is not None}
    known |= {name: tuple(known[name]) for name in _TUPLES if known[name] is not None}
    return KeyRecord(**known)
