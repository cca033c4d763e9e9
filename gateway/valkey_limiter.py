"""Limits that several gateways share, in Valkey; and what is left of them while it is gone."""

import asyncio
import contextlib
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger
from valkey.asyncio import BlockingConnectionPool, Valkey
from valkey.exceptions import ValkeyError

from gateway.limits import (
    WINDOW_SECONDS,
    Ask,
    Calendar,
    Decision,
    Lease,
    Limit,
    LimitName,
    Reading,
    Refused,
    Total,
    Totals,
    limit_key,
    tightest,
)
from gateway.memory_limiter import MemoryLimiter
from gateway.meters import MemoryLease
from gateway.store import StoreError

PREFIX = "gatehouse:"
SEEDED = PREFIX + "seeded"
LEASE = PREFIX + "lease:"
# Without a heartbeat for so long, the process that held a place is dead.
HOLD_SECONDS = 30.0
HEARTBEAT_SECONDS = 10.0
# How often a Valkey that did not answer is asked again.
PAUSE_SECONDS = 1.0
# How often quotas are raised to what the ledger knows: what was used while Valkey was gone, or by a request
# that an emptied Valkey knows nothing of, is told by nobody else.
RAISE_SECONDS = 60.0
CONNECTIONS = 32
# Settlements that could not be delivered: beyond these the oldest are forgotten.
MOST_OWED = 10_000
_KINDS: dict[LimitName, str] = {
    "requests_per_minute": "r",
    "tokens_per_minute": "t",
    "parallel_requests": "p",
    "tokens_per_day": "q",
    "tokens_per_month": "q",
}
_FAILURES = (ValkeyError, OSError, TimeoutError)
# What the script says.
_GRANTED, _NEAR, _NOT_SEEDED = 1, 2, 3
_FITS = 0
# Keys of one call.
PART = 500
ItemT = TypeVar("ItemT")


@dataclass(slots=True, eq=False)
class ValkeyLease(Lease):
    """`id` is its own: a request's id may be the client's. `keys` and `kinds`: what was charged."""

    id: str = ""
    keys: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Slot:
    """A limit's key and arguments for the script."""

    key: str
    kind: str
    arguments: tuple[Any, ...]


class ValkeyLimiter:
    """The Limiter of gateways that share Valkey. While it does not answer each keeps its share of every
    limit, 1 / `replicas`, in its own memory.
    """

    def __init__(
        self,
        client: Valkey,
        calendar: Calendar,
        *,
        replicas: int,
        monotonic: Callable[[], float],
        clock: Callable[[], float],
        log: FilteringBoundLogger,
        window: float = WINDOW_SECONDS,
        hold: float = HOLD_SECONDS,
    ) -> None:
        self._window_ms = int(window * 1000)
        self._hold_ms = int(hold * 1000)
        self._client = client
        self._script = client.register_script((Path(__file__).with_suffix(".lua")).read_text("utf-8"))
        self._periods = {"tokens_per_day": calendar.day, "tokens_per_month": calendar.month}
        self._replicas = replicas
        self._monotonic = monotonic
        self._clock = clock
        self._log = log
        self._local = MemoryLimiter(calendar, monotonic=monotonic, clock=clock, window=window)
        self._held: dict[ValkeyLease, None] = {}
        self._owed: deque[ValkeyLease] = deque(maxlen=MOST_OWED)
        self._deliveries: set[asyncio.Task[None]] = set()
        self._totals: Totals | None = None
        self._raised = -math.inf
        self._seeding = asyncio.Lock()
        self._alarm = asyncio.Event()
        self.problem: str | None = None

    @classmethod
    def connect(
        cls, url: str, password: str | None, timeout: float, calendar: Calendar, **given: Any
    ) -> "ValkeyLimiter":
        """For `valkey://host:port/number`. `timeout`: seconds to connect, for an answer and for a free
        connection. `given` are __init__'s.
        """
        pool = BlockingConnectionPool.from_url(
            url,
            password=password,
            max_connections=CONNECTIONS,
            timeout=timeout,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
        )
        return cls(Valkey.from_pool(pool), calendar, **given)

    @property
    def leases(self) -> int:
        return len(self._held) + self._local.leases

    async def reserve(self, request_id: str, limits: tuple[Limit, ...], ask: Ask) -> Decision:
        if self.problem is None:
            # Not cancelled with its caller: whether it has charged would not be known.
            task = asyncio.create_task(self._reserve(request_id, limits, ask))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.add_done_callback(self._give_back)
                raise
            except _FAILURES as error:
                self._note_outage(error)
        return await self._local.reserve(request_id, self._share(limits), ask)

    async def settle(self, lease: Lease, tokens: int) -> None:
        if isinstance(lease, MemoryLease):
            await self._local.settle(lease, tokens)
            return
        assert isinstance(lease, ValkeyLease)
        if lease.settled:
            return
        lease.settled = True
        self._held.pop(lease, None)
        lease.tokens = tokens
        await asyncio.shield(asyncio.create_task(self._deliver(lease)))

    async def readings(self, limits: tuple[Limit, ...]) -> tuple[Reading, ...]:
        if self.problem is None:
            try:
                slots = [self._slot(limit) for limit in limits]
                answer = await self._ask("read", "", slots, Ask(0, 0, 0))
                return tuple(
                    _reading(limit, used, reset)
                    for limit, (used, reset, _, _) in zip(limits, _rows(answer), strict=True)
                )
            except _FAILURES as error:
                self._note_outage(error)
        local = await self._local.readings(self._share(limits))
        return tuple(reading._replace(limit=limit) for reading, limit in zip(local, limits, strict=True))

    async def run(self, totals: Totals) -> None:
        self._totals = totals
        while True:
            await self._tend()
            if self.problem is None and self._raised > -math.inf:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await self._alarm.wait()
            await asyncio.sleep(PAUSE_SECONDS)

    async def close(self) -> None:
        await self._client.aclose()

    async def _reserve(self, request_id: str, limits: tuple[Limit, ...], ask: Ask) -> Decision:
        slots = [self._slot(limit) for limit in limits]
        keys, kinds = tuple(slot.key for slot in slots), tuple(slot.kind for slot in slots)
        lease = ValkeyLease(request_id, ask.tokens, id=secrets.token_hex(8), keys=keys, kinds=kinds)
        try:
            answer = await self._ask("reserve", lease.id, slots, ask)
        except _FAILURES:
            # It may have been charged, and the answer lost.
            lease.tokens, lease.settled = 0, True
            self._owed.append(lease)
            raise
        granted = answer[0] == _GRANTED
        readings, refused, shadowed = [], [], []
        for limit, (used, reset, wait, verdict) in zip(limits, _rows(answer), strict=True):
            need = ask.tokens if limit.of_tokens else 1
            if granted:
                readings.append(_reading(limit, used + need, max(reset, self._own_reset(limit))))
            else:
                readings.append(_reading(limit, used, reset))
            if verdict == _FITS:
                continue
            retry = math.inf if wait < 0 else wait / 1000
            one = Refused(limit, used, need, retry)
            if limit.shadow:
                shadowed.append(one)
            else:
                refused.append(one)
        if granted:
            self._held[lease] = None
        return Decision(
            lease if granted else None,
            near=answer[0] == _NEAR,
            refused=tuple(refused),
            shadowed=tuple(shadowed),
            requests=tightest("requests_per_minute", readings),
            tokens=tightest("tokens_per_minute", readings),
        )

    async def _ask(self, what: str, lease_id: str, slots: Sequence[_Slot], ask: Ask) -> list[int]:
        keys = [SEEDED, LEASE + lease_id, *(slot.key for slot in slots)]
        arguments: list[Any] = [what, self._window_ms, lease_id]
        arguments += [ask.tokens, ask.at_most, ask.at_least, self._hold_ms]
        for slot in slots:
            arguments += slot.arguments
        answer: list[int] = await self._script(keys=keys, args=arguments)
        if answer[0] == _NOT_SEEDED:
            await self._seed()
            answer = await self._script(keys=keys, args=arguments)
        return answer

    def _own_reset(self, limit: Limit) -> int:
        """What a request that begins now adds to a window, in milliseconds."""
        return self._window_ms if _KINDS[limit.name] in "rt" else 0

    def _slot(self, limit: Limit) -> _Slot:
        kind, key, ends = _KINDS[limit.name], PREFIX + limit.key, 0
        if kind == "q":
            period = self._periods[limit.name](self._clock())
            key, ends = f"{key}:{period.id}", int(period.end * 1000)
        return _Slot(key, kind, (kind, limit.amount, int(limit.shadow), ends))

    def _share(self, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
        if self._replicas == 1:
            return limits
        return tuple(replace(limit, amount=max(1, limit.amount // self._replicas)) for limit in limits)

    def _note_outage(self, error: Exception) -> None:
        if self.problem is None:
            self._alarm.set()
            self.problem = type(error).__name__
            self._log.error("valkey_gone", error=self.problem)

    def _give_back(self, task: "asyncio.Task[Decision]") -> None:
        """The lease of a request whose caller is gone."""
        if task.cancelled():
            return
        if isinstance(error := task.exception(), _FAILURES):
            self._note_outage(error)
        if error is not None or (lease := task.result().lease) is None:
            return
        assert isinstance(lease, ValkeyLease)
        lease.settled = True
        self._held.pop(lease, None)
        lease.tokens = 0
        self._deliveries.add(delivery := asyncio.create_task(self._deliver(lease)))
        delivery.add_done_callback(self._deliveries.discard)

    async def _deliver(self, lease: ValkeyLease) -> None:
        if self.problem is None:
            try:
                await self._settle(lease)
            except _FAILURES as error:
                self._note_outage(error)
            else:
                return
        self._owed.append(lease)

    async def _settle(self, lease: ValkeyLease) -> None:
        arguments: list[Any] = ["settle", self._window_ms, lease.id, lease.tokens, *lease.kinds]
        await self._script(keys=[LEASE + lease.id, *lease.keys], args=arguments)

    async def _tend(self) -> None:
        """Heartbeats; quotas raised to what the ledger knows by now; after an outage what is owed."""
        try:
            if self.problem is not None:
                await self._client.ping()
                self._raised = -math.inf
            if self._monotonic() >= self._raised + RAISE_SECONDS:
                await self._seed()
            await self._beat()
            while self._owed:
                await self._settle(self._owed[0])
                self._owed.popleft()
            if self.problem is not None:
                self._log.info("valkey_answers")
                self._alarm.clear()
                self.problem = None
        except _FAILURES as error:
            self._note_outage(error)

    async def _beat(self) -> None:
        places = [
            (key, lease.id)
            for lease in self._held
            for key, kind in zip(lease.keys, lease.kinds, strict=True)
            if kind == "p"
        ]
        for part in _parts(places):
            arguments: list[Any] = [
                "beat",
                self._window_ms,
                self._hold_ms,
                *(lease_id for _, lease_id in part),
            ]
            await self._script(keys=[key for key, _ in part], args=arguments)

    async def _seed(self) -> None:
        """Raises quotas to what the ledger knows; while its store is gone they begin with nothing, until it
        is back.
        """
        async with self._seeding:
            totals = await self._known_totals()
            self._raised = -math.inf if totals is None else self._monotonic()
            for part in _parts(totals or ()) or [()]:
                keys = [
                    f"{PREFIX}{limit_key(total.name, total.scope, total.subject)}:{total.period}"
                    for total in part
                ]
                arguments: list[Any] = ["seed", self._window_ms]
                for total in part:
                    ends = self._periods[total.name](self._clock()).end
                    arguments += [total.tokens, int(ends * 1000)]
                await self._script(keys=[*keys, SEEDED], args=arguments)

    async def _known_totals(self) -> Sequence[Total] | None:
        """None while nobody can tell."""
        if self._totals is None:
            return None
        try:
            return await self._totals()
        except StoreError:
            return None


def _rows(answer: Sequence[int]) -> Iterable[tuple[int, int, int, int]]:
    rest = iter(answer[1:])
    return zip(rest, rest, rest, rest, strict=True)


def _reading(limit: Limit, used: int, reset_ms: int) -> Reading:
    return Reading(limit, used, max(0, limit.amount - used), reset_ms / 1000)


def _parts(items: Sequence[ItemT]) -> list[Sequence[ItemT]]:
    return [items[at : at + PART] for at in range(0, len(items), PART)]
