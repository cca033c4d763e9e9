"""The engine's event stream, as bytes. Pure: bytes in, bytes out, no I/O.

Events pass as they are. A whole event is held back only until its end has arrived, may be dropped (usage
that nobody asked for, what follows the end), and ends the stream if it is an error. Only events that can
matter are parsed: a key such as `"usage":` cannot stand inside a JSON string, where its quotes would be
escaped.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jiter
import orjson

from gateway import anthropic
from gateway.endpoints import Dialect
from gateway.errors import GatewayError
from gateway.usage import COMPLETIONS_USAGE, USAGE_KEY, Usage, UsageRule, find_finish_reason, read_event

MAX_EVENT_BYTES = 4 * 1024 * 1024
DONE = b"[DONE]"
_ERROR_KEY = b'"error":'
_FINISH_KEY = b'"finish_reason":"'
_ERROR_NAME = b"event: error"
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# Empty lines beyond the one that ends an event go with it, so that no byte is left between two events.
_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r)[\r\n]*", re.DOTALL)
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class _Form:
    """How a dialect's streams end: with `[DONE]`, or with an event whose `type` is one of `ends`. `marks`: an
    event without any of these says nothing that matters.
    """

    marks: tuple[bytes, ...]
    ends: frozenset[str] = frozenset()


_FORMS: Mapping[Dialect, _Form] = MappingProxyType(
    {
        "openai": _Form((USAGE_KEY, _ERROR_KEY, DONE, _FINISH_KEY)),
        "responses": _Form(
            (
                *(USAGE_KEY, _ERROR_KEY, _ERROR_NAME),
                *(b'"response.completed"', b'"response.incomplete"', b'"response.failed"'),
            ),
            frozenset(("response.completed", "response.incomplete")),
        ),
        "anthropic": _Form(
            (USAGE_KEY, _ERROR_KEY, _ERROR_NAME, b'"message_stop"'), frozenset(("message_stop",))
        ),
    }
)


class EventTooLarge(Exception):
    """An event has grown beyond MAX_EVENT_BYTES without an end."""


class EventStream:
    """One reply's events. After each `feed`, `error`, `usage`, `finished` and `finish_reason` say what has
    been seen, and `over` that nothing more can follow; `events` counts those that passed, so that a stream
    that is abandoned has a measure.
    """

    def __init__(
        self, dialect: Dialect = "openai", rule: UsageRule = COMPLETIONS_USAGE, *, hide_usage: bool
    ) -> None:
        self._form = _FORMS[dialect]
        self._marks = self._form.marks
        self._rule = rule
        self._hide_usage = hide_usage
        self._pending = b""
        self.events = 0
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.finished = False
        self.error: Any = None
        self.over = False

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that go to the client now; empty while an event is incomplete. Raises EventTooLarge."""
        if self.over:
            return b""
        if self._pending:
            chunk = self._pending + chunk
            self._pending = b""
        if not chunk.endswith(b"\n\n"):
            end = max(found + len(mark) if (found := chunk.rfind(mark)) >= 0 else 0 for mark in _ENDS)
            if len(chunk) - end > MAX_EVENT_BYTES:
                raise EventTooLarge
            chunk, self._pending = chunk[:end], chunk[end:]
        find = chunk.find  # half the price of `in`, on every token
        for mark in self._marks:
            if find(mark) >= 0:
                start = self._first_marked(chunk)
                marked = filter(self._passes, _EVENT.findall(chunk, start))
                return self._counted(chunk[:start]) + b"".join(marked)
        return self._counted(chunk)

    def _counted(self, plain: bytes) -> bytes:
        """Whole events without a mark: they pass."""
        self.events += plain.count(b"\n\n") or len(_EVENT.findall(plain))
        return plain

    def _first_marked(self, chunk: bytes) -> int:
        """Where the first event with a mark begins, or an event before it."""
        mark = min(at for mark in self._marks if (at := chunk.find(mark)) >= 0)
        end = chunk.rfind(b"\n\n", 0, mark)
        while end >= 0 and chunk[end : end + 1] in b"\r\n":
            end += 1
        return max(end, 0)

    def _passes(self, event: bytes) -> bool:
        """Notes what an event says; False if it is not for the client."""
        if self.over:
            return False
        passes = self._read_named(event) if self._form.ends else self._read_chunk(event)
        self.over = self.finished or self.error is not None
        self.events += passes
        return passes

    def _read_chunk(self, event: bytes) -> bool:
        """An event of chat or completions."""
        self.finish_reason = find_finish_reason(event) or self.finish_reason
        if USAGE_KEY not in event and _ERROR_KEY not in event:
            self.finished = DONE in event and _data(event) == DONE
            return True
        payload = _object(_data(event))
        if payload.get("error"):
            self.error = payload["error"]
            return False
        usage = Usage.of(payload.get("usage"))
        # Beside a choice's text stand that choice's tokens alone: the other choices and prompts cost as well.
        if usage is None or payload.get("choices"):
            return True
        self.usage = usage
        return not (self._hide_usage and payload.get("choices") == [])

    def _read_named(self, event: bytes) -> bool:
        """An event of responses or messages, whose data has a `type`."""
        if not any(mark in event for mark in self._marks):
            return True
        payload = _object(_data(event))
        kind = payload.get("type")
        if payload.get("error") or kind in ("error", "response.failed"):
            self.error = payload.get("error") or kind
            return False
        told = read_event(payload, self._rule)
        self.usage = told.usage or self.usage
        self.finish_reason = told.finish_reason or self.finish_reason
        self.finished = kind in self._form.ends
        return True


def error_event(dialect: Dialect, error: GatewayError, events: int, request_id: str) -> bytes:
    """An error as the event that a dialect's SDKs raise. `events`: how many have been sent before."""
    if dialect == "anthropic":
        return b"event: error\ndata: " + anthropic.error_body(error, request_id) + b"\n\n"
    if dialect == "responses":
        # OpenAI documents the fields at the top level, its service sends them in `error`: both are read.
        fields = orjson.loads(error.body())
        top = {"type": "error", "sequence_number": events, **_without_type(fields["error"]), **fields}
        return b"event: error\ndata: " + orjson.dumps(top) + b"\n\n"
    return b"data: " + error.body() + b"\n\n"


def _without_type(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "type"}


def _data(event: bytes) -> bytes:
    """The event's `data` lines, joined as the standard says."""
    lines = (line[5:] for line in _LINE.split(event) if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b" ") for line in lines)


def _object(data: bytes) -> dict[str, Any]:
    """What an event with usage or an error says. One that is not JSON is the engine's failure, its text
    unread.
    """
    if not data or data == DONE:
        return {}
    try:
        value = jiter.from_json(data)
    except ValueError:
        return {"error": "not JSON"}
    return value if isinstance(value, dict) else {}
