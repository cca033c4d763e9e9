"""One request on the wire and its answer: uvicorn's, with less work for each answer and each token of one."""

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent, HTTPResponseBodyEvent, HTTPResponseStartEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class Cycle(RequestResponseCycle):
    """What has arrived is handed over without a wait. The head goes out together with the first bytes of the
    body: a write is a system call and a packet, and costs as much as all the rest of an answer.
    """

    _head = b""

    async def receive(self) -> ASGIReceiveEvent:
        ready = self.message_event.is_set() and not self.waiting_for_100_continue
        if not ready or self.disconnected or self.response_complete:
            return await super().receive()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        self.flow.resume_reading()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: ASGISendEvent) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.body":
            self._put(message)
        elif message["type"] == "http.response.start" and not self.response_started:
            self._begin(message)
        else:
            raise RuntimeError(f"There is no place for {message['type']!r} here.")

    def _begin(self, message: HTTPResponseStartEvent) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        status = message["status"]
        self.chunked_encoding = status not in (204, 304) and self.scope["method"] != "HEAD"
        lines = [STATUS_LINE[status]]
        for name, value in (*self.default_headers, *message.get("headers", ())):
            if name == b"content-length":
                self.expected_content_length, self.chunked_encoding = int(value), False
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise RuntimeError("A header holds a line break.")
        self._head = head + b"\r\n"

    def _put(self, message: HTTPResponseBodyEvent) -> None:
        if not self.response_started or self.response_complete:
            raise RuntimeError("A body needs a head before it, and ends once.")
        body, more = message.get("body", b""), message.get("more_body", False)
        data, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            if body:
                data = b"%b%x\r\n%b\r\n" % (data, len(body), body)
            if not more:
                data += b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("The body is longer than its Content-Length.")
            data += body
        if data:
            self.transport.write(data)
        if not more:
            self._end()

    def _end(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("The body is shorter than its Content-Length.")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
