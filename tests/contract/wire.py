"""HTTP by hand, for what no client library would send."""

import socket
from dataclasses import dataclass
from typing import BinaryIO

READ_SECONDS = 10.0


@dataclass(frozen=True)
class RawReply:
    """A reply: the status, headers in lower case, and the body with its framing removed."""

    status: int
    headers: dict[str, str]
    body: bytes


def connect(port: int) -> socket.socket:
    """A connection to a local port."""
    return socket.create_connection(("127.0.0.1", port), timeout=READ_SECONDS)


def request_bytes(method: str, target: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """A request with just these headers; `host` and `content-length` are added where they are missing."""
    length = {"content-length": str(len(body))} if body and "transfer-encoding" not in headers else {}
    merged = {"host": "gateway.test"} | length | headers
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in merged.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def exchange(
    port: int, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> RawReply:
    """One request on a connection of its own."""
    with connect(port) as connection:
        connection.sendall(request_bytes(method, target, headers or {}, body))
        return read_reply(connection)


def read_reply(connection: socket.socket) -> RawReply:
    """The next reply on this connection, past any `100 Continue`. Raises EOFError where there is none."""
    with connection.makefile("rb") as reader:
        while (reply := _read(reader)).status == 100:
            pass
        return reply


def _read(reader: BinaryIO) -> RawReply:
    status = int(_line(reader.readline()).split(" ")[1])
    headers: dict[str, str] = {}
    while line := _line(reader.readline()):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding") != "chunked":
        return RawReply(status, headers, reader.read(int(headers.get("content-length", "0"))))
    parts = []
    while size := int(_line(reader.readline()), 16):
        parts.append(reader.read(size))
        reader.readline()
    reader.readline()
    return RawReply(status, headers, b"".join(parts))


def _line(raw: bytes) -> str:
    if not raw:
        raise EOFError("the connection ended inside a reply")
    return raw.decode("latin-1").rstrip("\r\n")
