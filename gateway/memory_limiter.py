"""Limits in this process's memory: exact, and never suspended between check and charge."""

import asyncio
import math
from collections.abc import Callable, Iterable

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
)
from gateway.meters import MemoryLease, Meter, Places, Quota, Requests, Tokens
from gateway.store import StoreError

SWEEP_EVERY = 1024
SEED_RETRY_SECONDS = 1.0


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
        certain = unsure = -1.0  # the longest waits for what does not fit, and for what might not
        for limit, meter in zip(limits, meters, strict=True):
            used = meter.used(now)
            if used + (ask.at_most if limit.of_tokens else 1) <= limit.amount:
                continue
            if limit.shadow:
                if used + (ask.tokens if limit.of_tokens else 1) > limit.amount:
                    shadowed.append(_refusal(limit, meter, used, ask, now))
                continue
            refused.append(one := _refusal(limit, meter, used, ask, now))
            if limit.of_tokens and used + ask.at_least <= limit.amount:
                unsure = max(unsure, one.retry_after)
            else:
                certain = max(certain, one.retry_after)
        lease = self._charge(request_id, meters, ask.tokens, now) if not refused else None
        return Decision(
            lease,
            unsure > certain,
            tuple(refused),
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
