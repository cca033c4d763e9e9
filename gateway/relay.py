"""The data path: the engine's bytes to the client, unchanged and as they come."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Send

from gateway import engine_errors
from gateway.deadlines import Deadlines
from gateway.endpoints import Endpoint
from gateway.errors import ContextLengthExceeded, EngineFailed, EngineTimeout, GatewayError, Headers
from gateway.exchange import Exchange
from gateway.policy import Allowed
from gateway.sse import EventStream, EventTooLarge, error_event
from gateway.upstreams import EngineReply, Pool, Transport
from gateway.usage import COMPLETIONS_USAGE, Told, UsageRule, read_reply

# A reply up to this size is sent only when it is whole, so that one that breaks off is still a clean error.
WHOLE_REPLY_BYTES = 1024 * 1024
ERROR_REPLY_BYTES = 64 * 1024
LINGER_SECONDS = 0.5
_EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_JSON = (b"content-type", b"application/json")
# Each chunk of a reply allows the next its idle time.
Renew = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds: the first byte after the request, between chunks, and the reply as a whole."""

    first_byte: float
    idle: float
    total: float


class Answer:
    """The answer to the client: knows whether it has begun and whether it waits for the client, and counts
    its bytes.
    """

    def __init__(self, exchange: Exchange, send: Send) -> None:
        self._exchange = exchange
        self._send = send
        self.begun = False
        self.waiting = False

    async def begin(self, status: int, headers: Headers) -> None:
        self.begun = True
        self._exchange.status = status
        all_headers = [*headers, *self._exchange.answer_headers]
        self.waiting = True
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
        self.waiting = False

    async def write(self, body: bytes, *, more: bool) -> None:
        self._exchange.bytes_out += len(body)
        self.waiting = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self.waiting = False

    async def send_json(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """All of it at once."""
        await self.begin(status, (_JSON, (b"content-length", b"%d" % len(body)), *headers))
        await self.write(body, more=False)


class Relay:
    """Carries one request to an engine and its reply back."""

    def __init__(self, pool: Pool, transport: Transport, timeouts: Timeouts, deadlines: Deadlines) -> None:
        self._pool = pool
        self._transport = transport
        self._timeouts = timeouts
        self._deadlines = deadlines

    async def carry(self, exchange: Exchange, endpoint: Endpoint, allowed: Allowed, answer: Answer) -> None:
        """Returns when the client has the whole answer. Raises a GatewayError while nothing has been sent;
        after that a failure becomes an error event and is noted in the exchange.
        """
        with self._pool.pick() as slot:
            exchange.upstream = slot.upstream.name
            headers = slot.headers | {"X-Request-Id": exchange.request_id}
            limits = self._timeouts
            try:
                with self._deadlines.within(
                    limits.first_byte, idle=limits.idle, total=limits.total
                ) as deadline:
                    reply = await self._transport.post(slot.upstream, endpoint.path, allowed.body, headers)
                    try:
                        await self._answer(exchange, endpoint, allowed, reply, answer, deadline.renew)
                    finally:
                        reply.close()
            except TimeoutError:
                if answer.waiting:  # it is the client that stopped reading; it must not hold the engine
                    exchange.client_left = True
                    raise BrokenAnswer from None
                late = EngineTimeout("The engine did not answer in time.")
                await _fail(exchange, endpoint, answer, late, self._timeouts.idle)
            except GatewayError as error:
                if isinstance(error, ContextLengthExceeded):  # the engine does not name the route's field
                    error.param = error.param or endpoint.prompt_field
                await _fail(exchange, endpoint, answer, error, self._timeouts.idle)

    async def _answer(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        allowed: Allowed,
        reply: EngineReply,
        answer: Answer,
        renew: Renew,
    ) -> None:
        rule = endpoint.usage or COMPLETIONS_USAGE
        if reply.status != 200:
            raise engine_errors.from_reply(reply.status, await _some(reply, ERROR_REPLY_BYTES))
        is_stream = reply.content_type.startswith("text/event-stream")
        if allowed.stream and is_stream:
            events = EventStream(endpoint.dialect, rule, hide_usage=allowed.hide_usage)
            await _relay_events(exchange, events, reply, answer, renew)
        elif not allowed.stream and reply.content_type.startswith("application/json"):
            await _relay_json(exchange, rule, reply, answer, renew)
        else:
            raise engine_errors.from_reply(200, await _some(reply, ERROR_REPLY_BYTES))


async def _relay_events(
    exchange: Exchange, events: EventStream, reply: EngineReply, answer: Answer, renew: Renew
) -> None:
    try:
        while not events.over and (chunk := await reply.read()):
            renew()
            out = events.feed(chunk)
            if not out:
                continue
            if not answer.begun:
                exchange.ttft = time.monotonic() - exchange.started
                await answer.begin(200, _EVENT_STREAM)
            await answer.write(out, more=True)
    except EventTooLarge:
        raise EngineFailed("The engine sent an event without an end.") from None
    finally:  # a stream that breaks off has cost what it has cost
        exchange.events = events.events
        _settle(exchange, Told(events.usage, events.finish_reason))
    if events.error is not None:
        raise engine_errors.from_error(events.error, 500)
    if not events.finished:
        raise EngineFailed("The engine ended its reply too early.")
    await _await_end(reply)
    await answer.write(b"", more=False)


async def _await_end(reply: EngineReply) -> None:
    """After `[DONE]`: a reply that ends as it should leaves its connection for the next request."""
    with contextlib.suppress(TimeoutError, EngineFailed):
        async with asyncio.timeout(LINGER_SECONDS):
            while await reply.read():
                pass


async def _relay_json(
    exchange: Exchange, rule: UsageRule, reply: EngineReply, answer: Answer, renew: Renew
) -> None:
    body = await _some(reply, WHOLE_REPLY_BYTES, renew)
    error = engine_errors.find_error(body)
    if error:
        raise engine_errors.from_error(error, 200)
    if not body.lstrip().startswith(b"{") or (
        len(body) <= WHOLE_REPLY_BYTES and not body.rstrip().endswith(b"}")
    ):
        raise EngineFailed("The engine's reply is not JSON.")
    if len(body) <= WHOLE_REPLY_BYTES:
        _settle(exchange, read_reply(body, rule))
        await answer.send_json(200, body)
        return
    await answer.begin(200, (_JSON,))
    head, tail = body[:ERROR_REPLY_BYTES], b""
    while body:
        await answer.write(body, more=True)
        tail = (tail + body)[-ERROR_REPLY_BYTES:]
        body = await reply.read()
        renew()
    told = read_reply(tail, rule)
    # A ranking tells its usage first.
    _settle(exchange, told if told.usage else read_reply(head, rule))
    await answer.write(b"", more=False)


async def _some(reply: EngineReply, limit: int, renew: Renew | None = None) -> bytes:
    """The reply, or as much of it as goes just beyond `limit` bytes."""
    chunks: list[bytes] = []
    size = 0
    while size <= limit and (chunk := await reply.read()):
        if renew:
            renew()
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _settle(exchange: Exchange, told: Told) -> None:
    exchange.finish_reason = told.finish_reason
    if told.usage is not None:
        exchange.prompt_tokens = told.usage.prompt_tokens
        exchange.completion_tokens = told.usage.completion_tokens


async def _fail(
    exchange: Exchange, endpoint: Endpoint, answer: Answer, error: GatewayError, seconds: float
) -> None:
    """Before the first byte an error is an error; after it, an event that the SDKs raise, and no end."""
    if not answer.begun:
        raise error
    exchange.refused_by = error.code
    if not exchange.stream:
        raise BrokenAnswer from None
    try:
        # A client that stopped reading may be why it failed; it must not hold its place for ever.
        async with asyncio.timeout(seconds):
            event = error_event(endpoint.dialect, error, exchange.events, exchange.request_id)
            await answer.write(event, more=False)
    except TimeoutError:
        raise BrokenAnswer from None


class BrokenAnswer(Exception):
    """An answer broke off after it had begun: the connection must close, so that the client sees it is not
    whole.
    """
