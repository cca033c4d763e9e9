import threading
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.gateway.caddy.backend import WAIT_SECONDS, Backend
from tests.gateway.caddy.process import Caddy


@pytest.fixture
def stream(client: httpx2.Client, gateway: Backend) -> Iterator[httpx2.Response]:
    """A stream that has begun: its first event is on the way."""
    gateway.go.release()
    with client.stream("POST", "/v1/stream", content=b"{}", headers={"Accept-Encoding": "gzip, zstd, br"}) as response:
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
