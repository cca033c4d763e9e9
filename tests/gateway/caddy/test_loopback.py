"""The forwarder that holds the operator's ports on 127.0.0.1."""

import socket
from collections.abc import Iterator

import httpx2
import pytest

from tests.gateway.caddy.backend import Backend
from tests.gateway.caddy.process import Caddy, free_ports, running_caddy

PORTS = ("LOOPBACK_VLLM_PORT", "LOOPBACK_PROMETHEUS_PORT", "LOOPBACK_ALERTMANAGER_PORT")
HOST_SIDE = "127.0.0.0/8"
ANOTHER_NETWORK = "192.0.2.0/24"


def loopback_environment(backend: Backend, subnet: str) -> dict[str, str]:
    health, *ports = free_ports(4)
    addresses = {name.removesuffix("_PORT"): backend.address for name in PORTS}
    numbers = {name: str(port) for name, port in zip(PORTS, ports, strict=True)}
    return {"LOOPBACK_HEALTH_PORT": str(health), "LOOPBACK_SUBNET": subnet} | addresses | numbers


@pytest.fixture(scope="module")
def forwarder(one_gateway: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caddy]:
    env = loopback_environment(one_gateway, HOST_SIDE)
    data = tmp_path_factory.mktemp("loopback")
    with running_caddy(
        "loopback.Caddyfile", env, data, health_port=int(env["LOOPBACK_HEALTH_PORT"])
    ) as running:
        yield running


def ask(port: str, host: str) -> bytes:
    with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as connection:
        connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        try:
            return connection.recv(100)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_each_port_reaches_its_service_under_the_services_own_name(
    forwarder: Caddy, gateway: Backend, port: str, host: str
) -> None:
    assert httpx2.get(f"http://{host}:{forwarder.env[port]}/v1/models").json() == {"path": "/v1/models"}
    assert [request.headers["Host"] for request in gateway.seen] == [gateway.address]


def test_events_are_not_held_back(forwarder: Caddy, gateway: Backend) -> None:
    with httpx2.stream("POST", f"http://localhost:{forwarder.env[PORTS[0]]}/v1/stream") as response:
        chunks = response.iter_raw()
        for number in range(3):
            gateway.go.release()
            assert next(chunks) == f"data: {number}\n\n".encode()
        gateway.finish.set()


@pytest.mark.parametrize("host", ["evil.example", "loopback", "a?", "localhost.evil.example"])
def test_a_web_page_under_a_name_of_its_own_gets_nothing(
    forwarder: Caddy, gateway: Backend, host: str
) -> None:
    answer = ask(forwarder.env[PORTS[0]], host)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert not gateway.seen


def test_other_containers_get_nothing(gateway: Backend, tmp_path_factory: pytest.TempPathFactory) -> None:
    # Here the test itself comes from outside the subnet whose gateway the host's side comes from.
    env = loopback_environment(gateway, ANOTHER_NETWORK)
    data = tmp_path_factory.mktemp("elsewhere")
    with running_caddy("loopback.Caddyfile", env, data, health_port=int(env["LOOPBACK_HEALTH_PORT"])):
        assert [ask(env[port], "localhost") for port in PORTS] == [b"", b"", b""]
    assert not gateway.seen
