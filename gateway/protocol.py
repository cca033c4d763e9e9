"""HTTP/1.1 on the wire: uvicorn's protocol, without what would let one request pass for another, and with an
end to what a client leaves unfinished.
"""

import asyncio
import secrets
from typing import ClassVar
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.cycle import Cycle
from gateway.errors import InvalidHTTP
from gateway.presence import EXTENSION, Presence

# More than the proxy in front lets through: it matters to those who reach the gateway itself.
MAX_HEAD_BYTES = 64 * 1024


class RequestRefused(Exception):
    """Makes the parser stop: the rest of what arrived is not looked at."""


class Protocol(HttpToolsProtocol):
    """One connection.

    Refused, because the parser and a proxy in front would not agree on where the next request begins:
    `Upgrade` and `CONNECT`, whose body the parser takes for another protocol. A request that comes before the
    last one is answered ends the connection: to keep it waiting, reading would have to stop, and so would
    noticing that the client has left. Trailers are dropped: they would join the headers, unseen by the proxy.

    `head_seconds`: for a head to arrive, and for the rest of a body that was answered before its end.
    `stalled_seconds`: for a client to take something of what was sent to it.

    Timers cost: a request that comes in one piece sets none, and a connection's timer for when it is quiet is
    not moved by what happens, but looks back when it goes off.
    """

    head_seconds: ClassVar[float] = 10.0
    stalled_seconds: ClassVar[float] = 60.0

    _in_head = True
    _head_bytes = 0
    _whole = False
    _answering = False
    _quiet_since = 0.0
    _quiet: asyncio.TimerHandle | None = None
    _unfinished: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # like its base
        super().connection_made(transport)
        self._presence = Presence()
        self._extensions: dict[str, dict[object, object]] = {EXTENSION: {"client": self._presence}}
        # From the first moment on: a proxy may open a connection before it has a request for it.
        self._quiet_since = self.loop.time()
        self._end_if_quiet()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._quiet)
        _cancel(self._unfinished)
        _cancel(self._stalled)
        super().connection_lost(exc)
        if self._answering:
            self._presence.leave()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.stalled_seconds, self._drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stalled)

    def data_received(self, data: bytes) -> None:
        self._quiet_since = self.loop.time()
        super().data_received(data)
        if self._in_head:
            if not self._head_bytes:
                self._allow_head_seconds()
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        if self._answering:
            raise RequestRefused
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._in_head, self._head_bytes, self._whole = True, 0, False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            raise RequestRefused
        self._in_head = False
        _cancel(self._unfinished)
        self._complete_scope()
        self._answering = True
        self.cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self.scope["http_version"] != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def _complete_scope(self) -> None:
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = self.parser.get_http_version()
        self.scope["path"] = unquote(path) if "%" in path else path
        self.scope["raw_path"] = url.path
        self.scope["query_string"] = url.query or b""

    def on_message_complete(self) -> None:
        self._whole = True
        _cancel(self._unfinished)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answering = False
        self._quiet_since = self.loop.time()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not self._whole:
            self._allow_head_seconds()

    def send_400_response(self, msg: str) -> None:
        """Says so and closes; once an answer has begun there is no place to say it."""
        if self._answering and self.cycle.response_started:
            self._drop()
        if self.transport.is_closing():
            return
        body = InvalidHTTP(msg).body()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"x-request-id: req-{secrets.token_hex(16)}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self._mute()
        self.transport.close()

    def _allow_head_seconds(self) -> None:
        _cancel(self._unfinished)
        self._unfinished = self.loop.call_later(self.head_seconds, self._drop)

    def _end_if_quiet(self) -> None:
        """Closes the connection, or looks again when it will have been without a request for long enough."""
        now = self.loop.time()
        end = (now if self._answering else self._quiet_since) + self.timeout_keep_alive
        if end <= now:
            self.transport.close()
        else:
            self._quiet = self.loop.call_at(end, self._end_if_quiet)

    def _drop(self) -> None:
        self._mute()
        self.transport.abort()

    def _mute(self) -> None:
        """Lets nothing more be written, whatever the application still sends."""
        if self.cycle is not None:
            self.cycle.disconnected = True


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
