"""Token usage out of an engine's reply, without parsing all of it."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.usage import (
    COMPLETIONS_USAGE,
    MESSAGES_USAGE,
    RANKING_USAGE,
    RESPONSES_USAGE,
    Told,
    Usage,
    UsageRule,
    find_finish_reason,
    find_usage,
    read_reply,
)

DATA = Path(__file__).parent / "data"

COUNT = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=20) | st.sampled_from(
    ['"usage":{"prompt_tokens":1,"completion_tokens":1}', '"finish_reason":"stop"', '\\"usage":{', "}"]
)


def reply(text: str, usage: object, *, after: object = None, reason: str | None = "stop") -> bytes:
    choice = {"index": 0, "message": {"content": text}, "finish_reason": reason}
    return orjson.dumps({"id": "x", "choices": [choice], "usage": usage, "prompt_logprobs": after})


@given(text=TEXT, prompt=COUNT, completion=COUNT, after=TEXT)
def test_usage_is_found_whatever_the_answer_says(text: str, prompt: int, completion: int, after: str) -> None:
    told = {
        "prompt_tokens": prompt,
        "total_tokens": 1,
        "completion_tokens": completion,
        "details": {"a": [1]},
    }
    assert find_usage(reply(text, told, after=after)) == Usage(prompt, completion)


@given(text=TEXT, after=TEXT)
def test_no_usage_is_made_up_from_an_answers_words(text: str, after: str) -> None:
    assert find_usage(reply(text, None, after=after)) is None


@given(text=TEXT, reason=st.none() | st.sampled_from(["stop", "length", "tool_calls", "abort"]))
def test_the_finish_reason_is_found_whatever_the_answer_says(text: str, reason: str | None) -> None:
    assert find_finish_reason(reply(text, None, reason=reason)) == reason


def test_the_last_choices_finish_reason_counts() -> None:
    raw = b'{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}]}'
    assert find_finish_reason(raw) == "length"


@pytest.mark.parametrize(
    "raw", [b'"finish_reason":"', b'"finish_reason":"S T"', b'"finish_reason":"' + b"x" * 41 + b'"']
)
def test_a_finish_reason_that_is_no_word_is_none(raw: bytes) -> None:
    assert find_finish_reason(raw) is None


def test_embeddings_report_no_completion_tokens() -> None:
    for usage in ({"prompt_tokens": 5}, {"prompt_tokens": 5, "completion_tokens": None}):
        assert find_usage(reply("", usage)) == Usage(5, 0)


def test_a_tail_that_begins_inside_the_reply_is_enough() -> None:
    whole = reply("x" * 5000, {"prompt_tokens": 5, "completion_tokens": 6})
    assert find_usage(whole[3000:]) == Usage(5, 6)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        7,
        {},
        {"prompt_tokens": "5"},
        {"prompt_tokens": 1.5},
        {"prompt_tokens": True},
        {"prompt_tokens": -1},
        {"prompt_tokens": 2**63},
        {"prompt_tokens": 1, "completion_tokens": -1},
        {"prompt_tokens": 1, "completion_tokens": [1]},
    ],
)
def test_what_is_no_usage_is_none(usage: Any) -> None:
    assert Usage.of(usage) is None


@given(st.binary(max_size=40))
def test_garbage_after_the_key_is_no_usage_and_no_fault(garbage: bytes) -> None:
    found = find_usage(b'{"usage":{' + garbage)
    assert found is None or isinstance(found, Usage)


@pytest.mark.parametrize(
    ("name", "rule", "told"),
    [
        ("v0.32.0/responses_nonstream", RESPONSES_USAGE, Told(Usage(9, 8), "incomplete")),
        ("v0.16.0/responses_nonstream", RESPONSES_USAGE, Told(Usage(9, 8), "incomplete")),
        ("v0.32.0/responses_tool_required", RESPONSES_USAGE, Told(Usage(137, 33), "completed")),
        ("v0.32.0/messages_nonstream", MESSAGES_USAGE, Told(Usage(8, 8), "max_tokens")),
        ("v0.16.0/messages_nonstream", MESSAGES_USAGE, Told(Usage(8, 8), "max_tokens")),
        ("v0.32.0/rerank", RANKING_USAGE, Told(Usage(5, 0))),
        ("v0.16.0/rerank", RANKING_USAGE, Told(Usage(8, 0))),
        ("v0.32.0/score", RANKING_USAGE, Told(Usage(5, 0))),
        ("v0.16.0/score", RANKING_USAGE, Told(Usage(8, 0))),
    ],
)
def test_a_captured_reply_tells_its_tokens_and_why_it_ended(name: str, rule: UsageRule, told: Told) -> None:
    assert read_reply((DATA / f"{name}.json").read_bytes(), rule) == told


TRAP = {
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "status": "free",
    "stop_reason": "free",
}


@pytest.mark.parametrize("at_end", [False, True])
def test_an_object_of_the_clients_is_not_taken_for_the_engines_usage(*, at_end: bool) -> None:
    """A response repeats its tools and the schema of its text, a message holds a tool's input."""
    trap: dict[str, object] = {"tools": [TRAP], "text": {"format": {"schema": TRAP}}}
    usage: dict[str, object] = {"usage": {"input_tokens": 5, "output_tokens": 6}}
    ends: dict[str, object] = {"status": "completed", "stop_reason": "end_turn"}
    whole = orjson.dumps(usage | ends | trap if at_end else trap | ends | usage)
    assert read_reply(whole, RESPONSES_USAGE) == Told(Usage(5, 6), "completed")
    assert read_reply(whole, MESSAGES_USAGE) == Told(Usage(5, 6), "end_turn")
    none = orjson.dumps(ends | trap | {"usage": None})
    assert read_reply(none, RESPONSES_USAGE).usage is None


@pytest.mark.parametrize("rule", [RESPONSES_USAGE, MESSAGES_USAGE])
def test_the_end_of_a_reply_that_is_too_large_to_keep_tells_its_usage(rule: UsageRule) -> None:
    whole = orjson.dumps({"output": "x" * 5000, "usage": {"input_tokens": 5, "output_tokens": 6}})
    assert read_reply(whole[3000:], rule).usage == Usage(5, 6)


@given(body=st.binary(max_size=60))
@pytest.mark.parametrize("rule", [COMPLETIONS_USAGE, RESPONSES_USAGE, MESSAGES_USAGE])
def test_any_body_is_read_without_a_fault(rule: UsageRule, body: bytes) -> None:
    assert isinstance(read_reply(body, rule), Told)


def test_a_documents_own_objects_are_not_taken_for_a_rankings_usage() -> None:
    document = {"text": "a", "multi_modal": {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}}
    whole = orjson.dumps({"usage": {"prompt_tokens": 11}, "results": [{"index": 0, "document": document}]})
    assert read_reply(whole, RANKING_USAGE).usage == Usage(11, 0)
