"""Valkey that freezes, dies and comes back: limits go on in each gateway's memory, and are shared again."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.limits import Ask, Limit, Total
from gateway.meters import MemoryLease
from gateway.valkey_limiter import PAUSE_SECONDS, RAISE_SECONDS, ValkeyLimiter
from tests.fakes.limiters import connect
from tests.fakes.valkey_server import ValkeyServer

pytestmark = pytest.mark.requires("valkey")

ASK = Ask(10, 10, 10)
PLACES = Limit("parallel_requests", "everyone", "", 4)
DAY = Limit("tokens_per_day", "key", "k", 1000)


async def nothing() -> list[Total]:
    return []


@contextlib.asynccontextmanager
async def running(
    server: ValkeyServer, totals: Callable[[], Awaitable[list[Total]]] = nothing, **given: Any
) -> AsyncIterator[ValkeyLimiter]:
    """A gateway's limiter with its background work."""
    limiter = connect(server, **given)
    work = asyncio.create_task(limiter.run(totals))
    try:
        yield limiter
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await limiter.close()


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.05)


async def test_gateways_share_their_limits(own_valkey: ValkeyServer) -> None:
    async with running(own_valkey) as one, running(own_valkey) as two:
        for limiter in (one, two, one, two):
            assert (await limiter.reserve(secrets.token_hex(4), (PLACES,), ASK)).lease
        assert (await one.reserve("x", (PLACES,), ASK)).lease is None
        assert (await two.reserve("x", (PLACES,), ASK)).lease is None


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_while_it_is_gone_each_gateway_keeps_its_share(own_valkey: ValkeyServer, how: str) -> None:
    async with running(own_valkey) as limiter:
        held = [(await limiter.reserve(str(i), (PLACES,), ASK)).lease for i in range(4)]
        getattr(own_valkey, how)()
        started = time.monotonic()
        leases = [(await limiter.reserve(f"local-{i}", (PLACES,), ASK)).lease for i in range(3)]
        assert time.monotonic() - started < 1.5, "one request waits for the timeout, the others do not"
        assert [isinstance(lease, MemoryLease) for lease in leases] == [True, True, False]
        assert leases[2] is None, "a share of 4 places among 2 gateways is 2"
        assert limiter.problem is not None
        started = time.monotonic()
        for lease in held:
            assert lease
            await limiter.settle(lease, 3)
        assert time.monotonic() - started < 1.5
        own_valkey.thaw() if how == "freeze" else own_valkey.start()
        await until(lambda: limiter.problem is None)
        again = [(await limiter.reserve(f"again-{i}", (PLACES,), ASK)).lease for i in range(5)]
        assert [lease is not None for lease in again] == [True] * 4 + [False]
        assert not any(isinstance(lease, MemoryLease) for lease in again)


async def test_a_gateway_starts_without_it(own_valkey: ValkeyServer) -> None:
    own_valkey.kill()
    async with running(own_valkey) as limiter:
        assert isinstance((await limiter.reserve("x", (PLACES,), ASK)).lease, MemoryLease)
        assert (await limiter.readings((PLACES,)))[0].limit == PLACES
        own_valkey.start()
        await until(lambda: limiter.problem is None)
        assert not isinstance((await limiter.reserve("y", (PLACES,), ASK)).lease, MemoryLease)


async def test_a_settlement_that_could_not_be_delivered_is_delivered_later(own_valkey: ValkeyServer) -> None:
    async with running(own_valkey) as limiter, running(own_valkey) as other:
        lease = (await limiter.reserve("x", (PLACES, DAY), Ask(500, 500, 500))).lease
        assert lease
        own_valkey.freeze()
        await limiter.settle(lease, 20)
        own_valkey.thaw()
        await until(lambda: limiter.problem is None)
        await asyncio.sleep(PAUSE_SECONDS)  # for the other, which may have met the silence too
        assert [one.used for one in await other.readings((PLACES, DAY))] == [0, 20]


async def test_a_caller_that_left_a_silent_server_holds_nothing_once_it_answers(
    own_valkey: ValkeyServer,
) -> None:
    async with running(own_valkey) as limiter:
        await limiter.reserve("warm", (), ASK)
        own_valkey.freeze()
        task = asyncio.create_task(limiter.reserve("left", (PLACES, DAY), ASK))
        await asyncio.sleep(0.1)
        task.cancel()
        await until(lambda: limiter.problem is not None)
        own_valkey.thaw()
        await until(lambda: limiter.problem is None)
        assert [one.used for one in await limiter.readings((PLACES, DAY))] == [0, 0]


async def test_what_an_outage_hid_is_told_by_the_ledger(own_valkey: ValkeyServer) -> None:
    spent, now = 0, [1000.0]

    async def ledger() -> list[Total]:
        return [Total("key", "k", "tokens_per_day", time.strftime("%Y-%m-%d", time.gmtime()), spent)]

    async with running(own_valkey, ledger, monotonic=lambda: now[0]) as limiter:
        held = (await limiter.reserve("x", (DAY,), Ask(500, 500, 500))).lease
        assert held
        own_valkey.kill()
        own_valkey.start()
        await limiter.readings((DAY,))
        await until(lambda: limiter.problem is None)
        await limiter.settle(held, 400)
        assert (await limiter.readings((DAY,)))[0].used == 0, "an emptied server knows nothing of it"
        spent = 400
        await limiter._tend()
        assert (await limiter.readings((DAY,)))[0].used == 0
        now[0] += RAISE_SECONDS
        await limiter._tend()
        assert (await limiter.readings((DAY,)))[0].used == 400


async def test_a_server_that_comes_back_empty_learns_the_quotas_again(own_valkey: ValkeyServer) -> None:
    spent = 0

    async def ledger() -> list[Total]:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        return [Total("key", "k", "tokens_per_day", today, spent)]

    async with running(own_valkey, ledger) as limiter:
        lease = (await limiter.reserve("x", (DAY,), Ask(900, 900, 900))).lease
        assert lease
        await limiter.settle(lease, 850)
        spent = 850
        own_valkey.kill()
        own_valkey.start()
        decision = await limiter.reserve("y", (DAY,), Ask(200, 200, 200))
        if decision.lease is not None:  # the connection was found broken: a local share, until it is back
            assert isinstance(decision.lease, MemoryLease)
            await limiter.settle(decision.lease, 0)
            await until(lambda: limiter.problem is None)
            decision = await limiter.reserve("z", (DAY,), Ask(200, 200, 200))
        assert [one.used for one in decision.refused] == [850]


async def test_the_places_of_a_dead_gateway_become_free(own_valkey: ValkeyServer) -> None:
    dead = connect(own_valkey, hold=0.6)
    async with running(own_valkey) as alive:
        for i in range(4):
            assert (await dead.reserve(str(i), (PLACES,), ASK)).lease
        await dead.close()
        assert (await alive.reserve("x", (PLACES,), ASK)).lease is None
        await asyncio.sleep(0.8)
        assert (await alive.reserve("x", (PLACES,), ASK)).lease


async def test_a_heartbeat_keeps_places_and_brings_back_none(own_valkey: ValkeyServer) -> None:
    async with running(own_valkey, hold=0.6) as limiter:
        kept = (await limiter.reserve("kept", (PLACES,), ASK)).lease
        for _ in range(4):
            await asyncio.sleep(0.3)
            await limiter._tend()  # its own interval is ten seconds
        assert (await limiter.readings((PLACES,)))[0].used == 1
        assert kept
        await limiter.settle(kept, 0)
        await limiter._tend()
        assert (await limiter.readings((PLACES,)))[0].used == 0


async def test_a_caller_that_leaves_while_it_reserves_holds_nothing(own_valkey: ValkeyServer) -> None:
    async with running(own_valkey) as limiter:
        await limiter.reserve("warm", (), ASK)
        for _ in range(20):
            task = asyncio.create_task(limiter.reserve(secrets.token_hex(4), (PLACES,), ASK))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                lease = (await task).lease
                assert lease
                await limiter.settle(lease, 0)
        await asyncio.sleep(0.3)
        assert (await limiter.readings((PLACES,)))[0].used == 0
        assert limiter.leases == 1, "the one that was reserved before"


async def test_a_share_is_never_nothing(own_valkey: ValkeyServer) -> None:
    own_valkey.kill()
    async with running(own_valkey, replicas=8) as limiter:
        assert (await limiter.reserve("x", (replace(PLACES, amount=1),), ASK)).lease


async def test_a_request_that_was_charged_although_nobody_heard_is_given_back(
    own_valkey: ValkeyServer,
) -> None:
    """The answer comes after the patience is over: the server has run the script all the same."""
    async with running(own_valkey) as limiter:
        assert (await limiter.reserve("warm", (DAY,), ASK)).lease
        own_valkey.freeze()
        local = (await limiter.reserve("late", (DAY,), Ask(300, 300, 300))).lease
        assert isinstance(local, MemoryLease)
        own_valkey.thaw()
        await until(lambda: limiter.problem is None)
        assert [one.used for one in await limiter.readings((DAY,))] == [10]
