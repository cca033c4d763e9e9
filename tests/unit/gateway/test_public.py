"""The public listener: the order of its checks, clients that leave, faults that tell nothing of a prompt."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.errors import EngineFailed
from gateway.relay import BrokenAnswer
from gateway.upstreams import unavailable
from tests.fakes.asgi import DISCONNECT, Client, call, scope
from tests.fakes.inprocess import InProcess, gateway
from tests.fakes.transport import EVENTS, ScriptedReply, ScriptedTransport, Step

CHAT = "/v1/chat/completions"
HUSH = "zq9-the-prompt"
WHOLE = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}'


def asking(**fields: Any) -> bytes:
    return orjson.dumps({"model": "alias", "messages": [{"role": "user", "content": HUSH}], **fields})


def whole() -> ScriptedReply:
    return ScriptedReply([WHOLE])


def events(*steps: Step) -> ScriptedReply:
    return ScriptedReply(steps, content_type=EVENTS)


async def settled() -> None:
    """Lets tasks that were cancelled end."""
    for _ in range(3):
        await asyncio.sleep(0)


def line_of(running: InProcess) -> dict[str, Any]:
    line: dict[str, Any] = running.lines("request")[-1]
    return line


async def test_a_request_goes_through_and_is_accounted_for() -> None:
    async with gateway(ScriptedTransport(whole())) as running:
        client = await running.ask(CHAT, asking(), x_request_id="req-7")
        assert (client.status, client.body) == (200, WHOLE)
        (sent,) = running.transport.sent
        assert orjson.loads(sent.body)["model"] == "served"
        assert sent.headers["X-Request-Id"] == client.headers["x-request-id"] == "req-7"
        assert client.headers["x-gatehouse-max-tokens"] == "1024"
        assert client.headers["x-ratelimit-limit-requests"] == "60"
        assert client.headers["x-ratelimit-remaining-requests"] == "59"
        assert client.headers["x-ratelimit-reset-requests"] == "1m0s"
        line = line_of(running)
        assert (line["request_id"], line["tenant"], line["model"]) == ("req-7", "acme", "served")
        assert (line["prompt_tokens"], line["completion_tokens"], line["finish_reason"]) == (3, 4, "stop")
        assert (line["bytes_in"], line["bytes_out"]) == (len(asking()), len(WHOLE))
        metrics = await running.metrics()
        assert 'gateway_prompt_tokens_total{model="served",tenant="acme"} 3.0' in metrics
        assert "gateway_requests_in_flight 0.0" in metrics
        assert "gateway_inflight_body_bytes 0.0" in metrics


async def test_a_cap_that_changed_nothing_is_not_told() -> None:
    async with gateway(ScriptedTransport(whole())) as running:
        client = await running.ask(CHAT, asking(max_tokens=10))
        assert "x-gatehouse-max-tokens" not in client.headers


@pytest.mark.parametrize(
    ("method", "path", "headers", "content", "status", "code"),
    [
        ("POST", "/v1/nothing", {"authorization": ""}, b"", 404, "path_not_found"),
        ("GET", CHAT, {"authorization": ""}, b"", 405, "method_not_allowed"),
        ("POST", CHAT, {"authorization": ""}, b"x", 401, "missing_api_key"),
        ("POST", CHAT, {"authorization": "Bearer sk-gh-x"}, b"x", 401, "mistyped_api_key"),
        ("POST", CHAT, {"authorization": "Bearer sk-other"}, b"x", 401, "invalid_api_key"),
        ("POST", CHAT, {"content_encoding": "gzip"}, b"x", 415, "unsupported_encoding"),
        ("POST", CHAT, {"content_length": "9999999"}, b"x", 413, "body_too_large"),
        ("POST", CHAT, {}, b"x" * 1001, 413, "body_too_large"),
        ("POST", CHAT, {}, b"{", 400, "invalid_json"),
        ("POST", CHAT, {}, b"[]", 400, "body_not_object"),
        ("POST", CHAT, {}, b"{}", 400, "missing_model"),
        ("POST", CHAT, {}, b'{"model": "nope"}', 404, "model_not_found"),
        ("POST", CHAT, {}, b'{"model": "alias", "max_tokens": 0}', 400, "invalid_max_tokens"),
        ("POST", CHAT, {}, b'{"model": "alias", "max_tokens": 9999}', 400, "max_tokens_too_large"),
        ("GET", "/v1/models/nope", {}, b"", 404, "model_not_found"),
    ],
)
async def test_what_is_refused_has_its_code_costs_nothing_and_never_reaches_the_engine(
    *, method: str, path: str, headers: dict[str, str], content: bytes, status: int, code: str
) -> None:
    async with gateway(ScriptedTransport(whole()), GATEWAY_MAX_BODY_BYTES="1000") as running:
        client = await running.ask(path, content, method=method, **headers)
        assert (client.status, client.error["code"]) == (status, code)
        assert client.headers["x-request-id"]
        assert client.whole
        assert running.transport.sent == []
        assert (line_of(running)["refused_by"], line_of(running)["status"]) == (code, status)
        after = await running.ask(CHAT, asking())
        assert after.headers["x-ratelimit-remaining-requests"] == "59"


async def test_over_the_limit_is_a_429_that_says_when() -> None:
    async with gateway(ScriptedTransport(whole()), {"limits": {"requests_per_minute": 1}}) as running:
        assert (await running.ask(CHAT, asking())).status == 200
        client = await running.ask(CHAT, asking())
        assert (client.status, client.error["code"]) == (429, "rate_limit_exceeded")
        assert 59 <= int(client.headers["retry-after"]) <= 60
        assert client.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(running.transport.sent) == 1


async def test_models_are_answered_without_the_engine_and_by_their_whole_name() -> None:
    async with gateway() as running:
        for path in ("/v1/models/alias", "/v1/models/org/other", "/v1/models/org%2Fother"):
            card = orjson.loads((await running.ask(path, method="GET")).body)
            assert (card["object"], card["id"]) == ("model", "alias" if "alias" in path else "org/other")
        assert running.transport.sent == []


async def test_health_is_told_to_anybody() -> None:
    transport = ScriptedTransport()
    transport.down = {"vllm"}
    async with gateway(transport) as running:
        assert (await call(running.apps.public, "GET", "/livez")).status == 200
        assert (await call(running.apps.public, "GET", "/readyz")).status == 503


async def test_what_is_no_http_request_is_left_to_the_server() -> None:
    async with gateway() as running:
        client = Client()
        await running.apps.public({"type": "websocket"}, client.receive, client.send)
        assert client.got == []
        assert running.lines("request") == []


async def test_an_engine_that_cannot_be_reached_is_a_503_that_says_when() -> None:
    async with gateway(ScriptedTransport(unavailable())) as running:
        client = await running.ask(CHAT, asking())
        assert (client.status, client.error["code"]) == (503, "engine_unavailable")
        assert client.headers["retry-after"] == "5"


async def test_a_client_that_leaves_closes_the_reply_and_is_counted() -> None:
    reply = events(b": begun\n\n", 30.0)
    async with gateway(ScriptedTransport(reply)) as running:
        before = asyncio.all_tasks()
        client = Client()
        task = asyncio.create_task(running.ask_as(client, CHAT, asking(stream=True)))
        await client.begun.wait()
        client.leave()
        await asyncio.wait_for(task, 5)
        assert reply.closed == 1
        line = line_of(running)
        assert (line["client_left"], line["status"], line["refused_by"]) == (True, 200, None)
        assert 'reason="client_disconnect"' in await running.metrics()
        await settled()
        assert asyncio.all_tasks() == before


async def test_a_client_that_leaves_before_the_engine_answers_frees_its_place() -> None:
    async with gateway(ScriptedTransport(30.0)) as running:
        client = Client()
        task = asyncio.create_task(running.ask_as(client, CHAT, asking()))
        await running.transport.asked.wait()
        client.leave()
        await asyncio.wait_for(task, 5)
        assert client.got == []
        assert line_of(running)["status"] == 499
        assert 'gateway_upstream_requests_in_flight{upstream="vllm"} 0.0' in await running.metrics()


async def test_a_client_that_leaves_while_it_sends_is_nobodys_failure() -> None:
    async with gateway() as running:
        client = Client([{"type": "http.request", "body": b"{", "more_body": True}, DISCONNECT])
        await running.apps.public(
            scope("POST", CHAT, running.head({}), client=client), client.receive, client.send
        )
        assert client.got == []
        line = line_of(running)
        assert (line["status"], line["client_left"], line["refused_by"]) == (499, True, None)


async def test_a_client_that_closes_after_the_last_byte_has_not_left_early() -> None:
    """Its connection's end comes as soon as the answer is complete."""

    class Hurried(Client):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "http.response.body" and not message["more_body"]:
                asyncio.get_running_loop().call_soon(self.leave)

    for reply, stream in ((whole(), False), (events(b"data: [DONE]\n\n"), True)):
        async with gateway(ScriptedTransport(reply)) as running:
            client = Hurried()
            await running.ask_as(client, CHAT, asking(stream=stream))
            await settled()
            assert client.whole
            assert line_of(running)["client_left"] is False


async def test_a_fault_of_ours_is_a_500_and_nothing_of_the_body_is_logged() -> None:
    async with gateway(ScriptedTransport(ValueError(HUSH))) as running:
        client = await running.ask(CHAT, asking())
        assert (client.status, client.error["code"]) == (500, "internal_error")
        assert client.error["message"] == "Something failed in the gateway. It has been logged."
        (fault,) = running.lines("fault")
        assert fault["error"] == "ValueError"
        assert fault["request_id"] == client.headers["x-request-id"]
        assert "transport.py:" in fault["where"]
        assert HUSH.encode() not in running.log.getvalue()
        assert line_of(running)["refused_by"] == "internal_error"


async def test_a_fault_after_the_first_byte_closes_the_connection_and_hands_no_text_to_the_servers_log() -> (
    None
):
    async with gateway(ScriptedTransport(events(b": begun\n\n", ValueError(HUSH)))) as running:
        client = Client()
        with pytest.raises(BrokenAnswer) as raised:
            await running.ask_as(client, CHAT, asking(stream=True))
        assert not client.whole
        assert raised.value.__suppress_context__
        assert raised.value.__cause__ is None
        assert HUSH.encode() not in running.log.getvalue()
        assert line_of(running)["refused_by"] == "internal_error"


async def test_an_answer_that_breaks_off_is_the_engines_failure_and_no_fault_of_ours() -> None:
    big = ScriptedReply([b'{"choices":"' + b"x" * 2_000_000, EngineFailed("The engine broke off its reply.")])
    async with gateway(ScriptedTransport(big)) as running:
        client = Client()
        with pytest.raises(BrokenAnswer):
            await running.ask_as(client, CHAT, asking())
        assert running.lines("fault") == []
        assert line_of(running)["refused_by"] == "engine_error"


async def test_a_request_that_a_shutdown_cuts_off_is_not_counted_as_answered() -> None:
    async with gateway(ScriptedTransport(30.0)) as running:
        task = asyncio.create_task(running.ask_as(Client(), CHAT, asking()))
        await running.transport.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        line = line_of(running)
        assert (line["status"], line["refused_by"], line["client_left"]) == (503, "draining", False)


async def test_a_body_is_given_back_whatever_became_of_the_request() -> None:
    replies = (whole(), ValueError("fault"), unavailable(), events(b": begun\n\n", ValueError("fault")))
    async with gateway(ScriptedTransport(*replies)) as running:
        for stream in (False, False, False, True):
            client = Client()
            try:
                await running.ask_as(client, CHAT, asking(stream=stream))
            except BrokenAnswer:
                assert stream
        await running.ask(CHAT, b"{")
        assert "gateway_inflight_body_bytes 0.0" in await running.metrics()
        assert "gateway_requests_in_flight 0.0" in await running.metrics()


async def test_whoever_is_asked_why_learns_whose_revoked_key_it_was() -> None:
    async with gateway() as running:
        _, listed = await running.admin("GET", "/admin/keys")
        key_id = listed["keys"][0]["id"]
        await running.admin("POST", f"/admin/keys/{key_id}/revoke")
        refused = await running.ask(CHAT, asking())
        request_id = refused.headers["x-request-id"]
        _, explained = await running.admin("GET", f"/admin/explain/{request_id}")
        assert (refused.status, refused.error["code"]) == (401, "revoked_api_key")
        assert (explained["tenant"], explained["key_id"]) == ("acme", key_id)
