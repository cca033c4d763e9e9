"""An engine that fails, in each of its ways: the client gets one clean error, never the engine's own text."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from standin.render import DONE
from standin.replies import ErrorReply
from tests.contract.developer import HELLO
from tests.contract.subject import Subject
from tests.fakes import scenarios
from tests.fakes.engine import CAPTURES, FakeEngine, Scenario
from tests.fakes.gateway_process import GatewayProcess
from tests.gateway.conftest import FIRST_BYTE_SECONDS, IDLE_SECONDS, StartGateway

# In every reply below whose text must not reach the client.
CANARY = "canary-4711"
LEAKS = (CANARY, "EngineCore", "stack trace", "packages", "/usr/", "<html", "validation error", "Grammar")


def ask(subject: Subject, *, stream: bool) -> httpx2.Response:
    """One chat, past any client library."""
    body = {"model": subject.model, "messages": HELLO, "stream": stream, "max_tokens": 20}
    url = f"{subject.gateway.url}/v1/chat/completions"
    return httpx2.post(url, json=body, headers=subject.bearer(), timeout=10)


def error_of(reply: httpx2.Response) -> dict[str, Any]:
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert not any(leak in reply.text for leak in LEAKS)
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


def events_of(reply: httpx2.Response) -> list[dict[str, Any]]:
    """The events of a broken stream: it must have no `[DONE]`, and end with a whole event."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert b"[DONE]" not in reply.content
    assert reply.content.endswith(b"\n\n")
    assert not any(leak in reply.text for leak in LEAKS)
    return [json.loads(event.removeprefix(b"data: ")) for event in reply.content.split(b"\n\n") if event]


def engine_error(status: int, **fields: object) -> dict[str, Any]:
    return {"error": {"message": f"{CANARY} at /usr/x", "type": "T", "param": None, "code": status} | fields}


BEFORE_THE_FIRST_BYTE: dict[str, tuple[Scenario, int, str]] = {
    "500 with JSON": (scenarios.replies(500, engine_error(500)), 502, "engine_error"),
    "500 with HTML": (
        scenarios.replies(500, f"<html>{CANARY}</html>".encode(), "text/html"),
        502,
        "engine_error",
    ),
    "500 in plain text": (
        scenarios.replies(500, b"Internal Server Error", "text/plain"),
        502,
        "engine_error",
    ),
    "502": (scenarios.replies(502, f"{CANARY}".encode(), "text/plain"), 502, "engine_error"),
    "503": (scenarios.replies(503, engine_error(503)), 503, "engine_unavailable"),
    "a dead 0.16.0": (scenarios.error(scenarios.old_error("dead_chat_nonstream")), 502, "engine_error"),
    "a refusal inside a 200": (scenarios.replies(200, engine_error(400)), 400, "engine_refused"),
    "the engine's 401": (
        scenarios.error(ErrorReply(401, CAPTURES.errors["err_401_no_key"].body)),
        502,
        "engine_error",
    ),
    "a 404 of the engine": (
        scenarios.error(CAPTURES.errors["err_404"]),
        404,
        "endpoint_not_supported",
    ),
    "a model that the engine does not know": (
        scenarios.error(scenarios.old_error("err_unknown_model")),
        404,
        "model_not_found",
    ),
    "a redirect": (scenarios.replies(307, b"", "text/plain"), 502, "engine_error"),
    "a 400 that echoes input and paths": (
        scenarios.error(scenarios.old_error("err_missing_messages")),
        400,
        "engine_refused",
    ),
    "a 400 that echoes the client's words": (
        scenarios.error(scenarios.old_error("err_temperature_str")),
        400,
        "engine_refused",
    ),
    "a bad regex": (scenarios.error(scenarios.old_error("err_bad_regex")), 400, "engine_refused"),
    "too long for 0.16.0, in tokens": (
        scenarios.error(scenarios.old_error("err_context_too_long")),
        400,
        "context_length_exceeded",
    ),
    "too long for 0.16.0, in characters": (
        scenarios.error(scenarios.old_error("err_context_prompt_plus_max")),
        400,
        "context_length_exceeded",
    ),
    "too long for 0.32.0": (
        scenarios.error(CAPTURES.errors["err_context_too_long"]),
        400,
        "context_length_exceeded",
    ),
    "no HTTP at all": (scenarios.sends_raw(f"{CANARY}\r\n\r\n".encode()), 502, "engine_error"),
    "no reply": (scenarios.closes_at_once(), 502, "engine_error"),
    "200 in plain text": (scenarios.replies(200, CANARY.encode(), "text/plain"), 502, "engine_error"),
    "200 and nothing": (scenarios.replies(200, b""), 502, "engine_error"),
    "200 with HTML that says it is JSON": (
        scenarios.replies(200, f"<html>{CANARY}".encode()),
        502,
        "engine_error",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BEFORE_THE_FIRST_BYTE)
def test_a_failure_before_the_first_byte_is_a_clean_error(
    subject: Subject, engine: FakeEngine, *, name: str, stream: bool
) -> None:
    engine.scenario, status, code = BEFORE_THE_FIRST_BYTE[name]
    reply = ask(subject, stream=stream)
    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    assert ("retry-after" in reply.headers) == (status == 503)
    line = subject.gateway.access_line(reply.headers["x-request-id"])
    assert (line["status"], line["refused_by"], line["upstream"]) == (status, code, "vllm")


def test_an_error_as_the_first_event_of_a_stream_is_a_clean_error(
    subject: Subject, engine: FakeEngine
) -> None:
    engine.scenario = scenarios.first_event_is_an_error()
    reply = ask(subject, stream=True)
    assert (reply.status_code, error_of(reply)["code"]) == (400, "engine_refused")


def test_an_answer_where_a_stream_was_asked_for_is_an_error(subject: Subject, engine: FakeEngine) -> None:
    engine.scenario = scenarios.replies(200, CAPTURES.bodies["chat_nonstream"])
    reply = ask(subject, stream=True)
    assert (reply.status_code, error_of(reply)["code"]) == (502, "engine_error")


def test_a_stream_where_an_answer_was_asked_for_is_an_error(subject: Subject, engine: FakeEngine) -> None:
    engine.scenario = scenarios.streams(b'data: {"choices":[]}\n\n', DONE)
    reply = ask(subject, stream=False)
    assert (reply.status_code, error_of(reply)["code"]) == (502, "engine_error")


@pytest.mark.parametrize("size", [100, 2**20])
def test_an_answer_that_is_cut_short_is_an_error(subject: Subject, engine: FakeEngine, size: int) -> None:
    whole = json.dumps({"choices": [], "text": "x" * size}).encode()
    engine.scenario = scenarios.promises_more(whole, missing=10)
    try:
        reply = ask(subject, stream=False)
    except httpx2.RemoteProtocolError:
        # Past what the gateway holds back, an answer can only break off: the client sees that.
        assert size > 1000
    else:
        assert (reply.status_code, error_of(reply)["code"]) == (502, "engine_error")
    assert b"Traceback" not in subject.gateway.output(), "what an engine does is no fault of the gateway"


def test_a_large_answer_passes_whole(subject: Subject, engine: FakeEngine) -> None:
    engine.scenario = scenarios.large(8 * 2**20)
    reply = ask(subject, stream=False)
    assert reply.content == bytes(engine.only_request().sent)


MID_STREAM: dict[str, Callable[[], Scenario]] = {
    "a reset between events": lambda: scenarios.resets_after(3),
    "a reset inside an event": lambda: scenarios.resets_after(3, part=b'data: {"id":"x","choi'),
    "an early end": lambda: scenarios.closes_after(3),
    "a dead engine core": lambda: scenarios.engine_dies_inside(3),
}


@pytest.mark.parametrize("name", MID_STREAM)
def test_a_stream_that_breaks_ends_with_an_error_event_and_no_done(
    subject: Subject, engine: FakeEngine, name: str
) -> None:
    engine.scenario = MID_STREAM[name]()
    reply = ask(subject, stream=True)
    *before, last = events_of(reply)
    assert reply.status_code == 200
    assert len(before) == 3
    assert last["error"]["code"] == "engine_error"
    line = subject.gateway.access_line(reply.headers["x-request-id"])
    assert (line["status"], line["refused_by"]) == (200, "engine_error")


@pytest.mark.parametrize("name", MID_STREAM)
def test_the_sdk_raises_when_a_stream_breaks(subject: Subject, engine: FakeEngine, name: str) -> None:
    engine.scenario = MID_STREAM[name]()
    stream = subject.sdk().chat.completions.create(model=subject.model, messages=HELLO, stream=True)
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.code == "engine_error"


def test_an_event_without_an_end_is_not_held_for_ever(subject: Subject, engine: FakeEngine) -> None:
    engine.scenario = scenarios.streams(b'data: {"choices":[]}\n\n', b"data: " + b"x" * 6 * 2**20, DONE)
    *_, last = events_of(ask(subject, stream=True))
    assert last["error"]["code"] == "engine_error"


class TestSilence:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("scenario", [scenarios.never_answers(), scenarios.stalls_after(0)])
    def test_an_engine_that_stays_silent_is_a_timeout(
        self, subject: Subject, engine: FakeEngine, *, scenario: Scenario, stream: bool
    ) -> None:
        engine.scenario = scenario
        started = time.monotonic()
        reply = ask(subject, stream=stream)
        waited = time.monotonic() - started
        assert (reply.status_code, error_of(reply)["code"]) == (504, "engine_timeout")
        assert FIRST_BYTE_SECONDS <= waited < FIRST_BYTE_SECONDS + 1
        assert engine.only_request().aborted.wait(1), "the engine was not told"

    def test_the_sdk_raises_its_server_error(self, subject: Subject, engine: FakeEngine) -> None:
        engine.scenario = scenarios.never_answers()
        with pytest.raises(openai.InternalServerError) as raised:
            subject.sdk().chat.completions.create(model=subject.model, messages=HELLO)
        assert (raised.value.status_code, raised.value.code) == (504, "engine_timeout")

    def test_a_stream_that_stalls_ends_with_an_error_event(
        self, subject: Subject, engine: FakeEngine
    ) -> None:
        engine.scenario = scenarios.stalls_after(3)
        started = time.monotonic()
        *before, last = events_of(ask(subject, stream=True))
        assert len(before) == 3
        assert last["error"]["code"] == "engine_timeout"
        assert IDLE_SECONDS <= time.monotonic() - started < IDLE_SECONDS + 1
        assert engine.only_request().aborted.wait(1), "the engine was not told"

    def test_a_late_answer_within_the_time_is_an_answer(self, subject: Subject, engine: FakeEngine) -> None:
        engine.scenario = scenarios.answers_after(FIRST_BYTE_SECONDS - 0.7)
        assert ask(subject, stream=True).content.endswith(DONE)

    def test_a_stream_may_take_longer_than_any_pause_in_it(
        self, subject: Subject, engine: FakeEngine
    ) -> None:
        events = [b'data: {"choices":[]}\n\n'] * 6
        engine.scenario = scenarios.streams(*events, DONE, pause=IDLE_SECONDS / 2)
        assert ask(subject, stream=True).content.endswith(DONE)

    def test_a_reply_as_a_whole_has_its_time_too(
        self, start_gateway: StartGateway, engine: FakeEngine, subject: Subject
    ) -> None:
        gateway = start_gateway(GATEWAY_TOTAL_TIMEOUT="1", GATEWAY_IDLE_TIMEOUT="5")
        other = subject.behind(gateway)
        engine.scenario = scenarios.streams(*[b'data: {"choices":[]}\n\n'] * 100, DONE, pause=0.1)
        *before, last = events_of(ask(other, stream=True))
        assert last["error"]["code"] == "engine_timeout"
        assert 5 <= len(before) <= 12


class TestNobodyListens:
    def test_an_engine_that_is_gone_is_503_and_comes_back(self, subject: Subject, engine: FakeEngine) -> None:
        engine.stop_listening()
        try:
            with pytest.raises(openai.InternalServerError) as raised:
                subject.sdk().chat.completions.create(model=subject.model, messages=HELLO)
        finally:
            engine.start()
        assert (raised.value.status_code, raised.value.code) == (503, "engine_unavailable")
        assert int(raised.value.response.headers["retry-after"]) >= 1
        assert ask(subject, stream=False).status_code == 200

    def test_readiness_follows_the_engines_health(self, gateway: GatewayProcess, engine: FakeEngine) -> None:
        def ready() -> tuple[int, str]:
            reply = httpx2.get(f"{gateway.url}/readyz")
            return reply.status_code, reply.json()["status"]

        def until(expected: tuple[int, str]) -> None:
            deadline = time.monotonic() + 5
            while ready() != expected:
                assert time.monotonic() < deadline, f"{ready()}, not {expected}"
                time.sleep(0.05)

        until((200, "ready"))
        engine.health = 503
        until((503, "unavailable"))
        assert gateway.metric("gateway_upstream_up") == 0
        assert httpx2.get(f"{gateway.url}/livez").json() == {"status": "alive"}
        assert httpx2.get(f"{gateway.internal}/readyz").status_code == 503
        engine.health = 200
        until((200, "ready"))
        assert gateway.metric("gateway_upstream_up") == 1
