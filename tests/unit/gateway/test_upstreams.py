"""The pool: who takes the next request, and that there is always someone. The HTTP client to them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import HttpUrl

from gateway.errors import EngineFailed, EngineUnavailable
from gateway.settings import Upstream
from gateway.upstreams import PROBE_SECONDS, AiohttpTransport, EngineReply, Pool, Slot
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


class Engine:
    """A socket that answers each connection with the same bytes and closes it; remembers what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.heard: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(2) if head.startswith(b"POST") else b""
        self.heard.append(head + body)
        writer.write(self._answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def engine(answer: bytes) -> AsyncIterator[tuple[Engine, AiohttpTransport, Upstream]]:
    listening = Engine(answer)
    server = await asyncio.start_server(listening.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = AiohttpTransport(connect_timeout=5)
    try:
        yield listening, transport, Upstream(name="vllm", url=HttpUrl(f"http://127.0.0.1:{port}/"))
    finally:
        await transport.close()
        server.close()
        await server.wait_closed()


def reply(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def read_all(answer: EngineReply) -> bytes:
    whole = b""
    while chunk := await answer.read():
        whole += chunk
    return whole


async def test_an_engine_gets_exactly_what_it_is_sent_and_no_header_of_the_clients_library() -> None:
    async with engine(reply(b"{}", "Content-Type: application/json")) as (listening, transport, upstream):
        answer = await transport.post(upstream, "/v1/completions", b"{}", {"Authorization": "Bearer key"})
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert await read_all(answer) == b"{}"
        answer.close()
        (heard,) = listening.heard
        names = {line.partition(b":")[0].lower() for line in heard.split(b"\r\n\r\n")[0].splitlines()[1:]}
        assert heard.startswith(b"POST /v1/completions HTTP/1.1\r\n")
        assert names - {b"content-type"} == {b"host", b"authorization", b"content-length"}
        assert heard.endswith(b"\r\n\r\n{}")


async def test_bytes_pass_as_they_are_and_a_redirect_is_not_followed() -> None:
    encoded = reply(
        b"\x1f\x8b", "Content-Encoding: gzip", "Location: http://127.0.0.1:1/", status="302 Found"
    )
    async with engine(encoded) as (listening, transport, upstream):
        answer = await transport.post(upstream, "/v1/completions", b"{}", {})
        assert (answer.status, await read_all(answer)) == (302, b"\x1f\x8b")
        answer.close()
        assert len(listening.heard) == 1


async def test_nobody_listening_is_an_engine_that_is_unavailable() -> None:
    async with engine(b"") as (_, transport, upstream):
        nobody = upstream.model_copy(update={"url": HttpUrl("http://127.0.0.1:1")})
        with pytest.raises(EngineUnavailable):
            await transport.post(nobody, "/v1/completions", b"{}", {})
        assert not await transport.healthy(nobody)


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n"])
async def test_no_reply_is_a_failure_of_the_engine(answer: bytes) -> None:
    async with engine(answer) as (_, transport, upstream):
        with pytest.raises(EngineFailed):
            await transport.post(upstream, "/v1/completions", b"{}", {})


async def test_a_reply_that_breaks_off_is_a_failure_of_the_engine() -> None:
    async with engine(reply(b"{", length=100)) as (_, transport, upstream):
        answer = await transport.post(upstream, "/v1/completions", b"{}", {})
        with pytest.raises(EngineFailed):
            await read_all(answer)
        answer.close()


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [(reply(b""), True), (reply(b"", status="503 Service Unavailable"), False), (b"", False)],
    ids=["200", "503", "nothing"],
)
async def test_an_engine_is_healthy_when_it_says_so(answer: bytes, *, healthy: bool) -> None:
    async with engine(answer) as (listening, transport, upstream):
        assert await transport.healthy(upstream) is healthy
        assert listening.heard[0].startswith(b"GET /health HTTP/1.1\r\n")
