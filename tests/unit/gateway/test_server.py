"""The process's edges: addresses, signals, the ready file. A whole process is for tests/gateway."""

import asyncio
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from gateway.server import (
    KEEPALIVE_SECONDS,
    Listeners,
    _bind,
    _server,
    _stop_on_signal,
    _write_ready_file,
)
from gateway.settings import ConfigurationError
from tests.fakes.inprocess import configuration


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is never called."""


@pytest.fixture
def listeners() -> Listeners:
    return Listeners.bind(
        configuration(
            GATEWAY_HOST="127.0.0.1", GATEWAY_PORT="0", GATEWAY_METRICS_PORT="0", GATEWAY_ADMIN_PORT="0"
        )
    )


def close(listeners: Listeners) -> None:
    for bound in (listeners.public, listeners.metrics, listeners.admin):
        bound.close()


def test_three_listeners_have_three_ports_and_connections_wait_in_their_backlogs(
    listeners: Listeners,
) -> None:
    ports = listeners.ports()
    assert set(ports) == {"public", "metrics", "admin"}
    assert len(set(ports.values())) == 3
    for port in ports.values():
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    close(listeners)


def test_the_admin_listener_is_on_the_loopback_whatever_the_host() -> None:
    found = Listeners.bind(configuration(GATEWAY_PORT="0", GATEWAY_METRICS_PORT="0", GATEWAY_ADMIN_PORT="0"))
    assert found.public.getsockname()[0] == "0.0.0.0"
    assert found.admin.getsockname()[0] == "127.0.0.1"
    close(found)


def test_an_address_that_is_taken_is_named_in_one_line() -> None:
    with closing(_bind("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"^cannot listen on 127.0.0.1:{port}: .*in use"):
            _bind("127.0.0.1", port)


def test_the_ready_file_appears_whole(tmp_path: Path, listeners: Listeners) -> None:
    path = tmp_path / "ready.json"
    _write_ready_file(path, listeners)
    assert orjson.loads(path.read_bytes()) == listeners.ports() | {"pid": os.getpid()}
    assert [entry.name for entry in tmp_path.iterdir()] == ["ready.json"]
    close(listeners)


def test_no_ready_file_is_written_where_none_is_asked_for(listeners: Listeners) -> None:
    _write_ready_file(None, listeners)
    close(listeners)


async def test_the_server_adds_nothing_and_keeps_connections_longer_than_the_proxy() -> None:
    config = _server(nothing, 7).config
    assert not config.server_header
    assert not config.proxy_headers
    assert config.timeout_graceful_shutdown == 7
    assert config.timeout_keep_alive == KEEPALIVE_SECONDS > 120


async def test_a_server_that_is_to_end_does_so_at_once() -> None:
    server = _server(nothing, 7)
    running = asyncio.create_task(server.main_loop())
    await asyncio.sleep(0.01)
    assert not running.done()
    assert server.server_state.default_headers[0][0] == b"date"
    server.end()
    await asyncio.wait_for(running, 0.5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_asks_the_server_to_end_and_nothing_more(number: signal.Signals) -> None:
    server = _server(nothing, 7)
    loop = asyncio.get_running_loop()
    _stop_on_signal(server)
    try:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.01)
        assert server.should_exit
        assert not server.force_exit
        await asyncio.wait_for(server.main_loop(), 0.5)
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
