"""Token usage out of an engine's reply, without parsing all of it."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.usage import Usage, find_finish_reason, find_usage

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
