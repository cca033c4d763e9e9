from collections.abc import AsyncIterator, Callable

import httpx2
import pytest

from standin.app import Engine
from standin.config import EngineConfig
from standin.replies import Captures, load

CAPTURED_MODEL = "qwen2.5-14b-awq"
# The engine that was captured: its name, its context, and an answer of one word and the end token.
AS_CAPTURED = EngineConfig(served_model_names=(CAPTURED_MODEL,), max_model_len=2048, tokens=2)

Connect = Callable[[EngineConfig], httpx2.AsyncClient]


@pytest.fixture
def captures() -> Captures:
    return load()


@pytest.fixture
async def connect(captures: Captures) -> AsyncIterator[Connect]:
    """Gives a client of a stand-in with the given settings."""
    clients = []

    def connected(config: EngineConfig) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(app=Engine(config, captures))
        clients.append(httpx2.AsyncClient(transport=transport, base_url="http://engine"))
        return clients[-1]

    yield connected
    for client in clients:
        await client.aclose()


@pytest.fixture
def engine(connect: Connect) -> httpx2.AsyncClient:
    """A client of a stand-in that is set up like the captured engine."""
    return connect(AS_CAPTURED)
