"""Limits in this process's memory: exact, and never suspended between check and charge."""

# ruff: noqa: ARG002 - one interface, of which not every kind of meter needs all

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.limits import (
    WINDOW_SECONDS,
    Ask,
    Calendar,
    Decision,
    Lease,
    Limit,
    LimitName,
    Period,
    Reading,
    Refused,
    Total,
    Totals,
    limit_key,
)
from gateway.store import StoreError

SWEEP_EVERY = 1024
SEED_RETRY_SECONDS = 1.0
# Somebody else's request may end at any moment.
PLACE_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class MemoryLease(Lease):
    """`began` is monotonic. `held`: the meters that were charged, and in which period."""

    began: float = 0.0
    held: list[tuple["Meter", Any]] = field(default_factory=list)


class Meter(Protocol):
    """What one limit's subject has used. `now`: monotonic seconds."""

    def used(self, now: float) -> int: ...

    def charge(self, lease: MemoryLease) -> Any:
        """Adds the lease; what it returns is handed to `settle`."""

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        """`more` tokens were used than the lease says, or fewer if negative."""

    def reset(self, now: float) -> float:
        """Seconds until nothing is used."""

    def fits_in(self, amount: int, need: int, now: float) -> float:
        """Seconds until `need` more stay within `amount`, if nothing else comes."""

    def idle(self, now: float) -> bool:
        """Whether it can be forgotten."""


class Requests:
    """The last minute's requests, so that no 60 seconds ever hold more than the limit."""

    __slots__ = ("_taken", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._taken: deque[float] = deque()

    def used(self, now: float) -> int:
        taken, start = self._taken, now - self._window
        while taken and taken[0] <= start:
            taken.popleft()
        return len(taken)

    def charge(self, lease: MemoryLease) -> None:
        self._taken.append(lease.began)

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        pass

    def reset(self, now: float) -> float:
        return self._taken[-1] + self._window - now if self._taken else 0.0

    def fits_in(self, amount: int, need: int, now: float) -> float:
        # A limit that was lowered leaves more in the window than it allows: enough of them must leave.
        return self._taken[len(self._taken) - amount + need - 1] + self._window - now

    def idle(self, now: float) -> bool:
        return not self.used(now)


class Tokens:
    """The tokens of the requests that began in the last minute."""

    __slots__ = ("_leases", "_sum", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._leases: deque[MemoryLease] = deque()
        self._sum = 0

    def used(self, now: float) -> int:
        leases, start = self._leases, now - self._window
        while leases and leases[0].began <= start:
            lease = leases.popleft()
            lease.held = [pair for pair in lease.held if pair[0] is not self]
            self._sum -= lease.tokens
        return self._sum

    def charge(self, lease: MemoryLease) -> None:
        self._leases.append(lease)
        self._sum += lease.tokens

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        self._sum += more

    def reset(self, now: float) -> float:
        return self._leases[-1].began + self._window - now if self._leases else 0.0

    def fits_in(self, amount: int, need: int, now: float) -> float:
        excess = self._sum + need - amount
        for lease in self._leases:
            excess -= lease.tokens
            if excess <= 0:
                return lease.began + self._window - now
        return math.inf

    def idle(self, now: float) -> bool:
        self.used(now)
        return not self._leases


class Places:
    """Requests that run now."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    def used(self, now: float) -> int:
        return self._taken

    def charge(self, lease: MemoryLease) -> None:
        self._taken += 1

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        self._taken -= 1

    def reset(self, now: float) -> float:
        return PLACE_RETRY_SECONDS if self._taken else 0.0

    def fits_in(self, amount: int, need: int, now: float) -> float:
        return PLACE_RETRY_SECONDS

    def idle(self, now: float) -> bool:
        return not self._taken


class Quota:
    """The tokens of the requests that began in the present day or month."""

    __slots__ = ("_clock", "_period", "_period_of", "_settled", "_sum")

    def __init__(self, period_of: Callable[[float], Period], clock: Callable[[], float]) -> None:
        self._period_of = period_of
        self._clock = clock
        self._period = period_of(clock())
        self._sum = 0
        self._settled = 0

    def seed(self, period: str, tokens: int) -> None:
        """`tokens` is all that was settled, by this process too."""
        if self._period.id == period and tokens > self._settled:
            self._sum += tokens - self._settled
            self._settled = tokens

    def used(self, now: float) -> int:
        at = self._clock()
        if not self._period.start <= at < self._period.end:
            self._period, self._sum, self._settled = self._period_of(at), 0, 0
        return self._sum

    def charge(self, lease: MemoryLease) -> Period:
        self._sum += lease.tokens
        return self._period

    def settle(self, lease: MemoryLease, mark: Any, more: int) -> None:
        if mark is self._period:
            self._sum += more
            self._settled += lease.tokens + more

    def reset(self, now: float) -> float:
        return self._period.end - self._clock()

    def fits_in(self, amount: int, need: int, now: float) -> float:
        return self.reset(now)

    def idle(self, now: float) -> bool:
        return not self.used(now)


class MemoryLimiter:
    """The Limiter of a gateway that runs alone. `monotonic` measures minutes, `clock` (seconds since the
    epoch) finds days and months.
    """

    def __init__(
        self,
        calendar: Calendar,
        *,
        monotonic: Callable[[], float],
        clock: Callable[[], float],
        window: float = WINDOW_SECONDS,
    ) -> None:
        self._window = window
        self._monotonic = monotonic
        self._clock = clock
        self._periods = {"tokens_per_day": calendar.day, "tokens_per_month": calendar.month}
        self._meters: dict[str, Meter] = {}
        self._seeds: dict[str, tuple[str, int]] = {}
        self._until_sweep = SWEEP_EVERY
        self.leases = 0
        self.problem: str | None = None

    async def reserve(self, request_id: str, limits: tuple[Limit, ...], ask: Ask) -> Decision:
        now = self._monotonic()
        self._sweep(now)
        meters = [self._meters.get(limit.key) or self._meter(limit) for limit in limits]
        refused: list[Refused] = []
        shadowed: list[Refused] = []
        near = True  # whether nothing is sure but that it might fit
        for limit, meter in zip(limits, meters, strict=True):
            used = meter.used(now)
            if used + (ask.at_most if limit.of_tokens else 1) <= limit.amount:
                continue
            if limit.shadow:
                if used + (ask.tokens if limit.of_tokens else 1) > limit.amount:
                    shadowed.append(_refusal(limit, meter, used, ask, now))
                continue
            refused.append(_refusal(limit, meter, used, ask, now))
            near = near and limit.of_tokens and used + ask.at_least <= limit.amount
        lease = self._charge(request_id, meters, ask.tokens, now) if not refused else None
        near = near and lease is None
        return Decision(
            lease,
            near,
            () if near else tuple(refused),
            tuple(shadowed),
            _tightest("requests_per_minute", limits, meters, now),
            _tightest("tokens_per_minute", limits, meters, now),
        )

    async def settle(self, lease: Lease, tokens: int) -> None:
        assert isinstance(lease, MemoryLease)
        if lease.settled:
            return
        lease.settled = True
        self.leases -= 1
        self._expire(lease)
        more = tokens - lease.tokens
        for meter, mark in lease.held:
            meter.settle(lease, mark, more)
        lease.held.clear()  # it stays in its windows for the rest of the minute
        lease.tokens = tokens

    async def readings(self, limits: tuple[Limit, ...]) -> tuple[Reading, ...]:
        now = self._monotonic()
        return tuple(
            _reading(limit, self._meters.get(limit.key) or self._meter(limit), now) for limit in limits
        )

    async def run(self, totals: Totals) -> None:
        while True:
            try:
                self.seed(await totals())
            except StoreError:
                await asyncio.sleep(SEED_RETRY_SECONDS)
            else:
                return

    def seed(self, totals: Iterable[Total]) -> None:
        """Takes in what the ledger knows, this process's own included."""
        for total in totals:
            key = limit_key(total.name, total.scope, total.subject)
            meter = self._meters.get(key)
            if isinstance(meter, Quota):
                meter.seed(total.period, total.tokens)
            else:
                self._seeds[key] = total.period, total.tokens

    async def close(self) -> None:
        """Nothing is held outside this process."""

    def __len__(self) -> int:
        """Subjects with something to remember."""
        return len(self._meters)

    def _charge(self, request_id: str, meters: list[Meter], tokens: int, now: float) -> MemoryLease:
        self.leases += 1
        lease = MemoryLease(request_id, tokens, began=now)
        lease.held = [(meter, meter.charge(lease)) for meter in meters]
        return lease

    def _expire(self, lease: MemoryLease) -> None:
        """A window that the lease has left takes no notice of it any more."""
        now = self._monotonic()
        if lease.began <= now - self._window:
            for meter, _ in list(lease.held):
                meter.used(now)

    def _meter(self, limit: Limit) -> Meter:
        meter = self._meters[limit.key] = self._new_meter(limit)
        return meter

    def _new_meter(self, limit: Limit) -> Meter:
        match limit.name:
            case "requests_per_minute":
                return Requests(self._window)
            case "tokens_per_minute":
                return Tokens(self._window)
            case "parallel_requests":
                return Places()
            case _:
                quota = Quota(self._periods[limit.name], self._clock)
                if (seed := self._seeds.pop(limit.key, None)) is not None:
                    quota.seed(*seed)
                return quota

    def _sweep(self, now: float) -> None:
        self._until_sweep -= 1
        if self._until_sweep:
            return
        self._until_sweep = SWEEP_EVERY
        for key in [key for key, meter in self._meters.items() if meter.idle(now)]:
            del self._meters[key]


def _refusal(limit: Limit, meter: Meter, used: int, ask: Ask, now: float) -> Refused:
    """When a retry can succeed: for certain, so where the prompt was not counted for all that it may be."""
    if not limit.of_tokens:
        return Refused(limit, used, 1, meter.fits_in(limit.amount, 1, now))
    if ask.at_least > limit.amount:
        return Refused(limit, used, ask.tokens, math.inf)
    need = min(ask.at_most, limit.amount)
    return Refused(limit, used, ask.tokens, meter.fits_in(limit.amount, need, now))


def _tightest(name: LimitName, limits: tuple[Limit, ...], meters: list[Meter], now: float) -> Reading | None:
    found: Reading | None = None
    for limit, meter in zip(limits, meters, strict=True):
        if limit.name == name and not limit.shadow:
            reading = _reading(limit, meter, now)
            if found is None or reading.remaining < found.remaining:
                found = reading
    return found


def _reading(limit: Limit, meter: Meter, now: float) -> Reading:
    used = meter.used(now)
    return Reading(limit, used, max(0, limit.amount - used), meter.reset(now))
