"""What an app developer relies on, seen through the official SDK: the same over every engine."""

import time

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionUserMessageParam

from tests.contract.subject import ALIAS, DEFAULT_TOKENS, Subject

HELLO: list[ChatCompletionMessageParam] = [ChatCompletionUserMessageParam(role="user", content="hello world")]
# The engine goes on to its limit instead of stopping where it likes.
ENDLESS = {"ignore_eos": True}


class TestChat:
    def test_an_answer_has_text_usage_and_the_name_of_the_served_model(self, subject: Subject) -> None:
        answer = subject.sdk().chat.completions.create(
            model=subject.model, messages=HELLO, max_tokens=6, extra_body=ENDLESS
        )
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "length"
        assert answer.model == subject.model
        assert answer.usage
        assert answer.usage.completion_tokens == 6
        assert answer.usage.prompt_tokens > 0

    def test_an_alias_reaches_the_model_it_stands_for(self, subject: Subject) -> None:
        answer = subject.sdk().chat.completions.create(model=ALIAS, messages=HELLO, max_tokens=2)
        assert answer.model == subject.model

    def test_a_stream_arrives_in_pieces_and_ends(self, subject: Subject) -> None:
        stream = subject.sdk().chat.completions.create(
            model=subject.model, messages=HELLO, max_tokens=8, stream=True, extra_body=ENDLESS
        )
        chunks = list(stream)
        pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
        assert len(pieces) > 1
        assert chunks[-1].choices[0].finish_reason == "length"

    def test_a_stream_has_no_usage_that_nobody_asked_for(self, subject: Subject) -> None:
        stream = subject.sdk().chat.completions.create(
            model=subject.model, messages=HELLO, max_tokens=4, stream=True
        )
        assert all(chunk.usage is None and chunk.choices for chunk in stream)

    def test_a_stream_has_the_usage_that_was_asked_for(self, subject: Subject) -> None:
        stream = subject.sdk().chat.completions.create(
            model=subject.model,
            messages=HELLO,
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=ENDLESS,
        )
        *chunks, last = list(stream)
        assert all(chunk.usage is None for chunk in chunks)
        assert not last.choices
        assert last.usage
        assert last.usage.completion_tokens == 4

    async def test_the_async_client_streams_too(self, subject: Subject) -> None:
        async with subject.async_sdk() as sdk:
            stream = await sdk.chat.completions.create(
                model=subject.model, messages=HELLO, max_tokens=5, stream=True, extra_body=ENDLESS
            )
            text = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(text)

    def test_usage_is_counted_whether_or_not_it_was_asked_for(self, subject: Subject) -> None:
        def counted() -> float:
            return subject.gateway.metric("gateway_completion_tokens_total", model=subject.model)

        before = counted()
        stream = subject.sdk().chat.completions.with_raw_response.create(
            model=subject.model, messages=HELLO, max_tokens=7, stream=True, extra_body=ENDLESS
        )
        list(stream.parse())
        line = subject.gateway.access_line(stream.headers["x-request-id"])
        assert line["completion_tokens"] == 7
        assert counted() == before + 7


class TestCompletions:
    def test_a_completion(self, subject: Subject) -> None:
        answer = subject.sdk().completions.create(
            model=subject.model, prompt="hello", max_tokens=5, extra_body=ENDLESS
        )
        assert answer.choices[0].text
        assert answer.usage
        assert answer.usage.completion_tokens == 5

    def test_a_streamed_completion(self, subject: Subject) -> None:
        stream = subject.sdk().completions.create(
            model=subject.model, prompt="hello", max_tokens=5, stream=True, extra_body=ENDLESS
        )
        chunks = list(stream)
        assert "".join(chunk.choices[0].text for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "length"


class TestModels:
    def test_the_list_has_the_model_and_its_alias(self, subject: Subject) -> None:
        assert {model.id for model in subject.sdk().models.list()} >= {subject.model, ALIAS}

    def test_one_model_can_be_asked_for(self, subject: Subject) -> None:
        assert subject.sdk().models.retrieve(subject.model).id == subject.model

    def test_a_model_that_does_not_exist_is_not_found(self, subject: Subject) -> None:
        with subject.engine_sees_nothing(), pytest.raises(openai.NotFoundError) as raised:
            subject.sdk().models.retrieve("nope")
        assert raised.value.code == "model_not_found"

    def test_a_chat_with_a_model_that_does_not_exist_is_not_found(self, subject: Subject) -> None:
        with subject.engine_sees_nothing(), pytest.raises(openai.NotFoundError) as raised:
            subject.sdk().chat.completions.create(model="nope", messages=HELLO)
        assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


class TestOutputCap:
    def test_more_than_the_cap_is_clamped_and_a_header_says_so(self, subject: Subject) -> None:
        raw = subject.sdk().chat.completions.with_raw_response.create(
            model=subject.model, messages=HELLO, max_tokens=subject.output_cap + 1, extra_body=ENDLESS
        )
        usage = raw.parse().usage
        assert raw.headers["x-gatehouse-max-tokens"] == str(subject.output_cap)
        assert usage
        assert usage.completion_tokens == subject.output_cap

    def test_the_default_applies_where_nothing_is_asked_for(self, subject: Subject) -> None:
        answer = subject.sdk().chat.completions.create(
            model=subject.model, messages=HELLO, extra_body=ENDLESS
        )
        assert answer.usage
        assert answer.usage.completion_tokens == DEFAULT_TOKENS


class TestEngineErrors:
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_beyond_the_context_says_so(self, subject: Subject, *, stream: bool) -> None:
        long = ChatCompletionUserMessageParam(role="user", content="hello " * (subject.max_model_len + 1))
        with pytest.raises(openai.BadRequestError) as raised:
            subject.sdk().chat.completions.create(
                model=subject.model, messages=[long], max_tokens=4, stream=stream
            )
        assert raised.value.code == "context_length_exceeded"
        assert raised.value.param == "messages"

    def test_for_a_completion_it_is_the_prompt_that_is_too_long(self, subject: Subject) -> None:
        with pytest.raises(openai.BadRequestError) as raised:
            subject.sdk().completions.create(
                model=subject.model, prompt="hello " * (subject.max_model_len + 1), max_tokens=4
            )
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "prompt")

    def test_what_the_engine_refuses_is_a_bad_request_without_the_engines_text(
        self, subject: Subject
    ) -> None:
        body = {"model": subject.model, "user": "canary"}
        with pytest.raises(openai.BadRequestError) as raised:
            subject.sdk().post("/chat/completions", cast_to=object, body=body)
        assert raised.value.code == "engine_refused"
        # The older engine does not say which parameter it was.
        assert raised.value.param in {"messages", None}
        text = raised.value.response.text
        assert not any(
            part in text for part in ("canary", "site-packages", "dist-packages", "body.", "line ")
        )


class TestLeaving:
    """A client that leaves frees the engine, at once."""

    def test_a_client_that_leaves_a_stream_ends_it_at_the_engine(self, subject: Subject) -> None:
        before = subject.engine.completion_tokens()
        url = f"{subject.gateway.url}/v1/completions"
        with httpx2.stream("POST", url, json=_long(subject, stream=True), headers=subject.bearer()) as reply:
            chunks = reply.iter_raw()
            assert next(chunks).startswith(b"data: {")
        _stops_early(subject, before)

    def test_a_client_that_leaves_before_its_answer_ends_it_at_the_engine(self, subject: Subject) -> None:
        before = subject.engine.completion_tokens()
        url = f"{subject.gateway.url}/v1/completions"
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, json=_long(subject, stream=False), headers=subject.bearer(), timeout=0.3)
        _stops_early(subject, before)


def _long(subject: Subject, *, stream: bool) -> dict[str, object]:
    return {
        "model": subject.model,
        "prompt": "hello",
        "max_tokens": subject.output_cap,
        "stream": stream,
        "ignore_eos": True,
    }


def _stops_early(subject: Subject, tokens_before: float) -> None:
    # Not how soon, on a busy machine, but that it stops before it is done.
    deadline = time.monotonic() + 10.0
    while subject.engine.requests_running():
        assert time.monotonic() < deadline, "the engine still works, long after its client left"
        time.sleep(0.02)
    tokens = subject.engine.completion_tokens()
    assert tokens - tokens_before < subject.output_cap
    time.sleep(0.2)
    assert subject.engine.completion_tokens() == tokens, "the engine works on without a client"
