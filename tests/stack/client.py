"""A client that shows what the SDK hides: status, headers, and when each event arrives."""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

from tests.stack.stack import until

MODEL = "qwen2.5-14b-instruct-awq"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: Any

    @property
    def code(self) -> str | None:
        return self.body["error"]["code"] if "error" in self.body else None


@dataclass
class Stream:
    """The events of an answer, read by a thread of its own."""

    reply: http.client.HTTPResponse
    events: list[str] = field(default_factory=list)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for line in self.reply:
                if line.startswith(b"data: "):
                    self.events.append(line[6:].decode().strip())
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.events.append(repr(error))

    @property
    def finished(self) -> bool:
        return not self.thread.is_alive()

    def wait_for(self, events: int) -> None:
        until(f"{events} events", lambda: len(self.events) >= events, seconds=20, every=0.02)

    def finish(self) -> list[str]:
        """All events, once the last has arrived."""
        self.thread.join(60)
        assert self.finished
        return self.events


@dataclass(frozen=True)
class Client:
    port: int
    trust: ssl.SSLContext
    key: str

    def _connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.port, context=self.trust, timeout=60)

    def _ask(self, connection: http.client.HTTPSConnection, **parameters: Any) -> http.client.HTTPResponse:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], **parameters}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection.getresponse()

    def ask(self, **parameters: Any) -> Answer:
        """One whole answer, whatever its status."""
        connection = self._connection()
        try:
            reply = self._ask(connection, **parameters)
            return Answer(reply.status, reply.headers, json.load(reply))
        finally:
            connection.close()

    @contextmanager
    def streaming(self, tokens: int) -> Iterator[Stream]:
        """A stream of `tokens` tokens; the connection is cut at the context's end."""
        connection = self._connection()
        reply = self._ask(connection, max_tokens=tokens, stream=True)
        assert reply.status == 200, reply.read()
        stream = Stream(reply)
        try:
            yield stream
        finally:
            if not stream.finished:
                connection.sock.shutdown(socket.SHUT_RDWR)
                stream.thread.join(10)
            reply.close()
            connection.close()
