"""What an engine's error becomes: the right class of ours, with nothing of the engine's own text."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine_errors import find_error, from_error, from_reply
from gateway.errors import (
    NO_RETRY,
    ContextLengthExceeded,
    EndpointNotSupported,
    EngineFailed,
    EngineRefused,
    EngineUnavailable,
    GatewayError,
    ModelNotFound,
)

DATA = Path(__file__).parent / "data"
# Captured from both engines: name -> status and body.
CAPTURED: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{name}": reply
    for path in sorted(DATA.glob("*/errors.json"))
    for name, reply in orjson.loads(path.read_bytes()).items()
}
# All other captured errors are refusals of a parameter or message.
SPECIAL: dict[str, type[GatewayError]] = {
    "dead_chat_nonstream": EngineFailed,
    "dead_health": EngineUnavailable,
    "embeddings_404": EndpointNotSupported,
    "err_401_bad_key": EngineFailed,
    "err_unknown_model": ModelNotFound,
    "err_context_too_long": ContextLengthExceeded,
    "err_context_prompt_plus_max": ContextLengthExceeded,
    "err_max_tokens_too_big": ContextLengthExceeded,
    "err_responses_context": ContextLengthExceeded,
    "err_responses_unknown_model": ModelNotFound,
    "err_messages_context": ContextLengthExceeded,
    "err_messages_unknown_model": ModelNotFound,
    "err_count_tokens_long": ContextLengthExceeded,
    "err_count_tokens_unknown_model": ModelNotFound,
    "err_tokenize_unknown_model": ModelNotFound,
    "count_tokens_404": EndpointNotSupported,
    "err_rerank": EndpointNotSupported,
    "err_score": EndpointNotSupported,
    "messages_on_pooling": EndpointNotSupported,
    "err_rerank_long": ContextLengthExceeded,
    "err_score_long": ContextLengthExceeded,
    "err_rerank_unknown_model": ModelNotFound,
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_error_becomes_its_class(name: str) -> None:
    reply = CAPTURED[name]
    error = from_reply(reply["status"], reply["body"].encode())
    expected = SPECIAL.get(name.partition("/")[2], EngineRefused)
    if name == "v0.16.0/err_json_array":
        expected = EngineFailed  # this version fails where the later one refuses
    assert type(error) is expected


@pytest.mark.parametrize("name", CAPTURED)
def test_nothing_of_a_captured_errors_text_is_passed_on(name: str) -> None:
    """What is said depends on status, field and whether it is about length: on no word of the text."""
    reply = CAPTURED[name]
    error = from_reply(reply["status"], reply["body"].encode())
    payload = orjson.loads(reply["body"]) if reply["body"].startswith("{") else {}
    if isinstance(payload.get("error"), dict):
        about_length = isinstance(error, ContextLengthExceeded)
        payload["error"]["message"] = "context length" if about_length else ""
        payload["error"]["type"] = ""
    again = from_reply(reply["status"], orjson.dumps(payload))
    assert (type(again), again.body()) == (type(error), error.body())


@pytest.mark.parametrize(
    ("name", "param"),
    [
        ("v0.16.0/err_top_p", "top_p"),
        ("v0.32.0/err_top_p", "top_p"),
        ("v0.32.0/err_temperature_str", "temperature"),
        ("v0.32.0/err_missing_messages", "messages"),
        ("v0.32.0/err_empty_body", None),
        ("v0.32.0/err_bad_json", None),
        ("v0.16.0/err_missing_messages", None),
        ("v0.16.0/err_context_too_long", None),
        ("v0.16.0/err_context_prompt_plus_max", None),
        ("v0.16.0/err_max_tokens_too_big", "max_tokens"),
        ("v0.32.0/err_responses_missing", "input"),
        ("v0.32.0/err_responses_background", "background"),
        ("v0.32.0/err_responses_previous", "response_id"),
        ("v0.32.0/err_messages_missing", "messages"),
        ("v0.32.0/err_messages_zero", "max_tokens"),
        ("v0.32.0/err_messages_temperature", None),
        ("v0.32.0/err_tokenize_missing", "prompt"),
        ("v0.16.0/err_messages_missing", None),
        ("v0.32.0/err_messages_unknown_model", "model"),
        ("v0.32.0/err_count_tokens_unknown_model", "model"),
    ],
)
def test_the_field_at_fault_is_named_as_the_client_knows_it(name: str, param: str | None) -> None:
    reply = CAPTURED[name]
    assert from_reply(reply["status"], reply["body"].encode()).param == param


SECRET = "zq9-hush"
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(SECRET) | st.just(f"context length {SECRET}"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["message", "type", "param", "code", SECRET]), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(error=HOSTILE, status=st.integers(100, 599))
def test_any_error_value_becomes_an_error_of_ours_without_its_text(error: object, status: int) -> None:
    made = from_error(error, status)
    assert made.status in (400, 404, 502, 503)
    assert SECRET.encode() not in made.body()


@given(body=st.binary(max_size=50), status=st.integers(100, 599))
def test_any_body_becomes_an_error_of_ours(body: bytes, status: int) -> None:
    assert isinstance(from_reply(status, body), GatewayError)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (200, 500, EngineFailed),
        (200, 400, EngineRefused),
        (200, 404, ModelNotFound),
        (200, 503, EngineUnavailable),
        (501, None, EndpointNotSupported),
        (200, 501, EndpointNotSupported),
        (200, "400", EngineFailed),
        (200, True, EngineFailed),
        (200, None, EngineFailed),
        (500, 400, EngineRefused),
        (400, 500, EngineFailed),
        (422, None, EngineRefused),
        (429, None, EngineFailed),
        (302, None, EngineFailed),
    ],
)
def test_an_errors_own_code_tells_more_than_the_status_around_it(
    status: int, code: object, kind: type[GatewayError]
) -> None:
    assert type(from_error({"message": "m", "code": code}, status)) is kind


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"error":{"code":500}}', {"code": 500}),
        (b' {\n "error" : "text"}', "text"),
        (b'{"type":"error","error":{"code":400}}', {"code": 400}),
        (b'{"object":"x","error":{"code":5', {"code": 5}),
        (b'{"error":null,"choices":[]}', None),
        (b'{"choices":[{"message":{"content":"\\"error\\":{}"}}]}', None),
        (b'{"choices":[{"error":{"code":1}}]}', None),
        (b'{"content":"error"}', None),
        (b'[{"error":1}]', None),
        (b'garbage "error"', None),
        (b"", None),
    ],
)
def test_an_error_inside_a_200_is_found_at_the_top_only(body: bytes, error: object) -> None:
    assert find_error(body) == error


@pytest.mark.parametrize("status", [400, 404, 501])
@pytest.mark.parametrize("api", ["Messages", "Responses", "Chat Completions", "Score"])
def test_a_model_without_the_route_is_told_from_one_that_does_not_exist(status: int, api: str) -> None:
    error = {"message": f"The model does not support {api} API", "type": "x", "param": None, "code": status}
    assert type(from_error(error, status)) is EndpointNotSupported


def test_the_sdk_is_told_not_to_try_again_where_the_operator_must_act() -> None:
    assert NO_RETRY in from_error("Unauthorized", 401).headers
    assert NO_RETRY not in from_error("Unauthorized", 500).headers
