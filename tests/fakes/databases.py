"""Fixtures: a PostgreSQL server for the whole run, databases of it, one of a test's own, and every Store."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gateway.sqlstore import SqlStore
from gateway.store import Store
from tests.fakes.postgres import PASSWORD, PostgresServer
from tests.fakes.store import MemoryStore

Offers = Callable[[str], Mapping[str, str]]

POSTGRES = pytest.param("postgresql", marks=pytest.mark.requires("postgres"))


@pytest.fixture(scope="session")
def postgres_server(capability: Offers) -> Iterator[PostgresServer]:
    server = PostgresServer(capability("postgres"))
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def own_postgres(capability: Offers) -> Iterator[PostgresServer]:
    """One that a test may stop and kill."""
    server = PostgresServer(capability("postgres"))
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Every implementation, empty."""
    opened: Store
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "sqlite":
        opened = SqlStore.open_sqlite(tmp_path / "gateway.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        opened = SqlStore.postgresql(server.database(), PASSWORD)
    yield opened
    await opened.close()


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = SqlStore.open_sqlite(tmp_path / "gateway.db")
    yield opened
    await opened.close()
