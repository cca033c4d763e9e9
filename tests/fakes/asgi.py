"""The server's side of one ASGI request, played by hand: no socket, every step under the test's control."""

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import ASGIApp, Message

from gateway.presence import EXTENSION, Presence

DISCONNECT: Message = {"type": "http.disconnect"}


def body(*chunks: bytes) -> list[Message]:
    """The messages of a request's body that arrives in these chunks."""
    last = len(chunks) - 1
    return [{"type": "http.request", "body": c, "more_body": i < last} for i, c in enumerate(chunks)]


class Client:
    """Receives what it was given, then is silent (the client waits) until `leave`.

    `stalled`: it takes no more bytes.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages:
            self._incoming.put_nowait(message)
        self.got: list[Message] = []
        self.begun = asyncio.Event()
        self.stalled = False
        self.presence = Presence()

    def give(self, message: Message) -> None:
        self._incoming.put_nowait(message)

    def leave(self) -> None:
        self._incoming.put_nowait(DISCONNECT)
        self.presence.leave()

    async def receive(self) -> Message:
        return await self._incoming.get()

    async def send(self, message: Message) -> None:
        if self.stalled:
            await asyncio.Event().wait()
        self.got.append(message)
        if message["type"] == "http.response.body":
            self.begun.set()

    @property
    def status(self) -> int:
        starts = [message["status"] for message in self.got if message["type"] == "http.response.start"]
        assert len(starts) == 1, starts
        status: int = starts[0]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.got[0]["headers"]}

    @property
    def chunks(self) -> list[bytes]:
        return [message["body"] for message in self.got[1:]]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def whole(self) -> bool:
        """Whether the last message said that it is the last, and no other did."""
        more = [message["more_body"] for message in self.got[1:]]
        return bool(more) and not more[-1] and all(more[:-1])

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = orjson.loads(self.body)["error"]
        return error


def scope(
    method: str,
    path: str,
    headers: Iterable[tuple[str, str]] = (),
    *,
    peer: str | None = "192.0.2.7",
    client: Client | None = None,
) -> dict[str, Any]:
    """A request's head as the server gives it; `client` is the one that can leave."""
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("latin-1"),
        "query_string": b"",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": None if peer is None else (peer, 50000),
        "extensions": {EXTENSION: {"client": Presence() if client is None else client.presence}},
    }


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    headers: Iterable[tuple[str, str]] = (),
    content: bytes = b"",
    *,
    query: bytes = b"",
) -> Client:
    """One request from start to end, by a client that stays."""
    client = Client(body(content))
    asked = scope(method, path, headers, client=client) | {"query_string": query}
    await app(asked, client.receive, client.send)
    return client
