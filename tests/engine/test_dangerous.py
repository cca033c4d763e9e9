"""Requests that kill, hang or hold up an engine: none gets through to either version, and each still serves after.

What they do to an engine that is asked directly is in docs/parameters.md.
"""

import time
from typing import Any

import httpx2
import pytest

from tests.contract.developer import HELLO
from tests.contract.subject import Subject
from tests.engine.vllm_process import VllmProcess

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


BOMB = nested(9, 3)
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a negative token id": (COMPLETIONS, {"prompt": [[-1]]}),
    "a stop token beyond the vocabulary": (CHAT, {"stop_token_ids": [999_999], "min_tokens": 1}),
    "a negative stop token": (CHAT, {"stop_token_ids": [-1], "min_tokens": 1}),
    "an allowed token beyond the vocabulary": (CHAT, {"allowed_token_ids": [999_999]}),
    "an empty schema as text": (CHAT, {"structured_outputs": {"json": ""}}),
    "a schema bomb, structured": (CHAT, {"structured_outputs": {"json": BOMB}}),
    "a schema bomb, as format": (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BOMB}}}),
    "a schema bomb, as tool": (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": BOMB}}], "tool_choice": "required"}),
    "a schema bomb, in responses": (RESPONSES, {"input": "Hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": BOMB}}}),
    "a schema bomb, in messages": (MESSAGES, {"tools": [{"name": "f", "input_schema": BOMB}]}),
    "an expression with nested quantifiers": (CHAT, {"structured_outputs": {"regex": "((a+)+)+b"}}),
    "a grammar": (CHAT, {"structured_outputs": {"grammar": "root ::= root root | 'a'"}}),
    "a structural tag": (CHAT, {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}}),
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
    "a template's arguments": (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}),
    "tensors": (COMPLETIONS, {"prompt_embeds": "AAAA"}),
    "a picture from elsewhere": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]}),
    "a file of the host": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}),
    "where the cache goes": (CHAT, {"kv_transfer_params": {"remote_host": "127.0.0.1", "remote_port": 1}}),
    "beams": (CHAT, {"use_beam_search": True, "n": 10}),
    "code to run": (CHAT, {"logits_processors": ["os.system"]}),
    "a prompt that is cut silently": (CHAT, {"truncate_prompt_tokens": 1}),
    "a conversation that is not kept": (RESPONSES, {"input": "Hello", "previous_response_id": "resp_x"}),
    "work in the background": (RESPONSES, {"input": "Hello", "background": True}),
    "guided decoding's old name": (CHAT, {"guided_regex": "a"}),
}  # fmt: skip
HARMLESS: dict[str, dict[str, Any]] = {
    "a priority": {"priority": -(2**62)},
    "a request id": {"request_id": "x\ny" * 1000},
    "a salt": {"cache_salt": "another tenant's"},
    "values that ask for nothing": {"echo": False, "use_beam_search": False, "prompt_logprobs": None, "min_tokens": 0},
    "a bounded schema": {"structured_outputs": {"json": nested(3, 3)}},
    "a bounded expression": {"structured_outputs": {"regex": "[a-z]{3,20}( [a-z]{3,20}){2}"}},
}  # fmt: skip


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
    assert error["code"] in {"parameter_not_allowed", "invalid_parameter"}
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


def test_a_tenants_salt_is_its_own_whatever_it_sends(subject: Subject) -> None:
    """Two tenants with one prompt: neither may find the other's in the prefix cache."""
    prompt = "one two three four five six seven eight nine ten " * 20
    other = subject.gateway.new_key(tenant="team-b")
    hits = []
    for key in (subject.key, subject.key, other, other):
        before = subject.engine.prefix_hits()
        headers = {"authorization": f"Bearer {key.text}"}
        body = {"model": subject.model, "prompt": prompt, "max_tokens": 1, "cache_salt": "the same"}
        assert (
            httpx2.post(subject.gateway.url + COMPLETIONS, json=body, headers=headers, timeout=30).status_code
            == 200
        )
        hits.append(subject.engine.prefix_hits() - before)
    assert hits[0] == hits[2] == 0
    assert hits[1] > 0
    assert hits[3] > 0
