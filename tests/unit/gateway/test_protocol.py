"""The wire: what could be read as another request is refused, and nothing unfinished stays open for ever."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.protocol import MAX_HEAD_BYTES, Protocol

SOON = 5.0
POST = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"  # and an empty line
GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


class Quick(Protocol):
    head_seconds = 0.1
    stalled_seconds = 0.2


@dataclass
class App:
    """Reads a request's body, unless it is told to answer before; remembers what it saw."""

    reads: bool = True
    answer: bytes = b"ok"
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Scope] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope)
        if self.reads:
            self.bodies.append(await self._body(receive))
        if scope["path"] == "/held":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
        length = [(b"content-length", b"%d" % len(self.answer))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": self.answer})

    async def _body(self, receive: Receive) -> bytes:
        body = b""
        while True:
            message = await receive()
            part: bytes = message.get("body", b"")
            body += part
            if not message.get("more_body"):
                return body


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), SOON)
        first, *lines = head.decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split(" ")[1]), headers, body

    async def closed(self) -> bytes:
        """What came until the server closed the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), SOON)
        except ConnectionResetError:
            return b""


Connect = Callable[[], Awaitable[Client]]


@asynccontextmanager
async def serving(app: App, kind: type[Protocol] = Quick) -> AsyncIterator[Connect]:
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: kind(config, state, {}), "127.0.0.1", 0)
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection(*server.sockets[0].getsockname())))
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.writer.transport.abort()
        server.close()
        await server.wait_closed()


async def refused(client: Client, message: str) -> None:
    """A 400 in OpenAI's shape, and the end of the connection."""
    status, headers, body = await client.answer()
    error = orjson.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (400, "invalid_http", "invalid_request_error")
    assert message in error["message"]
    assert headers["x-request-id"].startswith("req-")
    assert headers["connection"] == "close"
    assert await client.closed() == b""


@pytest.mark.parametrize(
    "head",
    [
        POST % 5 + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n",
        POST % 5 + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT /a HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_a_request_whose_body_could_be_another_request_is_refused(head: bytes) -> None:
    app = App()
    async with serving(app) as connect:
        client = await connect()
        client.writer.write(head)
        await asyncio.sleep(0.02)
        client.writer.write(GET)
        await refused(client, "Invalid HTTP")
    assert not app.seen


@pytest.mark.parametrize(
    "request_bytes",
    [b"hello\r\n\r\n", GET.replace(b"/a", b"/\xe4"), GET.replace(b"\r\n", b"\n"), GET.replace(b"1.1", b"9")],
)
async def test_what_is_no_http_is_refused_in_openais_shape(request_bytes: bytes) -> None:
    async with serving(App()) as connect:
        client = await connect()
        client.writer.write(request_bytes)
        await refused(client, "Invalid HTTP")


async def test_trailers_are_no_headers() -> None:
    app = App()
    async with serving(app) as connect:
        client = await connect()
        client.writer.write(
            b"POST /a HTTP/1.1\r\nhost: x\r\nx-own: 1\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\nhi\r\n0\r\nx-forwarded-for: 6.6.6.6\r\nauthorization: bearer x\r\n\r\n"
        )
        assert (await client.answer())[0] == 200
    assert app.bodies == [b"hi"]
    assert [name for name, _ in app.seen[0]["headers"]] == [b"host", b"x-own", b"transfer-encoding"]


@pytest.mark.parametrize("line", [b"a: b\r\n", b"aaaaaaaa"])
async def test_a_head_has_an_end(line: bytes) -> None:
    app = App()
    async with serving(app) as connect:
        client = await connect()
        # Just so much that nothing is on its way when the answer comes.
        client.writer.write(b"GET /a HTTP/1.1\r\nx: " + line * (MAX_HEAD_BYTES // len(line)))
        await refused(client, f"{MAX_HEAD_BYTES} bytes")
    assert not app.seen


async def test_a_large_body_is_no_large_head() -> None:
    app = App()
    body = b"x" * (4 * MAX_HEAD_BYTES)
    async with serving(app) as connect:
        client = await connect()
        for _ in range(2):
            client.writer.write(POST % len(body) + b"\r\n" + body)
            assert (await client.answer())[0] == 200
    assert app.bodies == [body, body]


async def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    async with serving(App()) as connect:
        client = await connect()
        client.writer.write(GET)
        assert (await client.answer())[0] == 200
        client.writer.write(GET[:-5])
        assert await client.closed() == b""


async def test_a_connection_may_be_opened_before_there_is_a_request() -> None:
    async with serving(App()) as connect:
        client = await connect()
        await asyncio.sleep(3 * Quick.head_seconds)
        client.writer.write(GET)
        assert (await client.answer())[0] == 200


async def test_a_connection_without_any_request_is_not_kept_for_ever() -> None:
    async with serving(App()) as connect:
        assert await (await connect()).closed() == b""


async def test_a_connection_is_kept_between_requests_and_closed_when_it_stays_quiet() -> None:
    async with serving(App()) as connect:
        client = await connect()
        for _ in range(4):  # longer in all than it may be quiet
            client.writer.write(GET)
            assert (await client.answer())[0] == 200
            await asyncio.sleep(0.4)
        assert await client.closed() == b""


async def test_an_answer_that_takes_longer_than_a_connection_may_be_quiet_comes() -> None:
    app = App(answer=b"x" * 3)
    async with serving(app) as connect:
        client = await connect()
        client.writer.write(POST % 2 + b"\r\nh")
        await asyncio.sleep(1.5)
        client.writer.write(b"i")
        assert (await client.answer())[2] == b"xxx"


async def test_a_slow_body_is_for_the_application_to_judge() -> None:
    app = App()
    async with serving(app) as connect:
        client = await connect()
        client.writer.write(POST % 2 + b"\r\nh")
        await asyncio.sleep(3 * Quick.head_seconds)
        client.writer.write(b"i")
        assert (await client.answer())[0] == 200
    assert app.bodies == [b"hi"]


async def test_the_rest_of_a_body_that_was_answered_is_taken_but_not_for_ever() -> None:
    async with serving(App(reads=False)) as connect:
        client = await connect()
        client.writer.write(POST % 2 + b"\r\nh")
        assert (await client.answer())[0] == 200
        client.writer.write(b"i" + GET)
        assert (await client.answer())[0] == 200
        client.writer.write(POST % 2 + b"\r\nh")
        assert (await client.answer())[0] == 200
        assert await client.closed() == b""


async def test_a_request_before_the_last_is_answered_ends_both() -> None:
    app = App()
    async with serving(app) as connect:
        client = await connect()
        client.writer.write(GET.replace(b"/a", b"/held"))
        await asyncio.sleep(0.02)
        client.writer.write(GET)
        await refused(client, "Invalid HTTP")
        await asyncio.wait_for(app.left.wait(), SOON)
    assert len(app.seen) == 1


async def test_a_client_that_takes_nothing_is_given_up() -> None:
    app = App(answer=b"x" * 32 * 2**20)
    async with serving(app) as connect:
        client = await connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(GET)
        await asyncio.sleep(5 * Quick.stalled_seconds)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await client.closed()) < len(app.answer)


async def test_a_client_that_is_slow_gets_all_of_it() -> None:
    app = App(answer=b"x" * 8 * 2**20)
    async with serving(app) as connect:
        client = await connect()
        client.writer.write(GET)
        for _ in range(5):
            await asyncio.sleep(Quick.stalled_seconds / 4)
            await client.reader.read(2**20)
        assert (await client.reader.readexactly(2**20)).endswith(b"x")
