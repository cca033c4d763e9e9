"""Limits over HTTP: the named moment is true, headers agree with /v1/limits, every end frees what it held."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.errors import EngineFailed
from tests.fakes.asgi import Client, call
from tests.fakes.inprocess import InProcess, gateway
from tests.fakes.transport import EVENTS, ScriptedReply, ScriptedTransport

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {
    "model": "alias",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 20,
}
SIZE = len(orjson.dumps(HELLO))


def answered(tokens: int = 10) -> ScriptedReply:
    usage = {"prompt_tokens": tokens - 2, "completion_tokens": 2, "total_tokens": tokens}
    return ScriptedReply([orjson.dumps({"choices": [{"finish_reason": "stop"}], "usage": usage})])


def counted(prompt: int) -> ScriptedReply:
    """From the engine's tokenizer."""
    return ScriptedReply([orjson.dumps({"count": prompt, "max_model_len": 8192, "tokens": []})])


async def chat(running: InProcess, **fields: Any) -> Client:
    return await running.ask(CHAT, orjson.dumps(HELLO | fields))


async def limits(running: InProcess) -> dict[str, Any]:
    client = await call(running.apps.public, "GET", "/v1/limits", running.head({}))
    return {f"{one['limit']} {one['scope']}": one for one in orjson.loads(client.body)["data"]}


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ({"requests_per_minute": 2}, "rate_limit_exceeded"),
        ({"tokens_per_minute": 25}, "token_rate_limit_exceeded"),
        ({"tokens_per_day": 25}, "quota_exceeded"),
        ({"tokens_per_month": 25}, "quota_exceeded"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_retry_at_the_named_moment_succeeds_and_none_before(plan: dict[str, int], code: str) -> None:
    if "requests_per_minute" in plan:
        transport = ScriptedTransport(*[answered() for _ in range(3)])
    else:  # near a limit the prompt is counted first, for each try
        counts = ("pass", "pass", "refuse", "refuse", "pass")
        replies = [[counted(5), answered()] if each == "pass" else [counted(5)] for each in counts]
        transport = ScriptedTransport(*[reply for each in replies for reply in each])
    async with gateway(transport, {"limits": plan}) as running:
        ask = {"max_tokens": 2}
        assert (await chat(running, **ask)).status == 200
        running.clock.now += 7.25
        assert (await chat(running, **ask)).status == 200
        refused = await chat(running, **ask)
        assert (refused.status, refused.error["code"]) == (429, code)
        wait = int(refused.headers["retry-after"])
        assert (refused.headers.get("x-should-retry") == "false") == (wait > 60)
        running.clock.now += wait - 1.01
        assert (await chat(running, **ask)).status == 429
        running.clock.now += 1.01
        assert (await chat(running, **ask)).status == 200


async def test_the_headers_agree_with_what_the_key_is_told() -> None:
    async with gateway(
        ScriptedTransport(answered()), {"limits": {"requests_per_minute": 3, "tokens_per_minute": 5000}}
    ) as running:
        client = await chat(running)
        told = await limits(running)
    requests, tokens = told["requests_per_minute key"], told["tokens_per_minute key"]
    assert client.headers["x-ratelimit-limit-requests"] == str(requests["amount"]) == "3"
    assert client.headers["x-ratelimit-remaining-requests"] == str(requests["remaining"]) == "2"
    assert client.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert client.headers["x-ratelimit-limit-tokens"] == str(tokens["amount"]) == "5000"
    # The header was sent before the engine told: it has what was reserved.
    assert int(client.headers["x-ratelimit-remaining-tokens"]) < tokens["remaining"] == 4990


async def test_what_never_fits_says_so_and_is_not_to_be_tried_again() -> None:
    async with gateway(plan={"limits": {"tokens_per_minute": 10}}) as running:
        refused = await chat(running)
    assert (refused.status, refused.error["code"]) == (429, "request_exceeds_limit")
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers


async def test_a_tenants_keys_share_its_limit_and_everyones_is_for_all() -> None:
    parts = {"each_tenant": {"requests_per_minute": 2}, "everyone": {"requests_per_minute": 3}}
    async with gateway(ScriptedTransport(*[answered() for _ in range(4)]), parts=parts) as running:
        keys = {}
        for name, tenant in (("a1", "acme"), ("a2", "acme"), ("b", "beta"), ("c", "gamma")):
            _, made = await running.admin("POST", "/admin/keys", {"name": name, "tenant": tenant})
            keys[name] = f"Bearer {made['key']}"

        async def status(name: str) -> tuple[int, str]:
            client = await running.ask(CHAT, orjson.dumps(HELLO), authorization=keys[name])
            return client.status, "" if client.status == 200 else client.error["message"].partition(" may")[0]

        assert [await status(name) for name in ("a1", "a2", "a1", "b", "c")] == [
            (200, ""),
            (200, ""),
            (429, "Your tenant"),
            (200, ""),
            (429, "This service"),
        ]


STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
ENDS: dict[str, list[ScriptedReply | Exception | float]] = {
    "answered": [answered()],
    "refused by the engine": [ScriptedReply([b'{"error":{"message":"no","code":400}}'], status=400)],
    "engine error": [ScriptedReply([b"oops"], status=500, content_type="text/html")],
    "engine gone": [EngineFailed("The engine closed the connection without a reply.")],
    "broken stream": [
        ScriptedReply([STREAM, EngineFailed("The engine broke off its reply.")], content_type=EVENTS)
    ],
    "broken at once": [ScriptedReply([EngineFailed("The engine broke off its reply.")], content_type=EVENTS)],
    "error event": [ScriptedReply([b'data: {"error":{"message":"no","code":500}}\n\n'], content_type=EVENTS)],
}


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_request_frees_its_place_once(end: str) -> None:
    streamed = "stream" in end or "event" in end or "once" in end
    plan = {"limits": {"parallel_requests": 1, "tokens_per_minute": 100_000}}
    async with gateway(ScriptedTransport(*ENDS[end], answered()), plan) as running:
        await chat(running, stream=streamed)
        told = await limits(running)
        assert told["parallel_requests key"]["used"] == 0
        assert (await chat(running)).status == 200
        assert "gateway_leases 0.0" in await running.metrics()


@pytest.mark.parametrize("steps", [[5.0], [STREAM, 5.0]], ids=["before the first byte", "in mid-stream"])
async def test_a_client_that_leaves_frees_its_place_and_pays_an_estimate(steps: list[Any]) -> None:
    plan = {"limits": {"parallel_requests": 1, "tokens_per_minute": 100_000}}
    transport = ScriptedTransport(ScriptedReply(steps, content_type=EVENTS), answered())
    async with gateway(transport, plan) as running:
        client = Client()
        asking = asyncio.create_task(running.ask_as(client, CHAT, orjson.dumps(HELLO | {"stream": True})))
        await transport.asked.wait()
        await asyncio.sleep(0.02)
        assert (await limits(running))["parallel_requests key"]["used"] == 1
        client.leave()
        await asking
        told = await limits(running)
        assert told["parallel_requests key"]["used"] == 0
        assert 0 < told["tokens_per_minute key"]["used"] <= SIZE + 20
        [line] = [line for line in running.lines("request") if line["route"] == CHAT]
        assert line["completion_tokens"] == (20 if steps == [5.0] else 1)
        assert (await chat(running)).status == 200


async def test_a_change_of_the_plans_counts_for_the_next_request_and_settles_what_runs() -> None:
    transport = ScriptedTransport(
        ScriptedReply([STREAM, 5.0], content_type=EVENTS), *[answered() for _ in range(3)]
    )
    async with gateway(
        transport, {"limits": {"parallel_requests": 1, "requests_per_minute": 100}}
    ) as running:
        client = Client()
        asking = asyncio.create_task(running.ask_as(client, CHAT, orjson.dumps(HELLO | {"stream": True})))
        await transport.asked.wait()
        await asyncio.sleep(0.02)
        assert (await chat(running)).status == 429
        running.write_plan({"limits": {"parallel_requests": 2, "requests_per_minute": 100}})
        assert (await running.admin("POST", "/admin/plans/reload"))[0] == 200
        assert (await chat(running)).status == 200
        running.write_plan({"limits": {"requests_per_minute": 2}})
        assert (await running.admin("POST", "/admin/plans/reload"))[0] == 200
        assert (await chat(running)).status == 429
        client.leave()
        await asking
        running.write_plan({"limits": {"parallel_requests": 1}})
        assert (await running.admin("POST", "/admin/plans/reload"))[0] == 200
        assert (await limits(running))["parallel_requests key"]["used"] == 0
        assert (await chat(running)).status == 200
        assert "gateway_leases 0.0" in await running.metrics()
