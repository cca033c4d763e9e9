"""What an outsider or a key's holder tries against the whole process."""

import json
import socket
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tests.contract.developer import HELLO
from tests.contract.subject import Subject
from tests.contract.wire import connect, read_reply, request_bytes
from tests.fakes import scenarios
from tests.fakes.engine import Exchange, FakeEngine
from tests.fakes.gateway_process import GatewayProcess
from tests.gateway.conftest import IDLE_SECONDS, StartGateway

CHAT = "/v1/chat/completions"
MEGABYTE = 2**20


def chat(subject: Subject, headers: dict[str, str] | None = None, *, stream: bool = False) -> bytes:
    body = json.dumps({"model": subject.model, "messages": HELLO, "stream": stream}).encode()
    return request_bytes("POST", CHAT, subject.bearer() | (headers or {}), body)


def resident(gateway: GatewayProcess) -> int:
    """The process's memory, in bytes."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def closed_under(connection: socket.socket, flood: bytes) -> bool:
    """Whether the gateway closes this connection while it is sent all this, or just after."""
    try:
        connection.sendall(flood)
        while connection.recv(MEGABYTE):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_a_body_is_never_read_as_the_next_request(
    subject: Subject, engine: FakeEngine, protocol: str
) -> None:
    hidden = chat(subject, {"x-request-id": f"hidden-{protocol}"})
    head = {"connection": "upgrade", "upgrade": protocol, "content-length": str(len(hidden))}
    with subject.engine_sees_nothing(), connect(subject.gateway.port) as connection:
        connection.sendall(request_bytes("POST", CHAT, subject.bearer() | head))
        time.sleep(0.05)
        connection.sendall(hidden)
        reply = read_reply(connection)
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (400, "invalid_http")
    lines = subject.gateway.access_lines()
    assert not any(line["request_id"].startswith("hidden-") for line in lines)


def test_a_trailer_proves_nobody(subject: Subject) -> None:
    key = "\r\n".join(f"{name}: {value}" for name, value in subject.bearer().items())
    head = request_bytes("POST", CHAT, {"transfer-encoding": "chunked"})
    with subject.engine_sees_nothing(), connect(subject.gateway.port) as connection:
        connection.sendall(head + b"2\r\n{}\r\n0\r\n" + key.encode() + b"\r\n\r\n")
        assert read_reply(connection).status == 401


def test_who_sends_the_next_request_too_early_and_leaves_leaves_nothing(
    subject: Subject, engine: FakeEngine
) -> None:
    engine.scenario = scenarios.never_answers()
    with connect(subject.gateway.port) as connection:
        connection.sendall(chat(subject))
        engine.await_requests()
        connection.sendall(request_bytes("GET", "/livez", {}))
    engine.await_idle(1)


def test_floods_of_requests_and_headers_take_no_memory(subject: Subject) -> None:
    before = resident(subject.gateway)
    many = request_bytes("GET", "/livez", {}) * 100_000
    for flood in (many, b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 1_000_000):
        with connect(subject.gateway.port) as connection:
            assert closed_under(connection, flood)
    assert resident(subject.gateway) - before < 32 * MEGABYTE


def test_clients_that_never_read_hold_little_and_not_for_ever(subject: Subject, engine: FakeEngine) -> None:
    async def flood(exchange: Exchange) -> None:
        exchange.head(200, ("content-type", "text/event-stream"))
        while True:
            exchange.body(b"data: " + b"x" * 50_000 + b"\n\n")
            await exchange.drained()
            await exchange.pause(0)

    engine.scenario = flood
    before = resident(subject.gateway)
    connections = [connect(subject.gateway.port) for _ in range(10)]
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(chat(subject, stream=True))
    engine.await_requests(10)
    time.sleep(0.5)
    assert resident(subject.gateway) - before < 32 * MEGABYTE
    engine.await_idle(3 * IDLE_SECONDS + 2)  # what the idle timeout is for
    for connection in connections:
        connection.close()


def test_a_strange_body_does_not_stop_the_others(
    start_gateway: StartGateway, engine: FakeEngine, subject: Subject
) -> None:
    gateway = start_gateway(GATEWAY_MAX_BODY_BYTES=str(MEGABYTE))
    own = subject.behind(gateway)
    nested = b"[" * 190 + b"]" * 190
    body = b'{"model": "nope", "x": [' + b",".join([nested] * (MEGABYTE // 381 - 1)) + b"]}"
    done = threading.Event()

    def attack() -> None:
        while not done.is_set():
            reply = httpx2.post(gateway.url + CHAT, content=body, headers=own.bearer())
            assert reply.json()["error"]["code"] == "invalid_json"

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        with httpx2.Client(base_url=gateway.url) as client:
            client.get("/livez")
            times = []
            for _ in range(20):
                started = time.monotonic()
                client.get("/livez")
                times.append(time.monotonic() - started)
    finally:
        done.set()
        attacker.join()
    assert sorted(times)[10] < 0.1


def test_the_admin_listener_holds_nothing_of_a_stranger(gateway: GatewayProcess) -> None:
    before = resident(gateway)
    port = int(gateway.admin.rpartition(":")[2])
    head = {"content-type": "application/json", "content-length": str(64 * MEGABYTE)}
    with connect(port) as connection:
        connection.sendall(request_bytes("POST", "/admin/keys", head) + b"x" * (64 * MEGABYTE))
        assert read_reply(connection).status == 401
    assert resident(gateway) - before < 32 * MEGABYTE


def test_a_deleted_key_store_takes_no_more_keys(start_gateway: StartGateway, engine: FakeEngine) -> None:
    gateway = start_gateway()
    key = gateway.new_key()
    for file in (gateway.home / "data").glob("gateway.db*"):
        file.unlink()
    assert gateway.call_admin("POST", "/admin/keys", {"name": "lost"}).status_code == 503
    bearer = {"authorization": f"Bearer {key.text}"}
    assert httpx2.get(f"{gateway.url}/v1/models", headers=bearer).status_code == 200
