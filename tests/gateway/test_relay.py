"""What passes through, and what does not: bytes, headers, request ids."""

import json
from typing import Any

import httpx2
import pytest

from standin.render import DONE
from tests.contract.developer import HELLO
from tests.contract.subject import ALIAS, DEFAULT_TOKENS, Subject, plan
from tests.contract.wire import exchange
from tests.fakes import scenarios
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import ENGINE_KEY, MODEL, OUTPUT_CAP, StartGateway

CHAT = "/v1/chat/completions"
MADE_ID = r"req-[0-9a-f]{32}"


def post(subject: Subject, path: str = CHAT, **fields: object) -> httpx2.Response:
    body = {"model": subject.model, "max_tokens": 12} | fields
    body |= {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    return httpx2.post(subject.gateway.url + path, json=body, headers=subject.bearer(), timeout=10)


def without_usage_event(stream: bytes) -> bytes:
    events = stream.split(b"\n\n")
    return b"\n\n".join(event for event in events if b'"choices":[]' not in event)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
class TestStreams:
    def test_a_stream_is_the_engines_bytes_less_the_usage_that_nobody_asked_for(
        self, subject: Subject, engine: FakeEngine, path: str
    ) -> None:
        reply = post(subject, path, stream=True)
        seen = engine.only_request()
        assert seen.json["stream_options"] == {"include_usage": True}
        assert b'"usage":{' in seen.sent
        assert reply.content == without_usage_event(bytes(seen.sent))
        assert reply.content.endswith(DONE)

    @pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_usage": None}, None])
    def test_usage_is_hidden_whatever_way_it_was_not_asked_for(
        self, subject: Subject, engine: FakeEngine, path: str, options: object
    ) -> None:
        reply = post(subject, path, stream=True, stream_options=options)
        assert reply.content == without_usage_event(bytes(engine.only_request().sent))

    def test_a_stream_with_usage_is_the_engines_bytes(
        self, subject: Subject, engine: FakeEngine, path: str
    ) -> None:
        reply = post(subject, path, stream=True, stream_options={"include_usage": True})
        assert reply.content == bytes(engine.only_request().sent)
        assert reply.content.count(b'"choices":[]') == 1

    def test_running_usage_passes_where_it_was_asked_for(
        self, subject: Subject, engine: FakeEngine, path: str
    ) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        reply = post(subject, path, stream=True, stream_options=options)
        assert engine.only_request().json["stream_options"] == options
        assert reply.content == bytes(engine.only_request().sent)

    def test_an_answer_is_the_engines_bytes(self, subject: Subject, engine: FakeEngine, path: str) -> None:
        assert post(subject, path).content == bytes(engine.only_request().sent)


class TestUnusualStreams:
    @pytest.mark.parametrize(
        "pieces",
        [
            [b"data", b": {", b'"choices":[', b"]}", b"\n", b"\nda", b"ta: [DONE]\n\n"],
            [b'data: {"choices":[]}\n\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'],
            [b": a comment\n\n", b'event: x\ndata: {"choices":[]}\r\n\r\n', DONE],
            [b'data: {"choices":[{"delta":{"content":"\\"usage\\":{ \\"error\\": [DONE]"}}]}\n\n', DONE],
            ['data: {"choices":[{"text":"žluťoučký 🦊"}]}\n\n'.encode(), DONE],
        ],
    )  # fmt: skip
    def test_any_cutting_and_any_event_passes_as_it_is(
        self, subject: Subject, engine: FakeEngine, pieces: list[bytes]
    ) -> None:
        engine.scenario = scenarios.streams(*pieces, pause=0.02)
        assert post(subject, stream=True).content == b"".join(pieces)

    def test_an_event_arrives_while_the_engine_still_works_on_the_next(
        self, subject: Subject, engine: FakeEngine
    ) -> None:
        engine.scenario = scenarios.stalls_after(1)
        body = {"model": subject.model, "messages": HELLO, "stream": True}
        url = subject.gateway.url + CHAT
        with httpx2.stream("POST", url, json=body, headers=subject.bearer(), timeout=0.8) as reply:
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert reply.headers["cache-control"].startswith("no-cache")
            assert "content-length" not in reply.headers
            chunks = reply.iter_raw()
            assert next(chunks).endswith(b"\n\n")


class TestUpstreamRequest:
    def test_the_engine_gets_the_gateways_headers_and_none_of_the_clients(
        self, subject: Subject, engine: FakeEngine
    ) -> None:
        theirs = {
            "x-request-id": "from-the-client", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
            "baggage": "a=b",
            "x-data-parallel-rank": "1", "x-forwarded-for": "203.0.113.9", "cookie": "a=b", "x-api-key": "k",
            "accept-encoding": "gzip", "user-agent": "client/1", "origin": "https://evil.test", "host": "a?",
            "x-session-id": "1", "referer": "https://evil.test", "te": "trailers", "expect": "100-continue",
        }  # fmt: skip
        body = json.dumps({"model": subject.model, "messages": HELLO}).encode()
        headers = subject.bearer() | {"content-type": "text/plain"} | theirs
        exchange(subject.gateway.port, "POST", CHAT + "?a=b&api_key=1", headers, body)
        seen = engine.only_request()
        assert seen.target == CHAT.encode()
        assert seen.header("host") == [engine.url.removeprefix("http://")]
        assert seen.header("authorization") == [f"Bearer {ENGINE_KEY}"]
        assert seen.header("content-type") == ["application/json"]
        assert seen.header("content-length") == [str(len(seen.body))]
        assert {name for name, _ in seen.headers} <= {
            "host", "authorization", "content-type", "content-length", "x-request-id", "accept"
        }  # fmt: skip

    def test_an_alias_becomes_the_served_name(self, subject: Subject, engine: FakeEngine) -> None:
        post(subject, model=ALIAS)
        assert engine.only_request().json["model"] == MODEL

    def test_what_the_gateway_does_not_know_passes_unchanged(
        self, subject: Subject, engine: FakeEngine
    ) -> None:
        fields: dict[str, Any] = {
            "temperature": 0.1, "stop": ["\n", "😀"], "seed": 2**62, "logit_bias": {"5": -1.5},
            "user": "někdo",
            "response_format": {"type": "json_object"}, "metadata": {"deep": [[[{"x": None}]]]}, "top_p": 1,
        }  # fmt: skip
        post(subject, **fields)
        seen = engine.only_request().json
        assert {name: seen[name] for name in fields} == fields

    @pytest.mark.parametrize(
        ("path", "asked", "sent"),
        [
            (CHAT, {}, {"max_tokens": DEFAULT_TOKENS}),
            (CHAT, {"max_tokens": None}, {"max_tokens": DEFAULT_TOKENS}),
            (CHAT, {"max_tokens": 5}, {"max_tokens": 5}),
            (CHAT, {"max_tokens": OUTPUT_CAP}, {"max_tokens": OUTPUT_CAP}),
            (CHAT, {"max_tokens": OUTPUT_CAP + 1}, {"max_tokens": OUTPUT_CAP}),
            (CHAT, {"max_completion_tokens": OUTPUT_CAP + 1}, {"max_completion_tokens": OUTPUT_CAP}),
            (
                CHAT,
                {"max_tokens": 5, "max_completion_tokens": OUTPUT_CAP + 1},
                {"max_tokens": 5, "max_completion_tokens": OUTPUT_CAP},
            ),
            (CHAT, {"n": 4, "max_tokens": OUTPUT_CAP}, {"max_tokens": OUTPUT_CAP // 4}),
            ("/v1/completions", {}, {"max_tokens": 16}),
            ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 599}, {"max_tokens": OUTPUT_CAP // 2}),
        ],
    )  # fmt: skip
    def test_the_engine_is_asked_for_no_more_than_the_cap(
        self, subject: Subject, engine: FakeEngine, path: str, asked: dict[str, object], sent: dict[str, int]
    ) -> None:
        engine.scenario = scenarios.replies(200, {"choices": []})
        body = {"model": subject.model} | ({"messages": HELLO} if path == CHAT else {"prompt": "x"}) | asked
        reply = httpx2.post(subject.gateway.url + path, json=body, headers=subject.bearer())
        seen = engine.only_request().json
        limits = {name: seen[name] for name in ("max_tokens", "max_completion_tokens") if name in seen}
        assert limits == sent
        changed = any(asked.get(name) != value for name, value in sent.items())
        assert ("x-gatehouse-max-tokens" in reply.headers) == changed

    def test_a_gateway_that_refuses_above_the_cap_says_what_the_cap_is(
        self, start_gateway: StartGateway, engine: FakeEngine, subject: Subject
    ) -> None:
        gateway = start_gateway(parts={"output": plan(OUTPUT_CAP)["output"] | {"over_cap": "refuse"}})
        strict = subject.behind(gateway)
        with strict.engine_sees_nothing():
            reply = post(strict, max_completion_tokens=OUTPUT_CAP + 1)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "max_tokens_too_large")
        assert error["param"] == "max_completion_tokens"
        assert str(OUTPUT_CAP) in error["message"]
        assert post(strict, max_completion_tokens=OUTPUT_CAP).status_code == 200

    def test_embeddings_reach_the_engine(self, subject: Subject, engine: FakeEngine) -> None:
        engine.scenario = scenarios.replies(
            200, {"data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
        )
        body = {"model": subject.model, "input": "hello"}
        reply = httpx2.post(f"{subject.gateway.url}/v1/embeddings", json=body, headers=subject.bearer())
        assert reply.content == bytes(engine.only_request().sent)
        sent = engine.only_request().json
        assert sent.pop("cache_salt")
        assert sent == body
        assert subject.gateway.access_line(reply.headers["x-request-id"])["prompt_tokens"] == 3

    def test_connections_to_the_engine_are_used_again(self, subject: Subject, engine: FakeEngine) -> None:
        post(subject)
        before = engine.open_connections
        for _ in range(10):
            post(subject)
        # A health probe at the same moment has a connection of its own.
        assert engine.open_connections <= before + 1


class TestRequestIds:
    @pytest.mark.parametrize("given", ["abc", "A-1_b.c", "x" * 128, "00000000-0000-4000-8000-000000000000"])
    def test_a_well_formed_id_is_kept_all_the_way(
        self, subject: Subject, engine: FakeEngine, given: str
    ) -> None:
        headers = subject.bearer() | {"x-request-id": given}
        body = {"model": subject.model, "messages": HELLO}
        reply = httpx2.post(subject.gateway.url + CHAT, json=body, headers=headers)
        assert reply.headers["x-request-id"] == given
        assert engine.only_request().header("x-request-id") == [given]
        assert subject.gateway.access_line(given)["status"] == 200

    @pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "{}", "é", "a/b", "a;b", "a%20b"])
    def test_any_other_is_replaced(self, subject: Subject, engine: FakeEngine, given: str) -> None:
        reply = exchange(
            subject.gateway.port, "GET", "/v1/models", subject.bearer() | {"x-request-id": given}
        )
        made = reply.headers["x-request-id"]
        assert made != given
        assert subject.gateway.access_line(made)["status"] == 200

    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/nowhere", "/v1/models"])
    def test_every_answer_has_one(self, subject: Subject, path: str) -> None:
        first, second = (httpx2.get(subject.gateway.url + path).headers["x-request-id"] for _ in range(2))
        assert first != second
