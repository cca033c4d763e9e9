"""The data path: what of a reply reaches the client; what a failure becomes, before and after it begins."""

import asyncio
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import HttpUrl

from gateway.deadlines import Deadlines
from gateway.endpoints import ENDPOINTS
from gateway.errors import (
    ContextLengthExceeded,
    EngineFailed,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    GatewayError,
)
from gateway.exchange import Exchange
from gateway.policy import Allowed
from gateway.relay import WHOLE_REPLY_BYTES, Answer, BrokenAnswer, Relay, Timeouts
from gateway.settings import Upstream
from gateway.upstreams import Pool, Slot, unavailable
from tests.fakes.asgi import Client, scope
from tests.fakes.loop import run
from tests.fakes.transport import EVENTS, JSON, ScriptedReply, ScriptedTransport, Step

DATA = Path(__file__).parent / "data"
CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETIONS = ENDPOINTS["/v1/completions"]
STREAM = (DATA / "v0.32.0" / "chat_stream_usage.sse").read_bytes()
DONE = b"data: [DONE]\n\n"
WHOLE = orjson.dumps(
    {"choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
)
PATIENT = Timeouts(first_byte=5, idle=5, total=5)


@dataclass
class Ride:
    """One request through the relay, and what became of it."""

    reply: ScriptedReply
    client: Client
    exchange: Exchange
    transport: ScriptedTransport
    slot: Slot
    error: Exception | None = None


async def ride(
    reply: ScriptedReply | Exception | float,
    *,
    stream: bool = True,
    hide_usage: bool = False,
    timeouts: Timeouts = PATIENT,
    client: Client | None = None,
    endpoint: Any = CHAT,
    seen: list[Exchange] | None = None,
) -> Ride:
    client = client or Client()
    scripted = reply if isinstance(reply, ScriptedReply) else ScriptedReply([])
    transport = ScriptedTransport(reply, scripted)
    slot = Slot(Upstream(name="vllm", url=HttpUrl("http://vllm:8000")), "engine-key")
    exchange = Exchange.begin(scope("POST", endpoint.path, [("x-request-id", "req-1")]), ())
    exchange.stream = stream
    if seen is not None:
        seen.append(exchange)
    allowed = Allowed(b"{}", "served", stream=stream, hide_usage=hide_usage, max_tokens=None)
    result = Ride(scripted, client, exchange, transport, slot)
    try:
        await Relay(Pool([slot], transport), transport, timeouts, Deadlines()).carry(
            exchange, endpoint, allowed, Answer(exchange, client.send)
        )
    except (GatewayError, BrokenAnswer) as error:
        result.error = error
    if transport.sent and not isinstance(reply, Exception):
        assert scripted.closed == 1 or isinstance(result.error, EngineTimeout)
    assert slot.in_flight == 0
    assert client.stalled or exchange.bytes_out == len(client.body)
    return result


def events(*steps: Step) -> ScriptedReply:
    return ScriptedReply(steps, content_type=EVENTS)


def last_event(raw: bytes) -> dict[str, Any]:
    """The error event that ends a broken stream."""
    assert raw.endswith(b"\n\n")
    assert b"[DONE]" not in raw
    last = raw.rstrip(b"\n").rpartition(b"\n\n")[2].rpartition(b"\n")[2]
    error: dict[str, Any] = orjson.loads(last.removeprefix(b"data: "))["error"]
    return error


async def test_the_engine_gets_our_headers_our_request_id_and_the_allowed_body() -> None:
    (sent,) = (await ride(events(STREAM))).transport.sent
    assert (sent.upstream, sent.path, sent.body) == ("vllm", "/v1/chat/completions", b"{}")
    assert dict(sent.headers) == {
        "Authorization": "Bearer engine-key",
        "Content-Type": "application/json",
        "X-Request-Id": "req-1",
    }


@given(places=st.lists(st.integers(0, len(STREAM)), max_size=6), hide=st.booleans())
def test_a_stream_passes_in_whole_events_however_it_arrives(places: list[int], *, hide: bool) -> None:
    edges = [0, *sorted(places), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges) if a < b]
    done = asyncio.run(ride(events(*pieces), hide_usage=hide))
    assert done.error is None
    assert done.client.whole
    assert done.client.status == 200
    shown = [event for event in STREAM.split(b"\n\n") if not (hide and b'"choices":[]' in event)]
    assert done.client.body == b"\n\n".join(shown)
    assert all(chunk.endswith(b"\n\n") or chunk == b"" for chunk in done.client.chunks)
    usage = done.exchange
    assert (usage.prompt_tokens is not None, usage.finish_reason) == (True, "stop")


async def test_a_streams_head_forbids_buffering_and_tells_the_request_id() -> None:
    headers = (await ride(events(STREAM))).client.headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"] == "req-1"
    assert "content-length" not in headers


async def test_nothing_is_sent_before_the_first_event_is_whole() -> None:
    client = Client()
    task = asyncio.create_task(ride(events(STREAM[:50], 0.05, STREAM[50:]), client=client))
    await asyncio.sleep(0.02)
    assert client.got == []
    assert (await task).client.body == STREAM


async def test_time_to_first_token_is_taken_at_the_first_event() -> None:
    started = time.monotonic()
    done = await ride(events(0.05, STREAM[:400], 0.2, STREAM[400:]))
    assert done.exchange.ttft is not None
    assert 0.05 <= done.exchange.ttft <= time.monotonic() - started - 0.2


async def test_an_answer_that_is_no_stream_has_no_time_to_first_token() -> None:
    assert (await ride(ScriptedReply([WHOLE]), stream=False)).exchange.ttft is None


REFUSED = b'data: {"error": {"message": "at /srv/x.py", "code": 400, "param": "top_p"}}\n\n'


async def test_an_error_before_the_first_event_is_an_error_and_no_stream() -> None:
    done = await ride(events(REFUSED + DONE))
    assert isinstance(done.error, EngineRefused)
    assert done.error.param == "top_p"
    assert done.client.got == []


async def test_an_error_after_the_first_event_is_an_event_without_an_end() -> None:
    raw = (DATA / "v0.16.0" / "engine_killed.sse").read_bytes()
    done = await ride(events(raw))
    assert done.error is None
    assert done.client.whole
    assert last_event(done.client.body)["code"] == "engine_error"
    assert b"EngineCore" not in done.client.body
    assert done.exchange.refused_by == "engine_error"
    assert done.exchange.status == 200


@pytest.mark.parametrize("end", [b"", b"data: {", b"\n"])
async def test_a_stream_that_just_ends_is_a_failure(end: bytes) -> None:
    first, _, _ = STREAM.partition(b"\n\n")
    done = await ride(events(first + b"\n\n", *([end] if end else [])))
    assert done.client.body.startswith(first)
    assert last_event(done.client.body)["code"] == "engine_error"
    assert isinstance((await ride(events(*([end] if end else [])))).error, EngineFailed)


async def test_a_stream_that_breaks_off_is_a_failure_and_its_events_are_known() -> None:
    """Running usage, where a client asked for it, tells what one choice of an unfinished stream has cost."""
    begun = b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
    done = await ride(events(begun, EngineFailed("The engine broke off its reply.")))
    assert last_event(done.client.body)["code"] == "engine_error"
    assert (done.exchange.prompt_tokens, done.exchange.events) == (None, 1)


async def test_an_event_without_an_end_is_a_failure() -> None:
    done = await ride(events(b"x" * 3_000_000, b"x" * 3_000_000))
    assert isinstance(done.error, EngineFailed)


async def test_a_whole_answer_passes_unchanged_with_its_length() -> None:
    done = await ride(ScriptedReply([WHOLE[:10], WHOLE[10:]]), stream=False)
    assert done.error is None
    assert (done.client.status, done.client.body, done.client.whole) == (200, WHOLE, True)
    assert done.client.headers["content-length"] == str(len(WHOLE))
    assert done.client.headers["content-type"] == "application/json"
    assert (done.exchange.prompt_tokens, done.exchange.completion_tokens) == (3, 4)
    assert done.exchange.finish_reason == "length"


async def test_a_large_answer_passes_in_pieces_and_its_usage_is_found() -> None:
    head = b'{"choices":[{"message":{"content":"' + b"x" * WHOLE_REPLY_BYTES
    tail = b'"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
    done = await ride(ScriptedReply([head, b"y" * 100, tail[:30], tail[30:]]), stream=False)
    assert done.client.body == head + b"y" * 100 + tail
    assert done.client.whole
    assert "content-length" not in done.client.headers
    assert (done.exchange.prompt_tokens, done.exchange.finish_reason) == (3, "stop")


async def test_a_large_answer_that_breaks_off_closes_the_connection() -> None:
    head = b'{"choices":"' + b"x" * WHOLE_REPLY_BYTES
    done = await ride(ScriptedReply([head, EngineFailed("The engine broke off its reply.")]), stream=False)
    assert isinstance(done.error, BrokenAnswer)
    assert not done.client.whole
    assert done.exchange.refused_by == "engine_error"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", EngineFailed),
        (b"Internal Server Error", EngineFailed),
        (b"[]", EngineFailed),
        (b'{"error":{"message":"EngineCore","code":500}}', EngineFailed),
        (b' { "error": {"message":"m","code":400}}', EngineRefused),
        (b'{"object":"error","error":{"code":503}}', EngineUnavailable),
        (b'{"error":"Unauthorized"}', EngineFailed),
    ],
)
async def test_garbage_or_an_error_inside_a_200_is_an_error(body: bytes, kind: type[GatewayError]) -> None:
    done = await ride(ScriptedReply([body] if body else []), stream=False)
    assert type(done.error) is kind
    assert done.client.got == []


async def test_an_answer_that_breaks_off_before_it_is_whole_is_an_error() -> None:
    broken = ScriptedReply([WHOLE[:10], EngineFailed("The engine broke off its reply.")])
    done = await ride(broken, stream=False)
    assert isinstance(done.error, EngineFailed)
    assert done.client.got == []


@pytest.mark.parametrize(
    ("reply", "stream"),
    [
        (ScriptedReply([WHOLE]), True),
        (ScriptedReply([b"x"], content_type="text/plain"), True),
        (ScriptedReply([STREAM], content_type=EVENTS), False),
        (ScriptedReply([b"<html>"], content_type="text/html"), False),
        (ScriptedReply([b"{}"], content_type=""), False),
    ],
    ids=["json for a stream", "text for a stream", "a stream for json", "html", "no type"],
)
async def test_another_kind_of_answer_than_was_asked_for_is_a_failure(
    reply: ScriptedReply, *, stream: bool
) -> None:
    done = await ride(reply, stream=stream)
    assert isinstance(done.error, EngineFailed)
    assert done.client.got == []


async def test_an_error_in_json_where_a_stream_was_asked_for_keeps_its_meaning() -> None:
    reply = ScriptedReply([b'{"error":{"message":"dead","code":400,"param":"top_p"}}'])
    assert isinstance((await ride(reply)).error, EngineRefused)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EngineRefused),
        (500, EngineFailed),
        (502, EngineFailed),
        (503, EngineUnavailable),
        (302, EngineFailed),
    ],
)
async def test_an_engines_status_is_classified(status: int, kind: type[GatewayError]) -> None:
    reply = ScriptedReply([b'{"error":{"message":"m"}}'], status=status, content_type=JSON)
    assert type((await ride(reply)).error) is kind


async def test_of_a_huge_error_only_the_beginning_is_read() -> None:
    steps = [b"x" * 40_000] * 100
    reply = ScriptedReply(steps, status=500, content_type="text/plain")
    assert isinstance((await ride(reply)).error, EngineFailed)
    left = 0
    while await reply.read():
        left += 1
    assert left == 98


@pytest.mark.parametrize(("endpoint", "param"), [(CHAT, "messages"), (COMPLETIONS, "prompt")])
async def test_input_that_is_too_long_is_named_as_the_route_names_it(endpoint: Any, param: str) -> None:
    body = b'{"error":{"message":"context length","code":400,"param":"input_tokens"}}'
    done = await ride(ScriptedReply([body], status=400), endpoint=endpoint)
    assert isinstance(done.error, ContextLengthExceeded)
    assert done.error.param == param


async def test_an_engine_that_cannot_be_reached_is_told_as_such() -> None:
    done = await ride(unavailable())
    assert isinstance(done.error, EngineUnavailable)


LIMITS = Timeouts(first_byte=300, idle=60, total=1800)


def test_a_head_or_first_byte_that_does_not_come_in_time_is_a_timeout() -> None:
    for late in (301.0, events(301.0), ScriptedReply([301.0], status=500)):
        done = run(ride(late, timeouts=LIMITS))
        assert isinstance(done.error, EngineTimeout)
        assert done.client.got == []


def test_a_slow_first_byte_within_its_time_is_awaited() -> None:
    assert run(ride(events(299.0, STREAM), timeouts=LIMITS)).client.body == STREAM


def test_no_wait_for_the_first_byte_outlasts_the_total() -> None:
    done = run(ride(20.0, timeouts=Timeouts(first_byte=300, idle=60, total=10)))
    assert isinstance(done.error, EngineTimeout)


def test_silence_after_the_first_event_ends_the_stream_with_an_error_event() -> None:
    first, mark, rest = STREAM.partition(b"\n\n")
    done = run(ride(events(first + mark, 60.1, rest), timeouts=LIMITS))
    assert last_event(done.client.body)["code"] == "engine_timeout"
    assert done.client.body.startswith(first + mark)
    assert done.exchange.refused_by == "engine_timeout"
    assert done.reply.closed == 1


@given(gaps=st.lists(st.floats(0, 59.9), min_size=1, max_size=20))
def test_each_chunk_allows_the_next_its_whole_idle_time(gaps: list[float]) -> None:
    steps: list[Step] = [b": here\n\n"]
    for gap in gaps:
        steps += [gap, b": still here\n\n"]
    done = run(ride(events(*steps, DONE), timeouts=LIMITS))
    assert done.client.body.endswith(DONE)


def test_an_answer_that_is_no_stream_has_the_same_timeouts() -> None:
    late = run(ride(ScriptedReply([WHOLE[:5], 60.1, WHOLE[5:]]), stream=False, timeouts=LIMITS))
    assert isinstance(late.error, EngineTimeout)
    slow = run(ride(ScriptedReply([WHOLE[:5], 59.9, WHOLE[5:]]), stream=False, timeouts=LIMITS))
    assert slow.client.body == WHOLE


def test_no_stream_of_chunks_outlasts_the_total() -> None:
    steps: list[Step] = [step for _ in range(100) for step in (30.0, b": still here\n\n")]
    done = run(ride(events(*steps), timeouts=LIMITS))
    assert last_event(done.client.body)["code"] == "engine_timeout"
    assert done.client.body.count(b"still here") in (59, 60)


def test_a_client_that_stops_reading_loses_its_place() -> None:
    client = Client()
    client.stalled = True
    done = run(ride(events(STREAM), timeouts=LIMITS, client=client))
    assert isinstance(done.error, BrokenAnswer)
    assert done.reply.closed == 1
    assert (done.exchange.client_left, done.exchange.refused_by) == (True, None)


async def test_a_cancelled_request_closes_the_reply_and_gives_its_place_back() -> None:
    reply = events(STREAM[:400], 30.0)
    client = Client()
    task = asyncio.create_task(ride(reply, client=client))
    await client.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.closed == 1


def test_after_the_announced_end_nothing_is_awaited_or_added() -> None:
    for rest in (LIMITS.idle * 2, EngineFailed("broke off")):
        done = run(ride(events(STREAM, rest), timeouts=LIMITS))
        assert done.error is None
        assert done.client.body == STREAM
        assert done.exchange.refused_by is None


@pytest.mark.parametrize("version", ["v0.32.0", "v0.16.0"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_named_events_pass_unchanged_and_tell_what_they_cost(path: str, version: str) -> None:
    """But for the `[DONE]` that 0.16.0 sends after the end of a message."""
    name = f"{path.removeprefix('/v1/')}_stream.sse"
    raw = (DATA / version / name).read_bytes()
    done = await ride(events(raw[:700], raw[700:]), endpoint=ENDPOINTS[path])
    assert done.error is None
    assert done.client.body == raw.removesuffix(DONE)
    assert done.exchange.completion_tokens == 8
    assert done.exchange.finish_reason in {"incomplete", "max_tokens"}
    assert done.exchange.events == done.client.body.count(b"event: ")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_stream_that_a_client_abandons_has_its_events_counted_and_no_usage(path: str) -> None:
    client = Client()
    begun = b'event: x\ndata: {"type":"x"}\n\n' * 3
    seen: list[Exchange] = []
    task = asyncio.create_task(ride(events(begun, 30.0), client=client, endpoint=ENDPOINTS[path], seen=seen))
    await client.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (exchange,) = seen
    assert (exchange.events, exchange.prompt_tokens, exchange.completion_tokens) == (3, None, None)


@pytest.mark.parametrize(("path", "shape"), [("/v1/responses", "code"), ("/v1/messages", "request_id")])
async def test_a_broken_stream_of_named_events_ends_with_one_named_error(path: str, shape: str) -> None:
    begun = b'event: x\ndata: {"type":"x"}\n\n'
    done = await ride(
        events(begun, EngineFailed("The engine broke off its reply.")), endpoint=ENDPOINTS[path]
    )
    assert done.client.body.startswith(begun + b"event: error\ndata: {")
    assert done.client.body.count(b"\n\n") == 2
    payload = orjson.loads(done.client.body.rpartition(b"data: ")[2])
    assert payload["type"] == "error"
    assert payload["error"]["code"] == "engine_error"
    assert shape in payload


async def test_a_large_rankings_usage_is_found_at_its_beginning() -> None:
    head = b'{"usage":{"prompt_tokens":7,"total_tokens":7},"results":["' + b"x" * WHOLE_REPLY_BYTES
    reply = ScriptedReply([head, b"y" * 100_000, b'"]}'])
    done = await ride(reply, stream=False, endpoint=ENDPOINTS["/v1/rerank"])
    assert done.client.whole
    assert (done.exchange.prompt_tokens, done.exchange.completion_tokens) == (7, 0)
