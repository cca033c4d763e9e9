"""The engine's event stream, as bytes. Pure: bytes in, bytes out, no I/O.

Events pass as they are. A whole event is held back only until its end has arrived, may be dropped (usage that
nobody asked for), and ends the stream if it is an error. Only events that can matter are parsed: a key such
as `"usage":` cannot stand inside a JSON string, where its quotes would be escaped.
"""

import re
from typing import Any

import jiter

from gateway.usage import FINISH_KEY, USAGE_KEY, Usage, find_finish_reason

MAX_EVENT_BYTES = 4 * 1024 * 1024
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# Empty lines beyond the one that ends an event go with it, so that no byte is left between two events.
_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r)[\r\n]*", re.DOTALL)
_LINE = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(Exception):
    """An event has grown beyond MAX_EVENT_BYTES without an end."""


class EventStream:
    """One reply's events. After each `feed`, `error`, `usage`, `finished` and `finish_reason` say what has
    been seen.
    """

    def __init__(self, *, hide_usage: bool) -> None:
        self._hide_usage = hide_usage
        self._pending = b""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.finished = False
        self.error: Any = None

    @property
    def over(self) -> bool:
        """Whether nothing more can follow: the end was announced, or an error."""
        return self.finished or self.error is not None

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that go to the client now; empty while an event is incomplete. Raises EventTooLarge."""
        if self._pending:
            chunk = self._pending + chunk
            self._pending = b""
        if not chunk.endswith(b"\n\n"):
            end = max(found + len(mark) if (found := chunk.rfind(mark)) >= 0 else 0 for mark in _ENDS)
            if len(chunk) - end > MAX_EVENT_BYTES:
                raise EventTooLarge
            chunk, self._pending = chunk[:end], chunk[end:]
        if USAGE_KEY in chunk or b'"error":' in chunk or b"[DONE]" in chunk or FINISH_KEY in chunk:
            return b"".join(event for event in _EVENT.findall(chunk) if self._passes(event))
        return chunk

    def _passes(self, event: bytes) -> bool:
        """Notes what an event says; False if it is not for the client."""
        if self.error is not None:
            return False
        self.finish_reason = find_finish_reason(event) or self.finish_reason
        if USAGE_KEY not in event and b'"error":' not in event:
            self.finished = self.finished or _data(event) == b"[DONE]"
            return True
        payload = _object(_data(event))
        if payload.get("error"):
            self.error = payload["error"]
            return False
        usage = Usage.of(payload.get("usage"))
        if usage is None:
            return True
        self.usage = usage
        return not (self._hide_usage and payload.get("choices") == [])


def _data(event: bytes) -> bytes:
    """The event's `data` lines, joined as the standard says."""
    lines = (line[5:] for line in _LINE.split(event) if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b" ") for line in lines)


def _object(data: bytes) -> dict[str, Any]:
    """What an event with usage or an error says. One that is not JSON is the engine's failure, its text
    unread.
    """
    if not data:
        return {}
    try:
        value = jiter.from_json(data)
    except ValueError:
        return {"error": "not JSON"}
    return value if isinstance(value, dict) else {}
