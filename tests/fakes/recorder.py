"""A process that records usage until it is killed: python -m tests.fakes.recorder DIRECTORY COUNTER STORE.

COUNTER: a file of 8 bytes, shared with whoever kills it: how many `record` calls have returned. STORE: the
path of an SQLite file, or the URL of a PostgreSQL database.
"""

import asyncio
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.ledger import Ledger
from gateway.limits import Calendar
from gateway.sqlstore import SqlStore
from gateway.store import UsageEntry
from tests.fakes.postgres import PASSWORD

NOON = 1_764_590_400.0  # 2026-12-01, 12:00 UTC, less a year: any day will do


def entries() -> Iterator[UsageEntry]:
    number = 0
    while True:
        number += 1
        model, key_id = f"model{number % 3}", f"key{number % 5:07d}"
        yield UsageEntry(f"req-{number}", NOON, "default", key_id, model, "/v1/completions", 1, 2, False)


def open_store(where: str) -> SqlStore:
    if "://" in where:
        return SqlStore.postgresql(where, PASSWORD)
    return SqlStore.open_sqlite(Path(where))


async def record_until_killed(directory: Path, counter: Path, where: str) -> None:
    ledger = Ledger(open_store(where), directory, Calendar("UTC"))
    with counter.open("r+b") as file:
        count = mmap.mmap(file.fileno(), 8)
    flushing = asyncio.create_task(flush_without_pause(ledger))
    for number, entry in enumerate(entries(), 1):
        ledger.record(entry)
        count[:] = struct.pack("q", number)
        if number % 20 == 0:
            await asyncio.sleep(0.001)
    await flushing


async def flush_without_pause(ledger: Ledger) -> None:
    """So that a kill finds it in the middle of one."""
    while True:
        await ledger.flush()
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(record_until_killed(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
