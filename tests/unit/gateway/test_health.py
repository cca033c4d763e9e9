"""What a health check is told: ready, degraded or unavailable."""

import orjson
import pytest
from pydantic import HttpUrl

from gateway.health import ALIVE, Health
from gateway.identity import KeyDirectory
from gateway.settings import Upstream
from gateway.upstreams import Pool, Slot
from tests.fakes.clock import Clock
from tests.fakes.store import MemoryKeyStore
from tests.fakes.transport import ScriptedTransport


async def readiness(*, down: set[str], store_gone: bool) -> tuple[int, dict[str, object]]:
    store, transport = MemoryKeyStore(), ScriptedTransport()
    store.gone, transport.down = store_gone, down
    directory = KeyDirectory(store, pepper=b"p", default_rpm=60, clock=Clock())
    pool = Pool([Slot(Upstream(name=n, url=HttpUrl(f"http://{n}")), "key") for n in "ab"], transport)
    await directory.refresh()
    await pool.probe()
    found = Health(directory, pool).readiness()
    return found.status, orjson.loads(found.body)


@pytest.mark.parametrize("down", [set(), {"a"}])
async def test_one_engine_and_the_store_are_enough_to_be_ready(down: set[str]) -> None:
    assert await readiness(down=down, store_gone=False) == (200, {"status": "ready"})


async def test_without_the_store_the_gateway_still_serves_and_says_so() -> None:
    status, body = await readiness(down=set(), store_gone=True)
    assert (status, body["status"]) == (200, "degraded")
    assert body["reasons"]


@pytest.mark.parametrize("store_gone", [False, True])
async def test_without_any_engine_the_gateway_is_not_ready(*, store_gone: bool) -> None:
    status, body = await readiness(down={"a", "b"}, store_gone=store_gone)
    assert (status, body) == (503, {"status": "unavailable", "reasons": ["no engine answers"]})


def test_a_live_process_says_only_that() -> None:
    assert orjson.loads(ALIVE) == {"status": "alive"}
