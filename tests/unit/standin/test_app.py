"""The stand-in's replies are the captured ones, apart from ids, times, and the words of the answer."""

import base64
import struct
from typing import Any

import httpx2
import pytest

from standin.config import EngineConfig
from standin.replies import Captures, stream_events
from tests.unit.standin.conftest import AS_CAPTURED, CAPTURED_MODEL, Connect

HELLO: dict[str, Any] = {
    "model": CAPTURED_MODEL,
    "messages": [{"role": "user", "content": "hello world"}],
    "max_tokens": 8,
    "seed": 1,
}
HELLO_PROMPT: dict[str, Any] = {"model": CAPTURED_MODEL, "prompt": "hello", "max_tokens": 8, "seed": 1}
VARIES = {"id", "created", "content", "text"}


def comparable(value: object) -> object:
    """`value` with what differs from one request to the next left out; key order counts."""
    if isinstance(value, dict):
        return [(key, None if key in VARIES and item else comparable(item)) for key, item in value.items()]
    return [comparable(item) for item in value] if isinstance(value, list) else value


async def test_a_chat_answer_has_the_captured_shape_and_usage(
    engine: httpx2.AsyncClient, captures: Captures
) -> None:
    reply = await engine.post("/v1/chat/completions", json=HELLO)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert comparable(reply.json()) == comparable(captures.bodies["chat_nonstream"])


async def test_a_completion_has_the_captured_shape_and_usage(
    engine: httpx2.AsyncClient, captures: Captures
) -> None:
    reply = await engine.post("/v1/completions", json=HELLO_PROMPT)
    assert comparable(reply.json()) == comparable(captures.bodies["completions"])


@pytest.mark.parametrize(
    ("options", "captured"),
    [
        (None, "chat_stream_nousage"),
        ({}, "chat_stream_nousage"),
        ({"include_usage": False}, "chat_stream_nousage"),
        ({"continuous_usage_stats": True}, "chat_stream_nousage"),
        ({"include_usage": True}, "chat_stream_usage"),
        ({"include_usage": True, "continuous_usage_stats": True}, "chat_stream_usage_continuous"),
    ],
)
async def test_a_chat_stream_is_the_captured_one_for_the_same_stream_options(
    engine: httpx2.AsyncClient, captures: Captures, options: dict[str, bool] | None, captured: str
) -> None:
    body = {**HELLO, "stream": True} | ({} if options is None else {"stream_options": options})
    reply = await engine.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.content.endswith(b"data: [DONE]\n\n")
    assert comparable(stream_events(reply.content)) == comparable(captures.streams[captured])


async def test_a_completion_stream_is_the_captured_one(
    engine: httpx2.AsyncClient, captures: Captures
) -> None:
    body = {**HELLO_PROMPT, "stream": True, "stream_options": {"include_usage": True}}
    reply = await engine.post("/v1/completions", json=body)
    assert comparable(stream_events(reply.content)) == comparable(
        captures.streams["completions_stream_usage"]
    )


async def test_a_stream_that_is_cut_ends_like_the_captured_cut_one(
    connect: Connect, captures: Captures
) -> None:
    engine = connect(EngineConfig(served_model_names=(CAPTURED_MODEL,), tokens=100))
    reply = await engine.post("/v1/chat/completions", json={**HELLO, "stream": True})
    events = stream_events(reply.content)
    captured = captures.streams["chat_stream_n2_usage"][-2]["choices"][0] | {"index": 0}
    assert len(events) == 1 + 8
    assert comparable(events[-1]["choices"][0]) == comparable(captured)


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 99, 100, 101])
async def test_max_tokens_is_honoured_and_the_finish_reason_says_so(
    connect: Connect, max_tokens: int
) -> None:
    engine = connect(EngineConfig(tokens=100))
    body = {"messages": HELLO["messages"], "max_tokens": max_tokens}
    reply = (await engine.post("/v1/chat/completions", json=body)).json()
    assert reply["usage"]["completion_tokens"] == min(max_tokens, 100)
    assert reply["choices"][0]["finish_reason"] == ("length" if max_tokens < 100 else "stop")


async def test_every_choice_is_streamed_and_counted(engine: httpx2.AsyncClient) -> None:
    body = {**HELLO, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    events = stream_events((await engine.post("/v1/chat/completions", json=body)).content)
    finished = [event["choices"][0]["index"] for event in events[:-1] if event["choices"][0]["finish_reason"]]
    assert finished == [0, 1]
    assert events[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("err_unknown_model", {"model": "nope"}),
        ("err_max_tokens_negative", {"max_tokens": -1}),
        ("err_max_tokens_too_big", {"max_tokens": 100000}),
        ("err_n_zero", {"n": 0}),
        ("err_stream_options_nostream", {"stream_options": {"include_usage": True}}),
        ("err_temperature", {"temperature": -1}),
        ("err_temperature_str", {"temperature": "hot"}),
        ("err_empty_messages", {"messages": []}),
        ("err_messages_wrong_type", {"messages": "hi"}),
        ("err_context_too_long", {"messages": [{"role": "user", "content": "hello " * 2042}]}),
    ],
)
async def test_a_bad_request_is_refused_in_the_captured_words(
    engine: httpx2.AsyncClient, captures: Captures, name: str, changes: dict[str, Any]
) -> None:
    reply = await engine.post("/v1/chat/completions", json=HELLO | changes)
    assert (reply.status_code, reply.json()) == (captures.errors[name].status, captures.errors[name].body)


@pytest.mark.parametrize(
    ("name", "raw", "content_type"),
    [
        ("err_bad_json", b'{"model": "x", ', "application/json"),
        ("err_bad_json_utf8", b'{"model": "\xff\xfe"}', "application/json"),
        ("err_json_array", b"[]", "application/json"),
        ("err_empty_body", b"", "application/json"),
        ("err_wrong_ctype", b"{}", "text/plain"),
        ("err_missing_messages", b'{"model": "qwen2.5-14b-awq"}', "application/json"),
    ],
)
async def test_an_unreadable_body_is_refused_in_the_captured_words(
    engine: httpx2.AsyncClient, captures: Captures, name: str, raw: bytes, content_type: str
) -> None:
    reply = await engine.post("/v1/chat/completions", content=raw, headers={"content-type": content_type})
    assert (reply.status_code, reply.json()) == (captures.errors[name].status, captures.errors[name].body)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/nothing"])
async def test_everything_under_v1_needs_the_key(connect: Connect, captures: Captures, path: str) -> None:
    engine = connect(EngineConfig(api_key="engine-key"))
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "engine-key"}):
        reply = await engine.get(path, headers=headers)
        assert (reply.status_code, reply.json()) == (401, captures.errors["err_401_no_key"].body)
    assert (await engine.get("/health")).status_code == 200


async def test_the_key_opens_v1(connect: Connect) -> None:
    engine = connect(EngineConfig(api_key="engine-key"))
    reply = await engine.get("/v1/models", headers={"authorization": "Bearer engine-key"})
    assert reply.status_code == 200


async def test_models_lists_every_served_name_in_the_captured_shape(
    connect: Connect, captures: Captures
) -> None:
    reply = (await connect(EngineConfig(served_model_names=("a", "b"))).get("/v1/models")).json()
    assert [model["id"] for model in reply["data"]] == ["a", "b"]
    assert list(reply["data"][0]) == list(captures.bodies["models"]["data"][0])


@pytest.mark.parametrize("path", ["/", "/v1/nothing", "/v1/models/qwen2.5-14b-awq", "/v1/embeddings"])
async def test_what_this_engine_does_not_serve_is_the_captured_404(
    engine: httpx2.AsyncClient, captures: Captures, path: str
) -> None:
    reply = await engine.post(path, json={})
    assert (reply.status_code, reply.json()) == (404, captures.errors["err_404"].body)


async def test_a_wrong_method_is_the_captured_405(engine: httpx2.AsyncClient, captures: Captures) -> None:
    reply = await engine.get("/v1/chat/completions")
    assert (reply.status_code, reply.json()) == (405, captures.errors["err_405"].body)
    assert reply.headers["allow"] == "POST"


async def test_embeddings_are_served_where_they_are_switched_on(connect: Connect) -> None:
    engine = connect(EngineConfig(embeddings=True))
    body = {"input": ["hello", "world again"]}
    plain = (await engine.post("/v1/embeddings", json=body)).json()
    packed = (await engine.post("/v1/embeddings", json=body | {"encoding_format": "base64"})).json()
    assert plain["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 3,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    for one, other in zip(plain["data"], packed["data"], strict=True):
        assert struct.unpack("<8f", base64.b64decode(other["embedding"])) == pytest.approx(one["embedding"])


async def test_version_says_what_is_imitated(engine: httpx2.AsyncClient) -> None:
    assert (await engine.get("/version")).json() == {"version": "0.32.0"}


async def test_a_stand_in_like_the_captured_one_answers_one_word(engine: httpx2.AsyncClient) -> None:
    assert AS_CAPTURED.tokens == 2
    reply = (await engine.post("/v1/chat/completions", json=HELLO)).json()
    assert reply["choices"][0]["message"]["content"] == "This"
