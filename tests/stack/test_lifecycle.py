"""Crashes, stops and reloads, while somebody is being answered."""

import os
import signal
import time

import pytest

from tests.stack.client import Client
from tests.stack.stack import Stack, until


@pytest.mark.parametrize("service", ["gateway", "vllm"])
def test_a_crashed_service_comes_back_by_itself(service: str, disturbed: Stack, client: Client) -> None:
    before = disturbed.container(service)
    # As the kernel would; `docker kill` would count as the operator's own stop.
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    began = time.monotonic()
    until(f"{service} restarts", lambda: restarts(disturbed, service) > before["RestartCount"], seconds=30)
    until("requests are answered", lambda: client.ask(max_tokens=2).status == 200, seconds=60)
    print(f"\n{service} answered again after {time.monotonic() - began:.1f} s")
    assert disturbed.container(service)["Id"] == before["Id"]


def restarts(stack: Stack, service: str) -> int:
    return int(stack.container(service)["RestartCount"])


def test_without_its_engine_the_gateway_says_when_to_try_again(disturbed: Stack, client: Client) -> None:
    disturbed.compose("stop", "--timeout", "2", "vllm")
    answer = client.ask(max_tokens=2)
    assert answer.status == 503
    assert answer.code == "engine_unavailable"
    assert int(answer.headers["Retry-After"]) > 0


def test_without_the_gateway_caddy_says_when_to_try_again(disturbed: Stack, client: Client) -> None:
    disturbed.compose("stop", "gateway")
    answer = client.ask(max_tokens=2)
    assert answer.status == 503
    assert answer.code == "engine_unavailable"
    assert int(answer.headers["Retry-After"]) > 0


def test_a_stream_in_flight_ends_well_when_the_gateway_is_stopped(disturbed: Stack, client: Client) -> None:
    with client.streaming(tokens=60) as stream:
        stream.wait_for(events=5)
        began = time.monotonic()
        disturbed.compose("stop", "gateway")
        stopped = time.monotonic() - began
        events = stream.finish()
    assert events[-1] == "[DONE]"
    assert len(events) > 60
    # Not the grace period's end: it left once the stream had.
    assert stopped < 30
    assert disturbed.container("gateway")["State"]["ExitCode"] == 0
    print(f"\nthe gateway stopped in {stopped:.1f} s, with a stream in flight")


def test_a_stream_in_flight_ends_well_when_caddy_reloads(stack: Stack, client: Client) -> None:
    with client.streaming(tokens=60) as stream:
        stream.wait_for(events=5)
        stack.compose("exec", "-T", "caddy", "caddy", "reload", "--force", "--config", "/etc/caddy/Caddyfile")
        assert client.ask(max_tokens=1).status == 200
        assert not stream.finished
        events = stream.finish()
    assert events[-1] == "[DONE]"
    assert len(events) > 60


def test_keys_and_certificates_survive_down_and_up(disturbed: Stack, client: Client) -> None:
    disturbed.ops("down")
    assert disturbed.services == []
    disturbed.ops("up")
    disturbed.compose("up", "--detach", "--wait")
    assert client.ask(max_tokens=1).status == 200


def test_a_client_that_leaves_stops_the_engines_work(stack: Stack, client: Client) -> None:
    running = "sum(vllm:num_requests_running)"
    with client.streaming(tokens=400) as stream:
        stream.wait_for(events=5)
        until("the engine works", lambda: stack.value(running) == 1, seconds=10)
    until("the engine is idle", lambda: stack.value(running) == 0, seconds=10)
