"""A Transport whose replies are scripts, and which remembers what it was asked."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.settings import Upstream

# A step of a reply: bytes that arrive, an error that is raised, or seconds that pass in silence.
Step = bytes | Exception | float

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


class ScriptedReply:
    """An EngineReply that plays its steps, then ends."""

    def __init__(self, steps: Sequence[Step], *, status: int = 200, content_type: str = JSON) -> None:
        self.status = status
        self.content_type = content_type
        self.closed = 0
        self._steps: Iterator[Step] = iter(steps)

    async def read(self) -> bytes:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, bytes):
                return step
            await asyncio.sleep(step)
        return b""

    def close(self) -> None:
        self.closed += 1


@dataclass(frozen=True)
class Sent:
    """What an engine received."""

    upstream: str
    path: str
    body: bytes
    headers: Mapping[str, str]


class ScriptedTransport:
    """Gives its replies in turn; an exception in their place is raised, a float is waited for first."""

    def __init__(self, *replies: ScriptedReply | Exception | float) -> None:
        self._replies = iter(replies)
        self.down: set[str] = set()
        self.sent: list[Sent] = []
        self.asked = asyncio.Event()
        self.closed = False

    async def post(
        self, upstream: Upstream, path: str, body: bytes, headers: Mapping[str, str]
    ) -> ScriptedReply:
        self.sent.append(Sent(upstream.name, path, body, headers))
        self.asked.set()
        reply = next(self._replies)
        if isinstance(reply, float):
            await asyncio.sleep(reply)
            reply = next(self._replies)
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, ScriptedReply)
        return reply

    async def healthy(self, upstream: Upstream) -> bool:
        return upstream.name not in self.down

    async def close(self) -> None:
        self.closed = True
