"""Each migration up and down with data, on both databases; the last one makes what the code uses."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import gateway.sqlstore
from gateway.databases import postgresql_engine
from gateway.sqlstore import SqlStore
from gateway.store import KeyRecord
from tests.fakes.databases import POSTGRES
from tests.fakes.postgres import PASSWORD, PostgresServer

SCRIPTS = Path(gateway.sqlstore.__file__).parent / "migrations"
FIRST = {"id": "aaaaaaaaaa", "requests_per_minute": 7, "expires_at": 9.5, "revoked_at": None}
SECOND = {"id": "bbbbbbbbbb", "requests_per_minute": None, "expires_at": None, "revoked_at": 3.5}
COMMON = {
    "name": "n",
    "tenant": "t",
    "digest": b"d" * 32,
    "pepper_id": "p",
    "created_at": 1.0,
    "changed_at": 2.0,
}
RECORD = KeyRecord("aaaaaaaaaa", "n", "t", b"d" * 32, "p", 1.0, 2.0)
Step = Callable[[sa.Connection], Any]


@pytest.fixture(params=["sqlite", POSTGRES])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """For an empty database."""
    if request.param == "sqlite":
        opened = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        opened = postgresql_engine(server.database(), PASSWORD, 5.0)
    yield opened
    await opened.dispose()


async def run(engine: AsyncEngine, *steps: Step) -> Any:
    """The steps in one transaction each; what the last one gave."""
    for step in steps:
        async with engine.begin() as connection:
            result = await connection.run_sync(step)
    return result


def configured(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    return config


def up(to: str) -> Step:
    return lambda connection: command.upgrade(configured(connection), to)


def down(to: str) -> Step:
    return lambda connection: command.downgrade(configured(connection), to)


def tables(connection: sa.Connection) -> set[str]:
    return set(sa.inspect(connection).get_table_names())


def keys(connection: sa.Connection) -> list[dict[str, Any]]:
    table = sa.Table("api_keys", sa.MetaData(), autoload_with=connection)
    found = connection.execute(sa.select(table).order_by(table.c.id)).mappings()
    return [{**row, "digest": bytes(row["digest"])} for row in found]


def insert(connection: sa.Connection) -> None:
    table = sa.Table("api_keys", sa.MetaData(), autoload_with=connection)
    connection.execute(sa.insert(table), [COMMON | FIRST, COMMON | SECOND])


async def test_the_migrations_make_exactly_the_schema_that_the_code_uses(engine: AsyncEngine) -> None:
    await run(engine, up("head"), lambda connection: command.check(configured(connection)))


async def test_keys_of_the_first_version_keep_their_limits(engine: AsyncEngine) -> None:
    await run(engine, up("0001"), insert, up("head"))
    store = SqlStore(engine, migrate=None)
    assert list(await store.all_keys()) == [
        replace(RECORD, overrides={"requests_per_minute": 7}, expires_at=9.5),
        replace(RECORD, id="bbbbbbbbbb", revoked_at=3.5),
    ]


async def test_going_back_keeps_what_the_first_version_knows(engine: AsyncEngine) -> None:
    assert await run(engine, up("0001"), insert, up("head"), down("0001"), keys) == [
        COMMON | FIRST,
        COMMON | SECOND,
    ]
    assert await run(engine, tables) == {"api_keys", "alembic_version"}


async def test_going_back_takes_new_keys_along_and_brings_no_disabled_key_to_life(
    engine: AsyncEngine,
) -> None:
    await run(engine, up("head"))
    store = SqlStore(engine, migrate=None)
    limits = {"requests_per_minute": 5, "priority": 1}
    disabled = replace(RECORD, id="dddddddddd", disabled_at=4.0)
    await store.add([replace(RECORD, overrides=limits, models=("m",), plan="x"), disabled], actor="alice")
    [first, second] = await run(engine, down("0001"), keys)
    assert (first["requests_per_minute"], first["revoked_at"]) == (5, None)
    assert (second["requests_per_minute"], second["revoked_at"]) == (None, 4.0)


async def test_up_and_down_and_up_again(engine: AsyncEngine) -> None:
    await run(engine, up("0001"), insert, up("head"), down("0001"), up("head"))
    store = SqlStore(engine, migrate=None)
    await store.note(at=1.0, actor="alice", action="reload", detail={})
    assert [dict(record.overrides) for record in await store.all_keys()] == [{"requests_per_minute": 7}, {}]
    assert await run(engine, down("base"), tables) == {"alembic_version"}
    await run(engine, up("head"))
    assert list(await store.all_keys()) == []
    assert list(await store.audit_log(limit=9)) == []
