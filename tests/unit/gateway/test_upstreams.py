"""The pool: who takes the next request, and that there is always someone."""

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import HttpUrl

from gateway.settings import Upstream
from gateway.upstreams import PROBE_SECONDS, Pool, Slot
from tests.fakes.loop import run
from tests.fakes.transport import ScriptedReply, ScriptedTransport, Step


def slots(names: str) -> list[Slot]:
    return [Slot(Upstream(name=name, url=HttpUrl(f"http://{name}")), f"key-{name}") for name in names]


async def test_only_upstreams_that_answered_their_last_probe_are_picked() -> None:
    transport = ScriptedTransport()
    pool = Pool(slots("abc"), transport)
    transport.down = {"a", "c"}
    await pool.probe()
    assert {pool.pick().upstream.name for _ in range(5)} == {"b"}
    transport.down = {"a", "b"}
    await pool.probe()
    assert pool.pick().upstream.name == "c"


@given(held=st.lists(st.integers(0, 2), max_size=12), down=st.sets(st.sampled_from("abc")))
def test_the_least_busy_of_those_that_answer_is_picked_and_the_last_is_never_ejected(
    held: list[int], down: set[str]
) -> None:
    transport = ScriptedTransport()
    transport.down = down
    all_slots = slots("abc")
    pool = Pool(all_slots, transport)
    asyncio.run(pool.probe())
    for number in held:
        all_slots[number].__enter__()
    picked = pool.pick()
    usable = [slot for slot in all_slots if slot.upstream.name not in down] or all_slots
    assert picked in usable
    assert picked.in_flight == min(slot.in_flight for slot in usable)
    assert pool.any_up() == (len(down) < 3)


async def test_requests_spread_over_equals() -> None:
    pool = Pool(slots("ab"), ScriptedTransport())
    await pool.probe()
    with pool.pick() as first, pool.pick() as second:
        assert {first.upstream.name, second.upstream.name} == {"a", "b"}


async def test_nothing_is_up_before_the_first_probe_and_a_request_is_tried_all_the_same() -> None:
    pool = Pool(slots("a"), ScriptedTransport())
    assert not pool.any_up()
    assert pool.pick().upstream.name == "a"


async def test_a_place_is_given_back_whatever_happens() -> None:
    (slot,) = slots("a")
    seen = []

    def fail() -> None:
        with slot:
            seen.append(slot.in_flight)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (seen, slot.in_flight) == ([1], 0)


def test_the_pool_keeps_probing_until_it_is_cancelled() -> None:
    async def scenario() -> None:
        transport = ScriptedTransport()
        pool = Pool(slots("a"), transport)
        task = asyncio.create_task(pool.keep_probing())
        await asyncio.sleep(PROBE_SECONDS + 0.1)
        assert pool.any_up()
        transport.down = {"a"}
        await asyncio.sleep(PROBE_SECONDS + 0.1)
        assert not pool.any_up()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())


def test_a_slot_sends_its_own_key_and_nothing_else() -> None:
    (slot,) = slots("a")
    headers: Mapping[str, str] = slot.headers
    assert headers == {"Authorization": "Bearer key-a", "Content-Type": "application/json"}


async def test_the_scripted_transport_stands_in_for_a_real_one() -> None:
    """The fake plays its steps in order and ends as an engine's reply does."""
    steps: list[Step] = [b"a", 0.0, b"b", ValueError("broken")]
    reply = ScriptedReply(steps)
    assert [await reply.read(), await reply.read()] == [b"a", b"b"]
    with pytest.raises(ValueError, match="broken"):
        await reply.read()
    assert await reply.read() == b""
