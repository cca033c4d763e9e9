"""Fixtures: every Limiter, with time that a test can let pass."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from gateway.limits import Calendar, Limiter
from gateway.memory_limiter import MemoryLimiter
from gateway.valkey_limiter import ValkeyLimiter
from tests.fakes.clock import Clock
from tests.fakes.valkey_server import PASSWORD, ValkeyServer

Offers = Callable[[str], Mapping[str, str]]

VALKEY = pytest.param("valkey", marks=pytest.mark.requires("valkey"))
# Short enough to be waited for, long enough for a busy machine to stay within.
WINDOW = 1.5


@dataclass
class Timed:
    """A limiter and its time; `window` in seconds."""

    limiter: Limiter
    clock: Clock | None
    window: float = WINDOW

    async def passes(self, seconds: float) -> None:
        """By the clock of a limiter in memory, for real with Valkey, whose clock is its own."""
        if self.clock is None:
            await asyncio.sleep(seconds)
        else:
            self.clock.now += seconds


def connect(server: ValkeyServer, **given: Any) -> ValkeyLimiter:
    """A limiter on this server that waits 0.3 s for it."""
    defaults = {
        "replicas": 2,
        "monotonic": time.monotonic,
        "clock": time.time,
        "log": structlog.get_logger(),
        "window": WINDOW,
    }
    return ValkeyLimiter.connect(server.url, PASSWORD, 0.3, Calendar("UTC"), **(defaults | given))


@pytest.fixture(scope="session")
def valkey_server(capability: Offers) -> Iterator[ValkeyServer]:
    server = ValkeyServer(capability("valkey"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def own_valkey(capability: Offers) -> Iterator[ValkeyServer]:
    """One that a test may freeze and kill."""
    server = ValkeyServer(capability("valkey"))
    server.start()
    yield server
    server.close()


@pytest.fixture(params=["memory", VALKEY])
async def timed(request: pytest.FixtureRequest) -> AsyncIterator[Timed]:
    """Each limiter in turn. Subjects must be new in each test: Valkey's server is shared."""
    if request.param == "memory":
        clock = Clock()
        yield Timed(MemoryLimiter(Calendar("UTC"), monotonic=clock, clock=clock, window=WINDOW), clock)
        return
    limiter = connect(request.getfixturevalue("valkey_server"))
    yield Timed(limiter, None)
    await limiter.close()
