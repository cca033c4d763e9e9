"""Blocks that end when their time is over, and only theirs: many at once, on one timer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.deadlines import Deadlines
from tests.fakes.loop import run

SECONDS = st.floats(0.01, 100)


async def ends(work: Callable[[], Awaitable[None]]) -> tuple[float, str]:
    """When and how it ends."""
    now = asyncio.get_running_loop().time
    begun = now()
    try:
        await work()
    except (TimeoutError, asyncio.CancelledError) as error:
        return now() - begun, type(error).__name__
    return now() - begun, "returned"


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8))
def test_each_block_ends_by_itself_or_at_its_own_deadline(blocks: list[tuple[float, float]]) -> None:
    async def together() -> list[tuple[float, str]]:
        deadlines = Deadlines()

        async def block(allowed: float, needed: float) -> None:
            with deadlines.within(allowed):
                await asyncio.sleep(needed)

        return await asyncio.gather(*(ends(lambda b=both: block(*b)) for both in blocks))  # type: ignore[misc]

    for (allowed, needed), (ended, how) in zip(blocks, run(together()), strict=True):
        if how == "returned":
            assert (needed <= allowed) or needed == pytest.approx(allowed, abs=1e-3)
            assert ended == pytest.approx(needed, abs=1e-3)
        else:
            assert how == "TimeoutError"
            assert needed >= allowed - 1e-3
            assert ended == pytest.approx(allowed, abs=1e-3)


@given(SECONDS, SECONDS, st.lists(st.floats(0, 0.99), max_size=5))
def test_a_deadline_that_is_renewed_counts_from_then_on(
    first: float, idle: float, waits: list[float]
) -> None:
    async def renewing() -> tuple[float, str]:
        deadlines = Deadlines()

        async def block() -> None:
            with deadlines.within(first, idle=idle) as deadline:
                for part in waits:
                    deadline.renew()
                    await asyncio.sleep(idle * part)
                await asyncio.sleep(1000)

        return await ends(block)

    ended, how = run(renewing())
    assert how == "TimeoutError"
    expected = sum(idle * part for part in waits[:-1]) + idle if waits else first
    assert ended == pytest.approx(expected, abs=1e-3)


def test_no_renewal_outlasts_the_total() -> None:
    async def renewed() -> tuple[float, str]:
        deadlines = Deadlines()

        async def block() -> None:
            with deadlines.within(10, idle=10, total=25) as deadline:
                while True:
                    deadline.renew()
                    await asyncio.sleep(9)

        return await ends(block)

    ended, how = run(renewed())
    assert (how, round(ended, 3)) == ("TimeoutError", 25)


def test_a_block_that_is_cancelled_from_outside_stays_cancelled() -> None:
    async def cancelled() -> bool:
        deadlines = Deadlines()

        async def block() -> None:
            with deadlines.within(10):
                await asyncio.sleep(100)

        task = asyncio.create_task(block())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert run(cancelled())


def test_a_cancellation_from_outside_goes_before_a_deadline_of_the_same_moment() -> None:
    async def both(*, outside_first: bool) -> bool:
        deadlines = Deadlines()

        async def block() -> None:
            with deadlines.within(10) as deadline:
                held.append(deadline)
                await asyncio.sleep(100)

        held: list[object] = []
        task = asyncio.create_task(block())
        await asyncio.sleep(0)
        steps = [task.cancel, held[0].expire]  # type: ignore[attr-defined]
        for step in steps if outside_first else reversed(steps):
            step()
        await asyncio.wait([task])
        return task.cancelled()

    assert run(both(outside_first=True))
    assert run(both(outside_first=False))


def test_the_inner_of_two_deadlines_leaves_the_outer_as_it_was() -> None:
    async def nested() -> list[str]:
        deadlines = Deadlines()
        seen = []

        async def block() -> None:
            with deadlines.within(10):
                try:
                    with deadlines.within(1):
                        await asyncio.sleep(100)
                except TimeoutError:
                    seen.append("inner")
                await asyncio.sleep(100)

        ended, how = await ends(block)
        assert ended == pytest.approx(10)
        return [*seen, how]

    assert run(nested()) == ["inner", "TimeoutError"]


def test_a_block_that_fails_at_its_deadline_says_why() -> None:
    async def failing() -> str:
        deadlines = Deadlines()
        try:
            with deadlines.within(1):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    raise ValueError("why") from None
        except ValueError as error:
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            return str(error)
        return "nothing"

    assert run(failing()) == "why"
