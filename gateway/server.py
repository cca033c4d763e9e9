"""The process: three listeners in one event loop, and an orderly end."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from structlog.typing import FilteringBoundLogger

from gateway.accesslog import AccessLog
from gateway.app import create_app
from gateway.outside import opened
from gateway.protocol import Protocol
from gateway.settings import LOOPBACK, Configuration, ConfigurationError

# Longer than Caddy keeps its idle connections to the gateway, so that it is never the gateway that closes one
# under a request.
KEEPALIVE_SECONDS = 130
TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Listeners:
    """Bound sockets; connections wait in their backlogs until the servers accept."""

    public: socket.socket
    metrics: socket.socket
    admin: socket.socket

    @classmethod
    def bind(cls, configuration: Configuration) -> "Listeners":
        """Raises ConfigurationError where an address is taken."""
        settings = configuration.settings
        return cls(
            _bind(settings.host, settings.port),
            _bind(settings.host, settings.metrics_port),
            _bind(LOOPBACK, settings.admin_port),
        )

    def ports(self) -> dict[str, int]:
        sockets = {"public": self.public, "metrics": self.metrics, "admin": self.admin}
        return {name: bound.getsockname()[1] for name, bound in sockets.items()}


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the process, and looks up once a second instead of ten times:
    three of them would otherwise cost an idle gateway more than all its work in the background.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Lets `serve` drain and return."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(configuration: Configuration, log: FilteringBoundLogger, access_log: AccessLog) -> None:
    """Runs until SIGTERM or SIGINT, then drains. Raises ConfigurationError."""
    settings = configuration.settings
    listeners = Listeners.bind(configuration)
    async with opened(configuration, log, access_log) as outside, create_app(configuration, outside) as apps:
        public = _server(apps.public, settings.drain_seconds)
        others = [_server(apps.internal, 1), _server(apps.admin, 1)]
        running = [
            asyncio.create_task(server.serve([bound]))
            for server, bound in zip(
                [public, *others], [listeners.public, listeners.metrics, listeners.admin], strict=True
            )
        ]
        _stop_on_signal(public)
        await _until_started([public, *others])
        log.info("started", **listeners.ports())
        _write_ready_file(settings.ready_file, listeners)
        await running[0]
        log.info("drained")
        for server in others:
            server.end()
        await asyncio.gather(*running)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}.") from None


def _server(app: ASGIApp, drain_seconds: int) -> Server:
    return Server(
        uvicorn.Config(
            app,
            loop="none",
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEPALIVE_SECONDS,
            timeout_graceful_shutdown=drain_seconds,
        )
    )


def _stop_on_signal(server: Server) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)


async def _until_started(servers: list[Server]) -> None:
    while not all(server.started for server in servers):  # noqa: ASYNC110 - uvicorn has a flag, no event
        await asyncio.sleep(0.01)


def _write_ready_file(path: Path | None, listeners: Listeners) -> None:
    if path is None:
        return
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(listeners.ports() | {"pid": os.getpid()}))
    part.replace(path)
