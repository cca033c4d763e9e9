"""The stand-in's responses, messages and counts are the captured ones, apart from ids, times and words."""

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from standin.config import EngineConfig
from standin.replies import Captures, stream_events
from tests.unit.standin.conftest import AS_CAPTURED, CAPTURED_MODEL, Connect
from tests.unit.standin.test_app import comparable as without_words

CONFIG = EngineConfig(served_model_names=(CAPTURED_MODEL,), max_model_len=2048, tokens=40)
RESPONSE: dict[str, Any] = {"model": CAPTURED_MODEL, "input": "hello world", "max_output_tokens": 8}
MESSAGE: dict[str, Any] = {
    "model": CAPTURED_MODEL,
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "hello"}],
}
VARIES = ("created_at", "item_id", "delta")


def comparable(value: object) -> object:
    """Without what differs from one request to the next; the parts of a message's content stay."""
    if isinstance(value, dict):
        return {
            key: None if key in VARIES and not isinstance(item, dict) else comparable(item)
            for key, item in value.items()
            if key not in ("id", "text")
        }
    return [comparable(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def engine(connect: Connect) -> httpx2.AsyncClient:
    """A client of a stand-in that goes on to the limit that is asked for."""
    return connect(CONFIG)


def without_deltas(events: list[dict[str, Any]]) -> list[object]:
    """How many words one event carries is the engine's own pace, and so are the numbers after them."""
    kept = [
        event for event in events if not event["type"].endswith("delta") or event["type"] == "message_delta"
    ]
    return [comparable(event | {"sequence_number": 0}) for event in kept]


async def test_a_response_has_the_captured_shape_and_usage(
    engine: httpx2.AsyncClient, captures: Captures
) -> None:
    reply = await engine.post("/v1/responses", json=RESPONSE)
    captured = captures.bodies["responses_nonstream"]
    assert list(reply.json()) == list(captured), "the order of the keys"
    assert comparable(reply.json()) == comparable(captured)


async def test_a_message_has_the_captured_shape_and_usage(
    engine: httpx2.AsyncClient, captures: Captures
) -> None:
    reply = await engine.post("/v1/messages", json=MESSAGE)
    assert comparable(reply.json()) == comparable(captures.bodies["messages_nonstream"])


@pytest.mark.parametrize(
    ("path", "body", "captured"),
    [("/v1/responses", RESPONSE, "responses_stream"), ("/v1/messages", MESSAGE, "messages_stream")],
)
async def test_a_stream_has_the_captured_events(
    engine: httpx2.AsyncClient, captures: Captures, path: str, body: dict[str, Any], captured: str
) -> None:
    reply = await engine.post(path, json=body | {"stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = stream_events(reply.content)
    assert without_deltas(events) == without_deltas(captures.streams[captured])
    named = [event.partition(b"\n")[0] for event in reply.content.split(b"\n\n") if event]
    assert named == [f"event: {event['type']}".encode() for event in events]
    if captured == "responses_stream":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_ends_by_itself_says_so(connect: Connect, *, stream: bool) -> None:
    engine = connect(AS_CAPTURED)
    message = await engine.post("/v1/messages", json=MESSAGE | {"stream": stream})
    assert b'"stop_reason":"end_turn"' in message.content
    assert b'"usage":{"input_tokens":8,"output_tokens":2}' in message.content
    response = await engine.post("/v1/responses", json=RESPONSE | {"stream": stream})
    assert b'"status":"incomplete"' not in response.content
    assert b'"output_tokens":2,' in response.content


async def test_a_prompt_is_tokenized_as_captured(engine: httpx2.AsyncClient, captures: Captures) -> None:
    reply = await engine.post("/tokenize", json={"model": CAPTURED_MODEL, "prompt": "hello world"})
    assert reply.json() == captures.bodies["tokenize"] | {"tokens": [0, 1]}


async def test_a_count_is_what_the_message_then_uses(engine: httpx2.AsyncClient, captures: Captures) -> None:
    asked = {name: MESSAGE[name] for name in ("model", "messages")}
    counted = await engine.post("/v1/messages/count_tokens", json=asked)
    assert counted.json() == captures.bodies["count_tokens"]
    tokens = await engine.post("/tokenize", json=asked)
    assert tokens.json()["count"] == counted.json()["input_tokens"]
    message = await engine.post("/v1/messages", json=MESSAGE)
    assert message.json()["usage"]["input_tokens"] == counted.json()["input_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "captured"),
    [
        ("/v1/responses", {"model": CAPTURED_MODEL, "seed": 1}, "err_responses_missing"),
        ("/v1/messages", {"model": CAPTURED_MODEL}, "err_messages_missing"),
        ("/v1/messages", MESSAGE | {"messages": []}, "err_messages_empty"),
        ("/v1/messages", MESSAGE | {"temperature": -1}, "err_messages_temperature"),
        ("/v1/messages", MESSAGE | {"model": "nope"}, "err_messages_unknown_model"),
        ("/v1/messages/count_tokens", {"model": CAPTURED_MODEL}, "err_count_tokens_missing"),
        ("/tokenize", {"model": CAPTURED_MODEL}, "err_tokenize_missing"),
    ],
)
async def test_a_refusal_is_the_captured_one(
    engine: httpx2.AsyncClient, captures: Captures, path: str, body: dict[str, Any], captured: str
) -> None:
    reply = await engine.post(path, json=body)
    expected = captures.errors[captured]
    assert reply.status_code == expected.status
    assert without_words(reply.json()) == without_words(expected.body)


async def test_a_message_that_is_too_long_is_refused_in_anthropics_shape(
    engine: httpx2.AsyncClient, captures: Captures
) -> None:
    long = [{"role": "user", "content": [{"type": "text", "text": "hello " * 2048}]}]
    expected = captures.errors["err_messages_context"].body["error"]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        reply = await engine.post(path, json=MESSAGE | {"messages": long})
        assert reply.status_code == 400
        assert list(reply.json()) == ["type", "error"]
        assert reply.json()["error"]["type"] == expected["type"]
        assert "maximum context length" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "hello", "documents": ["hello world", "the gateway"], "top_n": 2}),
        ("/v1/score", {"text_1": "hello", "text_2": ["hello world", "the gateway"]}),
    ],
)
async def test_a_ranking_has_the_captured_shape_and_usage(
    connect: Connect, captures: Captures, path: str, body: dict[str, Any]
) -> None:
    engine = connect(replace(CONFIG, embeddings=True))
    reply = await engine.post(path, json=body | {"model": CAPTURED_MODEL})
    captured = captures.bodies[path.removeprefix("/v1/")]
    assert list(reply.json()) == list(captured)
    assert reply.json()["usage"] == captured["usage"]
    name = "results" if path == "/v1/rerank" else "data"
    assert [list(one) for one in reply.json()[name]] == [list(one) for one in captured[name]]
    scores = [one.get("relevance_score", one.get("score")) for one in reply.json()[name]]
    if path == "/v1/rerank":
        assert scores == sorted(scores, reverse=True)
    assert (await connect(CONFIG).post(path, json=body)).status_code == 404
