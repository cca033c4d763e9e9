"""What the fake engine can do with a request: behave, or each of the ways in which engines fail."""

import asyncio
import json
from pathlib import Path
from typing import Any

from standin.answers import stream_events, whole_body
from standin.counting import count_tokens_body, tokenize_body
from standin.generation import PATHS, Generation, RefusedError, parse_json, plan
from standin.render import DONE, compact
from standin.replies import ErrorReply
from tests.fakes.engine import CAPTURES, Exchange, Scenario

FOREVER = 3600.0
_COUNTS = {b"/tokenize": tokenize_body, b"/v1/messages/count_tokens": count_tokens_body}
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
DEAD_EVENT = (
    b'data: {"error": {"message": "EngineCore encountered an issue. '
    b'See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, '
    b'"code": 500}}\n\n'
)


def old_error(name: str) -> ErrorReply:
    """An error reply that was captured from vLLM 0.16.0."""
    replies = json.loads((Path(__file__).parent / "replies" / "v0.16.0.json").read_text())
    return ErrorReply(replies[name]["status"], replies[name]["body"])


def _generation(exchange: Exchange) -> Generation:
    return plan(PATHS[exchange.request.target.decode()], _body(exchange), exchange.config, CAPTURES)


def _body(exchange: Exchange) -> dict[str, Any]:
    request = exchange.request
    return parse_json(request.body, request.header("content-type")[0], CAPTURES)


def normal(delay: float = 0.0) -> Scenario:
    """Behave like vLLM 0.32.0, with `delay` seconds before each token."""

    async def play(exchange: Exchange) -> None:
        try:
            if count := _COUNTS.get(exchange.request.target):
                exchange.reply(200, count(_body(exchange), exchange.config, CAPTURES))
                return
            generation = _generation(exchange)
        except RefusedError as refused:
            exchange.reply(refused.reply.status, compact(refused.reply.body))
            return
        if not generation.stream:
            await exchange.pause(delay * generation.completion_tokens)
            exchange.reply(200, whole_body(generation, CAPTURES))
            exchange.request.tokens += generation.total_completion_tokens
            return
        exchange.head(200, ("content-type", EVENTS))
        for event in stream_events(generation, CAPTURES):
            await exchange.pause(delay * event.tokens)
            exchange.body(event.data)
            exchange.request.tokens += event.tokens
        exchange.end()

    return play


def replies(status: int, body: bytes | dict[str, Any], content_type: str = JSON) -> Scenario:
    """Answer every request with this."""
    raw = body if isinstance(body, bytes) else compact(body)

    async def play(exchange: Exchange) -> None:
        exchange.reply(status, raw, content_type)

    return play


def error(reply: ErrorReply) -> Scenario:
    """Answer with a captured error."""
    return replies(reply.status, reply.body)


def streams(*pieces: bytes, pause: float = 0.0) -> Scenario:
    """Send a stream in just these pieces, `pause` seconds apart, and end it properly."""

    async def play(exchange: Exchange) -> None:
        exchange.head(200, ("content-type", EVENTS))
        for piece in pieces:
            exchange.body(piece)
            await exchange.pause(pause)
        exchange.end()

    return play


def first_event_is_an_error() -> Scenario:
    """A 200 and an event stream, and in it nothing but an error: what 0.32.0 does with a bad regex."""
    return streams(b"data: " + json.dumps(CAPTURES.errors["err_n_zero"].body).encode() + b"\n\n", DONE)


def engine_dies_inside(after: int) -> Scenario:
    """After `after` events the engine's core dies: an error event, and still `[DONE]`, as vLLM does."""

    async def play(exchange: Exchange) -> None:
        await _some_events(exchange, after)
        exchange.body(DEAD_EVENT)
        exchange.body(DONE)
        exchange.end()

    return play


def resets_after(events: int, *, part: bytes = b"") -> Scenario:
    """A TCP reset after some events; with `part`, in the middle of the next."""

    async def play(exchange: Exchange) -> None:
        await _some_events(exchange, events)
        if part:
            exchange.body(part)
        await exchange.reset()

    return play


def closes_after(events: int) -> Scenario:
    """An orderly end of a stream that is not complete: no `[DONE]`."""

    async def play(exchange: Exchange) -> None:
        await _some_events(exchange, events)
        exchange.end()

    return play


def stalls_after(events: int) -> Scenario:
    """Headers and some events, and then nothing any more."""

    async def play(exchange: Exchange) -> None:
        await _some_events(exchange, events)
        await exchange.pause(FOREVER)

    return play


def never_answers() -> Scenario:
    """Take the request and stay silent."""

    async def play(exchange: Exchange) -> None:
        await exchange.pause(FOREVER)

    return play


def answers_after(seconds: float) -> Scenario:
    """Behave, late."""

    async def play(exchange: Exchange) -> None:
        await exchange.pause(seconds)
        await normal()(exchange)

    return play


def sends_raw(data: bytes) -> Scenario:
    """Send these bytes instead of an HTTP reply, and close."""

    async def play(exchange: Exchange) -> None:
        exchange.raw(data)
        exchange.close()

    return play


def closes_at_once() -> Scenario:
    """Close the connection without a byte."""
    return sends_raw(b"")


def promises_more(body: bytes, missing: int) -> Scenario:
    """A content-length of `missing` bytes more than are sent."""

    async def play(exchange: Exchange) -> None:
        exchange.head(200, ("content-type", JSON), ("content-length", str(len(body) + missing)))
        exchange.body(body)
        await asyncio.sleep(0.05)
        exchange.close()

    return play


def large(size: int) -> Scenario:
    """A whole chat answer with `size` bytes of text, sent no faster than it is taken."""

    async def play(exchange: Exchange) -> None:
        template = CAPTURES.bodies["chat_nonstream"]
        choice = template["choices"][0]
        filled = {**choice, "message": {**choice["message"], "content": "x" * size}}
        body = compact({**template, "choices": [filled]})
        exchange.head(200, ("content-type", JSON), ("content-length", str(len(body))))
        for start in range(0, len(body), 2**16):
            exchange.body(body[start : start + 2**16])
            await exchange.drained()

    return play


async def _some_events(exchange: Exchange, count: int) -> None:
    exchange.head(200, ("content-type", EVENTS))
    for event in list(stream_events(_generation(exchange), CAPTURES))[:count]:
        exchange.body(event.data)
        await exchange.pause(0.01)
