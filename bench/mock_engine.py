"""An engine that costs next to nothing, so that what stands before it can be measured.

The replies are the stand-in engine's, rendered once. `POST /pace` with a number of seconds as its body sets
the pause before each token; 0 sends event after event, one in each turn of the event loop.
"""

import argparse
import asyncio
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from standin.config import EngineConfig
from standin.generation import plan
from standin.render import StreamEvent, stream_events, whole_body
from standin.replies import load

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": *true')
_WHOLE_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(slots=True)
class Replies:
    """What the engine says, ready to send, and the pause before each token in seconds."""

    whole: bytes
    events: Sequence[StreamEvent]
    pause: float = 0.0

    @classmethod
    def of_tokens(cls, tokens: int) -> "Replies":
        """Chat replies of `tokens` completion tokens, in one piece and as events in chunks of HTTP."""
        config, captures = EngineConfig(tokens=tokens), load()
        request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": tokens}
        body = whole_body(plan("chat", request, config, captures), captures)
        streamed = request | {"stream": True, "stream_options": {"include_usage": True}}
        events = stream_events(plan("chat", streamed, config, captures), captures)
        return cls(
            _WHOLE_HEAD % len(body) + body,
            [StreamEvent(b"%x\r\n%s\r\n" % (len(data), data), carried) for data, carried in events],
        )


class EngineConnection(asyncio.Protocol):
    """One connection: a request is answered when its body is whole; a stream ends when the client goes."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._arrived = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        head, separator, body = self._arrived.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not separator or (length and len(body) < int(length[1])):
            return
        self._arrived = b""
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST /pace "):
            self._replies.pause = float(body)
            self._write(_WHOLE_HEAD % 0)
        elif head.startswith(b"GET "):
            self._write(_WHOLE_HEAD % 0)
        elif _STREAM.search(body):
            self._write(_STREAM_HEAD)
            self._send_from(0)
        else:
            self._write(self._replies.whole)

    def _send_from(self, at: int) -> None:
        """Sends the event at `at`, and later the rest; events without a token of their own follow at once."""
        events, pause = self._replies.events, self._replies.pause
        loop = asyncio.get_running_loop()
        while self._transport is not None:
            self._write(events[at].data)
            at += 1
            if at == len(events):
                self._write(_LAST_CHUNK)
                return
            if events[at].tokens:
                loop.call_later(pause, self._send_from, at) if pause else loop.call_soon(self._send_from, at)
                return

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(replies: Replies, ready_file: Path) -> None:
    """Serves on a free port of 127.0.0.1 until cancelled."""
    server = await asyncio.get_running_loop().create_server(
        lambda: EngineConnection(replies), "127.0.0.1", 0, backlog=1024
    )
    part = ready_file.with_suffix(".part")
    part.write_text(json.dumps({"port": server.sockets[0].getsockname()[1], "pid": os.getpid()}))
    part.replace(ready_file)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mock_engine")
    parser.add_argument("--tokens", type=int, required=True, help="completion tokens of each reply")
    parser.add_argument("--ready-file", type=Path, required=True)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Replies.of_tokens(options.tokens), options.ready_file))


if __name__ == "__main__":
    main()
