"""The official SDK, through Caddy's TLS, the gateway and the engine's port."""

import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import httpx2
import openai
import pytest

from gateway import keys
from tests.stack.stack import Stack, until

MODEL = "qwen2.5-14b-instruct-awq"
SECONDS_PER_TOKEN = 0.1  # --delay in compose.test.yaml
ASKED: Any = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def sdk(stack: Stack, trust: ssl.SSLContext) -> Iterator[openai.OpenAI]:
    with client(stack, trust, stack.create_key("sdk")["key"]) as made:
        yield made


def client(stack: Stack, trust: ssl.SSLContext, key: str) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"https://localhost:{stack.ports['HTTPS_PORT']}/v1",
        api_key=key, max_retries=0, http_client=httpx2.Client(verify=trust, timeout=30),
    )  # fmt: skip


def test_an_answer_arrives_whole(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=5)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_a_stream_arrives_token_by_token_as_the_engine_makes_it(sdk: openai.OpenAI) -> None:
    tokens = 20
    began = time.monotonic()
    arrived = [
        time.monotonic() - began
        for event in sdk.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=tokens, stream=True)
        if event.choices and event.choices[0].delta.content
    ]
    assert len(arrived) == tokens
    # The engine makes token i no sooner than i pauses after it began: the way adds no more than this.
    lags = [at - SECONDS_PER_TOKEN * number for number, at in enumerate(arrived, start=1)]
    gaps = [later - earlier for earlier, later in pairwise(arrived)]
    print(f"\n{tokens} tokens: worst lag {max(lags) * 1000:.0f} ms, shortest gap {min(gaps) * 1000:.0f} ms")
    assert max(lags) < 0.5
    # Events that were held back would arrive together.
    assert sum(gap < SECONDS_PER_TOKEN / 4 for gap in gaps) <= 2


def test_a_stream_is_not_compressed(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.with_streaming_response.create(
        model=MODEL,
        messages=ASKED,
        max_tokens=20,
        stream=True,
        extra_headers={"Accept-Encoding": "gzip, zstd"},
    ) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in reply.headers
        assert reply.headers["x-request-id"]
        assert list(reply.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_the_models_are_listed(sdk: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in sdk.models.list()]
    assert sdk.models.retrieve(MODEL).id == MODEL


def test_a_key_that_does_not_exist_is_an_authentication_error(stack: Stack, trust: ssl.SSLContext) -> None:
    with (
        client(stack, trust, keys.generate()) as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_a_key_lives_from_its_creation_to_its_revocation(stack: Stack, trust: ssl.SSLContext) -> None:
    made = stack.create_key("short-lived")
    listed = json.loads(stack.ops("keys", "list", "--json").stdout)["keys"]
    assert made["id"] in {key["id"] for key in listed}
    assert made["key"] not in json.dumps(listed)
    with client(stack, trust, made["key"]) as holder:
        assert holder.models.list().data
        stack.ops("keys", "revoke", made["id"])
        revoked = time.monotonic()
        refusal = until("the key is refused", lambda: refused(holder), seconds=5)
        print(f"\nrefused {time.monotonic() - revoked:.1f} s after its revocation")
    assert refusal.code == "revoked_api_key"


def refused(holder: openai.OpenAI) -> openai.AuthenticationError | None:
    try:
        holder.models.list()
    except openai.AuthenticationError as error:
        return error
    return None


def test_a_body_over_the_cap_is_refused_before_the_engine_sees_it(sdk: openai.OpenAI, stack: Stack) -> None:
    seen = stack.value("sum(vllm:request_success_total) or vector(0)")
    with pytest.raises(openai.APIStatusError) as refusal:
        sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 1_100_000}])
    assert refusal.value.status_code == 413
    assert refusal.value.code == "body_too_large"
    assert stack.value("sum(vllm:request_success_total) or vector(0)") == seen


def test_a_certificate_of_caddys_own_authority_is_needed_to_trust_it(stack: Stack) -> None:
    https = http.client.HTTPSConnection("localhost", stack.ports["HTTPS_PORT"], timeout=10)
    with closing(https) as connection, pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/livez")


def test_plain_http_is_sent_to_https(stack: Stack) -> None:
    plain = http.client.HTTPConnection("localhost", stack.ports["HTTP_PORT"], timeout=10)
    with closing(plain) as connection:
        connection.request("GET", "/v1/models?x=1")
        reply = connection.getresponse()
    assert reply.status == 308
    assert reply.headers["Location"] == f"https://localhost:{stack.ports['HTTPS_PORT']}/v1/models?x=1"


def test_what_a_client_says_about_its_own_address_is_not_believed(sdk: openai.OpenAI, stack: Stack) -> None:
    forged = "203.0.113.9"
    sdk.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=1,
        extra_headers={"X-Forwarded-For": forged, "X-Real-Ip": forged, "X-Request-Id": "who-am-i"},
    )  # fmt: skip
    line = until("the access line", lambda: access_line(stack, "who-am-i"), seconds=5)
    assert line["client_ip"] not in {forged, None}
    assert not re.match(r"172\.29\.240\.", str(line["client_ip"])), "that is Caddy, not the client"


def test_caddys_log_tells_no_key(sdk: openai.OpenAI, stack: Stack) -> None:
    sdk.models.list(extra_query={"key": "sk-gh-in-a-query"})
    log = stack.compose("logs", "--no-color", "caddy")
    assert "/v1/models" in log
    assert "sk-gh-" not in log


def access_line(stack: Stack, request_id: str) -> dict[str, Any] | None:
    log = stack.compose("logs", "--no-color", "--no-log-prefix", "gateway")
    lines = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
    return next((line for line in lines if line.get("request_id") == request_id), None)
