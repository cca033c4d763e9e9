"""The engines: which there are, whether they answer, which takes the next request, and the HTTP client to
them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

import aiohttp

from gateway.errors import EngineFailed, EngineUnavailable, GatewayError
from gateway.settings import Upstream

PROBE_SECONDS = 2.0
# vLLM closes idle connections after 5 s: ours must be gone before, so that no request meets one that is being
# closed.
KEEPALIVE_SECONDS = 4.0
RETRY_AFTER_SECONDS = 5


class EngineReply(Protocol):
    """An engine's reply as its bytes arrive."""

    status: int
    content_type: str

    async def read(self) -> bytes:
        """What has arrived, at least one byte; empty at the end. Raises EngineFailed if the connection
        breaks.
        """

    def close(self) -> None:
        """Ends the exchange: before the reply's end this closes the connection, so that the engine stops its
        work.
        """


class Transport(Protocol):
    """The seam to the engines."""

    async def post(
        self, upstream: Upstream, path: str, body: bytes, headers: Mapping[str, str]
    ) -> EngineReply:
        """Sends a request and waits for the reply's head. Raises EngineUnavailable or EngineFailed."""

    async def healthy(self, upstream: Upstream) -> bool:
        """Whether GET /health answers 200 within PROBE_SECONDS."""

    async def close(self) -> None: ...


class AiohttpReply:
    """The EngineReply on an aiohttp response."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "")

    async def read(self) -> bytes:
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineFailed("The engine broke off its reply.") from error

    def close(self) -> None:
        self._response.close()


class AiohttpTransport:
    """The Transport on aiohttp, whose client costs the least CPU of those that were measured
    (docs/decisions).
    """

    def __init__(self, *, connect_timeout: float) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        )

    async def post(
        self, upstream: Upstream, path: str, body: bytes, headers: Mapping[str, str]
    ) -> EngineReply:
        try:
            response = await self._session.post(
                upstream.base + path, data=body, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise unavailable() from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineFailed("The engine closed the connection without a reply.") from error
        return AiohttpReply(response)

    async def healthy(self, upstream: Upstream) -> bool:
        limit = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        try:
            async with self._session.get(upstream.base + "/health", timeout=limit) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        await self._session.close()


class Slot:
    """One upstream, and a `with` block for a request that it serves."""

    def __init__(self, upstream: Upstream, key: str) -> None:
        self.upstream = upstream
        self.up = False
        self.in_flight = 0
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def __enter__(self) -> Self:
        self.in_flight += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1


class Pool:
    """All upstreams, probed in the background."""

    def __init__(self, slots: Sequence[Slot], transport: Transport) -> None:
        self.slots = slots
        self._transport = transport

    def pick(self) -> Slot:
        """The least busy upstream of those that answered their last probe; of all, if none did: the last is
        never ejected.
        """
        return min([s for s in self.slots if s.up] or self.slots, key=lambda slot: slot.in_flight)

    def any_up(self) -> bool:
        return any(slot.up for slot in self.slots)

    async def probe(self) -> None:
        """Asks every upstream once."""

        async def ask(slot: Slot) -> None:
            slot.up = await self._transport.healthy(slot.upstream)

        await asyncio.gather(*map(ask, self.slots))

    async def keep_probing(self) -> None:
        """Probes until cancelled."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            await self.probe()


def unavailable() -> GatewayError:
    """No connection, or the engine says that it cannot serve."""
    return EngineUnavailable(
        "The engine is not reachable: it may be starting. Try again.", retry_after=RETRY_AFTER_SECONDS
    )
