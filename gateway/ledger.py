"""The usage ledger: what was settled reaches the store exactly once, whatever dies in between.

A settled request is one line appended to this process's spool file: a SIGKILL takes nothing that was
recorded. Each second the new lines are summed up per day, key and model, and the sums are added to the store
in the same transaction that moves the spool's mark, so that no line is counted twice. What dead processes
left is counted by the next one.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.limits import Calendar, LimitName, LimitScope, Period, Total
from gateway.spool import Spool
from gateway.store import DayUsage, KeyTokens, Store, StoreError, UsageEntry

FLUSH_SECONDS = 1.0
ADOPT_SECONDS = 30.0
# One transaction's worth of lines; also how long the loop may be busy with summing: some milliseconds.
CHUNK_BYTES = 262_144
ROTATE_BYTES = 8_388_608
# With a full disk: sums that are held in memory. Beyond, usage is lost, and counted as such.
MOST_HELD = 10_000
# More of an outage than this is not summed up for a reader's sake.
MOST_FRESH_BYTES = 8_388_608
# What a store's columns and indexes can hold for certain, whatever a claim or an engine says.
LONGEST_TEXT = 200
MOST_TOKENS = 10**12

_Group = tuple[str, str, str, str]


class Sums:
    """Usage summed up per day, tenant, key and model."""

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        self._day = Period("", 0.0, 0.0)
        self.groups: dict[_Group, list[int]] = {}
        self._last_used: dict[str, float] = {}
        self.torn = 0

    def add_lines(self, data: bytes) -> None:
        """Adds a spool's lines. What is no line of a spool is skipped, and counted in `torn`."""
        for line in data.split(b"\n"):
            if line:
                try:
                    self.add(orjson.loads(line))
                except (ValueError, TypeError, KeyError):
                    self.torn += 1

    def add(self, entry: dict[str, Any]) -> None:
        """Adds one UsageEntry, in its spool's form."""
        at, key_id = entry["at"], entry["key_id"]
        day = self._day
        if not day.start <= at < day.end:
            day = self._day = self._calendar.day(at)
        name = (day.id, entry["tenant"], key_id, entry["model"])
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = [0, 0, 0, 0]
        group[0] += 1
        group[1] += entry["prompt_tokens"]
        group[2] += entry["completion_tokens"]
        group[3] += entry["estimated"]
        if at > self._last_used.get(key_id, 0.0):
            self._last_used[key_id] = at

    def rows(self) -> list[DayUsage]:
        """One row per group, such that every store can hold it."""
        rows: dict[_Group, list[int]] = {}
        for (day, *texts), sums in self.groups.items():
            tenant, key_id, model = map(_storable, texts)
            _add_to(rows, (day, tenant, key_id, model), sums)
        return _day_usage(rows.items())

    def last_used(self) -> dict[str, float]:
        """When each key's last request began."""
        return {key_id: at for key_id, at in self._last_used.items() if _storable(key_id) == key_id}


@dataclass(slots=True)
class Held:
    """What the disk had no room for: sums in memory, brought to the store in numbered batches. A batch whose
    outcome is not known is tried again as it is; `sent` is the number of those that are in the store.
    """

    name: str
    gathering: Sums
    batch: Sums | None = None
    sent: int = 0


class Ledger:
    """One process's ledger.

    `lost`: requests whose usage could be kept nowhere. `torn`: lines that a power cut left unreadable.
    """

    def __init__(
        self, store: Store, directory: Path, calendar: Calendar, clock: Callable[[], float] = time.time
    ) -> None:
        """`directory` is made. Raises OSError where it cannot be written."""
        directory.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._directory = directory
        self._calendar = calendar
        self._clock = clock
        self._spool = Spool.create(directory)
        self._left: list[Spool] = []
        self._adopt_at = 0.0
        self._forgettable: list[str] = []
        self._held = Held(f"memory-{secrets.token_hex(16)}", Sums(calendar))
        self._flushing = asyncio.Lock()
        self._disk_problem: str | None = None
        self._store_problem: str | None = None
        self.lost = 0
        self.torn = 0

    @property
    def problem(self) -> str | None:
        """Why usage is not on the disk, or not in the store; for people. None: all is well."""
        return self._disk_problem or self._store_problem

    @property
    def waiting(self) -> int:
        """Bytes of recorded usage that are not in the store yet."""
        return sum(spool.size - spool.applied for spool in (*self._left, self._spool))

    def record(self, entry: UsageEntry) -> None:
        """Keeps the entry, so that it outlives this process. Never raises: what the disk has no room for is
        held in memory.
        """
        try:
            self._spool.append(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            self._disk_problem = f"usage cannot be written to {self._directory}: {error.strerror}"
            self._hold(entry)
        except TypeError:  # text that is no UTF-8, a number beyond 64 bits
            self._hold(entry)
        else:
            self._disk_problem = None

    async def flush(self) -> None:
        """Brings what is recorded, and what dead processes left, to the store. A store that is gone is noted,
        not raised.
        """
        async with self._flushing:
            try:
                await self._flush()
            except StoreError as error:
                self._store_problem = f"usage waits on the disk: {error}"
                await asyncio.to_thread(self._sync)
            except OSError as error:
                self._disk_problem = f"the files in {self._directory} cannot be used: {error.strerror}"
            else:
                self._store_problem = None

    async def keep_flushing(self) -> None:
        """Flushes each second until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def usage(
        self, from_day: str, to_day: str, *, tenant: str | None = None, key_id: str | None = None
    ) -> Sequence[DayUsage]:
        """Sums of the days, both included, with what this process has not flushed yet. Raises StoreError."""
        if self.waiting > MOST_FRESH_BYTES:
            raise StoreError("the usage of an outage is being brought to the store")
        if self._store_problem is not None:
            # It is not known whether the last batch is in the store.
            if not self._flushing.locked():
                await self.flush()
            if self._store_problem is not None:
                raise StoreError(self._store_problem)
        async with self._flushing:
            stored = await self._store.usage(from_day, to_day, tenant=tenant, key_id=key_id)
            fresh = [
                row
                for row in self._unflushed()
                if from_day <= row.day <= to_day
                and tenant in (None, row.tenant)
                and key_id in (None, row.key_id)
            ]
        return merged((*stored, *fresh)) if fresh else stored

    async def totals(self) -> Sequence[Total]:
        """Tokens of the present day and month per key, per tenant and of all, this process's own included:
        for the limiter's quotas. Takes as long as counting what an outage left does. Raises StoreError.
        """
        await self.flush()
        now = self._clock()
        day, month = self._calendar.day(now).id, self._calendar.month(now).id
        today = await self._store.tokens(day, day)
        this_month = await self._store.tokens(f"{month}-01", f"{month}-31")
        return [*_totals(today, "tokens_per_day", day), *_totals(this_month, "tokens_per_month", month)]

    async def close(self) -> None:
        """Flushes a last time; what cannot reach the store stays in the spool for the next process."""
        await self.flush()
        if self._spool.applied < self._spool.size or self._store_problem is not None:
            self._spool.close()
        else:
            with contextlib.suppress(StoreError, OSError):
                self._finish(self._spool)
                await self._forget()
        for spool in self._left:
            spool.close()

    async def _flush(self) -> None:
        await self._flush_held()
        self._adopt()
        await self._apply(self._spool)
        while self._left:
            await self._apply(self._left[0])
            self._finish(self._left.pop(0))
        if self._spool.size > ROTATE_BYTES and self._spool.applied == self._spool.size:
            full, self._spool = self._spool, Spool.create(self._directory)
            self._finish(full)
        await self._forget()

    async def _apply(self, spool: Spool) -> None:
        """Brings the spool's lines to the store, as far as it is written now."""
        end = spool.size
        while spool.applied < end and (data := spool.read(spool.applied, CHUNK_BYTES)):
            sums = Sums(self._calendar)
            sums.add_lines(data)
            past = spool.applied + len(data)
            mark = await self._store.apply_usage(
                spool.name, spool.applied, past, sums.rows(), sums.last_used()
            )
            # Elsewhere: an earlier attempt whose outcome was not known had succeeded, or the store is an
            # older backup. Either way its mark says what it holds.
            if mark == past:
                self.torn += sums.torn
            spool.applied = mark

    async def _flush_held(self) -> None:
        held = self._held
        if held.batch is None and held.gathering.groups:
            held.batch, held.gathering = held.gathering, Sums(self._calendar)
        if held.batch is None:
            return
        past = held.sent + 1
        batch = held.batch
        held.sent = await self._store.apply_usage(held.name, held.sent, past, batch.rows(), batch.last_used())
        if held.sent == past:
            held.batch = None

    def _hold(self, entry: UsageEntry) -> None:
        if len(self._held.gathering.groups) < MOST_HELD:
            self._held.gathering.add(asdict(entry))
        else:
            self.lost += 1

    def _adopt(self) -> None:
        """Takes over the spools of dead processes, at times."""
        now = time.monotonic()
        if now >= self._adopt_at:
            self._adopt_at = now + ADOPT_SECONDS
            self._left += Spool.left_behind(self._directory)

    def _finish(self, spool: Spool) -> None:
        # The file first: a mark without a file does no harm, a file without its mark would be counted again.
        spool.delete()
        self._forgettable.append(spool.name)

    async def _forget(self) -> None:
        if self._forgettable:
            await self._store.forget_spools(self._forgettable)
            self._forgettable = []

    def _sync(self) -> None:
        with contextlib.suppress(OSError):
            self._spool.sync()

    def _unflushed(self) -> list[DayUsage]:
        fresh = Sums(self._calendar)
        for spool in (*self._left, self._spool):
            fresh.add_lines(spool.read(spool.applied, MOST_FRESH_BYTES))
        held = (sums for sums in (self._held.batch, self._held.gathering) if sums is not None)
        return [*fresh.rows(), *(row for sums in held for row in sums.rows())]


def merged(rows: Iterable[DayUsage]) -> list[DayUsage]:
    """One row per day, tenant, key and model, in this order."""
    groups: dict[_Group, list[int]] = {}
    for row in rows:
        sums = [row.requests, row.prompt_tokens, row.completion_tokens, row.estimated_requests]
        _add_to(groups, (row.day, row.tenant, row.key_id, row.model), sums)
    return _day_usage(sorted(groups.items()))


def _add_to(groups: dict[_Group, list[int]], name: _Group, sums: Sequence[int]) -> None:
    known = groups.get(name)
    groups[name] = list(sums) if known is None else [a + b for a, b in zip(known, sums, strict=True)]


def _day_usage(groups: Iterable[tuple[_Group, list[int]]]) -> list[DayUsage]:
    return [DayUsage(*name, *(min(number, MOST_TOKENS) for number in sums)) for name, sums in groups]


def _storable(text: str) -> str:
    """Text that every store takes: valid, bounded, without NUL, which PostgreSQL refuses."""
    if len(text) <= LONGEST_TEXT and text.isprintable():
        return text
    return text[:LONGEST_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _totals(tokens: Sequence[KeyTokens], name: LimitName, period: str) -> Iterator[Total]:
    keys, tenants = Counter[str](), Counter[str]()
    for one in tokens:
        keys[one.key_id] += one.tokens
        tenants[one.tenant] += one.tokens
    sums: tuple[tuple[LimitScope, Counter[str]], ...] = (
        ("key", keys),
        ("tenant", tenants),
        ("everyone", Counter({"": keys.total()})),
    )
    for scope, subjects in sums:
        for subject, used in subjects.items():
            yield Total(scope, subject, name, period, used)
