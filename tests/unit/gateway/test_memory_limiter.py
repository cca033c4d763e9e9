"""The limiter in memory under any interleaving, against the sum of what was reserved and used."""

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.limits import WINDOW_SECONDS, Ask, Calendar, Decision, Lease, Limit
from gateway.memory_limiter import SWEEP_EVERY, MemoryLimiter
from tests.fakes.clock import Clock

# Moments in 1/1024 s, which floats hold exactly: what is compared is the window, not rounding.
TICK = 1 / 1024
MIDNIGHT = 1_800_057_600.0
KEY = (
    Limit("requests_per_minute", "key", "k", 6),
    Limit("tokens_per_minute", "key", "k", 500),
    Limit("parallel_requests", "key", "k", 3),
    Limit("tokens_per_day", "key", "k", 900),
    Limit("tokens_per_month", "key", "k", 1500),
)
OTHER = (
    Limit("requests_per_minute", "key", "o", 4),
    Limit("tokens_per_minute", "key", "o", 300),
    Limit("tokens_per_minute", "tenant", "t", 600),
)
SHARED = (Limit("tokens_per_minute", "everyone", "", 700), Limit("parallel_requests", "everyone", "", 4))
CALLERS = ((*KEY, *SHARED), (*OTHER, *SHARED))


def complete(decision: Any) -> Any:
    """The result of a coroutine that must not suspend: nothing may come between check and charge."""
    try:
        decision.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it suspended")


def limiter(clock: Clock) -> MemoryLimiter:
    return MemoryLimiter(Calendar("UTC"), monotonic=clock, clock=clock)


def reserve(of: MemoryLimiter, limits: tuple[Limit, ...], ask: Ask) -> Decision:
    decision = complete(of.reserve("r", limits, ask))
    assert isinstance(decision, Decision)
    return decision


@dataclass(eq=False)
class Request:
    """What the model remembers: `tokens` are reserved, then used."""

    lease: Lease
    limits: tuple[Limit, ...]
    at: float
    ask: Ask
    tokens: int
    running: bool = True


class Interleavings(RuleBasedStateMachine):
    """Requests begin, end, are cancelled and fail in any order, with estimates that are wrong within their
    proven bounds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(MIDNIGHT - 90.0)
        self.limiter = limiter(self.clock)
        self.requests: list[Request] = []

    @rule(
        caller=st.sampled_from(CALLERS),
        least=st.integers(1, 80),
        more=st.integers(0, 60),
        share=st.floats(0, 1),
    )
    def begin(self, caller: tuple[Limit, ...], least: int, more: int, share: float) -> None:
        ask = Ask(least + int(more * share), least + more, least)
        decision = reserve(self.limiter, caller, ask)
        fits_for_certain = all(self.room(limit) >= self.need(limit, ask.at_most) for limit in caller)
        assert (decision.lease is not None) == fits_for_certain
        if decision.lease is not None:
            self.requests.append(Request(decision.lease, caller, self.clock.now, ask, ask.tokens))
            return
        assert {one.limit for one in decision.refused} == {
            one for one in caller if self.room(one) < self.need(one, ask.at_most)
        }
        waits: dict[bool, list[float]] = {True: [-1.0], False: [-1.0]}
        for one in decision.refused:
            sure = self.room(one.limit) < self.need(one.limit, ask.at_least)
            waits[sure].append(one.retry_after)
        assert decision.near == (max(waits[False]) > max(waits[True]))

    @precondition(lambda self: any(one.running for one in self.requests))
    @rule(which=st.integers(0, 99), share=st.floats(0, 1))
    def end(self, which: int, share: float) -> None:
        """With usage; a request that was cancelled or failed has used nothing, or a part."""
        running = [one for one in self.requests if one.running]
        request = running[which % len(running)]
        used = int(request.ask.at_most * share)
        for _ in range(2):  # the second time changes nothing
            complete(self.limiter.settle(request.lease, used))
        request.running, request.tokens = False, used

    @rule(ticks=st.integers(0, 45 * 1024) | st.sampled_from([1, 60 * 1024]))
    def time_passes(self, ticks: int) -> None:
        self.clock.now += ticks * TICK

    @invariant()
    def what_is_counted_is_what_was_reserved_or_used(self) -> None:
        limits = tuple({limit for caller in CALLERS for limit in caller})
        for reading in complete(self.limiter.readings(limits)):
            assert reading.used == self.used(reading.limit)

    @invariant()
    def no_limit_is_passed_by_more_than_the_estimates_are_wrong(self) -> None:
        for limit in {limit for caller in CALLERS for limit in caller}:
            counted = [one for one in self.requests if self.counts(one, limit)]
            errors = sum(one.ask.at_most - one.ask.tokens for one in counted) if limit.of_tokens else 0
            assert self.used(limit) <= limit.amount + errors

    def teardown(self) -> None:
        for request in self.requests:
            complete(self.limiter.settle(request.lease, 0))
        assert self.limiter.leases == 0
        places = tuple(one for caller in CALLERS for one in caller if one.name == "parallel_requests")
        assert [one.used for one in complete(self.limiter.readings(places))] == [0] * len(places)

    def counts(self, request: Request, limit: Limit) -> bool:
        if limit not in request.limits:
            return False
        if limit.name == "parallel_requests":
            return request.running
        if limit.name == "tokens_per_day":
            return (request.at < MIDNIGHT) == (self.clock.now < MIDNIGHT)
        return limit.name == "tokens_per_month" or request.at > self.clock.now - WINDOW_SECONDS

    def used(self, limit: Limit) -> int:
        counted = [one for one in self.requests if self.counts(one, limit)]
        return sum(one.tokens for one in counted) if limit.of_tokens else len(counted)

    def room(self, limit: Limit) -> int:
        return limit.amount - self.used(limit)

    @staticmethod
    def need(limit: Limit, tokens: int) -> int:
        return tokens if limit.of_tokens else 1


Interleavings.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestInterleavings = Interleavings.TestCase

WINDOWS = (Limit("requests_per_minute", "key", "k", 4), Limit("tokens_per_minute", "tenant", "t", 100))


@given(
    gaps=st.lists(st.integers(0, 20 * 1024), min_size=1, max_size=25),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
)
def test_a_refusal_names_the_earliest_moment_at_which_a_retry_succeeds(
    gaps: list[int], sizes: list[int]
) -> None:
    for tick, succeeds in ((-TICK, False), (0.0, True)):
        clock = Clock(MIDNIGHT)
        of = limiter(clock)
        for number, gap in enumerate(gaps):
            clock.now += gap * TICK
            size = sizes[number % len(sizes)]
            decision = reserve(of, WINDOWS, Ask(size, size, size))
            if decision.lease is None:
                wait = max(one.retry_after for one in decision.refused)
                assert 0 < wait <= WINDOW_SECONDS
                clock.now += wait + tick
                assert (reserve(of, WINDOWS, Ask(size, size, size)).lease is not None) == succeeds
                break


@given(
    before=st.lists(st.integers(1, 60), max_size=6),
    least=st.integers(1, 60),
    doubt=st.integers(0, 60),
    true=st.floats(0, 1),
)
def test_a_request_that_was_not_counted_succeeds_at_the_named_moment_whatever_it_is(
    before: list[int], least: int, doubt: int, true: float
) -> None:
    clock = Clock(MIDNIGHT)
    of = limiter(clock)
    for size in before:
        reserve(of, WINDOWS, Ask(size, size, size))
        clock.now += 1
    decision = reserve(of, WINDOWS, Ask(least, least + doubt, least))
    if decision.lease or decision.near:
        return
    clock.now += max(one.retry_after for one in decision.refused)
    exact = least + int(doubt * true)
    again = reserve(of, WINDOWS, Ask(exact, exact, exact))
    assert again.lease or exact > WINDOWS[1].amount


def test_a_limit_that_was_lowered_waits_for_enough_to_leave() -> None:
    clock = Clock(MIDNIGHT)
    of, wide = limiter(clock), Limit("requests_per_minute", "key", "k", 5)
    for _ in range(5):
        reserve(of, (wide,), Ask(1, 1, 1))
        clock.now += 10
    narrow = (Limit("requests_per_minute", "key", "k", 2),)
    [refused] = reserve(of, narrow, Ask(1, 1, 1)).refused
    assert refused.retry_after == 40.0
    clock.now += 40.0
    assert reserve(of, narrow, Ask(1, 1, 1)).lease


def test_subjects_that_were_quiet_are_forgotten_and_quotas_and_places_are_not() -> None:
    clock = Clock(MIDNIGHT)
    of = limiter(clock)
    kept = (Limit("tokens_per_day", "key", "kept", 1000), Limit("parallel_requests", "key", "kept", 9))
    reserve(of, kept, Ask(10, 10, 10))
    for number in range(2 * SWEEP_EVERY):
        reserve(of, (Limit("requests_per_minute", "key", f"early-{number}", 1),), Ask(1, 1, 1))
    clock.now += WINDOW_SECONDS
    for _ in range(SWEEP_EVERY):
        reserve(of, (Limit("requests_per_minute", "key", "late", 10**6),), Ask(1, 1, 1))
    assert len(of) == 3
    assert [one.used for one in complete(of.readings(kept))] == [10, 1]


def test_a_settlement_after_midnight_belongs_to_the_day_before() -> None:
    clock = Clock(MIDNIGHT - 1)
    of, day = limiter(clock), (Limit("tokens_per_day", "key", "k", 100),)
    lease = reserve(of, day, Ask(100, 100, 100)).lease
    assert lease
    clock.now += 2
    assert reserve(of, day, Ask(40, 40, 40)).lease
    complete(of.settle(lease, 5))
    assert [one.used for one in complete(of.readings(day))] == [40]


@pytest.mark.parametrize("tokens", [10, 10**15])
def test_what_is_larger_than_the_limit_never_fits(tokens: int) -> None:
    [refused] = reserve(
        limiter(Clock()), (Limit("tokens_per_minute", "key", "k", 9),), Ask(tokens, tokens, tokens)
    ).refused
    assert refused.retry_after == math.inf


async def test_its_background_work_ends_once_the_ledger_has_told() -> None:
    of = limiter(Clock())

    async def totals() -> list[Any]:
        return []

    await asyncio.wait_for(of.run(totals), 1)
