"""Composition: what runs beside the requests begins and ends with the block; its faults are not hidden."""

import asyncio

import orjson
import pytest

from gateway.identity import REFRESH_SECONDS
from gateway.upstreams import PROBE_SECONDS
from tests.fakes.asgi import call
from tests.fakes.inprocess import gateway
from tests.fakes.loop import run
from tests.fakes.transport import ScriptedTransport


async def test_the_engine_and_the_store_have_been_asked_once_before_anything_is_served() -> None:
    async with gateway() as running:
        ready = await call(running.apps.public, "GET", "/readyz")
        assert orjson.loads(ready.body) == {"status": "ready"}


async def test_nothing_runs_on_after_the_end() -> None:
    before = asyncio.all_tasks()
    async with gateway():
        assert len(asyncio.all_tasks() - before) >= 4
    assert asyncio.all_tasks() == before


def test_an_engine_that_goes_and_comes_is_noticed() -> None:
    async def scenario() -> list[int]:
        transport = ScriptedTransport()
        statuses = []
        async with gateway(transport) as running:
            for down in (set(), {"vllm"}, set()):
                transport.down = down
                await asyncio.sleep(PROBE_SECONDS + 0.1)
                statuses.append((await call(running.apps.public, "GET", "/readyz")).status)
        return statuses

    assert run(scenario()) == [200, 503, 200]


def test_a_fault_in_the_background_ends_the_block_instead_of_leaving_it_with_stale_keys() -> None:
    async def scenario() -> None:
        async with gateway() as running:
            running.store.fault = AssertionError("a fault of ours")
            await asyncio.sleep(REFRESH_SECONDS + 60)

    with pytest.raises(ExceptionGroup) as raised:
        run(scenario())
    assert raised.group_contains(AssertionError, match="a fault of ours")


async def test_served_names_and_aliases_are_the_models() -> None:
    async with gateway() as running:
        listed = orjson.loads((await running.ask("/v1/models", method="GET")).body)
        assert [model["id"] for model in listed["data"]] == ["served", "org/other", "alias"]
