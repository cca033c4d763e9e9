"""A client that leaves: the engine is told within a second, in every phase, and nothing stays open."""

import json
import socket
import time

import pytest

from tests.contract.developer import HELLO
from tests.contract.subject import Subject
from tests.contract.wire import connect, request_bytes
from tests.fakes import scenarios
from tests.fakes.engine import FakeEngine, Scenario

CHAT = "/v1/chat/completions"
SECONDS = 1.0


def send(subject: Subject, *, stream: bool) -> socket.socket:
    body = json.dumps({"model": subject.model, "messages": HELLO, "stream": stream}).encode()
    connection = connect(subject.gateway.port)
    connection.sendall(request_bytes("POST", CHAT, subject.bearer(), body))
    return connection


def in_flight(subject: Subject) -> float:
    return subject.gateway.metric("gateway_requests_in_flight")


def all_is_quiet(subject: Subject, engine: FakeEngine) -> None:
    deadline = time.monotonic() + SECONDS
    gauges = (
        "gateway_requests_in_flight",
        "gateway_upstream_requests_in_flight",
        "gateway_inflight_body_bytes",
    )
    while any(subject.gateway.metric(gauge) for gauge in gauges) or engine.requests_running():
        assert time.monotonic() < deadline, "something was left open"
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenarios.never_answers(), id="before the engine's first byte"),
        pytest.param(scenarios.stalls_after(0), id="after the engine's headers"),
        pytest.param(scenarios.stalls_after(3), id="between two events"),
        pytest.param(scenarios.normal(delay=0.05), id="while events flow"),
    ],
)
def test_the_engine_is_told_at_once(
    subject: Subject, engine: FakeEngine, *, scenario: Scenario, stream: bool
) -> None:
    engine.scenario = scenario
    with send(subject, stream=stream):
        request = engine.await_requests()[0]
        time.sleep(0.2)
        assert in_flight(subject) == 1
    left = time.monotonic()
    assert request.aborted.wait(SECONDS), "the engine works on for a client that has left"
    assert request.aborted_at - left < SECONDS
    all_is_quiet(subject, engine)


def test_leaving_is_counted_and_logged(subject: Subject, engine: FakeEngine) -> None:
    engine.scenario = scenarios.stalls_after(3)

    def left() -> float:
        return subject.gateway.metric("gateway_client_disconnects_total", route=CHAT)

    before = left()
    with send(subject, stream=True) as connection:
        connection.recv(10)
    all_is_quiet(subject, engine)
    line = subject.gateway.access_lines()[-1]
    assert line["route"] == CHAT
    assert line["client_left"] is True
    assert left() == before + 1


def test_a_client_that_leaves_in_the_middle_of_its_body_reaches_no_engine(
    subject: Subject, engine: FakeEngine
) -> None:
    headers = subject.bearer() | {"content-length": "1000"}
    with subject.engine_sees_nothing():
        with connect(subject.gateway.port) as connection:
            connection.sendall(request_bytes("POST", CHAT, headers) + b'{"model"')
            deadline = time.monotonic() + SECONDS
            while not in_flight(subject):
                assert time.monotonic() < deadline
        all_is_quiet(subject, engine)


def test_a_slow_reader_holds_nobody_up_and_loses_nothing(subject: Subject, engine: FakeEngine) -> None:
    size = 4 * 2**20
    engine.scenario = scenarios.large(size)
    with send(subject, stream=False) as connection:
        time.sleep(0.5)
        assert subject.sdk().models.list().data
        received = b""
        connection.settimeout(5)
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = connection.recv(2**16)
            assert piece
            received += piece
    assert len(received) > size
    assert bytes(engine.only_request().sent[-100:]) in received


def test_forty_clients_that_leave_together_leave_nothing(subject: Subject, engine: FakeEngine) -> None:
    subject.sdk().models.list()
    time.sleep(0.5)
    sockets = subject.gateway.open_sockets()
    engine.scenario = scenarios.normal(delay=0.05)
    connections = [send(subject, stream=at % 2 == 0) for at in range(40)]
    engine.await_requests(40)
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + 2
    while engine.requests_running():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    all_is_quiet(subject, engine)
    assert all(request.aborted.is_set() for request in engine.requests)
    assert subject.gateway.open_sockets() <= sockets
