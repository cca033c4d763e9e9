"""Nothing that was recorded is lost, and nothing is counted twice, whatever dies, hangs or is full."""

import asyncio
import itertools
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import ledger as module
from gateway.ledger import Ledger, Sums, merged
from gateway.limits import Calendar, LimitName, Total
from gateway.spool import Spool
from gateway.store import DayUsage, Store, StoreError, UsageEntry
from tests.capabilities import ROOT
from tests.fakes.clock import Clock
from tests.fakes.databases import POSTGRES
from tests.fakes.postgres import PostgresServer
from tests.fakes.recorder import open_store
from tests.fakes.store import MemoryStore
from tests.unit.gateway.test_spool import full_disk
from tests.unit.gateway.test_store import BARE, add

EVER = ("0001-01-01", "9999-12-31")
UTC = Calendar("UTC")
NOON = 1_796_126_400.0  # 2026-12-01 12:00 UTC
ENTRY = UsageEntry("req-1", NOON, "default", "aaaaaaaaaa", "large", "/v1/chat/completions", 30, 7, False)
ROW = DayUsage("2026-12-01", "default", "aaaaaaaaaa", "large", 1, 30, 7, 0)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def ledger(memory: MemoryStore, tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = Ledger(memory, tmp_path / "spool", UTC, Clock(NOON))
    yield opened
    await opened.close()


def times(row: DayUsage, number: int) -> DayUsage:
    return replace(
        row,
        requests=row.requests * number,
        prompt_tokens=row.prompt_tokens * number,
        completion_tokens=row.completion_tokens * number,
        estimated_requests=row.estimated_requests * number,
    )


def files(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def problem(ledger: Ledger) -> str | None:
    """The problem as it is now; the type checker thinks that it stays as it was."""
    return ledger.problem


def die(ledger: Ledger) -> None:
    """What a SIGKILL does to a process's locks."""
    for spool in (ledger._spool, *ledger._left):
        spool.close()


async def test_what_is_recorded_reaches_the_store_with_the_next_flush(
    ledger: Ledger, memory: MemoryStore
) -> None:
    ledger.record(ENTRY)
    ledger.record(replace(ENTRY, estimated=True))
    assert ledger.waiting > 0
    assert await memory.usage(*EVER) == []
    await ledger.flush()
    assert await memory.usage(*EVER) == [replace(times(ROW, 2), estimated_requests=1)]
    assert (ledger.waiting, problem(ledger)) == (0, None)


async def test_a_flush_without_news_asks_nothing_of_the_store(ledger: Ledger, memory: MemoryStore) -> None:
    ledger.record(ENTRY)
    await ledger.flush()
    memory.gone = True
    await ledger.flush()
    assert problem(ledger) is None


async def test_the_same_usage_is_counted_once_however_often_one_flushes(
    ledger: Ledger, memory: MemoryStore
) -> None:
    for _ in range(3):
        ledger.record(ENTRY)
        await asyncio.gather(*(ledger.flush() for _ in range(5)))
    assert await memory.usage(*EVER) == [times(ROW, 3)]


async def test_days_are_those_of_the_time_zone(memory: MemoryStore, tmp_path: Path) -> None:
    ledger = Ledger(memory, tmp_path, Calendar("Asia/Tokyo"))
    for hours in (-15.5, 0, 3.5):  # 05:30 a day before, 21:00, 00:30 the day after
        ledger.record(replace(ENTRY, at=NOON + hours * 3600))
    await ledger.close()
    assert [row.day for row in await memory.usage(*EVER)] == ["2026-12-01", "2026-12-02"]
    assert [row.requests for row in await memory.usage(*EVER)] == [2, 1]


async def test_the_flush_says_when_a_key_was_last_used(ledger: Ledger, memory: MemoryStore) -> None:
    await add(memory, BARE)
    for offset in (5.0, 9.0, 7.0):
        ledger.record(replace(ENTRY, at=NOON + offset))
    await ledger.flush()
    assert memory.records[BARE.id].last_used_at == NOON + 9.0


async def test_while_the_store_is_gone_usage_waits_on_the_disk(ledger: Ledger, memory: MemoryStore) -> None:
    memory.gone = True
    for _ in range(3):
        ledger.record(ENTRY)
        await ledger.flush()
    assert problem(ledger) == "usage waits on the disk: the store cannot be reached"
    assert ledger.waiting > 0
    memory.gone = False
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 3)]
    assert (ledger.waiting, problem(ledger)) == (0, None)


async def test_a_ledger_that_ends_well_leaves_no_file_and_no_mark(
    memory: MemoryStore, tmp_path: Path
) -> None:
    ledger = Ledger(memory, tmp_path, UTC)
    ledger.record(ENTRY)
    await ledger.close()
    assert await memory.usage(*EVER) == [ROW]
    assert files(tmp_path) == []
    assert memory.marks == {}


async def test_what_a_dead_process_left_is_counted_by_the_next_one(
    memory: MemoryStore, tmp_path: Path
) -> None:
    dead = Ledger(memory, tmp_path, UTC)
    dead.record(ENTRY)
    await dead.flush()
    dead.record(ENTRY)
    die(dead)
    ledger = Ledger(memory, tmp_path, UTC)
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 2)]
    await ledger.close()
    assert files(tmp_path) == []
    assert memory.marks == {}


async def test_what_could_not_be_flushed_at_the_end_waits_for_the_next_process(
    memory: MemoryStore, tmp_path: Path
) -> None:
    memory.gone = True
    ledger = Ledger(memory, tmp_path, UTC)
    ledger.record(ENTRY)
    await ledger.close()
    memory.gone = False
    again = Ledger(memory, tmp_path, UTC)
    await again.close()
    assert await memory.usage(*EVER) == [ROW]


async def test_of_processes_beside_each_other_each_counts_its_own(
    memory: MemoryStore, tmp_path: Path
) -> None:
    ledgers = [Ledger(memory, tmp_path, UTC) for _ in range(3)]
    for ledger in ledgers:
        ledger.record(ENTRY)
    await asyncio.gather(*(ledger.flush() for ledger in ledgers))
    await asyncio.gather(*(ledger.close() for ledger in ledgers))
    assert await memory.usage(*EVER) == [times(ROW, 3)]


async def test_a_line_that_a_power_cut_tore_is_skipped_and_counted(
    memory: MemoryStore, tmp_path: Path
) -> None:
    dead = Ledger(memory, tmp_path, UTC)
    dead.record(ENTRY)
    path = dead._spool.path
    die(dead)
    whole = path.read_bytes()
    path.write_bytes(b"\0" * 512 + b"\n" + whole + b'{"at": 1}\n[]\n' + whole + whole[:20])
    ledger = Ledger(memory, tmp_path, UTC)
    await ledger.flush()
    assert ledger.torn == 3
    assert await memory.usage(*EVER) == [times(ROW, 2)]
    await ledger.close()


async def test_a_long_spool_is_replaced_once_it_is_counted(
    ledger: Ledger, memory: MemoryStore, tmp_path: Path
) -> None:
    first = ledger._spool.path
    big = replace(ENTRY, request_id="x" * 100_000)
    for _ in range(90):
        ledger.record(big)
    await ledger.flush()
    ledger.record(ENTRY)
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 91)]
    assert not first.exists()
    assert list(memory.marks) == [ledger._spool.name]


async def test_an_older_backup_of_the_store_gets_what_it_lacks(ledger: Ledger, memory: MemoryStore) -> None:
    ledger.record(ENTRY)
    await ledger.flush()
    marks, days = dict(memory.marks), dict(memory.days)
    ledger.record(ENTRY)
    await ledger.flush()
    memory.marks, memory.days = marks, days
    ledger.record(ENTRY)
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 3)]


async def test_an_older_backup_gets_what_a_full_disk_left_in_memory(
    ledger: Ledger, memory: MemoryStore
) -> None:
    with full_disk(10):
        ledger.record(ENTRY)
    await ledger.flush()
    memory.marks, memory.days = {}, {}
    with full_disk(10):
        ledger.record(ENTRY)
    await ledger.flush()  # finds the mark where it should not be
    await ledger.flush()
    assert await memory.usage(*EVER) == [ROW]


async def test_with_a_full_disk_usage_goes_to_the_store_from_memory(
    ledger: Ledger, memory: MemoryStore
) -> None:
    ledger.record(ENTRY)
    with full_disk(ledger._spool.size + 50):
        ledger.record(ENTRY)
        ledger.record(ENTRY)
    assert str(problem(ledger)).startswith(f"usage cannot be written to {ledger._directory}: ")
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 3)]
    ledger.record(ENTRY)
    assert problem(ledger) is None
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 4)]


async def test_with_a_full_disk_and_no_store_sums_wait_in_memory(ledger: Ledger, memory: MemoryStore) -> None:
    memory.gone = True
    for _ in range(3):
        with full_disk(10):
            ledger.record(ENTRY)
        await ledger.flush()
    memory.gone = False
    await ledger.flush()
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 3)]
    assert ledger.lost == 0


async def test_a_disk_that_is_full_for_the_store_too_takes_nothing_away(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "gateway.db"))
    ledger = Ledger(store, tmp_path / "spool", UTC)
    ledger.record(ENTRY)
    with full_disk(1000):
        for _ in range(10):
            ledger.record(ENTRY)
            await ledger.flush()
        assert str(problem(ledger)).startswith("usage cannot be written to")
    assert await store.usage(*EVER) == []
    ledger.record(ENTRY)
    await ledger.flush()
    assert await ledger.usage(*EVER) == [times(ROW, 12)]
    assert problem(ledger) is None
    await ledger.close()
    await store.close()


async def test_memory_is_bounded_and_what_it_cannot_hold_is_said(ledger: Ledger, memory: MemoryStore) -> None:
    memory.gone = True
    with full_disk(10):
        for number in range(module.MOST_HELD + 5):
            ledger.record(replace(ENTRY, key_id=f"key{number}"))
    assert ledger.lost == 5
    memory.gone = False
    await ledger.flush()
    assert len(await memory.usage(*EVER)) == module.MOST_HELD


@pytest.mark.parametrize("text", ["nul\0", "lone\ud800", "x" * 5000, "ü" * 5000])
async def test_no_text_holds_up_the_usage_of_others(text: str, tmp_path: Path, store: Store) -> None:
    ledger = Ledger(store, tmp_path / "spool", UTC)
    ledger.record(replace(ENTRY, tenant=text))
    ledger.record(replace(ENTRY, model=text, key_id=text))
    ledger.record(ENTRY)
    await ledger.flush()
    assert problem(ledger) is None
    found = await store.usage(*EVER)
    assert sum(row.requests for row in found) == 3
    assert ROW in found
    await ledger.close()


async def test_no_number_holds_up_the_usage_of_others(tmp_path: Path, store: Store) -> None:
    ledger = Ledger(store, tmp_path / "spool", UTC)
    ledger.record(replace(ENTRY, prompt_tokens=2**62, completion_tokens=2**70))
    await ledger.flush()
    assert problem(ledger) is None
    [row] = await store.usage(*EVER)
    assert (row.prompt_tokens, row.completion_tokens) == (module.MOST_TOKENS, module.MOST_TOKENS)
    await ledger.close()


async def test_usage_includes_what_is_not_flushed_yet(ledger: Ledger, memory: MemoryStore) -> None:
    ledger.record(ENTRY)
    await ledger.flush()
    ledger.record(ENTRY)
    ledger.record(replace(ENTRY, tenant="b", at=NOON + 86400))
    with full_disk(10):
        ledger.record(ENTRY)
    other = replace(ROW, day="2026-12-02", tenant="b")
    assert await ledger.usage(*EVER) == [times(ROW, 3), other]
    assert await ledger.usage("2026-12-02", "2026-12-31") == [other]
    assert await ledger.usage(*EVER, tenant="b") == [other]
    assert await ledger.usage(*EVER, key_id="nobody") == []
    assert await memory.usage(*EVER) == [ROW]


async def test_usage_without_a_store_is_a_store_error(ledger: Ledger, memory: MemoryStore) -> None:
    memory.gone = True
    ledger.record(ENTRY)
    with pytest.raises(StoreError):
        await ledger.usage(*EVER)
    await ledger.flush()
    with pytest.raises(StoreError):
        await ledger.usage(*EVER)
    with pytest.raises(StoreError):
        await ledger.totals()
    memory.gone = False
    assert await ledger.usage(*EVER) == [ROW]


async def test_nobody_waits_for_usage_behind_a_store_that_hangs(ledger: Ledger, memory: MemoryStore) -> None:
    memory.gone = True
    ledger.record(ENTRY)
    await ledger.flush()
    async with ledger._flushing:
        with pytest.raises(StoreError):
            await ledger.usage(*EVER)
    memory.gone = False


async def test_the_usage_of_a_long_outage_is_not_summed_up_for_a_reader(
    ledger: Ledger, memory: MemoryStore
) -> None:
    big = replace(ENTRY, request_id="x" * 100_000)
    for _ in range(84):
        ledger.record(big)
    assert ledger.waiting > module.MOST_FRESH_BYTES
    with pytest.raises(StoreError, match="outage"):
        await ledger.usage(*EVER)
    await ledger.flush()
    assert await ledger.usage(*EVER) == [times(ROW, 84)]


async def test_a_directory_that_is_gone_is_said_and_nothing_is_lost(
    ledger: Ledger, memory: MemoryStore
) -> None:
    big = replace(ENTRY, request_id="x" * 100_000)
    for _ in range(84):
        ledger.record(big)
    shutil.rmtree(ledger._directory)
    await ledger.flush()
    assert problem(ledger) == f"the files in {ledger._directory} cannot be used: No such file or directory"
    ledger.record(ENTRY)
    await ledger.flush()
    assert await memory.usage(*EVER) == [times(ROW, 85)]


async def test_totals_are_the_present_days_and_months(memory: MemoryStore, tmp_path: Path) -> None:
    dead = Ledger(memory, tmp_path, UTC)
    for at in (NOON - 86400 * 31, NOON - 86400, NOON + 86400, NOON + 86401):
        dead.record(replace(ENTRY, at=at))
    dead.record(replace(ENTRY, at=NOON + 86400, key_id="bbbbbbbbbb", tenant="b"))
    die(dead)
    ledger = Ledger(memory, tmp_path, UTC, Clock(NOON + 86400))
    expected: list[Total] = []
    periods: dict[LimitName, str] = {"tokens_per_day": "2026-12-02", "tokens_per_month": "2026-12"}
    for limit, period in periods.items():
        expected += [
            Total("key", "aaaaaaaaaa", limit, period, 74),
            Total("key", "bbbbbbbbbb", limit, period, 37),
            Total("tenant", "default", limit, period, 74),
            Total("tenant", "b", limit, period, 37),
            Total("everyone", "", limit, period, 111),
        ]
    assert sorted(await ledger.totals(), key=repr) == sorted(expected, key=repr)
    await ledger.close()


async def test_it_flushes_by_itself(ledger: Ledger, memory: MemoryStore) -> None:
    ledger.record(ENTRY)
    task = asyncio.create_task(ledger.keep_flushing())
    end = time.monotonic() + 10
    while not memory.days and time.monotonic() < end:  # noqa: ASYNC110 - a store tells nobody
        await asyncio.sleep(0.05)
    task.cancel()
    assert await memory.usage(*EVER) == [ROW]


class Unreliable(MemoryStore):
    """Fails before or after the transaction, as it is told: `verdicts` are taken one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: list[str] = []

    async def apply_usage(
        self,
        spool: str,
        old_offset: int,
        new_offset: int,
        rows: Sequence[DayUsage],
        last_used: Mapping[str, float],
    ) -> int:
        verdict = self.verdicts.pop(0) if self.verdicts else "well"
        if verdict == "before":
            raise StoreError("the connection was lost")
        mark = await super().apply_usage(spool, old_offset, new_offset, rows, last_used)
        if verdict == "after":
            raise StoreError("the connection was lost; the transaction was not")
        return mark


STEPS = st.lists(
    st.sampled_from(["record", "record", "record on a full disk", "flush", "before", "after", "die", "new"]),
    max_size=25,
)


async def kill(ledger: Ledger) -> int:
    """How many requests die with it: those that a full disk left in memory alone."""
    if ledger._held.batch is not None:
        await ledger.flush()
    die(ledger)
    return sum(group[0] for group in ledger._held.gathering.groups.values())


@given(STEPS)
async def test_whatever_happens_in_whatever_order_all_is_counted_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    directory, store, recorded = tmp_path_factory.mktemp("spool"), Unreliable(), 0
    ledgers = [Ledger(store, directory, UTC)]
    for step in steps:
        if step.startswith("record"):
            with full_disk(10 if step.endswith("disk") else 1_000_000):
                ledgers[-1].record(ENTRY)
            recorded += 1
        elif step == "new":
            ledgers.append(Ledger(store, directory, UTC))
        elif step == "die":
            recorded -= await kill(ledgers.pop(0))
            ledgers = ledgers or [Ledger(store, directory, UTC)]
        else:
            store.verdicts = [step] * (step != "flush")
            await ledgers[-1].flush()
    store.verdicts = []
    for ledger in ledgers:
        await ledger.flush()  # a batch whose outcome was not known
        await ledger.close()
    last = Ledger(store, directory, UTC)
    await last.close()
    assert sum(row.requests for row in await store.usage(*EVER)) == recorded
    assert files(directory) == []


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
async def test_processes_that_are_killed_at_any_moment_lose_nothing_and_count_nothing_twice(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = str(tmp_path / "gateway.db")
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        where = server.database()
    store = open_store(where)
    await store.open()
    running = [start_recorder(tmp_path, number, where) for number in range(2)]
    acknowledged = []
    for number in range(2, 7):
        await asyncio.sleep(0.05 + number * 0.037)
        acknowledged.append(kill_recorder(*running.pop(0)))
        running.append(start_recorder(tmp_path, number, where))
    acknowledged += [kill_recorder(*one) for one in running]
    ledger = Ledger(store, tmp_path / "spool", UTC)
    await ledger.flush()
    rows = await store.usage(*EVER)
    requests = sum(row.requests for row in rows)
    # One more per process: killed between the write and the acknowledgement.
    assert sum(acknowledged) <= requests <= sum(acknowledged) + len(acknowledged)
    assert sum(row.prompt_tokens for row in rows) * 2 == sum(row.completion_tokens for row in rows)
    assert all(number > 100 for number in acknowledged)
    await ledger.close()
    await store.close()
    assert files(tmp_path / "spool") == []


Recorder = tuple[subprocess.Popen[bytes], Path]


def start_recorder(directory: Path, number: int, where: str) -> Recorder:
    """One that has recorded something."""
    counter = directory / f"counter{number}"
    counter.write_bytes(bytes(8))
    command = [sys.executable, "-m", "tests.fakes.recorder", str(directory / "spool"), str(counter), where]
    process = subprocess.Popen(command, cwd=ROOT)
    end = time.monotonic() + 20
    while count(counter) <= 100 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return process, counter


def kill_recorder(process: subprocess.Popen[bytes], counter: Path) -> int:
    """How many of its records it knew to be kept."""
    process.kill()
    assert process.wait() == -9
    return count(counter)


def count(counter: Path) -> int:
    [number] = struct.unpack("q", counter.read_bytes())
    return int(number)


@pytest.mark.requires("postgres")
async def test_a_database_that_stops_and_comes_back_misses_nothing(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    store = open_store(own_postgres.database())
    ledger = Ledger(store, tmp_path, UTC)
    for after in (own_postgres.stop, own_postgres.start, own_postgres.kill, own_postgres.start):
        for _ in range(10):
            ledger.record(ENTRY)
        flushing = asyncio.create_task(ledger.flush())
        await asyncio.sleep(0)
        await asyncio.to_thread(after)
        await flushing
        await ledger.flush()
    assert await ledger.usage(*EVER) == [times(ROW, 40)]
    await ledger.close()
    await store.close()


def test_sums_are_the_same_however_the_lines_are_cut(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path)
    for number in range(50):
        entry = replace(ENTRY, at=NOON + number, model=f"m{number % 2}")
        spool.append(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
    whole = Sums(UTC)
    whole.add_lines(spool.read(0, spool.size))
    cut, offset = [], 0
    for most in itertools.cycle((300, 700, 2000)):
        data = spool.read(offset, most)
        if not data:
            break
        part = Sums(UTC)
        part.add_lines(data)
        cut += part.rows()
        offset += len(data)
    assert merged(cut) == merged(whole.rows())
    assert [row.requests for row in merged(cut)] == [25, 25]
    spool.delete()
