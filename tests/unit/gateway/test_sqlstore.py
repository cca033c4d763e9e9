"""Stores that break, hang, stop and come back; what the database itself refuses."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.sqlstore import SqlStore
from gateway.store import Store, StoreError, StoreUnfit
from tests.fakes.databases import POSTGRES
from tests.fakes.postgres import PASSWORD, USER, PostgresServer
from tests.fakes.proxy import Proxy
from tests.unit.gateway.test_store import BARE, USAGE, add, key

needs_postgres = pytest.mark.requires("postgres")


class Database:
    """A store, and a way to its database that is not ours."""

    def __init__(self, store: SqlStore, sql: Callable[[str], object]) -> None:
        self.store = store
        self.sql = sql


@pytest.fixture(params=["sqlite", POSTGRES])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        path = tmp_path / "gateway.db"
        store = SqlStore.open_sqlite(path)
        with sqlite3.connect(path, isolation_level=None) as plain:
            yield Database(store, plain.execute)
        plain.close()
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.database()
        store = SqlStore.postgresql(url, PASSWORD)
        await store.open()
        yield Database(store, lambda text: server.sql(url, text))
    await store.close()


@pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'nobody'", "DELETE FROM audit"])
async def test_the_database_refuses_to_change_the_audit_log(database: Database, statement: str) -> None:
    await add(database.store, BARE)
    with pytest.raises((sqlite3.IntegrityError, RuntimeError), match="the audit log is append-only"):
        database.sql(statement)
    [entry] = await database.store.audit_log(limit=10)
    assert entry.actor == "alice"


@needs_postgres
async def test_nor_may_the_audit_log_be_truncated(postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    store = SqlStore.postgresql(url, PASSWORD)
    await add(store, BARE)
    with pytest.raises(RuntimeError, match="append-only"):
        postgres_server.sql(url, "TRUNCATE audit")
    await store.close()


async def test_a_change_that_cannot_be_audited_is_not_made(database: Database) -> None:
    await add(database.store, BARE)
    database.sql("DROP TABLE audit")
    with pytest.raises(StoreError):
        await add(database.store, key("bbbbbbbbbb"))
    changes = {"revoked_at": 2.0, "changed_at": 2.0}
    with pytest.raises(StoreError):
        await database.store.change(BARE.id, changes, actor="bob", action="revoke")
    assert list(await database.store.all_keys()) == [BARE]


async def test_sums_that_cannot_be_stored_leave_the_mark_where_it_was(database: Database) -> None:
    database.sql("ALTER TABLE usage_days RENAME TO hidden")
    with pytest.raises(StoreError):
        await database.store.apply_usage("spool", 0, 10, [USAGE], {})
    database.sql("ALTER TABLE hidden RENAME TO usage_days")
    assert await database.store.apply_usage("spool", 0, 10, [USAGE], {}) == 10
    assert list(await database.store.usage("2026-12-01", "2026-12-01")) == [USAGE]


async def test_a_store_that_breaks_while_it_is_open_is_a_store_error(database: Database) -> None:
    for table in ("api_keys", "audit", "usage_days", "ledger_marks"):
        database.sql(f"DROP TABLE {table}")
    await each_fails(database.store)


async def each_fails(store: Store) -> None:
    """Every method says that the store is gone, and nothing else."""
    for attempt in (
        store.all_keys(),
        store.changed_since(0.0),
        store.last_used([BARE.id]),
        add(store, BARE),
        store.change(BARE.id, {"changed_at": 1.0}, actor="bob", action="change"),
        store.note(at=1.0, actor="bob", action="reload", detail={}),
        store.audit_log(limit=1),
        store.apply_usage("spool", 0, 10, [USAGE], {}),
        store.forget_spools(["spool"]),
        store.usage("2026-12-01", "2026-12-01"),
        store.tokens("2026-12-01", "2026-12-01"),
    ):
        with pytest.raises(StoreError):
            await attempt


@needs_postgres
async def test_a_database_that_stops_is_gone_and_comes_back(own_postgres: PostgresServer) -> None:
    store = SqlStore.postgresql(own_postgres.database(), PASSWORD)
    await add(store, BARE)
    own_postgres.stop()
    await each_fails(store)
    own_postgres.start()
    assert list(await store.all_keys()) == [BARE]
    own_postgres.kill()
    await each_fails(store)
    own_postgres.start()
    await add(store, key("bbbbbbbbbb"))
    assert len(await store.all_keys()) == 2
    await store.close()


@needs_postgres
async def test_a_gateway_may_start_before_its_database(own_postgres: PostgresServer) -> None:
    url = own_postgres.database()
    own_postgres.stop()
    store = SqlStore.postgresql(url, PASSWORD)
    with pytest.raises(StoreError) as raised:
        await store.open()
    assert not isinstance(raised.value, StoreUnfit)
    await each_fails(store)
    own_postgres.start()
    assert list(await store.all_keys()) == []
    await add(store, BARE)
    await store.close()


@needs_postgres
async def test_a_database_that_swallows_everything_is_gone_within_the_time_limit(
    postgres_server: PostgresServer,
) -> None:
    async with Proxy.before(postgres_server.port) as proxy:
        url = postgres_server.database().replace(f":{postgres_server.port}/", f":{proxy.port}/")
        store = SqlStore.postgresql(url, PASSWORD, timeout=0.5)
        await add(store, BARE)
        proxy.open.clear()
        started = time.monotonic()
        attempts = await asyncio.gather(*(store.all_keys() for _ in range(8)), return_exceptions=True)
        # The limit, and two seconds more that SQLAlchemy gives a connection to say goodbye.
        assert time.monotonic() - started < 0.5 + 2 + 1
        assert {type(attempt) for attempt in attempts} == {StoreError}
        proxy.open.set()
        assert list(await store.all_keys()) == [BARE]
        await store.close()


@needs_postgres
async def test_a_database_that_swallows_even_the_first_connection(postgres_server: PostgresServer) -> None:
    async with Proxy.before(postgres_server.port) as proxy:
        url = postgres_server.database().replace(f":{postgres_server.port}/", f":{proxy.port}/")
        store = SqlStore.postgresql(url, PASSWORD, timeout=0.5)
        proxy.open.clear()
        started = time.monotonic()
        with pytest.raises(StoreError):
            await store.open()
        assert time.monotonic() - started < 2
        proxy.open.set()
        await store.open()
        await store.close()


@needs_postgres
async def test_gateways_that_start_at_once_migrate_a_new_database_once(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.database()
    stores = [SqlStore.postgresql(url, PASSWORD) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    assert postgres_server.sql(url, "SELECT version_num FROM alembic_version") == "0002"
    await asyncio.gather(*(store.close() for store in stores))


@needs_postgres
async def test_a_database_may_be_at_a_unix_socket(postgres_server: PostgresServer) -> None:
    name = postgres_server.database().rpartition("/")[2]
    where = f"host={postgres_server.home}&port={postgres_server.port}"
    store = SqlStore.postgresql(f"postgresql://{USER}@/{name}?{where}", PASSWORD)
    await add(store, BARE)
    await store.close()


@needs_postgres
async def test_a_database_that_cannot_encrypt_is_not_used_where_encryption_is_asked_for(
    postgres_server: PostgresServer,
) -> None:
    store = SqlStore.postgresql(f"{postgres_server.database()}?sslmode=require", PASSWORD)
    with pytest.raises(StoreError):
        await store.open()
    await store.close()


@needs_postgres
@pytest.mark.parametrize("what", ["password", "database", "schema", "url"])
async def test_what_no_waiting_can_mend_is_said(postgres_server: PostgresServer, what: str) -> None:
    url, password = postgres_server.database(), PASSWORD
    if what == "password":
        password = "another"
    elif what == "database":
        url += "x"
    elif what == "schema":
        first = SqlStore.postgresql(url, password)
        await first.open()
        await first.close()
        postgres_server.sql(url, "UPDATE alembic_version SET version_num = '9999'")
    else:
        url = "postgresql://[nowhere"
    with pytest.raises(StoreUnfit) as raised:
        await open_once(url, password)
    assert PASSWORD not in str(raised.value)


async def open_once(url: str, password: str) -> None:
    store = SqlStore.postgresql(url, password)
    try:
        await store.open()
    finally:
        await store.close()
