"""What Caddy passes requests to in these tests: remembers them, and answers by path."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Seen:
    method: str
    path: str
    headers: Message
    body: bytes


class Backend(ThreadingHTTPServer):
    """`/v1/stream…` sends an event for each `go`, until `finish`; other paths answer at once with JSON."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[Seen] = []
        self.go = threading.Semaphore(0)
        self.finish = threading.Event()
        self.left = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def reset(self) -> None:
        """For the next test. A stream of the last one that still runs keeps what it began with, and ends."""
        self.finish.set()
        self.seen.clear()
        self.go = threading.Semaphore(0)
        self.finish = threading.Event()
        self.left = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Backend

    def handle_any(self) -> None:
        try:
            body = self._body()
        except (ConnectionError, ValueError):  # Caddy gave the request up
            self.close_connection = True
            return
        self.server.seen.append(Seen(self.command, self.path, self.headers, body))
        if self.path.startswith("/v1/stream"):
            self._stream()
        elif self.path.startswith("/v1/broken"):
            self.close_connection = True
        else:
            self._json({"path": self.path})

    do_GET = do_POST = handle_any  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            wanted = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(wanted)
            if len(body) < wanted:
                raise ConnectionError
            return body
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Request-Id", "id-of-the-gateway")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        # Before the client has anything: a test may be over once it has the head, and the next one's begin.
        go, finish, left = self.server.go, self.server.finish, self.server.left
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if "plain" in self.path else "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        number = 0
        while not finish.is_set():
            if not go.acquire(timeout=0.05):
                if self._client_left():
                    left.set()
                    return
                continue
            self._chunk(f"data: {number}\n\n".encode())
            number += 1
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _client_left(self) -> bool:
        self.connection.setblocking(False)
        try:
            gone: bool = self.connection.recv(1) == b""
        except BlockingIOError:
            gone = False
        except ConnectionError:
            gone = True
        self.connection.setblocking(True)
        if gone:
            self.close_connection = True
        return gone


@contextmanager
def running_backend() -> Iterator[Backend]:
    backend = Backend()
    thread = threading.Thread(target=backend.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield backend
    finally:
        backend.finish.set()
        backend.shutdown()
        thread.join()
        backend.server_close()
