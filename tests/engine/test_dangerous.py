"""Requests that kill, hang or hold up an engine: none gets through to either version, and each serves on.

What they do to an engine that is asked directly is in docs/parameters.md.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.contract.developer import HELLO
from tests.contract.subject import Subject, plan, settings
from tests.engine.conftest import MAX_MODEL_LEN, OUTPUT_CAP
from tests.engine.vllm_process import VllmProcess
from tests.fakes.gateway_process import EnginePlan, GatewayProcess, Key

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


def nested(levels: int, width: int) -> dict[str, Any]:
    """oneOf within oneOf: width to the power of levels leaves."""
    if not levels:
        return {"type": "string"}
    return {
        "oneOf": [{"type": "object", "properties": {"a": nested(levels - 1, width)}} for _ in range(width)]
    }


def chain(length: int) -> dict[str, Any]:
    """Definitions each of which refers to the next. It has what the first compiler does not know; the second
    gets it then, and overflows its stack.
    """
    definitions: dict[str, Any] = {
        f"d{at}": {"type": "array", "items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(length)
    }
    definitions[f"d{length}"] = {"type": "integer", "multipleOf": 3}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def schema(value: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


def part(**fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


BOMB = nested(8, 3)
FILE = {"url": "file:///etc/passwd"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": BOMB}}
PLAIN_TEXT = {"type": "text", "text": "x"}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a negative token id": (COMPLETIONS, {"prompt": [[-1]]}),
    "a negative token id, alone": (COMPLETIONS, {"prompt": [-1]}),
    "a token id that is true": (COMPLETIONS, {"prompt": [1, True]}),
    "a stop token beyond the vocabulary": (CHAT, {"stop_token_ids": [999_999], "min_tokens": 1}),
    "a stop token beyond the vocabulary, in responses": (
        RESPONSES,
        {"input": "x", "stop_token_ids": [999_999]},
    ),
    "a negative stop token": (CHAT, {"stop_token_ids": [-1], "min_tokens": 1}),
    "an allowed token beyond the vocabulary": (CHAT, {"allowed_token_ids": [999_999]}),
    "an empty schema as text": (CHAT, {"structured_outputs": {"json": ""}}),
    "a blank schema as text": (CHAT, {"structured_outputs": {"json": "  "}}),
    "no JSON object": (CHAT, {"structured_outputs": {"json_object": False}}),
    "constraints as a list": (CHAT, {"structured_outputs": [{"json": BOMB}]}),
    "a schema bomb, structured": (CHAT, {"structured_outputs": {"json": BOMB}}),
    "a schema bomb, as text": (CHAT, {"structured_outputs": {"json": json.dumps(BOMB)}}),
    "a schema bomb, as format": (CHAT, {"response_format": schema(BOMB)}),
    "a schema bomb, in a property": (
        CHAT,
        {"response_format": schema({"type": "object", "properties": {"$defs": BOMB}})},
    ),
    "a schema bomb, as tool": (CHAT, {"tools": [TOOL], "tool_choice": "required"}),
    "a schema bomb, in responses": (
        RESPONSES,
        {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": BOMB}}},
    ),
    "a schema bomb beside a decoy": (
        RESPONSES,
        {
            "input": "x",
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "x",
                    "schema": BOMB,
                    "json_schema": {"schema": {"type": "object"}},
                }
            },
        },
    ),
    "a tool's bomb beside a decoy": (
        RESPONSES,
        {
            "input": "x",
            "tools": [{"type": "function", "name": "f", "parameters": BOMB, "function": {"name": "f"}}],
            "tool_choice": "required",
        },
    ),
    "a schema bomb, in messages": (
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": BOMB}], "tool_choice": {"type": "any"}},
    ),
    "a schema bomb, as messages' format": (
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": BOMB}}},
    ),
    "a tool among messages": (
        MESSAGES,
        {
            "messages": [
                *HELLO,
                {
                    "role": "system",
                    "content": [
                        {
                            "type": "tool_addition",
                            "tool": {
                                "type": "tool_definition",
                                "definition": {"name": "f", "input_schema": BOMB},
                            },
                        }
                    ],
                },
            ]
        },
    ),
    "a chain of references": (CHAT, {"structured_outputs": {"json": chain(2000)}}),
    "patterns as names": (
        CHAT,
        {
            "structured_outputs": {
                "json": {
                    "type": "object",
                    "patternProperties": {"^[a-z]{1,40}$": {"type": "integer", "multipleOf": 3}},
                }
            }
        },
    ),
    "an expression with nested quantifiers": (CHAT, {"structured_outputs": {"regex": "((a+)+)+b"}}),
    "an expression of a million states": (CHAT, {"structured_outputs": {"regex": ".*a.{20}"}}),
    "a pattern of a million states": (
        CHAT,
        {"response_format": schema({"type": "string", "pattern": ".*a.{20}"})},
    ),
    "an expression of many optional parts": (CHAT, {"structured_outputs": {"regex": ".?" * 200}}),
    "an expression that looks back": (CHAT, {"structured_outputs": {"regex": r"(a)\1"}}),
    "an expression with a null": (CHAT, {"structured_outputs": {"regex": "a\0b"}}),
    "an expression that is null": (CHAT, {"structured_outputs": {"regex": "\0"}}),
    # What one compiler refuses and the next takes ends 0.16.0.
    "an expression with an empty end": (CHAT, {"structured_outputs": {"regex": "a|"}}),
    "an expression of a script's letters": (CHAT, {"structured_outputs": {"regex": r"\p{L}+"}}),
    "choices with a line's end": (CHAT, {"structured_outputs": {"choice": ["a\nb"]}}),
    "a name with a line's end": (
        CHAT,
        {"structured_outputs": {"json": {"type": "object", "properties": {"a\n": {"type": "string"}}}}},
    ),
    "a whole number from one and a half": (
        CHAT,
        {"structured_outputs": {"json": {"type": "integer", "minimum": 1.5}}},
    ),
    "a list of one of nothing": (CHAT, {"structured_outputs": {"json": {"type": "array", "minItems": 1}}}),
    "a list without end": (
        CHAT,
        {"structured_outputs": {"json": {"type": "array", "items": {}, "minItems": 10**12}}},
    ),
    "choices of great length": (
        CHAT,
        {"structured_outputs": {"choice": [f"{at}" + "x" * 1000 for at in range(256)]}},
    ),
    "a grammar": (CHAT, {"structured_outputs": {"grammar": "root ::= root root | 'a'"}}),
    "a structural tag": (
        CHAT,
        {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
    ),
    "an endless minimum": (CHAT, {"min_tokens": 10**9}),
    "two thousand answers": (CHAT, {"n": 2000}),
    "five hundred prompts": (COMPLETIONS, {"prompt": ["x"] * 500}),
    "an empty bad word": (CHAT, {"bad_words": [""]}),
    "a schema that is missing": (CHAT, {"response_format": {"type": "json_schema"}}),
    "the whole vocabulary's logprobs": (CHAT, {"logprobs": True, "top_logprobs": -1}),
    "the prompt's logprobs": (CHAT, {"prompt_logprobs": 1}),
    "the prompt's echo": (COMPLETIONS, {"prompt": "Hello", "echo": True}),
    "a biased vocabulary": (CHAT, {"logit_bias": {str(token): 1 for token in range(2000)}}),
    "twenty thousand stops": (CHAT, {"stop": ["x"] * 20_000}),
    "a template": (CHAT, {"chat_template": "{% for x in range(10**9) %}{% endfor %}"}),
    "a template, in responses": (RESPONSES, {"input": "x", "chat_template_kwargs": {"chat_template": "x"}}),
    "a template's arguments": (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}),
    "tensors": (COMPLETIONS, {"prompt_embeds": "AAAA"}),
    "tensors, as a part": (CHAT, part(type="prompt_embeds", data="AAAA")),
    "a picture from elsewhere": (CHAT, part(type="image_url", image_url={"url": "http://127.0.0.1/"})),
    "a file of the host": (CHAT, part(type="image_url", image_url=FILE)),
    "a file of the host, without a type": (CHAT, part(image_url=FILE)),
    "a file of the host, as a text with a name": (CHAT, part(**PLAIN_TEXT, uuid="u", image_url=FILE)),
    "a sound of the host, as a text with a name": (CHAT, part(**PLAIN_TEXT, uuid="u", audio_url=FILE)),
    "a part of no known type": (CHAT, part(type=["image_url"], image_url=FILE)),
    "a picture as a tool's result": (
        MESSAGES,
        part(
            type="tool_result", tool_use_id="t", content=[{"type": "image", "source": FILE | {"type": "url"}}]
        ),
    ),
    "a picture in responses": (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc/passwd"}]}
            ]
        },
    ),
    "a picture as a function's output": (
        RESPONSES,
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image", "image_url": "file:///etc/passwd"}],
                }
            ]
        },
    ),
    "an item that is kept": (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    "where the cache goes": (CHAT, {"kv_transfer_params": {"remote_host": "127.0.0.1", "remote_port": 1}}),
    "where the encoder's cache goes": (
        CHAT,
        {"ec_transfer_params": {"remote_host": "127.0.0.1", "remote_port": 1}},
    ),
    "beams": (CHAT, {"use_beam_search": True, "n": 10}),
    "code to run": (CHAT, {"logits_processors": ["os.system"]}),
    "tools of the host": (
        RESPONSES,
        {"input": "x", "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
    ),
    "a prompt that is cut silently": (CHAT, {"truncate_prompt_tokens": 1}),
    "a conversation that is not kept": (RESPONSES, {"input": "Hello", "previous_response_id": "resp_x"}),
    "work in the background": (RESPONSES, {"input": "Hello", "background": True}),
    "guided decoding's old name": (CHAT, {"guided_regex": "a"}),
}
HARMLESS: dict[str, dict[str, Any]] = {
    "a priority": {"priority": -(2**62)},
    "a request id": {"request_id": "x\ny" * 1000},
    "a salt": {"cache_salt": "another tenant's"},
    "values that ask for nothing": {
        "echo": False,
        "use_beam_search": False,
        "prompt_logprobs": None,
        "min_tokens": 0,
    },
    "a bounded schema": {"structured_outputs": {"json": nested(3, 3)}},
    "a bounded expression": {"structured_outputs": {"regex": r"[A-Z]{2}[0-9]{2}( ?[A-Z0-9]{4}){3}"}},
    "an address": {"structured_outputs": {"regex": r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}"}},
    "a form": {
        "response_format": schema(
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 60},
                    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
                },
                "required": ["name"],
            }
        )
    },
}


@pytest.fixture(scope="module")
def roomy(vllm: VllmProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that lets bodies of a megabyte in, so that not their size is what refuses them."""
    engine = EnginePlan(vllm.url, vllm.key, [vllm.model], MAX_MODEL_LEN)
    wide = settings(vllm.model) | {"GATEWAY_MAX_BODY_BYTES": "1000000"}
    process = GatewayProcess(tmp_path_factory.mktemp("roomy"), engine, wide, plan(OUTPUT_CAP))
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def roomy_key(roomy: GatewayProcess) -> Key:
    return roomy.new_key()


@pytest.fixture
def subject(roomy: GatewayProcess, roomy_key: Key, vllm: VllmProcess) -> Subject:
    vllm.ensure_started()
    return Subject(roomy, roomy_key, vllm, vllm.model, MAX_MODEL_LEN, OUTPUT_CAP)


def post(subject: Subject, path: str, fields: dict[str, Any]) -> httpx2.Response:
    body = {"model": subject.model} | fields
    if path in (CHAT, MESSAGES):
        body = {"messages": HELLO} | body
    if path in (CHAT, COMPLETIONS, MESSAGES):
        body = {"max_tokens": 4} | body
    return httpx2.post(subject.gateway.url + path, json=body, headers=subject.bearer(), timeout=30)


def assert_serves(subject: Subject) -> None:
    """At once: nothing holds it up."""
    started = time.monotonic()
    assert post(subject, CHAT, {}).status_code == 200
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("what", REFUSED)
def test_what_harms_an_engine_never_reaches_it(subject: Subject, what: str) -> None:
    path, fields = REFUSED[what]
    with subject.engine_sees_nothing():
        refused = post(subject, path, fields)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["code"] in {"parameter_not_allowed", "invalid_parameter", "unknown_parameter"}
    assert error["param"]


@pytest.mark.parametrize("what", HARMLESS)
def test_what_only_looks_like_it_is_served(subject: Subject, what: str) -> None:
    assert post(subject, CHAT, HARMLESS[what]).status_code == 200
    assert_serves(subject)


def test_after_all_of_it_the_engine_serves_as_before(subject: Subject, vllm: VllmProcess) -> None:
    core = vllm.core()
    for path, fields in REFUSED.values():
        post(subject, path, fields)
    assert vllm.core() == core, "the engine's core was started again"
    assert_serves(subject)
