"""What a health check is told: ready, degraded or unavailable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import HttpUrl

from gateway.configfiles import ConfigurationError
from gateway.health import ALIVE, Health
from gateway.jwks import KeySet, fetch
from gateway.ledger import Ledger
from gateway.limits import Calendar
from gateway.memory_limiter import MemoryLimiter
from gateway.plans import PlansFile
from gateway.settings import Upstream
from gateway.store import UsageEntry
from gateway.upstreams import Pool, Slot
from tests.fakes.clock import Clock
from tests.fakes.directories import MAX_AGE, Process
from tests.fakes.inprocess import write_plans
from tests.fakes.logs import LogLines
from tests.fakes.store import MemoryStore
from tests.fakes.transport import ScriptedTransport


class Parts:
    """All that a health check looks at."""

    def __init__(self, home: Path) -> None:
        self.clock, self.store, self.transport = Clock(), MemoryStore(), ScriptedTransport()
        calendar = Calendar("UTC")
        self.process = Process(self.store, self.clock)
        self.pool = Pool(
            [Slot(Upstream(name=n, url=HttpUrl(f"http://{n}")), "key") for n in "ab"], self.transport
        )
        self.ledger = Ledger(self.store, home / "spool", calendar, self.clock)
        self.limiter = MemoryLimiter(calendar, monotonic=self.clock, clock=self.clock)
        self.plans = PlansFile(write_plans(home, {}), LogLines().logger, models=())
        self.key_set = KeySet(
            "http://127.0.0.1:1", fetch=fetch, monotonic=self.clock, log=self.process.log.logger
        )
        self.health = Health(
            self.process.directory, self.pool, self.ledger, self.limiter, self.plans, self.key_set
        )

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        """After one round of what runs in the background."""
        await self.process.directory.refresh()
        await self.pool.probe()
        found = self.health.readiness()
        return found.status, orjson.loads(found.body)


@pytest.fixture
async def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


@pytest.mark.parametrize("down", [set(), {"a"}])
async def test_one_engine_and_the_store_are_enough_to_be_ready(parts: Parts, down: set[str]) -> None:
    parts.transport.down = down
    assert await parts.readiness() == (200, {"status": "ready"})


async def test_without_the_store_the_gateway_serves_known_keys_and_says_so(parts: Parts) -> None:
    await parts.readiness()
    parts.store.gone = True
    status, body = await parts.readiness()
    assert (status, body["status"]) == (200, "degraded")
    assert "known keys are served" in body["reasons"][0]


async def test_when_nobody_can_be_served_the_gateway_is_not_ready(parts: Parts) -> None:
    parts.store.gone = True
    assert (await parts.readiness())[0] == 503
    parts.store.gone = False
    assert (await parts.readiness())[0] == 200
    parts.store.gone = True
    parts.clock.now += MAX_AGE + 1
    status, body = await parts.readiness()
    assert (status, body["status"]) == (503, "unavailable")
    assert "nobody can be served" in body["reasons"][0]


@pytest.mark.parametrize("store_gone", [False, True])
async def test_without_any_engine_the_gateway_is_not_ready(parts: Parts, *, store_gone: bool) -> None:
    parts.transport.down, parts.store.gone = {"a", "b"}, store_gone
    unavailable = {"status": "unavailable", "reasons": ["no engine answers"]}
    assert await parts.readiness() == (503, unavailable)


async def spoil_ledger(parts: Parts) -> None:
    parts.ledger.record(
        UsageEntry("r", parts.clock.now, "acme", "k", "served", "/v1/x", 1, 1, estimated=False)
    )
    parts.store.gone = True
    await parts.ledger.flush()
    parts.store.gone = False


async def spoil_limiter(parts: Parts) -> None:
    parts.limiter.problem = "TimeoutError"


async def spoil_plans(parts: Parts) -> None:
    parts.plans.path.write_text("plans: 5")
    with pytest.raises(ConfigurationError):
        parts.plans.reload()


async def spoil_key_set(parts: Parts) -> None:
    await parts.key_set.refresh()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_key_set, "issuer does not answer"),
        (spoil_ledger, "usage ledger"),
        (spoil_limiter, "Valkey does not answer"),
        (spoil_plans, "plans file has a mistake"),
    ],
)
async def test_what_is_in_trouble_is_said_by_a_gateway_that_serves(
    parts: Parts, spoil: Callable[[Parts], Any], reason: str
) -> None:
    await spoil(parts)
    status, body = await parts.readiness()
    assert (status, body["status"], len(body["reasons"])) == (200, "degraded", 1)
    assert reason in body["reasons"][0]


@pytest.mark.parametrize(("lost", "says"), [(0, "none is lost"), (3, "some of it was lost")])
async def test_of_usage_that_waits_it_is_said_whether_any_was_lost(
    parts: Parts, lost: int, says: str
) -> None:
    await spoil_ledger(parts)
    parts.ledger.lost = lost
    _, body = await parts.readiness()
    assert says in body["reasons"][0]


def test_a_live_process_says_only_that() -> None:
    assert orjson.loads(ALIVE) == {"status": "alive"}
