"""What a request's body may become: one cap over all ways to ask for output; refusals that name the field."""

import json
from types import MappingProxyType
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.endpoints import ENDPOINTS, Endpoint
from gateway.errors import (
    BodyNotObject,
    InvalidJSON,
    InvalidMaxTokens,
    InvalidRequest,
    MaxTokensTooLarge,
    MissingModel,
    ModelNotFound,
)
from gateway.parameters import ParameterRules
from gateway.policy import MAX_CONTAINERS, Allowed, Rules, decide, parse

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETIONS = ENDPOINTS["/v1/completions"]
EMBEDDINGS = ENDPOINTS["/v1/embeddings"]
ROUTES = (CHAT, COMPLETIONS, EMBEDDINGS)
ASKING = ("max_tokens", "max_completion_tokens")
KNOWN = {"model", "stream", "stream_options", "n", "best_of", "prompt", *ASKING}
SALT = "a tenant's salt"
# What is asked here is what the caps do: nothing is to stop a request before them.
WIDE = ParameterRules().model_copy(update={"n": 10**6, "prompts": 10**6, "inputs": 10**6})


def rules(over_cap: Literal["clamp", "refuse"] = "clamp", *, output_cap: int = 4096) -> Rules:
    models = MappingProxyType({"served": "served", "alias": "served"})
    return Rules(
        models,
        max_model_len=8192,
        output_default=1024,
        output_cap=output_cap,
        over_cap=over_cap,
        unknown_fields="pass",
        parameters=WIDE,
        cache_salt=SALT,
    )


def ask(endpoint: Endpoint = CHAT, *, by: Rules | None = None, **fields: Any) -> Allowed:
    return decide(endpoint, orjson.dumps({"model": "served", **fields}), by or rules())


def refused(endpoint: Endpoint = CHAT, *, by: Rules | None = None, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        ask(endpoint, by=by, **fields)
    return raised.value


def allowed_or_refused(endpoint: Endpoint, raw: bytes, by: Rules) -> Allowed | InvalidRequest:
    try:
        return decide(endpoint, raw, by)
    except InvalidRequest as error:
        return error


TOKENS = st.none() | st.integers(1, 8192)
COUNT = st.none() | st.integers(1, 40)
PROMPT = (
    st.just("one prompt")
    | st.lists(st.integers(0, 99), min_size=1, max_size=20)
    | st.lists(st.text(max_size=3), min_size=1, max_size=40)
    | st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), min_size=1, max_size=40)
)


def answers(body: dict[str, Any]) -> int:
    """How many answers an engine would make of this body at most."""
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return max(body.get("n") or 1, body.get("best_of") or 1) * prompts


@given(
    endpoint=st.sampled_from((CHAT, COMPLETIONS)),
    given_fields=st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": TOKENS,
            "max_completion_tokens": TOKENS,
            "n": COUNT,
            "best_of": COUNT,
            "prompt": PROMPT,
            "stream": st.booleans(),
        },
    ),
    mode=st.sampled_from(("clamp", "refuse")),
    cap=st.integers(1, 5000),
)
def test_all_answers_together_stay_within_the_cap(
    endpoint: Endpoint, given_fields: dict[str, Any], mode: Literal["clamp", "refuse"], cap: int
) -> None:
    by = rules(mode, output_cap=cap)
    try:
        allowed = ask(endpoint, by=by, **given_fields)
    except InvalidRequest:
        most = max((given_fields.get(name) or 0 for name in endpoint.output_fields), default=0)
        assert answers(given_fields) > cap or (mode == "refuse" and most * answers(given_fields) > cap)
        return
    sent = orjson.loads(allowed.body)
    caps = [sent[name] for name in endpoint.output_fields if sent.get(name) is not None]
    assert caps
    assert all(tokens >= 1 and tokens * answers(sent) <= cap for tokens in caps)
    asked = {name: given_fields[name] for name in endpoint.output_fields if given_fields.get(name)}
    changed = {name for name in endpoint.output_fields if sent.get(name) != given_fields.get(name)}
    assert (allowed.max_tokens is not None) == bool(changed)
    assert all(sent[name] <= tokens for name, tokens in asked.items())


JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MARK = "zq9"  # in no message of ours
ODD_BODY = st.dictionaries(
    st.sampled_from(
        [
            "model",
            "max_tokens",
            "max_completion_tokens",
            "n",
            "best_of",
            "prompt",
            "stream",
            "stream_options",
            MARK,
        ]
    ),
    st.just("served")
    | st.just({"include_usage": True})
    | JSON_VALUE
    | st.sampled_from([MARK, [MARK], {MARK: MARK}]),
)


@given(endpoint=st.sampled_from(ROUTES), body=ODD_BODY, mode=st.sampled_from(("clamp", "refuse")))
def test_any_object_is_allowed_or_refused_without_a_word_of_it(
    endpoint: Endpoint, body: dict[str, Any], mode: Literal["clamp", "refuse"]
) -> None:
    outcome = allowed_or_refused(endpoint, json.dumps(body).encode(), rules(mode))
    if isinstance(outcome, InvalidRequest):
        assert MARK not in outcome.message
        assert outcome.param in {None, "include_usage", *KNOWN}
    else:
        sent = orjson.loads(outcome.body)
        assert sent["model"] == "served"
        untouched = set(body) - {"model", "stream_options", *ASKING}
        assert {name: sent[name] for name in untouched} == {name: body[name] for name in untouched}


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_allowed_or_refused(raw: bytes) -> None:
    for endpoint in ROUTES:
        with pytest.raises(InvalidRequest):
            decide(endpoint, raw, rules())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{} {}",
        b"{'a': 1}",
        b'{"a": 01}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": [{"b": -1E+400}]}',
        b'{"a": ' + b"9" * 400 + b".5}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"a": "\xff"}',
        b'{"a": "\n"}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"a":' * 300 + b"1" + b"}" * 300,
    ],
)
def test_json_that_two_readers_could_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidJSON):
        parse(raw)


def test_the_cost_of_a_body_is_bounded_by_its_objects_and_lists() -> None:
    most = MAX_CONTAINERS - 2  # the body and the list around them
    parse(b'{"a": [' + b",".join([b"[]"] * most) + b"]}")
    for one in (b"[]", b"{}"):
        with pytest.raises(InvalidJSON, match="objects and lists"):
            parse(b'{"a": [' + b",".join([one] * (most + 1)) + b"]}")


def test_lists_between_texts_with_brackets_are_counted_exactly() -> None:
    def body(lists: int) -> bytes:
        return b'{"[": "' + b"{" * MAX_CONTAINERS + b'", "a": [' + b'"[", ["]", ""], "",' * lists + b'""]}'

    most = MAX_CONTAINERS - 2
    parse(body(most))
    with pytest.raises(InvalidJSON, match="objects and lists"):
        parse(body(most + 1))


@pytest.mark.parametrize("text", ["[{" * MAX_CONTAINERS, '\\"[' * MAX_CONTAINERS, '"[' * MAX_CONTAINERS])
def test_brackets_in_a_text_are_no_lists(text: str) -> None:
    assert parse(orjson.dumps({"a": text, "b": text})) == {"a": text, "b": text}


@pytest.mark.parametrize("raw", [b"[]", b'"text"', b"1", b"null", b"true", b'[{"model": "served"}]'])
def test_json_that_is_not_an_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyNotObject):
        parse(raw)


@pytest.mark.parametrize(
    "raw", [b'{"a": 1e-999}', b'{"a": 1.7e308}', b'{"a": "1e999"}', b'{"a": ' + b"1" * 120 + b"}"]
)
def test_a_number_that_is_only_long_or_small_is_no_infinity(raw: bytes) -> None:
    parse(raw)


def test_an_integer_beyond_64_bits_is_refused() -> None:
    with pytest.raises(InvalidJSON, match="64 bits"):
        decide(CHAT, b'{"model": "served", "x": %d}' % 2**64, rules())
    decide(CHAT, b'{"model": "served", "x": %d}' % (2**64 - 1), rules())


@pytest.mark.parametrize("key", ["hush", "hush at line 1 column 2", 'hush" at line 1 column 2'])
def test_a_duplicate_keys_name_is_not_repeated(key: str) -> None:
    quoted = orjson.dumps(key)
    with pytest.raises(InvalidJSON) as raised:
        parse(b"{" + quoted + b":1," + quoted + b":2}")
    assert "duplicate key at line 1 column" in raised.value.message
    assert "hush" not in raised.value.message


@pytest.mark.parametrize("name", ["n", "best_of"])
@pytest.mark.parametrize("digits", [19, 4299])
def test_a_huge_count_is_refused_whatever_it_multiplies(name: str, digits: int) -> None:
    """Python refuses to print an integer beyond 4300 digits: a message must not try."""
    prompts = orjson.dumps(["x"] * 1000)
    raw = b'{"model": "served", "%s": %s, "prompt": %s}' % (name.encode(), b"9" * digits, prompts)
    with pytest.raises(InvalidRequest) as raised:
        decide(COMPLETIONS, raw, rules())
    assert raised.value.param == name
    assert len(raised.value.message) < 200


def test_the_field_that_asks_for_too_many_answers_is_named() -> None:
    assert refused(n=5000).param == "n"
    assert refused(COMPLETIONS, best_of=5000).param == "best_of"
    assert refused(COMPLETIONS, prompt=["x"] * 5000).param == "prompt"
    assert refused(COMPLETIONS, prompt=["x"] * 100, n=50).param == "prompt"


@pytest.mark.parametrize("name", ["n", "best_of"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "2", True, [], {}])
def test_a_count_that_is_no_whole_number_from_one_is_refused(name: str, value: object) -> None:
    fields: dict[str, Any] = {name: value}
    error = refused(**fields)
    assert (error.code, error.param) == ("invalid_parameter", name)


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("value", [0, -1, -(10**20), 1.5, 5.0, "5", True, False, [], {}])
def test_max_tokens_that_is_no_whole_number_from_one_is_refused_under_any_name(
    name: str, value: object
) -> None:
    raw = json.dumps({"model": "served", name: value}).encode()
    with pytest.raises(InvalidMaxTokens) as raised:
        decide(CHAT, raw, rules())
    assert raised.value.param == name


@pytest.mark.parametrize("mode", ["clamp", "refuse"])
@pytest.mark.parametrize("value", [8193, 10**18, 10**30])
def test_more_than_the_models_context_is_refused_in_every_mode(
    mode: Literal["clamp", "refuse"], value: int
) -> None:
    raw = b'{"model":"served","max_completion_tokens":%d,"max_tokens":1}' % value
    with pytest.raises(MaxTokensTooLarge) as raised:
        decide(CHAT, raw, rules(mode))
    assert raised.value.param == "max_completion_tokens"
    assert str(value) not in raised.value.message


def test_above_the_cap_is_clamped_or_refused_as_configured() -> None:
    assert ask(max_tokens=4097).max_tokens == 4096
    assert ask(max_tokens=4097, n=2).max_tokens == 2048
    error = refused(by=rules("refuse"), max_tokens=4097)
    assert (error.code, error.param) == ("max_tokens_too_large", "max_tokens")
    error = refused(by=rules("refuse"), max_tokens=10, max_completion_tokens=4097)
    assert error.param == "max_completion_tokens"


def test_no_cap_or_null_becomes_the_routes_default() -> None:
    for fields in ({}, {"max_tokens": None}, {"max_completion_tokens": None}):
        assert ask(CHAT, **fields).max_tokens == 1024
        assert ask(COMPLETIONS, **fields).max_tokens == 16
    assert ask(by=rules(output_cap=100)).max_tokens == 100
    assert ask(n=8).max_tokens == 512


@pytest.mark.parametrize("endpoint", ROUTES, ids=lambda route: route.path)
@given(fields=st.dictionaries(st.text(max_size=8), JSON_VALUE, max_size=5))
def test_a_body_that_needs_no_change_is_sent_as_it_came(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    given_body = {
        **{f"x-{name}": value for name, value in fields.items()},
        "model": "served",
        **({"max_tokens": 4096} if endpoint is not EMBEDDINGS else {}),
    }
    allowed = decide(endpoint, orjson.dumps(given_body), rules())
    assert (allowed.model, allowed.stream, allowed.hide_usage, allowed.max_tokens) == (
        "served",
        False,
        False,
        None,
    )
    assert list(orjson.loads(allowed.body).items()) == [*given_body.items(), ("cache_salt", SALT)]


def test_embeddings_are_not_capped() -> None:
    assert orjson.loads(ask(EMBEDDINGS, input=["a"] * 5000).body) == {
        "model": "served",
        "input": ["a"] * 5000,
        "cache_salt": SALT,
    }


def test_an_alias_becomes_the_served_name() -> None:
    assert orjson.loads(decide(CHAT, b'{"model": "alias"}', rules()).body)["model"] == "served"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (None, MissingModel),
        ("", ModelNotFound),
        ("other", ModelNotFound),
        ("Served", ModelNotFound),
        (1, InvalidRequest),
        (["served"], InvalidRequest),
    ],
)
def test_a_model_that_is_missing_or_unknown_is_refused(model: object, kind: type[InvalidRequest]) -> None:
    error = refused(model=model)
    assert type(error) is kind
    assert error.param == "model"


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=lambda route: route.path)
@pytest.mark.parametrize(
    ("options", "sent", "hidden"),
    [
        (None, {"include_usage": True}, True),
        ({}, {"include_usage": True}, True),
        ({"include_usage": False}, {"include_usage": True}, True),
        ({"include_usage": None}, {"include_usage": True}, True),
        ({"continuous_usage_stats": True}, {"include_usage": True}, True),
        ({"include_usage": True}, {"include_usage": True}, False),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            {"include_usage": True, "continuous_usage_stats": True},
            False,
        ),
    ],
)
def test_a_streams_usage_is_always_asked_for_and_hidden_unless_wanted(
    endpoint: Endpoint, *, options: object, sent: object, hidden: bool
) -> None:
    allowed = ask(endpoint, stream=True, stream_options=options)
    assert allowed.stream
    assert orjson.loads(allowed.body)["stream_options"] == sent
    assert allowed.hide_usage is hidden


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
    ],
)
def test_wrong_stream_fields_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param
