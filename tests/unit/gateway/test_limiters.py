"""One suite for every Limiter: in memory and in Valkey."""

import asyncio
import math
import secrets
import time

import pytest

from gateway.limits import (
    LIMIT_NAMES,
    Ask,
    Calendar,
    Decision,
    Lease,
    Limit,
    Limiter,
    LimitName,
    LimitScope,
    Reading,
    Total,
)
from tests.fakes.limiters import Timed

EXACT = Ask(10, 10, 10)


def limit(name: LimitName, amount: int, scope: LimitScope = "key", subject: str = "", **more: bool) -> Limit:
    """Of a subject that no other test has, unless one is given."""
    return Limit(name, scope, subject or secrets.token_hex(8), amount, **more)


def exactly(tokens: int) -> Ask:
    return Ask(tokens, tokens, tokens)


async def reserve(limiter: Limiter, limits: tuple[Limit, ...], ask: Ask = EXACT) -> Decision:
    return await limiter.reserve(secrets.token_hex(8), limits, ask)


async def lease(limiter: Limiter, limits: tuple[Limit, ...], ask: Ask = EXACT) -> Lease:
    decision = await reserve(limiter, limits, ask)
    assert decision.lease is not None
    return decision.lease


async def used(limiter: Limiter, *limits: Limit) -> list[int]:
    return [reading.used for reading in await limiter.readings(limits)]


async def test_without_limits_everything_passes(timed: Timed) -> None:
    decision = await reserve(timed.limiter, ())
    assert decision.lease
    assert (decision.requests, decision.tokens) == (None, None)
    await timed.limiter.settle(decision.lease, 5)
    assert timed.limiter.leases == 0


@pytest.mark.parametrize("name", LIMIT_NAMES)
async def test_each_limit_holds_at_its_amount(timed: Timed, name: LimitName) -> None:
    of_tokens = name.startswith("tokens_")
    limits = (limit(name, 30 if of_tokens else 3),)
    for _ in range(3):
        assert (await reserve(timed.limiter, limits)).lease
    refused = await reserve(timed.limiter, limits)
    assert refused.lease is None
    assert not refused.near
    [one] = refused.refused
    assert (one.limit, one.used, one.asked) == (limits[0], 30 if of_tokens else 3, 10 if of_tokens else 1)


async def test_all_limits_are_checked_before_any_is_charged(timed: Timed) -> None:
    full = limit("parallel_requests", 1, "everyone")
    await lease(timed.limiter, (full,))
    others = tuple(limit(name, 1000) for name in LIMIT_NAMES if name != "parallel_requests")
    for limits in ((*others, full), (full, *others)):
        assert (await reserve(timed.limiter, limits)).lease is None
    assert await used(timed.limiter, *others) == [0, 0, 0, 0]


async def test_every_limit_that_holds_is_told(timed: Timed) -> None:
    limits = (limit("requests_per_minute", 1), limit("tokens_per_minute", 15, "tenant"))
    await lease(timed.limiter, limits)
    refused = await reserve(timed.limiter, limits)
    assert [one.limit for one in refused.refused] == list(limits)


async def test_subjects_and_scopes_do_not_share(timed: Timed) -> None:
    subject = secrets.token_hex(8)
    for scope in ("key", "tenant"):
        assert (await reserve(timed.limiter, (limit("requests_per_minute", 1, scope, subject),))).lease
    assert (await reserve(timed.limiter, (limit("requests_per_minute", 1),))).lease


async def test_a_settled_request_counts_what_it_used_and_frees_its_place(timed: Timed) -> None:
    limits = tuple(limit(name, 1000) for name in LIMIT_NAMES)
    held = await lease(timed.limiter, limits, exactly(100))
    assert await used(timed.limiter, *limits) == [1, 100, 1, 100, 100]
    assert timed.limiter.leases == 1
    await timed.limiter.settle(held, 30)
    assert await used(timed.limiter, *limits) == [1, 30, 0, 30, 30]
    assert timed.limiter.leases == 0


async def test_more_than_was_reserved_is_counted_too(timed: Timed) -> None:
    limits = (limit("tokens_per_minute", 100), limit("tokens_per_day", 100))
    await timed.limiter.settle(await lease(timed.limiter, limits, exactly(90)), 150)
    assert [(one.used, one.remaining) for one in await timed.limiter.readings(limits)] == [(150, 0), (150, 0)]
    assert (await reserve(timed.limiter, limits, exactly(1))).lease is None


async def test_settling_twice_is_settling_once(timed: Timed) -> None:
    limits = (limit("tokens_per_minute", 100), limit("parallel_requests", 2))
    held = await lease(timed.limiter, limits)
    await timed.limiter.settle(held, 4)
    await timed.limiter.settle(held, 0)
    assert await used(timed.limiter, *limits) == [4, 0]
    assert timed.limiter.leases == 0


async def test_an_estimate_that_might_not_fit_is_asked_for_again(timed: Timed) -> None:
    limits = (limit("tokens_per_minute", 100),)
    near = await reserve(timed.limiter, limits, Ask(50, 120, 20))
    assert (near.lease, near.near) == (None, True)
    assert [(one.limit, one.retry_after) for one in near.refused] == [(limits[0], 0)]
    assert await used(timed.limiter, *limits) == [0]
    assert (await reserve(timed.limiter, limits, exactly(100))).lease


async def test_near_one_limit_and_over_another_is_refused(timed: Timed) -> None:
    limits = (limit("tokens_per_minute", 100), limit("parallel_requests", 1))
    await lease(timed.limiter, limits[1:])
    decision = await reserve(timed.limiter, limits, Ask(50, 120, 20))
    assert not decision.near
    assert [(one.limit, one.retry_after) for one in decision.refused] == [(limits[0], 0), (limits[1], 1)]


async def test_what_may_hold_longer_than_the_limit_that_refuses_is_counted(timed: Timed) -> None:
    """A full place is free in a second; whether the day has room for the request, only the count can tell."""
    day, place = limit("tokens_per_day", 100), limit("parallel_requests", 1)
    await lease(timed.limiter, (place,))
    decision = await reserve(timed.limiter, (day, place), Ask(50, 120, 20))
    assert decision.near
    assert [one.limit for one in decision.refused] == [day, place]
    decision = await reserve(timed.limiter, (day, place), exactly(60))
    assert [(one.limit, one.retry_after) for one in decision.refused] == [(place, 1)]


async def test_what_can_never_fit_says_so(timed: Timed) -> None:
    limits = (limit("tokens_per_minute", 100), limit("tokens_per_day", 100))
    decision = await reserve(timed.limiter, limits, Ask(150, 200, 101))
    assert [one.retry_after for one in decision.refused] == [math.inf, math.inf]


async def test_a_retry_at_the_named_moment_succeeds_and_not_long_before(timed: Timed) -> None:
    limits = (limit("requests_per_minute", 2), limit("tokens_per_minute", 100))
    await lease(timed.limiter, limits, exactly(60))
    await timed.passes(0.5)
    await lease(timed.limiter, limits, exactly(30))
    refused = await reserve(timed.limiter, limits, exactly(70))
    waits = {one.limit.name: one.retry_after for one in refused.refused}
    assert waits["requests_per_minute"] == pytest.approx(timed.window - 0.5, abs=0.3)
    assert waits["tokens_per_minute"] == pytest.approx(timed.window - 0.5, abs=0.3)
    await timed.passes(max(waits.values()) - 0.3)
    assert (await reserve(timed.limiter, limits, exactly(70))).lease is None
    await timed.passes(0.3)
    assert (await reserve(timed.limiter, limits, exactly(70))).lease


async def test_a_window_that_has_passed_holds_nothing_and_late_settlements_change_nothing(
    timed: Timed,
) -> None:
    limits = (limit("requests_per_minute", 5), limit("tokens_per_minute", 100))
    held = await lease(timed.limiter, limits, exactly(90))
    await timed.passes(timed.window + 0.05)
    assert await used(timed.limiter, *limits) == [0, 0]
    await timed.limiter.settle(held, 95)
    assert await used(timed.limiter, *limits) == [0, 0]


async def test_a_place_is_held_until_it_is_settled(timed: Timed) -> None:
    limits = (limit("parallel_requests", 1),)
    held = await lease(timed.limiter, limits)
    await timed.passes(timed.window + 0.05)
    [one] = (await reserve(timed.limiter, limits)).refused
    assert one.retry_after == 1.0
    await timed.limiter.settle(held, 0)
    assert (await reserve(timed.limiter, limits)).lease


async def test_a_limit_in_shadow_is_counted_and_reported_and_lets_pass(timed: Timed) -> None:
    limits = (limit("tokens_per_minute", 15, shadow=True), limit("requests_per_minute", 5))
    assert (await reserve(timed.limiter, limits)).shadowed == ()
    decision = await reserve(timed.limiter, limits)
    assert decision.lease
    assert [one.limit for one in decision.shadowed] == [limits[0]]
    assert decision.refused == ()
    assert await used(timed.limiter, *limits) == [20, 2]
    assert decision.tokens is None, "the headers tell enforced limits alone"


async def test_the_tightest_of_each_kind_is_told_for_the_headers(timed: Timed) -> None:
    wide, narrow = limit("requests_per_minute", 50), limit("requests_per_minute", 4, "tenant")
    tokens = limit("tokens_per_minute", 100)
    decision = await reserve(timed.limiter, (wide, narrow, tokens))
    assert decision.requests is not None
    assert decision.tokens is not None
    assert (decision.requests.limit, decision.requests.remaining) == (narrow, 3)
    assert decision.requests.reset == pytest.approx(timed.window, abs=0.1)
    assert (decision.tokens.limit, decision.tokens.remaining) == (tokens, 90)


async def test_quotas_end_with_their_day_and_month(timed: Timed) -> None:
    limits = (limit("tokens_per_day", 10), limit("tokens_per_month", 10))
    await lease(timed.limiter, limits)
    refused = (await reserve(timed.limiter, limits)).refused
    now, calendar = timed.clock.now if timed.clock else time.time(), Calendar("UTC")
    assert refused[0].retry_after == pytest.approx(calendar.day(now).end - now, abs=2)
    assert refused[1].retry_after == pytest.approx(calendar.month(now).end - now, abs=2)


async def test_many_at_once_never_pass_a_limit(timed: Timed) -> None:
    limits = (
        limit("requests_per_minute", 8),
        limit("tokens_per_minute", 75, "tenant"),
        limit("parallel_requests", 100, "everyone"),
    )
    decisions = await asyncio.gather(*(reserve(timed.limiter, limits) for _ in range(40)))
    held = [decision.lease for decision in decisions if decision.lease]
    assert len(held) == 7
    assert await used(timed.limiter, *limits) == [7, 70, 7]
    await asyncio.gather(*(timed.limiter.settle(one, 1) for one in held))
    assert await used(timed.limiter, *limits) == [7, 7, 0]
    assert timed.limiter.leases == 0


async def test_readings_change_nothing(timed: Timed) -> None:
    limits = tuple(limit(name, 10, shadow=name == "tokens_per_day") for name in LIMIT_NAMES)
    first = await timed.limiter.readings(limits)
    assert [(one.limit, one.used, one.remaining) for one in first] == [(one, 0, 10) for one in limits]
    assert await timed.limiter.readings(limits) is not first
    assert await used(timed.limiter, *limits) == [0] * 5
    for one in limits:  # each by itself: none is refused for another's sake
        assert await used(timed.limiter, one) == await used(timed.limiter, one) == [0]


async def test_quotas_begin_with_what_the_ledger_knows(timed: Timed) -> None:
    day, month = limit("tokens_per_day", 1000), limit("tokens_per_month", 1000, "tenant")
    await timed.limiter.settle(await lease(timed.limiter, (day,)), 10)
    now, calendar = timed.clock.now if timed.clock else time.time(), Calendar("UTC")

    async def totals() -> list[Total]:
        return [
            Total("key", day.subject, "tokens_per_day", calendar.day(now).id, 910),
            Total("tenant", month.subject, "tokens_per_month", calendar.month(now).id, 700),
            Total("key", day.subject, "tokens_per_day", "2001-01-01", 5),
        ]

    running = asyncio.create_task(timed.limiter.run(totals))
    readings = await _until_seeded(timed.limiter, day, month)
    assert [one.used for one in readings] == [910, 700]
    running.cancel()


async def _until_seeded(limiter: Limiter, *limits: Limit) -> tuple[Reading, ...]:
    for _ in range(100):
        readings = await limiter.readings(limits)
        if readings[-1].used:
            return readings
        await asyncio.sleep(0.1)
    raise AssertionError("never seeded")
