"""Reading a body: its cap is on the bytes that arrive, and what is held is given back whatever happens."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from gateway.body import BodyBudget, ClientGone, HeldBody
from gateway.deadlines import Deadlines
from gateway.errors import BodyTooLarge, Overloaded, RequestTimeout, UnsupportedEncoding
from tests.fakes.asgi import DISCONNECT, Client, body


async def read(
    messages: list[Message],
    *,
    headers: dict[bytes, bytes] | None = None,
    budget: BodyBudget | None = None,
    max_bytes: int = 100,
    timeout: float = 5,
) -> bytes:
    with HeldBody(
        budget or BodyBudget(1000), Deadlines(), tenant="acme", max_bytes=max_bytes, timeout=timeout
    ) as held:
        return await held.read(headers or {}, Client(messages).receive)


async def test_a_body_is_held_until_the_block_ends() -> None:
    budget = BodyBudget(1000)
    with HeldBody(budget, Deadlines(), tenant="acme", max_bytes=100, timeout=5) as held:
        assert await held.read({}, Client(body(b"ab", b"", b"cde")).receive) == b"abcde"
        assert budget.held == 5
    assert budget.held == 0


@given(chunks=st.lists(st.binary(max_size=8), min_size=1, max_size=8), cap=st.integers(0, 40))
def test_one_byte_over_the_cap_is_refused_however_it_arrives(chunks: list[bytes], cap: int) -> None:
    budget = BodyBudget(1000)
    whole = b"".join(chunks)
    if len(whole) <= cap:
        assert asyncio.run(read(body(*chunks), budget=budget, max_bytes=cap)) == whole
    else:
        with pytest.raises(BodyTooLarge):
            asyncio.run(read(body(*chunks), budget=budget, max_bytes=cap))
    assert budget.held == 0


async def test_a_body_is_refused_before_all_of_it_has_arrived() -> None:
    endless: list[Message] = [{"type": "http.request", "body": b"x" * 60, "more_body": True}] * 2
    with pytest.raises(BodyTooLarge):
        await read(endless)


async def test_a_declared_length_over_the_cap_is_refused_before_anything_is_read() -> None:
    with pytest.raises(BodyTooLarge):
        await read([], headers={b"content-length": b"101"})


async def test_a_declared_length_that_lies_does_not_lift_the_cap() -> None:
    with pytest.raises(BodyTooLarge):
        await read(body(b"x" * 101), headers={b"content-length": b"1"})
    assert await read(body(b"x" * 100), headers={b"content-length": b"100"}) == b"x" * 100


@pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"br", b"identity, gzip", b"deflate", b"\xff"])
async def test_a_compressed_body_is_refused_unread(encoding: bytes) -> None:
    with pytest.raises(UnsupportedEncoding):
        await read([], headers={b"content-encoding": encoding})


@pytest.mark.parametrize("encoding", [b"identity", b" Identity ", b""])
async def test_a_body_that_says_it_is_not_compressed_is_read(encoding: bytes) -> None:
    assert await read(body(b"x"), headers={b"content-encoding": encoding}) == b"x"


async def test_all_bodies_together_are_bounded_and_a_refused_one_takes_nothing() -> None:
    budget = BodyBudget(10)
    with HeldBody(budget, Deadlines(), tenant="acme", max_bytes=100, timeout=5) as held:
        await held.read({}, Client(body(b"x" * 8)).receive)
        with pytest.raises(Overloaded) as refused:
            await read(body(b"x", b"xx"), budget=budget)
        assert refused.value.retry_after >= 1
        assert budget.held == 8
        assert await read(body(b"xx"), budget=budget) == b"xx"
    assert budget.held == 0


async def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    budget = BodyBudget(1000)
    unfinished: list[Message] = [{"type": "http.request", "body": b"x", "more_body": True}]
    with pytest.raises(RequestTimeout):
        await read(unfinished, budget=budget, timeout=0.01)
    assert budget.held == 0


@pytest.mark.parametrize("sent", [[], [{"type": "http.request", "body": b"x", "more_body": True}]])
async def test_a_client_that_leaves_ends_the_reading(sent: list[Message]) -> None:
    budget = BodyBudget(1000)
    with pytest.raises(ClientGone):
        await read([*sent, DISCONNECT], budget=budget)
    assert budget.held == 0


async def test_a_message_without_a_body_is_an_empty_one() -> None:
    assert await read([{"type": "http.request"}]) == b""


@pytest.mark.parametrize("fault", [RuntimeError, asyncio.CancelledError])
async def test_what_is_held_is_given_back_after_a_fault(fault: Callable[[], BaseException]) -> None:
    budget = BodyBudget(1000)

    async def use() -> None:
        with HeldBody(budget, Deadlines(), tenant="acme", max_bytes=100, timeout=5) as held:
            await held.read({}, Client(body(b"abc")).receive)
            raise fault()

    with pytest.raises((RuntimeError, asyncio.CancelledError)):
        await use()
    assert budget.held == 0


def test_one_tenants_bodies_leave_room_for_others() -> None:
    budget = BodyBudget(100, share=25)
    budget.hold(20, "greedy")
    with pytest.raises(Overloaded, match="share"):
        budget.hold(6, "greedy")
    budget.hold(25, "another")
    budget.give_back(20, "greedy")
    budget.hold(25, "greedy")
    assert budget.held == 50
    budget.give_back(25, "greedy")
    budget.give_back(25, "another")
    assert budget.held == 0
