"""Requests per minute, per key, over a real connection; the rest: test_public_limits.py."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import pytest

from tests.contract.developer import HELLO
from tests.contract.subject import Subject
from tests.fakes import scenarios
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway_process import Key

LIMIT = 3


@pytest.fixture
def limited(subject: Subject) -> Key:
    """A fresh key that may make three requests per minute."""
    return subject.gateway.new_key("limited", requests_per_minute=LIMIT)


def chat(subject: Subject, key: Key, **fields: object) -> httpx2.Response:
    body = {"model": subject.model, "messages": HELLO, "max_tokens": 2} | fields
    headers = {"authorization": f"Bearer {key.text}"}
    return httpx2.post(f"{subject.gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=10)


def test_the_limit_is_exact_and_the_sdk_raises_rate_limit_error(subject: Subject, limited: Key) -> None:
    sdk = subject.sdk(limited.text)
    for _ in range(LIMIT):
        sdk.chat.completions.create(model=subject.model, messages=HELLO, max_tokens=2)
    with subject.engine_sees_nothing(), pytest.raises(openai.RateLimitError) as raised:
        sdk.chat.completions.create(model=subject.model, messages=HELLO, max_tokens=2)
    assert raised.value.code == "rate_limit_exceeded"
    assert 55 < int(raised.value.response.headers["retry-after"]) <= 60


def test_headers_count_down_in_openais_form(subject: Subject, limited: Key) -> None:
    replies = [chat(subject, limited) for _ in range(LIMIT + 1)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["x-ratelimit-limit-requests"] for reply in replies] == ["3"] * 4
    assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["2", "1", "0", "0"]
    for reply in replies:
        assert reply.headers["x-ratelimit-reset-requests"].endswith("s")


def test_a_refused_request_costs_nothing(subject: Subject, limited: Key) -> None:
    refused = [
        chat(subject, limited, model="nope"),
        chat(subject, limited, max_tokens=-1),
        chat(subject, limited, stream="yes"),
    ]
    assert {reply.status_code for reply in refused} == {400, 404}
    assert [chat(subject, limited).status_code for _ in range(LIMIT + 1)] == [200, 200, 200, 429]


def test_a_refusal_for_the_limit_does_not_move_the_wait(subject: Subject, limited: Key) -> None:
    for _ in range(LIMIT):
        chat(subject, limited)
    first = int(chat(subject, limited).headers["retry-after"])
    time.sleep(1.1)
    later = int(chat(subject, limited).headers["retry-after"])
    assert later < first


def test_one_key_does_not_spend_anothers(subject: Subject, limited: Key) -> None:
    for _ in range(LIMIT + 1):
        chat(subject, limited)
    other = subject.gateway.new_key("other", requests_per_minute=LIMIT)
    assert chat(subject, other).status_code == 200


def test_requests_that_come_together_do_not_overshoot(
    subject: Subject, engine: FakeEngine, limited: Key
) -> None:
    engine.scenario = scenarios.answers_after(0.3)
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda _: chat(subject, limited).status_code, range(12)))
    assert sorted(statuses) == [200] * LIMIT + [429] * 9
    assert engine.requests_seen() == LIMIT


def test_what_reaches_no_engine_is_free(subject: Subject, limited: Key) -> None:
    sdk = subject.sdk(limited.text)
    for _ in range(LIMIT * 2):
        sdk.models.list()
    assert chat(subject, limited).headers["x-ratelimit-remaining-requests"] == "2"
