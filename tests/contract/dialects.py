"""The routes beside chat and completions: responses, messages, and counting, through the official SDKs."""

import json
import time
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import MessageParam

from tests.contract.subject import ALIAS, DEFAULT_TOKENS, Subject
from tests.contract.wire import RawReply, exchange

TEXT = "hello world"
GREETING: list[MessageParam] = [{"role": "user", "content": TEXT}]
JSON = {"content-type": "application/json"}
COUNT = "/v1/messages/count_tokens"


def logged(subject: Subject, reply: httpx2.Response) -> tuple[object, object]:
    """Prompt and completion tokens as the gateway has counted them for a request."""
    line = subject.gateway.access_line(reply.headers["x-request-id"])
    return line["prompt_tokens"], line["completion_tokens"]


class TestResponses:
    def test_a_response_has_text_usage_and_the_name_of_the_served_model(self, subject: Subject) -> None:
        response = subject.sdk().responses.create(model=ALIAS, input=TEXT, max_output_tokens=6)
        assert response.output_text
        assert response.model == subject.model
        assert response.usage
        assert 0 < response.usage.output_tokens <= 6
        assert response.usage.input_tokens > 0

    def test_a_stream_has_named_events_and_ends_with_usage(self, subject: Subject) -> None:
        stream = subject.sdk().responses.create(
            model=subject.model, input=TEXT, max_output_tokens=8, stream=True
        )
        events = list(stream)
        assert events[0].type == "response.created"
        assert [event.sequence_number for event in events] == list(range(len(events)))
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.usage
        assert 0 < last.response.usage.output_tokens <= 8
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(pieces) == last.response.output_text

    async def test_the_async_client_streams_too(self, subject: Subject) -> None:
        async with subject.async_sdk() as sdk:
            stream = await sdk.responses.create(
                model=subject.model, input=TEXT, max_output_tokens=4, stream=True
            )
            assert [event.type async for event in stream][-1] == "response.completed"

    def test_instructions_and_messages_are_input_too(self, subject: Subject) -> None:
        response = subject.sdk().responses.create(
            model=subject.model,
            instructions="be brief",
            input=[{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}],
            max_output_tokens=4,
        )
        assert response.output_text

    def test_more_than_the_cap_is_clamped_and_a_header_says_so(self, subject: Subject) -> None:
        reply = subject.sdk().responses.with_raw_response.create(
            model=subject.model, input=TEXT, max_output_tokens=subject.output_cap + 1
        )
        assert reply.headers["x-gatehouse-max-tokens"] == str(subject.output_cap)
        assert reply.parse().max_output_tokens == subject.output_cap

    def test_the_default_applies_where_nothing_is_asked_for(self, subject: Subject) -> None:
        response = subject.sdk().responses.create(model=subject.model, input=TEXT)
        assert response.max_output_tokens == DEFAULT_TOKENS
        assert response.usage
        assert response.usage.output_tokens <= DEFAULT_TOKENS

    @pytest.mark.parametrize("stream", [False, True])
    def test_an_input_beyond_the_context_says_so(self, subject: Subject, *, stream: bool) -> None:
        long = "hello " * (subject.max_model_len + 1)
        with pytest.raises(openai.BadRequestError) as raised:
            subject.sdk().responses.create(
                model=subject.model, input=long, max_output_tokens=4, stream=stream
            )
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")

    def test_a_model_that_does_not_exist_is_not_found(self, subject: Subject) -> None:
        with subject.engine_sees_nothing(), pytest.raises(openai.NotFoundError) as raised:
            subject.sdk().responses.create(model="nope", input=TEXT)
        assert raised.value.code == "model_not_found"

    @pytest.mark.parametrize(
        "fields",
        [
            {"previous_response_id": "resp_1"},
            {"background": True},
            {"conversation": "conv_1"},
        ],
        ids=lambda fields: next(iter(fields)),
    )
    def test_what_would_have_to_be_stored_is_refused_with_its_name(
        self, subject: Subject, fields: dict[str, Any]
    ) -> None:
        with subject.engine_sees_nothing(), pytest.raises(openai.BadRequestError) as raised:
            subject.sdk().responses.create(
                model=subject.model, input=TEXT, max_output_tokens=2, extra_body=fields
            )
        assert raised.value.param == next(iter(fields))
        assert raised.value.code == "parameter_not_allowed"

    @pytest.mark.parametrize("stream", [False, True])
    def test_its_tokens_are_counted(self, subject: Subject, *, stream: bool) -> None:
        body = {"model": subject.model, "input": TEXT, "max_output_tokens": 5, "stream": stream}
        reply = httpx2.post(
            f"{subject.gateway.url}/v1/responses", json=body, headers=subject.bearer(), timeout=30
        )
        told = json.loads(reply.text.rpartition("data: ")[2])["response"] if stream else reply.json()
        assert logged(subject, reply) == (told["usage"]["input_tokens"], told["usage"]["output_tokens"])


class TestMessages:
    def test_a_message_has_text_usage_and_the_name_of_the_served_model(self, subject: Subject) -> None:
        message = subject.anthropic().messages.create(model=ALIAS, max_tokens=6, messages=GREETING)
        assert message.content[0].type == "text"
        assert message.content[0].text
        assert message.model == subject.model
        assert message.role == "assistant"
        assert message.stop_reason in {"max_tokens", "end_turn"}
        assert 0 < message.usage.output_tokens <= 6

    def test_a_stream_has_text_and_ends_with_usage(self, subject: Subject) -> None:
        client = subject.anthropic()
        with client.messages.stream(model=subject.model, max_tokens=8, messages=GREETING) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        assert message.stop_reason in {"max_tokens", "end_turn"}
        assert 0 < message.usage.output_tokens <= 8
        assert message.usage.input_tokens > 0
        blocks = [block.text for block in message.content if block.type == "text"]
        assert "".join(blocks) == text

    async def test_the_async_client_streams_too(self, subject: Subject) -> None:
        async with subject.async_anthropic() as client:
            stream = await client.messages.create(
                model=subject.model, max_tokens=4, messages=GREETING, stream=True
            )
            assert [event.type async for event in stream][-1] == "message_stop"

    def test_the_beta_client_with_its_query_is_served_too(self, subject: Subject) -> None:
        message = subject.anthropic().beta.messages.create(
            model=subject.model, max_tokens=2, messages=[{"role": "user", "content": TEXT}]
        )
        assert message.usage.output_tokens <= 2

    def test_a_system_prompt_is_taken(self, subject: Subject) -> None:
        message = subject.anthropic().messages.create(
            model=subject.model, max_tokens=4, messages=GREETING, system="be brief"
        )
        assert message.usage.input_tokens > 0

    def test_a_key_may_also_come_as_a_bearer_token(self, subject: Subject) -> None:
        client = anthropic.Anthropic(
            base_url=subject.gateway.url, api_key=None, auth_token=subject.key.text, max_retries=0
        )
        with client:
            assert client.messages.create(model=subject.model, max_tokens=2, messages=GREETING).content

    def test_more_than_the_cap_is_clamped_and_a_header_says_so(self, subject: Subject) -> None:
        reply = subject.anthropic().messages.with_raw_response.create(
            model=subject.model, max_tokens=subject.output_cap + 1, messages=GREETING
        )
        assert reply.headers["x-gatehouse-max-tokens"] == str(subject.output_cap)
        assert reply.parse().usage.output_tokens <= subject.output_cap

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_beyond_the_context_says_so(self, subject: Subject, *, stream: bool) -> None:
        long: list[MessageParam] = [{"role": "user", "content": "hello " * (subject.max_model_len + 1)}]
        with pytest.raises(anthropic.BadRequestError) as raised:
            subject.anthropic().messages.create(
                model=subject.model, max_tokens=4, messages=long, stream=stream
            )
        error = anthropic_error(raised.value)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert error["type"] == "invalid_request_error"

    @pytest.mark.parametrize("stream", [False, True])
    def test_its_tokens_are_counted(self, subject: Subject, *, stream: bool) -> None:
        body = {"model": subject.model, "messages": GREETING, "max_tokens": 5, "stream": stream}
        reply = httpx2.post(
            f"{subject.gateway.url}/v1/messages", json=body, headers=subject.bearer(), timeout=30
        )
        told = json.loads(reply.text.split("\n\n")[-3].partition("data: ")[2]) if stream else reply.json()
        usage = told["usage"]
        assert logged(subject, reply) == (usage["input_tokens"], usage["output_tokens"])


def anthropic_error(raised: anthropic.APIStatusError) -> dict[str, Any]:
    """Anthropic's error object; every refusal has its shape, and a request id that the SDK finds."""
    body = raised.body
    assert isinstance(body, dict)
    assert body["type"] == "error"
    assert raised.request_id == raised.response.headers["x-request-id"] == body["request_id"]
    error = body["error"]
    assert isinstance(error, dict)
    assert error["message"]
    return error


class TestAnthropicErrors:
    def test_a_model_that_does_not_exist_is_not_found(self, subject: Subject) -> None:
        with subject.engine_sees_nothing(), pytest.raises(anthropic.NotFoundError) as raised:
            subject.anthropic().messages.create(model="nope", max_tokens=4, messages=GREETING)
        error = anthropic_error(raised.value)
        assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")

    def test_a_wrong_key_is_an_authentication_error(self, subject: Subject) -> None:
        client = subject.anthropic("sk-gh-nothing")
        with subject.engine_sees_nothing(), pytest.raises(anthropic.AuthenticationError) as raised:
            client.messages.create(model=subject.model, max_tokens=4, messages=GREETING)
        assert anthropic_error(raised.value)["type"] == "authentication_error"

    def test_what_the_gateway_cannot_read_is_a_bad_request(self, subject: Subject) -> None:
        with subject.engine_sees_nothing():
            reply = send(subject, "/v1/messages", b"{")
        assert reply.status == 400
        body = json.loads(reply.body)
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert body["error"]["code"] == "invalid_json"

    @pytest.mark.parametrize(
        ("method", "path", "status", "kind"),
        [
            ("POST", "/v1/messages/batches", 404, "not_found_error"),
            ("GET", "/v1/messages", 405, "invalid_request_error"),
            ("DELETE", COUNT, 405, "invalid_request_error"),
        ],
    )
    def test_a_path_or_method_that_is_not_served_has_the_shape_too(
        self, subject: Subject, method: str, path: str, status: int, kind: str
    ) -> None:
        with subject.engine_sees_nothing():
            reply = exchange(subject.gateway.port, method, path, subject.bearer())
        assert reply.status == status
        assert json.loads(reply.body)["error"]["type"] == kind
        assert reply.headers["request-id"] == reply.headers["x-request-id"]

    def test_what_the_engine_refuses_comes_without_the_engines_text(self, subject: Subject) -> None:
        image = {"type": "base64", "media_type": "image/png", "data": "Y2FuYXJ5"}
        content = [{"type": "image", "source": image}, {"type": "text", "text": "canary"}]
        body = {
            "model": subject.model,
            "max_tokens": 4,
            "temperature": "canary-hot",
            "messages": [{"role": "user", "content": content}],
        }
        reply = send(subject, "/v1/messages", json.dumps(body).encode())
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"
        leaks = (b"canary", b"site-packages", b"dist-packages", b"multimodal", b"body.", b"line ")
        assert not any(leak in reply.body for leak in leaks)

    def test_x_api_key_opens_no_other_route(self, subject: Subject) -> None:
        body = json.dumps({"model": subject.model, "messages": GREETING}).encode()
        headers = {"x-api-key": subject.key.text} | JSON
        with subject.engine_sees_nothing():
            reply = exchange(subject.gateway.port, "POST", "/v1/chat/completions", headers, body)
        assert reply.status == 401
        assert json.loads(reply.body)["error"]["code"] == "missing_api_key"


def send(subject: Subject, path: str, body: bytes) -> RawReply:
    return exchange(subject.gateway.port, "POST", path, subject.bearer() | JSON, body)


class TestCounting:
    def test_messages_are_counted_as_they_are_then_used_where_the_engine_can(self, subject: Subject) -> None:
        client = subject.anthropic()
        if not subject.counts_messages:
            with pytest.raises(anthropic.NotFoundError) as raised:
                client.messages.count_tokens(model=subject.model, messages=GREETING)
            assert anthropic_error(raised.value)["code"] == "endpoint_not_supported"
            return
        count = client.messages.count_tokens(model=ALIAS, messages=GREETING, system="be brief")
        message = client.messages.create(
            model=subject.model, max_tokens=2, messages=GREETING, system="be brief"
        )
        assert count.input_tokens == message.usage.input_tokens

    def test_text_is_tokenized(self, subject: Subject) -> None:
        reply = send(subject, "/tokenize", json.dumps({"model": ALIAS, "prompt": TEXT}).encode())
        assert reply.status == 200
        told = json.loads(reply.body)
        assert told["count"] == len(told["tokens"]) == 2
        assert told["max_model_len"] == subject.max_model_len

    def test_a_chats_tokens_are_those_that_it_then_uses(self, subject: Subject) -> None:
        body = json.dumps({"model": subject.model, "messages": GREETING}).encode()
        told = json.loads(send(subject, "/tokenize", body).body)
        answer = subject.sdk().chat.completions.create(
            model=subject.model, messages=[{"role": "user", "content": TEXT}], max_tokens=2
        )
        assert answer.usage
        assert told["count"] == answer.usage.prompt_tokens

    def test_counting_needs_a_key(self, subject: Subject) -> None:
        body = json.dumps({"model": subject.model, "prompt": TEXT}).encode()
        with subject.engine_sees_nothing():
            for path in ("/tokenize", COUNT):
                assert exchange(subject.gateway.port, "POST", path, JSON, body).status == 401


class TestLeavingAStream:
    """A client that leaves frees the engine, on these routes too."""

    @pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
    def test_a_client_that_leaves_ends_it_at_the_engine(self, subject: Subject, path: str) -> None:
        prompt = {"input": TEXT} if path == "/v1/responses" else {"messages": GREETING}
        field = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body = {"model": subject.model, field: subject.output_cap, "stream": True} | prompt
        url = f"{subject.gateway.url}{path}"
        with httpx2.stream("POST", url, json=body, headers=subject.bearer()) as reply:
            assert next(reply.iter_raw()).startswith(b"event: ")
        deadline = time.monotonic() + 10.0
        while subject.engine.requests_running():
            assert time.monotonic() < deadline, "the engine still works, long after its client left"
            time.sleep(0.02)
