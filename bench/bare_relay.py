"""The bare relay: the least that can stand between a client and an engine on the gateway's own server.

It checks, counts and logs nothing; uvicorn, uvloop and httptools are set up as in the gateway.
"""

import argparse
import asyncio
import json
import os
import socket
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from bench.clients import CLIENTS, Client, Reply


class BareRelay:
    """Passes each body on, and each reply back."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = await self._client.post(scope["path"], await _body(receive))
        try:
            if reply.content_type.startswith("text/event-stream"):
                await _stream(reply, send)
            else:
                await _whole(reply, send)
        finally:
            await reply.close()


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _stream(reply: Reply, send: Send) -> None:
    await send(_start(reply))
    while chunk := await reply.read():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _whole(reply: Reply, send: Send) -> None:
    parts: list[bytes] = []
    while chunk := await reply.read():
        parts.append(chunk)
    body = b"".join(parts)
    await send(_start(reply, (b"content-length", b"%d" % len(body))))
    await send({"type": "http.response.body", "body": body})


def _start(reply: Reply, *more: tuple[bytes, bytes]) -> dict[str, object]:
    headers = [(b"content-type", reply.content_type.encode("latin-1")), *more]
    return {"type": "http.response.start", "status": 200, "headers": headers}


async def serve(client_name: str, engine: str, ready_file: Path) -> None:
    """Serves on a free port of 127.0.0.1 until SIGTERM."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = uvicorn.Server(
        uvicorn.Config(
            BareRelay(CLIENTS[client_name](engine)),
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
    )
    part = ready_file.with_suffix(".part")
    part.write_text(json.dumps({"port": listening.getsockname()[1], "pid": os.getpid()}))
    part.replace(ready_file)  # the socket listens: what connects before the server accepts, waits
    await server.serve([listening])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bare_relay")
    parser.add_argument("--client", choices=sorted(CLIENTS), required=True)
    parser.add_argument("--engine", required=True, help="http://HOST:PORT")
    parser.add_argument("--ready-file", type=Path, required=True)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options.client, options.engine, options.ready_file))


if __name__ == "__main__":
    main()
