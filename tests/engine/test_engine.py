"""What only a real engine shows: its own errors, what it frees, how it hangs and dies."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import openai
import pytest

from standin.render import DONE
from tests.contract.developer import HELLO
from tests.contract.subject import Subject
from tests.contract.wire import exchange
from tests.engine.conftest import IDLE_SECONDS
from tests.engine.vllm_process import VllmProcess

CHAT = "/v1/chat/completions"


def ask(subject: Subject, **fields: object) -> httpx2.Response:
    body = {"model": subject.model, "messages": HELLO, "max_tokens": 20} | fields
    return httpx2.post(subject.gateway.url + CHAT, json=body, headers=subject.bearer(), timeout=60)


@contextmanager
def a_long_stream(subject: Subject) -> Iterator[Iterator[bytes]]:
    """The events of a stream that is under way."""
    body = {"model": subject.model, "messages": HELLO, "max_tokens": subject.output_cap, "ignore_eos": True}
    url = subject.gateway.url + CHAT
    body |= {"stream": True}
    with httpx2.stream("POST", url, json=body, headers=subject.bearer(), timeout=30) as reply:
        chunks = reply.iter_raw()
        next(chunks)
        yield chunks


class TestStreams:
    def test_the_bytes_are_vllms_own(self, subject: Subject) -> None:
        reply = ask(subject, stream=True, ignore_eos=True)
        events = reply.content.split(b"\n\n")
        assert events[0].startswith(b'data: {"id":"chatcmpl-')
        assert b'"delta":{"role":"assistant","content":""}' in events[0]
        assert reply.content.endswith(DONE)
        assert b'"usage"' not in reply.content

    def test_the_gateways_request_id_becomes_the_engines(self, subject: Subject) -> None:
        reply = ask(subject)
        assert reply.json()["id"] == f"chatcmpl-{reply.headers['x-request-id']}"

    def test_several_streams_at_once_are_kept_apart(self, subject: Subject) -> None:
        async def one(sdk: openai.AsyncOpenAI, at: int) -> str:
            stream = await sdk.chat.completions.create(
                model=subject.model,
                messages=HELLO,
                max_tokens=30,
                seed=at,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def both(at: int) -> tuple[str, str]:
            async with subject.async_sdk() as sdk:
                alone = await one(sdk, at)
                together, *_ = await asyncio.gather(one(sdk, at), *(one(sdk, 100 + n) for n in range(3)))
            return alone, together

        alone, together = asyncio.run(both(7))
        assert len(alone.split()) == len(together.split()) == 30


class TestErrors:
    @pytest.mark.parametrize("stream", [False, True])
    def test_what_the_engine_refuses_is_a_bad_request(self, subject: Subject, *, stream: bool) -> None:
        reply = ask(subject, stream=stream, reasoning_effort="canary")
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "engine_refused")
        assert "canary" not in reply.text

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_the_engine_answers_badly_never_gets_there(self, subject: Subject, *, stream: bool) -> None:
        """0.16.0 would answer 200 with an error inside."""
        with subject.engine_sees_nothing():
            reply = ask(subject, stream=stream, bad_words=[""])
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "parameter_not_allowed")

    @pytest.mark.parametrize(
        "fields",
        [
            {"messages": [{"content": "canary"}]},
            {"user": {"canary": 1}},
            {"n": 2, "temperature": 0},
            {"tool_choice": "canary"},
        ],
    )
    def test_no_text_of_the_engine_reaches_the_client(
        self, subject: Subject, fields: dict[str, object]
    ) -> None:
        reply = ask(subject, **fields)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "engine_refused")
        for leak in ("canary", "packages", "validation error", "vllm"):
            assert leak not in reply.text

    def test_an_endpoint_that_the_model_does_not_have_says_so(self, subject: Subject) -> None:
        with pytest.raises(openai.NotFoundError) as raised:
            subject.sdk().embeddings.create(model=subject.model, input="hello")
        assert raised.value.code == "endpoint_not_supported"


class TestHostTrick:
    @pytest.mark.parametrize("host", ["a?", "a#", "a/x"])
    def test_what_opens_the_older_engine_opens_nothing_through_the_gateway(
        self, subject: Subject, vllm: VllmProcess, host: str
    ) -> None:
        direct = exchange(vllm.port, "GET", "/v1/models", {"host": host})
        assert direct.status == (200 if vllm.version == "0.16.0" else 401)
        with subject.engine_sees_nothing():
            through = exchange(subject.gateway.port, "GET", "/v1/models", {"host": host})
            posted = exchange(
                subject.gateway.port, "POST", CHAT, {"host": host, "content-type": "application/json"}, b"{}"
            )
        assert (through.status, posted.status) == (401, 401)

    def test_the_engine_answers_the_gateway_by_key_alone(self, subject: Subject, vllm: VllmProcess) -> None:
        assert httpx2.get(f"{vllm.url}/v1/models").status_code == 401
        assert httpx2.get(f"{vllm.url}/v1/models", headers=subject.bearer()).status_code == 401
        assert ask(subject).status_code == 200


class TestHang:
    def test_a_core_that_hangs_is_an_error_event_and_the_engine_serves_again_after(
        self, subject: Subject, vllm: VllmProcess
    ) -> None:
        with a_long_stream(subject) as chunks:
            os.kill(vllm.core(), signal.SIGSTOP)
            try:
                started = time.monotonic()
                rest = b"".join(chunks)
                waited = time.monotonic() - started
                assert vllm.healthy(), "a hung engine still calls itself healthy"
            finally:
                os.kill(vllm.core(), signal.SIGCONT)
        assert b'"engine_timeout"' in rest.split(b"\n\n")[-2]
        assert DONE not in rest
        assert waited < IDLE_SECONDS + 2
        assert ask(subject).status_code == 200


class TestDeath:
    """Last of all: a test that came after would have to start the engine again."""

    def test_a_core_that_is_killed_ends_streams_with_an_error_event_and_then_all_is_503(
        self, subject: Subject, vllm: VllmProcess
    ) -> None:
        with a_long_stream(subject) as chunks:
            os.kill(vllm.core(), signal.SIGKILL)
            rest = b"".join(chunks)
        last = rest.split(b"\n\n")[-2]
        assert last.startswith(b'data: {"error":{')
        # An engine that takes longer to notice than the gateway waits is a timeout.
        assert b'"engine_error"' in last or b'"engine_timeout"' in last
        assert b"EngineCore" not in rest
        assert DONE not in rest
        assert vllm.exit_code(20) == 0, "on-failure would restart it after all"
        reply = ask(subject)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
        assert int(reply.headers["retry-after"]) >= 1
        deadline = time.monotonic() + 15
        while httpx2.get(f"{subject.gateway.url}/readyz").status_code == 200:
            assert time.monotonic() < deadline, "the gateway is ready without an engine"
            time.sleep(0.1)
