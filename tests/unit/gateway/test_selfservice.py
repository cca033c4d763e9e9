"""What a key learns of itself, and of nobody else."""

from typing import Any

import orjson
import pytest

from tests.fakes.asgi import call
from tests.fakes.inprocess import InProcess, gateway
from tests.fakes.transport import ScriptedReply, ScriptedTransport

CHAT = "/v1/chat/completions"
HELLO = orjson.dumps({"model": "alias", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 50})


def answered() -> ScriptedReply:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    return ScriptedReply([orjson.dumps({"choices": [{"finish_reason": "stop"}], "usage": usage})])


async def get(running: InProcess, path: str, query: str = "", **headers: str) -> tuple[int, Any]:
    client = await call(running.apps.public, "GET", path, running.head(headers), query=query.encode())
    return client.status, orjson.loads(client.body)


async def test_limits_tell_what_each_holds_and_what_is_not_enforced() -> None:
    plan = {
        "limits": {"requests_per_minute": 5, "tokens_per_minute": 1000, "shadow": ["tokens_per_minute"]},
        "output": {"cap": 100, "default": 20, "over_cap": "refuse"},
    }
    async with gateway(ScriptedTransport(answered()), plan) as running:
        await running.ask(CHAT, HELLO)
        running.clock.now += 10.0
        status, told = await get(running, "/v1/limits")
    assert status == 200
    assert told["plan"] == "standard"
    assert told["output_tokens"] == {"cap": 100, "default": 20, "over_cap": "refuse"}
    assert told["data"] == [
        {
            "object": "limit",
            "limit": "requests_per_minute",
            "scope": "key",
            "amount": 5,
            "used": 1,
            "remaining": 4,
            "resets_in_seconds": 50,
            "enforced": True,
        },
        {
            "object": "limit",
            "limit": "tokens_per_minute",
            "scope": "key",
            "amount": 1000,
            "used": 13,
            "remaining": 987,
            "resets_in_seconds": 50,
            "enforced": False,
        },
    ]


async def test_asking_costs_nothing() -> None:
    async with gateway(plan={"limits": {"requests_per_minute": 1}}) as running:
        for _ in range(5):
            status, told = await get(running, "/v1/limits")
            assert (status, told["data"][0]["used"]) == (200, 0)


async def test_usage_is_told_per_day_and_model_for_this_key_alone() -> None:
    async with gateway(ScriptedTransport(answered(), answered(), answered())) as running:
        await running.ask(CHAT, HELLO)
        await running.ask(CHAT, HELLO)
        _, other = await running.admin("POST", "/admin/keys", {"name": "other", "tenant": "acme"})
        await running.ask(CHAT, HELLO, authorization=f"Bearer {other['key']}")
        status, told = await get(running, "/v1/usage")
    assert status == 200
    assert (told["from"], told["to"]) == ("2026-12-16", "2027-01-15")
    assert told["data"] == [
        {
            "object": "usage",
            "day": "2027-01-15",
            "model": "served",
            "requests": 2,
            "prompt_tokens": 18,
            "completion_tokens": 8,
            "estimated_requests": 0,
        }
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("from=yesterday", "from"),
        ("to=2026-13-01", "to"),
        ("from=2027-01-02&to=2027-01-01", "from"),
        ("from=2020-01-01", "from"),
        ("key_id=another", "key_id"),
        ("to=", "to"),
    ],
)
async def test_a_wrong_question_is_refused_by_name(query: str, param: str) -> None:
    async with gateway() as running:
        status, refused = await get(running, "/v1/usage", query)
    assert (status, refused["error"]["code"], refused["error"]["param"]) == (400, "invalid_parameter", param)


async def test_usage_without_the_store_is_a_503_that_loses_nothing() -> None:
    async with gateway(ScriptedTransport(answered())) as running:
        await running.ask(CHAT, HELLO)
        running.store.gone = True
        status, refused = await get(running, "/v1/usage")
        assert (status, refused["error"]["code"]) == (503, "store_unavailable")
        running.store.gone = False
        status, told = await get(running, "/v1/usage")
        assert (status, told["data"][0]["requests"]) == (200, 1)


@pytest.mark.parametrize("path", ["/v1/limits", "/v1/usage", "/v1/models"])
async def test_a_stranger_learns_nothing(path: str) -> None:
    async with gateway() as running:
        status, _ = await get(running, path, authorization="")
    assert status == 401
