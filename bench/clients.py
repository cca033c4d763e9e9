"""The HTTP clients that a relay could use, behind one seam.

All are set up for a proxy: keep-alive, no limit on connections, no decompression, only a connect timeout.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Protocol, cast
from urllib.parse import urlsplit

import aiohttp
import httptools
import httpx2
from httpx_aiohttp.httpx2 import AiohttpTransport

CONNECT_SECONDS = 5.0
HEADERS = {"Authorization": "Bearer bench", "Content-Type": "application/json"}


class Reply(Protocol):
    """An engine's reply, from the arrival of its head on."""

    content_type: str

    async def read(self) -> bytes:
        """What has arrived of the body; empty at its end."""

    async def close(self) -> None:
        """Gives the connection back."""


class Client(Protocol):
    """An HTTP client for one engine."""

    async def post(self, path: str, body: bytes) -> Reply:
        """Waits for the reply's head."""


class AiohttpReply:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.content_type = response.headers["Content-Type"]

    async def read(self) -> bytes:
        return await self._response.content.readany()

    async def close(self) -> None:
        self._response.close()


class AiohttpClient:
    """aiohttp as the gateway uses it."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._session = _aiohttp_session()

    async def post(self, path: str, body: bytes) -> AiohttpReply:
        url = self._engine + path
        return AiohttpReply(await self._session.post(url, data=body, headers=HEADERS, allow_redirects=False))


class Httpx2Reply:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_raw()
        self.content_type: str = response.headers["Content-Type"]

    async def read(self) -> bytes:
        return await anext(self._chunks, b"")

    async def close(self) -> None:
        await self._response.aclose()


class Httpx2Client:
    """httpx2 on its own transport, or on the one given."""

    def __init__(self, engine: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._client = httpx2.AsyncClient(
            base_url=engine,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(),
            trust_env=False,
            transport=transport,
        )

    async def post(self, path: str, body: bytes) -> Httpx2Reply:
        request = self._client.build_request("POST", path, content=body, headers=HEADERS)
        return Httpx2Reply(await self._client.send(request, stream=True))


class RawReply:
    """A reply that the connection fills as bytes arrive."""

    def __init__(self, done: Callable[[], None]) -> None:
        self.content_type = ""
        self._done = done
        self._chunks: list[bytes] = []
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def take(self, chunk: bytes, *, ended: bool) -> None:
        if chunk:
            self._chunks.append(chunk)
        self._ended = ended
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> bytes:
        while not self._chunks and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data

    async def close(self) -> None:
        self._done()


class RawConnection(asyncio.Protocol):
    """One keep-alive connection; httptools parses, nothing is checked: no client can undercut it by much."""

    def __init__(self, idle: deque["RawConnection"]) -> None:
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._head: asyncio.Future[RawReply] | None = None
        self._reply: RawReply | None = None
        self._arrived: list[bytes] = []
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._reply is not None and (self._arrived or self._ended):
            self._reply.take(b"".join(self._arrived), ended=self._ended)
            self._arrived.clear()

    async def post(self, request: bytes) -> RawReply:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._ended = False
        self._reply = RawReply(self._give_back)
        self._head = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._head

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reply is not None and name.lower() == b"content-type":
            self._reply.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._head is not None and self._reply is not None:
            self._head.set_result(self._reply)

    def on_body(self, body: bytes) -> None:
        self._arrived.append(body)

    def on_message_complete(self) -> None:
        self._ended = True

    def _give_back(self) -> None:
        if self._ended:
            self._idle.append(self)
        elif self._transport is not None:
            self._transport.close()


class RawClient:
    """A lower bound: hardly a client, and no candidate."""

    def __init__(self, engine: str) -> None:
        parts = urlsplit(engine)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._idle: deque[RawConnection] = deque()
        lines = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        self._lines = f"Host: {parts.netloc}\r\n{lines}".encode()

    async def post(self, path: str, body: bytes) -> RawReply:
        connection = self._idle.pop() if self._idle else await self._connect()
        head = b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (path.encode(), self._lines, len(body))
        return await connection.post(head + body)

    async def _connect(self) -> RawConnection:
        made = await asyncio.get_running_loop().create_connection(
            lambda: RawConnection(self._idle), self._host, self._port
        )
        return made[1]


def _aiohttp_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
    )


CLIENTS: Mapping[str, Callable[[str], Client]] = MappingProxyType(
    {
        "aiohttp": AiohttpClient,
        "httpx2": Httpx2Client,
        "httpx2-aiohttp": lambda engine: Httpx2Client(engine, AiohttpTransport(client=_aiohttp_session())),
        "raw": RawClient,
    }
)
