"""Responses, messages and rankings past any client library: bytes as they came, failures in each dialect."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.contract.subject import Subject
from tests.fakes import scenarios
from tests.fakes.engine import CAPTURES, FakeEngine, Scenario
from tests.fakes.gateway_process import GatewayProcess
from tests.gateway.conftest import StartGateway

DATA = Path(__file__).parents[1] / "unit/gateway/data"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
CANARY = "canary-4711"
BODIES: dict[str, dict[str, Any]] = {
    MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20},
    RESPONSES: {"input": "hello", "max_output_tokens": 20},
    "/v1/rerank": {"query": "hello", "documents": ["hello world", "the gateway"]},
    "/v1/score": {"text_1": "hello", "text_2": ["hello world", "the gateway"]},
}


@pytest.fixture(scope="module")
def ranking(start_gateway: StartGateway) -> GatewayProcess:
    """A gateway with the optional routes on."""
    return start_gateway(GATEWAY_OPTIONAL_ROUTES="/v1/rerank,/v1/score")


def ask(subject: Subject, path: str, *, stream: bool = False) -> httpx2.Response:
    body = BODIES[path] | {"model": subject.model} | ({"stream": True} if stream else {})
    return httpx2.post(f"{subject.gateway.url}{path}", json=body, headers=subject.bearer(), timeout=10)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """Every event has a name and its data the same type."""
    events = []
    for event in raw.split(b"\n\n")[:-1]:
        name, _, data = event.partition(b"\ndata: ")
        events.append(json.loads(data))
        assert name == b"event: " + events[-1]["type"].encode()
    return events


@pytest.mark.parametrize("version", ["v0.32.0", "v0.16.0"])
@pytest.mark.parametrize("name", ["responses_stream", "messages_stream"])
def test_a_captured_stream_reaches_the_client_byte_for_byte(
    subject: Subject, engine: FakeEngine, version: str, name: str
) -> None:
    """But for the `[DONE]` that 0.16.0 sends after the end of a message."""
    raw = (DATA / version / f"{name}.sse").read_bytes()
    engine.scenario = scenarios.streams(*(raw[at : at + 97] for at in range(0, len(raw), 97)))
    reply = ask(subject, RESPONSES if name.startswith("responses") else MESSAGES, stream=True)
    assert reply.content == raw.removesuffix(b"data: [DONE]\n\n")
    line = subject.gateway.access_line(reply.headers["x-request-id"])
    assert line["completion_tokens"] == 8
    assert line["prompt_tokens"] in {8, 9}
    assert line["finish_reason"] in {"incomplete", "max_tokens"}


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_whole_answer_reaches_the_client_byte_for_byte(
    subject: Subject, engine: FakeEngine, path: str
) -> None:
    reply = ask(subject, path)
    assert reply.content == bytes(engine.only_request().sent)


MID_STREAM: dict[str, Callable[[], Scenario]] = {
    "a reset between events": lambda: scenarios.resets_after(4),
    "a reset inside an event": lambda: scenarios.resets_after(4, part=b'event: x\ndata: {"type":"x'),
    "an early end": lambda: scenarios.closes_after(4),
    "a dead engine core": lambda: scenarios.engine_dies_inside(4),
}


@pytest.mark.parametrize("name", MID_STREAM)
def test_a_response_that_breaks_ends_with_an_error_event_that_the_sdk_raises(
    subject: Subject, engine: FakeEngine, name: str
) -> None:
    engine.scenario = MID_STREAM[name]()
    reply = ask(subject, RESPONSES, stream=True)
    *before, last = events_of(reply.content)
    assert len(before) == 4
    assert last["type"] == "error"
    assert last["sequence_number"] == 4
    assert last["code"] == last["error"]["code"] == "engine_error"
    assert b"EngineCore" not in reply.content
    with pytest.raises(openai.APIError) as raised:
        list(subject.sdk().responses.create(model=subject.model, input="hello", stream=True))
    assert raised.value.code == "engine_error"


@pytest.mark.parametrize("name", MID_STREAM)
def test_a_message_that_breaks_ends_with_an_error_event_that_the_sdk_raises(
    subject: Subject, engine: FakeEngine, name: str
) -> None:
    engine.scenario = MID_STREAM[name]()
    reply = ask(subject, MESSAGES, stream=True)
    *before, last = events_of(reply.content)
    assert len(before) == 4
    assert last["type"] == "error"
    assert (last["error"]["type"], last["error"]["code"]) == ("api_error", "engine_error")
    assert last["request_id"] == reply.headers["request-id"]
    assert b"EngineCore" not in reply.content
    client = subject.anthropic()
    with pytest.raises(anthropic.APIStatusError) as raised:
        with client.messages.stream(
            model=subject.model, max_tokens=20, messages=[{"role": "user", "content": "hello"}]
        ) as stream:
            stream.get_final_message()
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"]["code"] == "engine_error"


def test_an_error_event_of_the_engines_own_is_rewritten(subject: Subject, engine: FakeEngine) -> None:
    own = {"type": "error", "error": {"type": "internal_error", "message": f"{CANARY} /usr/lib/x.py"}}
    start = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'
    engine.scenario = scenarios.streams(start, b"event: error\ndata: " + json.dumps(own).encode() + b"\n\n")
    reply = ask(subject, MESSAGES, stream=True)
    begun, last = events_of(reply.content)
    assert begun["type"] == "message_start"
    assert last["error"]["code"] == "engine_error"
    assert CANARY not in reply.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("captured", "status", "code", "kind"),
    [
        ("err_messages_unknown_model", 404, "model_not_found", "not_found_error"),
        ("err_messages_context", 400, "context_length_exceeded", "invalid_request_error"),
        ("err_messages_temperature", 400, "engine_refused", "invalid_request_error"),
        ("err_404", 404, "endpoint_not_supported", "not_found_error"),
        ("err_401_no_key", 502, "engine_error", "api_error"),
    ],
)
def test_the_engines_refusals_have_anthropics_shape_and_none_of_its_text(
    subject: Subject, engine: FakeEngine, *, captured: str, status: int, code: str, kind: str, stream: bool
) -> None:
    engine.scenario = scenarios.error(CAPTURES.errors[captured])
    reply = ask(subject, MESSAGES, stream=stream)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert (error["code"], error["type"]) == (code, kind)
    if code == "context_length_exceeded":
        assert error["param"] == "messages"
    assert not any(text in reply.text for text in ("Valid aliases", "2048", "non-negative", "Unauthorized"))
    assert ("x-should-retry" in reply.headers) == (captured == "err_401_no_key")


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score"])
def test_a_ranking_does_not_exist_unless_the_operator_has_switched_it_on(
    subject: Subject, engine: FakeEngine, ranking: GatewayProcess, path: str
) -> None:
    with subject.engine_sees_nothing():
        refused = ask(subject, path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "path_not_found")
    captured = CAPTURES.bodies[path.removeprefix("/v1/")]
    engine.scenario = scenarios.replies(200, captured)
    reply = ask(subject.behind(ranking), path)
    assert reply.json() == captured
    assert ranking.access_line(reply.headers["x-request-id"])["prompt_tokens"] == 5
