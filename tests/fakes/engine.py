"""An engine under the tests' control.

It speaks HTTP/1.1 byte by byte, so that it can do what no server framework lets one do: reset in the middle
of an event, promise more bytes than it sends, say nothing at all. What it does with a request is its
`scenario`, which the test sets; every request that it sees is recorded. It runs in a thread of its own, so
that sync and async tests can use it alike.
"""

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools

from standin.config import EngineConfig
from standin.replies import load

Scenario = Callable[["Exchange"], Awaitable[None]]
WAIT_SECONDS = 5.0
CAPTURES = load()


class ClientLeftError(Exception):
    """The client closed its connection before it had the whole reply."""


@dataclass
class SeenRequest:
    """One request as it came, and what became of it: bytes and tokens sent. Times are monotonic seconds."""

    method: str
    target: bytes
    headers: list[tuple[str, str]]
    body: bytes
    came: float = field(default_factory=time.monotonic)
    sent: bytearray = field(default_factory=bytearray)
    tokens: int = 0
    answered: threading.Event = field(default_factory=threading.Event)
    aborted: threading.Event = field(default_factory=threading.Event)
    aborted_at: float = 0.0

    def header(self, name: str) -> list[str]:
        """Every value of the header `name` (lower case)."""
        return [value for key, value in self.headers if key == name]

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        body = json.loads(self.body)
        assert isinstance(body, dict)
        return body


class Exchange:
    """What a scenario acts with: the request, and the client's connection."""

    def __init__(self, request: SeenRequest, transport: asyncio.Transport, config: EngineConfig) -> None:
        self.request = request
        self.config = config
        self.gone = asyncio.Event()
        self._transport = transport
        self._chunked = False

    def head(self, status: int, *headers: tuple[str, str]) -> None:
        """Send the status line and headers; without a content-length the body is chunked."""
        names = {name.lower() for name, _ in headers}
        self._chunked = not names & {"content-length", "connection"}
        framing = [("transfer-encoding", "chunked")] if self._chunked else []
        lines = [f"HTTP/1.1 {status} Whatever", "server: uvicorn"]
        lines += [f"{name}: {value}" for name, value in [*headers, *framing]]
        self.raw("\r\n".join(lines).encode() + b"\r\n\r\n")

    def body(self, part: bytes) -> None:
        """Send a piece of the body, as one chunk where the body is chunked."""
        self.request.sent += part
        self.raw(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)

    def end(self) -> None:
        """End the reply; the connection stays open for the next request."""
        if self._chunked:
            self.raw(b"0\r\n\r\n")

    def reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole reply."""
        self.head(status, ("content-length", str(len(body))), ("content-type", content_type))
        self.body(body)
        self.end()

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection in an orderly way, whatever was promised."""
        self._transport.close()

    async def reset(self) -> None:
        """Close the connection with a TCP reset, after a moment for what was written to arrive."""
        await asyncio.sleep(0.05)
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def pause(self, seconds: float) -> None:
        """Wait, or raise ClientLeftError as soon as the client leaves."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.gone.wait(), seconds)
        if self.gone.is_set():
            raise ClientLeftError

    async def drained(self) -> None:
        """Wait until the client has taken what was written. Raises ClientLeftError."""
        while self._transport.get_write_buffer_size() > 2**16:
            await self.pause(0.005)


class _Connection(asyncio.Protocol):
    """One client connection; the parser calls the `on_…` methods."""

    def __init__(self, engine: "FakeEngine") -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._target, self._headers, self._body = b"", list[tuple[str, str]](), bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.connections.discard(self)
        if self._exchange:
            self._exchange.gone.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._transport
        method = self._parser.get_method().decode()
        seen = SeenRequest(method, self._target, self._headers, bytes(self._body))
        self._target, self._headers, self._body = b"", [], bytearray()
        self._exchange = Exchange(seen, self._transport, self._engine.config)
        self._engine.answer(self._exchange)

    def drop(self) -> None:
        assert self._transport
        self._transport.abort()


class FakeEngine:
    """The engine. Start with `start`, set `scenario`, read `requests`."""

    def __init__(self, config: EngineConfig, normal: Scenario) -> None:
        self.config = config
        self.scenario = normal
        self.health = 200
        self.requests: list[SeenRequest] = []
        self.probes = 0
        self.connections: set[_Connection] = set()
        self.port = 0
        self._normal = normal
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake engine", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections that clients hold open now, idle ones too."""
        return len(self.connections)

    def requests_seen(self) -> int:
        """Requests that came since the last reset, without health probes."""
        return len(self.requests)

    def requests_running(self) -> int:
        """Requests that are being answered now."""
        return len(self._tasks)

    def completion_tokens(self) -> int:
        """Tokens sent since the last reset."""
        return sum(request.tokens for request in self.requests)

    def start(self) -> None:
        """Listen, on the port of the last time if there was one."""
        if not self._thread.is_alive():
            self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(WAIT_SECONDS)

    def stop_listening(self) -> None:
        """Refuse new connections and drop those there are, as a host does whose engine process is gone."""
        asyncio.run_coroutine_threadsafe(self._unlisten(), self._loop).result(WAIT_SECONDS)

    def close(self) -> None:
        """End the engine and its thread."""
        self.stop_listening()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def reset(self) -> None:
        """Behave, and forget what was seen."""
        self.scenario = self._normal
        self.health = 200
        self.requests = []

    def await_requests(self, count: int = 1) -> Sequence[SeenRequest]:
        """The requests seen, once there are at least `count`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.requests) < count:
            assert time.monotonic() < deadline, f"{len(self.requests)} of {count} requests came"
            time.sleep(0.005)
        return self.requests

    def await_idle(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until no request is at work here any more."""
        deadline = time.monotonic() + seconds
        while self.requests_running():
            assert time.monotonic() < deadline, "a request is still at work in the engine"
            time.sleep(0.005)

    def only_request(self) -> SeenRequest:
        """The one request that was seen."""
        requests = self.await_requests()
        assert len(requests) == 1, f"{len(requests)} requests came"
        return requests[0]

    def answer(self, exchange: Exchange) -> None:
        """Called by a connection for each whole request."""
        if exchange.request.target == b"/health":
            self.probes += 1
            exchange.reply(self.health, b"")
            return
        self.requests.append(exchange.request)
        task = self._loop.create_task(self._play(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, exchange: Exchange) -> None:
        try:
            await self.scenario(exchange)
            exchange.request.answered.set()
        except ClientLeftError:
            exchange.request.aborted_at = time.monotonic()
            exchange.request.aborted.set()

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        if self._server:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.drop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=WAIT_SECONDS)
