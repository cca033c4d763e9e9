"""A TCP proxy that can swallow everything: what a dead route or a hung host looks like."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """`open`: cleared, nothing passes any more in either direction, and no connection is closed."""

    def __init__(self, port: int) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.port = 0
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def before(cls, port: int) -> "AsyncIterator[Proxy]":
        """A proxy in front of 127.0.0.1:port."""
        proxy = cls(port)
        server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            for task in proxy._tasks:
                task.cancel()
            await asyncio.gather(*proxy._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            await self.open.wait()
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(self._copy(reader, there), self._copy(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, there):
                if one is not None:
                    one.close()
            self._tasks.discard(task)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self.open.wait()
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.close()
