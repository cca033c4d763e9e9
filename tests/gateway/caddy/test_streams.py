import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.gateway.caddy.backend import WAIT_SECONDS, Backend
from tests.gateway.caddy.process import Caddy, running_caddy, site_environment


@pytest.fixture
def stream(client: httpx2.Client, gateway: Backend) -> Iterator[httpx2.Response]:
    """A stream that has begun: its first event is on the way."""
    gateway.go.release()
    with client.stream(
        "POST", "/v1/stream", content=b"{}", headers={"Accept-Encoding": "gzip, zstd, br"}
    ) as response:
        yield response
        gateway.finish.set()


def test_an_event_arrives_before_the_next_is_made(stream: httpx2.Response, gateway: Backend) -> None:
    chunks = stream.iter_raw()
    for number in range(5):
        # The backend has sent this event and sends no other before it is asked to.
        assert next(chunks) == f"data: {number}\n\n".encode()
        gateway.go.release()


def test_a_stream_is_not_compressed(stream: httpx2.Response) -> None:
    assert stream.headers["content-type"] == "text/event-stream"
    assert "content-encoding" not in stream.headers


def test_a_reload_does_not_cut_a_stream(site: Caddy, stream: httpx2.Response, gateway: Backend) -> None:
    chunks = stream.iter_raw()
    assert next(chunks) == b"data: 0\n\n"
    reloaded = site.reload()
    assert reloaded.returncode == 0, reloaded.stderr
    with site.client() as other:
        assert other.get("/livez").status_code == 200
    # Long after the reload, in which the old configuration's connections would have been closed.
    time.sleep(1)
    for number in range(1, 4):
        gateway.go.release()
        assert next(chunks) == f"data: {number}\n\n".encode()
    gateway.finish.set()
    assert list(chunks) == []


def test_a_stop_lets_a_stream_finish(gateway: Backend, tmp_path: Path) -> None:
    env = site_environment(gateway.address, gateway.address)
    with running_caddy("Caddyfile", env, tmp_path, health_port=int(env["CADDY_METRICS_PORT"])) as stopping:
        gateway.go.release()
        with stopping.client() as client, client.stream("POST", "/v1/stream") as response:
            chunks = response.iter_raw()
            assert next(chunks) == b"data: 0\n\n"
            stopping.process.terminate()
            time.sleep(1)
            with pytest.raises(httpx2.ConnectError), stopping.client() as other:
                other.get("/livez")
            gateway.go.release()
            assert next(chunks) == b"data: 1\n\n"
            gateway.finish.set()
            assert list(chunks) == []
        assert stopping.process.wait(WAIT_SECONDS) == 0


def test_any_other_reply_that_comes_in_parts_is_not_held_back(
    client: httpx2.Client, gateway: Backend
) -> None:
    gateway.go.release()
    with client.stream("POST", "/v1/stream-plain", content=b"{}") as response:
        chunks = response.iter_raw()
        assert next(chunks) == b"data: 0\n\n"
        gateway.go.release()
        assert next(chunks) == b"data: 1\n\n"
        gateway.finish.set()


def test_a_client_that_leaves_is_gone_upstream_too(client: httpx2.Client, gateway: Backend) -> None:
    gateway.go.release()
    with client.stream("POST", "/v1/stream", content=b"{}") as response:
        next(response.iter_raw())
    assert gateway.left.wait(WAIT_SECONDS)


def test_a_silence_before_the_first_byte_is_no_error(client: httpx2.Client, gateway: Backend) -> None:
    late = threading.Timer(2, gateway.go.release)
    late.start()
    with client.stream("POST", "/v1/stream", content=b"{}") as response:
        assert next(response.iter_raw()) == b"data: 0\n\n"
        gateway.finish.set()
    late.join()


def test_a_body_that_does_not_come_has_an_end_and_a_stream_that_is_longer_has_not(
    gateway: Backend, tmp_path: Path
) -> None:
    env = site_environment(gateway.address, gateway.address, GATEWAY_BODY_TIMEOUT="0.1")
    with running_caddy("Caddyfile", env, tmp_path, health_port=int(env["CADDY_METRICS_PORT"])) as site:
        with site.client() as client, client.stream("POST", "/v1/stream", content=b"{}") as response:
            started = time.monotonic()
            head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
            assert site.raw(head).startswith(b"HTTP/1.1 404 ")
            assert 1 < time.monotonic() - started < 10
            chunks = response.iter_raw()
            for number in range(3):
                gateway.go.release()
                assert next(chunks) == f"data: {number}\n\n".encode()
            gateway.finish.set()
            assert list(chunks) == []
