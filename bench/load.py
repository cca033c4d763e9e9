"""A lean HTTP/1.1 load client: one protocol class; each whole reply is compared with the right one."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


class WrongReply(Exception):
    """A reply is not the one that a correct system gives: its cost would mean nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `headers`: those that this system needs besides the content's."""

    port: int
    headers: tuple[tuple[str, str], ...] = ()

    def request(self, body: bytes) -> bytes:
        """A chat request, ready to send."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}"
        rest = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        return head.encode() + rest


@dataclass(slots=True)
class Progress:
    """What the streams of one round have done so far."""

    streams: int
    begun: int = 0
    events: int = 0
    all_begun: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, events: int, *, first: bool) -> None:
        self.events += events
        self.begun += first
        if self.begun == self.streams:
            self.all_begun.set()


class Connection(asyncio.Protocol):
    """A keep-alive connection with one request on it at a time."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._transport: asyncio.Transport | None = None
        self._arrived = bytearray()
        self._begun = False
        self._whole: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, target: Target, progress: Progress | None = None) -> "Connection":
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: cls(progress), "127.0.0.1", target.port))[1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(
                WrongReply(f"the connection closed after {bytes(self._arrived[:500])!r}")
            )

    def data_received(self, data: bytes) -> None:
        before = len(self._arrived)
        self._arrived += data
        if self._progress is not None:
            # From one byte back: an event's end may have been cut in two.
            events = self._arrived.count(b"\n\n", max(0, before - 1))
            self._progress.note(events, first=events > 0 and not self._begun)
            self._begun = self._begun or events > 0
        if self._whole is not None and is_whole(self._arrived):
            self._whole.set_result(bytes(self._arrived))

    async def ask(self, request: bytes) -> bytes:
        """Sends a request; its whole reply, head included. Raises WrongReply if the connection closes."""
        assert self._transport is not None
        self._arrived.clear()
        self._begun = False
        self._whole = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._whole

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def is_whole(reply: bytes | bytearray) -> bool:
    """Whether all of a reply has arrived, by its length or its last chunk."""
    if reply.endswith(b"\r\n0\r\n\r\n"):
        return True
    head_end = reply.find(b"\r\n\r\n")
    length = _LENGTH.search(reply, 0, head_end) if head_end >= 0 else None
    return length is not None and len(reply) >= head_end + 4 + int(length[1])


def body_of(reply: bytes) -> bytes:
    """The body of a whole reply, its chunks joined. Raises WrongReply where the status is not 200."""
    status = _STATUS.match(reply)
    if status is None or status[1] != b"200":
        raise WrongReply(f"{reply[:500]!r}")
    head, _, rest = reply.partition(b"\r\n\r\n")
    if not _CHUNKED.search(head):
        return rest
    parts: list[bytes] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(parts)


def check(reply: bytes, expected: bytes) -> None:
    """Raises WrongReply unless the reply's body is `expected`, byte for byte."""
    body = body_of(reply)
    if body != expected:
        raise WrongReply(f"{body[:300]!r} instead of {expected[:300]!r}")
