"""Which fields and values pass, for every route: what harms is refused with its reason, in every plan."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import fields
from gateway.endpoints import ENDPOINTS, Endpoint, Kind
from gateway.errors import InvalidRequest, ParameterRefused, UnknownParameter
from gateway.parameters import ParameterRules, apply

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETIONS = ENDPOINTS["/v1/completions"]
RESPONSES = ENDPOINTS["/v1/responses"]
MESSAGES = ENDPOINTS["/v1/messages"]
TOKENIZE = ENDPOINTS["/tokenize"]
EMBEDDINGS = ENDPOINTS["/v1/embeddings"]
ENGINE_ROUTES = [endpoint for endpoint in ENDPOINTS.values() if endpoint.kind is Kind.ENGINE]
STANDARD = ParameterRules()
# As much as a plan can allow.
OPEN = ParameterRules(
    echo=True,
    ignore_eos=True,
    media=True,
    prompt_logprobs=20,
    token_ids=100_000,
    n=128,
    nested_repetition=True,
    constraint_work=100_000,
)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
IMAGE = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
RESULT_IMAGE = {"type": "tool_result", "content": [{"type": "image"}]}
HELLO = [{"role": "user", "content": "Hello"}]


def checked(
    endpoint: Endpoint, rules: ParameterRules = STANDARD, *, refuse_unknown: bool = True, **body: Any
) -> dict[str, Any]:
    """What is left of the body."""
    given_body = orjson.loads(orjson.dumps(body))
    apply(endpoint, given_body, rules, refuse_unknown=refuse_unknown)
    assert isinstance(given_body, dict)
    return given_body


def refused(endpoint: Endpoint, rules: ParameterRules = STANDARD, **body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        checked(endpoint, rules, **body)
    return raised.value


def test_every_engine_route_has_its_fields() -> None:
    assert {endpoint.path for endpoint in ENGINE_ROUTES} == set(fields.KNOWN)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, {"messages": HELLO, "temperature": 0.7, "top_p": 0.9, "seed": 1, "user": "u", "stop": ["\n"]}),
        (CHAT, {"messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 5, "logit_bias": {"15": -100}}),
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_object"}}),
        (
            CHAT,
            {
                "messages": HELLO,
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            },
        ),
        (
            CHAT,
            {
                "messages": HELLO,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
                "tool_choice": "auto",
            },
        ),
        (CHAT, {"messages": HELLO, "structured_outputs": {"regex": r"\d{3}-[a-z]+", "json": None}}),
        (CHAT, {"messages": HELLO, "structured_outputs": {"choice": ["yes", "no"]}}),
        (CHAT, {"messages": HELLO, "structured_outputs": {"json": json.dumps(SCHEMA)}}),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
                "store": False,
                "metadata": {},
            },
        ),
        (COMPLETIONS, {"prompt": "Hello", "echo": False, "suffix": None, "best_of": 1}),
        (COMPLETIONS, {"prompt": [[1, 2], [3]], "min_tokens": 0}),
        (RESPONSES, {"input": "Hello", "instructions": "Be brief", "store": False, "background": False}),
        (RESPONSES, {"input": "Hello", "text": {"format": {"type": "text"}, "verbosity": "low"}}),
        (
            RESPONSES,
            {
                "input": [
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "5"},
                ]
            },
        ),
        (MESSAGES, {"messages": HELLO, "output_config": {"effort": "low"}, "max_tokens": 5}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}),
        (
            MESSAGES,
            {"messages": HELLO, "system": "Be brief", "max_tokens": 5, "stop_sequences": ["\n"], "top_k": 5},
        ),
        (MESSAGES, {"messages": HELLO, "tools": [{"name": "f", "input_schema": SCHEMA}]}),
        (TOKENIZE, {"prompt": "Hello", "add_special_tokens": False, "return_token_strs": True}),
        (EMBEDDINGS, {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8}),
        (EMBEDDINGS, {"input": [1, 2, 3]}),
        (ENDPOINTS["/v1/rerank"], {"query": "q", "documents": ["a"], "top_n": 1}),
        (ENDPOINTS["/v1/score"], {"text_1": "a", "text_2": ["b"]}),
    ],
    ids=lambda value: value.path if isinstance(value, Endpoint) else next(reversed(value)),
)
def test_what_clients_send_passes_unchanged(endpoint: Endpoint, body: dict[str, Any]) -> None:
    assert checked(endpoint, model="served", **body) == {"model": "served", **body}


@pytest.mark.parametrize("rules", [STANDARD, OPEN], ids=["standard", "open"])
@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (COMPLETIONS, {"prompt": [[-1]]}),
        (COMPLETIONS, {"prompt": [-1]}),
        (COMPLETIONS, {"prompt": [1, True]}),
        (COMPLETIONS, {"prompt": [[1.0]]}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": [[]]}),
        (EMBEDDINGS, {"input": [[-5]]}),
        (CHAT, {"stop_token_ids": [999_999]}),
        (CHAT, {"stop_token_ids": [-1]}),
        (CHAT, {"structured_outputs": {"json": ""}}),
        (CHAT, {"structured_outputs": {"json": "not a schema"}}),
        (CHAT, {"structured_outputs": {"json": []}}),
        (CHAT, {"structured_outputs": {"regex": ""}}),
        (CHAT, {"structured_outputs": {"regex": "a{99999}"}}),
        (CHAT, {"structured_outputs": {"choice": []}}),
        (CHAT, {"structured_outputs": {"choice": ["\n"]}}),
        (CHAT, {"structured_outputs": {"json_object": False}}),
        (CHAT, {"structured_outputs": {}}),
        (CHAT, {"structured_outputs": {"grammar": "root ::= 'x'"}}),
        (CHAT, {"structured_outputs": {"whitespace_pattern": "(a+)+"}}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": "Hello"}),
        (CHAT, {"messages": [5]}),
        (CHAT, {"store": True}),
        (CHAT, {"temperature": "0.5"}),
        (CHAT, {"temperature": True}),
        (CHAT, {"temperature": -1}),
        (CHAT, {"top_p": 2}),
        (CHAT, {"top_k": 1.0}),
        (CHAT, {"seed": 2**63}),
        (CHAT, {"presence_penalty": 3}),
        (CHAT, {"echo": 1}),
        (CHAT, {"parallel_tool_calls": "yes"}),
        (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}),
        (CHAT, {"tools": [{"function": {"name": "f", "parameters": {}}, "parameters": {"not": {}}}]}),
        (RESPONSES, {"store": True}),
        (RESPONSES, {"input": []}),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}),
        (RESPONSES, {"input": [{"type": ["message"]}]}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}),
        (EMBEDDINGS, {"dimensions": 0}),
        (CHAT, {"response_format": {"type": "json_schema"}}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(?=x)"}}}}),
        (CHAT, {"bad_words": [""]}),
        (CHAT, {"min_tokens": -1}),
        (CHAT, {"min_tokens": 1.0}),
        (CHAT, {"n": 1000}),
        (CHAT, {"n": True}),
        (CHAT, {"top_logprobs": -1}),
        (CHAT, {"prompt_logprobs": -1}),
        (CHAT, {"logit_bias": {"x": 1}}),
        (CHAT, {"logit_bias": {"1": 1e9}}),
        (CHAT, {"stop": [""]}),
        (CHAT, {"stop": ["x"] * 1000}),
        (CHAT, {"tools": [{"type": "mcp", "server_url": "http://inside"}]}),
        (RESPONSES, {"tools": [{"type": "code_interpreter"}]}),
        (MESSAGES, {"mcp_servers": [{"url": "http://inside"}]}),
        *((CHAT, {name: "x"}) for name in sorted(fields.REFUSED)),
        (RESPONSES, {"previous_response_id": "resp_1"}),
        (RESPONSES, {"background": True}),
    ],
    ids=lambda value: value.path if isinstance(value, Endpoint) else str(value)[:60],
)
def test_what_harms_is_refused_whatever_the_plan_allows(
    endpoint: Endpoint, body: dict[str, Any], rules: ParameterRules
) -> None:
    error = refused(endpoint, rules, **body)
    assert error.status == 400
    assert error.param is not None
    assert error.param.partition(".")[0] == next(iter(body))
    assert error.message.startswith(("`", "The "))


@pytest.mark.parametrize(
    ("endpoint", "body", "allows"),
    [
        (COMPLETIONS, {"echo": True}, {"echo": True}),
        (CHAT, {"ignore_eos": True}, {"ignore_eos": True}),
        (CHAT, {"prompt_logprobs": 1}, {"prompt_logprobs": 1}),
        (CHAT, {"stop_token_ids": [7]}, {"token_ids": 8}),
        (CHAT, {"n": 5}, {"n": 5}),
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, {"media": True}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, {"media": True}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, {"media": True}),
        (MESSAGES, {"messages": [{"role": "user", "content": [RESULT_IMAGE]}]}, {"media": True}),
        (CHAT, {"structured_outputs": {"regex": "(a+)+b"}}, {"nested_repetition": True}),
        (CHAT, {"structured_outputs": {"regex": ".{150}"}}, {"constraint_work": 6_000}),
        (CHAT, {"structured_outputs": {"choice": ["x"] * 300}}, {"choices": 300}),
        (CHAT, {"tools": [{"function": {"name": "f"}}] * 129}, {"tools": 129}),
        (EMBEDDINGS, {"input": ["x"] * 2049}, {"inputs": 2049}),
        (ENDPOINTS["/v1/rerank"], {"documents": ["x"] * 2049}, {"inputs": 2049}),
        (ENDPOINTS["/v1/rerank"], {"query": {"content": [IMAGE]}}, {"media": True}),
        (MESSAGES, {"system": [{"type": "image"}]}, {"media": True}),
        (CHAT, {"chat_template_kwargs": {"mood": 1}}, {"template_arguments": ("mood",)}),
        (COMPLETIONS, {"prompt": ["x"] * 200}, {"prompts": 200}),
        (CHAT, {"messages": HELLO * 3000}, {"messages": 3000}),
        (CHAT, {"stop": ["x"] * 5}, {"stop": 5}),
        (CHAT, {"logit_bias": {str(token): 1 for token in range(300)}}, {"logit_bias": 300}),
    ],
    ids=lambda value: value.path if isinstance(value, Endpoint) else str(value)[:50],
)  # fmt: skip
def test_what_costs_is_bounded_as_the_plan_says(
    endpoint: Endpoint, body: dict[str, Any], allows: dict[str, Any]
) -> None:
    assert isinstance(refused(endpoint, **body), ParameterRefused)
    assert checked(endpoint, ParameterRules(**allows), **body) == body


def test_what_the_gateway_sets_itself_is_taken_out() -> None:
    body: dict[str, Any] = {
        "messages": HELLO,
        "cache_salt": "mine",
        "request_id": "x\ny",
        "priority": -(2**62),
    }
    assert checked(CHAT, **body) == {"messages": HELLO}


@pytest.mark.parametrize("endpoint", ENGINE_ROUTES, ids=lambda endpoint: endpoint.path)
def test_a_misspelt_field_is_refused_with_the_name_that_was_meant(endpoint: Endpoint) -> None:
    name = max(sorted(fields.KNOWN[endpoint.path]), key=len)
    misspelt: dict[str, Any] = {f"{name}s": 1}
    error = refused(endpoint, **misspelt)
    assert isinstance(error, UnknownParameter)
    assert error.param == f"{name}s"
    assert f"`{name}`" in error.message


def test_unknown_fields_pass_where_the_plan_lets_them_but_not_what_harms() -> None:
    assert checked(CHAT, refuse_unknown=False, new_idea=1) == {"new_idea": 1}
    with pytest.raises(ParameterRefused):
        checked(CHAT, refuse_unknown=False, guided_regex="a")
    with pytest.raises(ParameterRefused):
        checked(MESSAGES, refuse_unknown=False, stop_token_ids=[10**6])


@pytest.mark.parametrize("name", ["chat_template", "tokenize"])
def test_no_plan_can_let_a_request_replace_the_template(name: str) -> None:
    with pytest.raises(ValueError, match="no plan can allow"):
        ParameterRules(template_arguments=(name,))


@given(name=st.text(min_size=1, max_size=80))
def test_an_unknown_name_is_never_repeated_if_it_could_be_anything(name: str) -> None:
    if name in fields.KNOWN[CHAT.path] or name in fields.REFUSED:
        return
    unknown: dict[str, Any] = {name: 1}
    error = refused(CHAT, **unknown)
    assert len(error.message) < 250
    assert error.message.isprintable()
    assert error.message.isascii()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    endpoint=st.sampled_from(ENGINE_ROUTES),
    body=st.dictionaries(
        st.sampled_from(
            sorted({*fields.REFUSED, *fields.OWN, *(n for k in fields.KNOWN.values() for n in k)})
        ),
        JSON
        | st.fixed_dictionaries({"json": JSON, "regex": JSON})
        | st.lists(st.fixed_dictionaries({"content": JSON})),
        max_size=5,
    ),
    rules=st.sampled_from((STANDARD, OPEN)),
)
def test_any_value_of_any_field_passes_or_is_a_clear_refusal(
    endpoint: Endpoint, body: dict[str, Any], rules: ParameterRules
) -> None:
    try:
        apply(endpoint, body, rules, refuse_unknown=True)
    except InvalidRequest as error:
        assert 0 < len(error.message) < 400  # noqa: PT017 - either outcome is right; another exception is not
