"""Connections to the two databases, and their schema brought up to date."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

POOL_SIZE = 5
# Any number that all gateways share and nobody else uses.
_MIGRATION_LOCK = 0x6761_7465_686F


def migrate_sqlite(path: Path) -> None:
    """Makes the file where there is none, and brings its schema up to date. Blocks. Raises SQLAlchemyError,
    CommandError (a schema that this version does not know) or OSError.
    """
    # Without a worker thread: one that dies while it opens a file says so on stderr, with a traceback.
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
    sa.event.listen(engine, "connect", _durable_wal)
    sa.event.listen(engine, "begin", _one_migration_at_a_time)
    try:
        with engine.begin() as connection:
            _upgrade(connection)
    finally:
        engine.dispose()


def sqlite_engine(path: Path) -> AsyncEngine:
    """For a file that exists: one that is gone is a store that is gone, not a reason to begin an empty one.
    Connects at the first use.
    """
    url = sa.URL.create(
        "sqlite+aiosqlite", database=path.absolute().as_uri(), query={"uri": "true", "mode": "rw"}
    )
    engine = create_async_engine(url)
    sa.event.listen(engine.sync_engine, "connect", _durable_wal)
    _leave_replaced_file(engine, path)
    return engine


def postgresql_engine(url: str, password: str | None, timeout: float) -> AsyncEngine:
    """For `postgresql://user@host:port/database`, with libpq's parameters such as `sslmode` behind a `?`.
    Connects at the first use. `timeout`: seconds to connect, for a place in the pool, and for one statement.
    Raises ValueError where the URL is none.
    """
    _ = urlsplit(url).port

    async def connect() -> Any:
        # By asyncpg's own reading of the URL: SQLAlchemy's knows nothing of TLS.
        return await asyncpg.connect(url, password=password, timeout=timeout, command_timeout=timeout)

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=timeout,
    )


async def migrate_postgresql(engine: AsyncEngine) -> None:
    """Brings the schema up to date; several gateways may start at once. Raises what migrate_sqlite does, and
    asyncpg's errors.
    """
    async with engine.begin() as connection:
        await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        await connection.run_sync(_upgrade)


def _durable_wal(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    # FULL: a revocation that was acknowledged survives a power cut. Writes are rare, so its price is not
    # felt.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _one_migration_at_a_time(connection: sa.Connection) -> None:
    # Begun here, so that changes of the schema are in it too.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _leave_replaced_file(engine: AsyncEngine, path: Path) -> None:
    """Makes connections that are kept follow the path: one to a deleted file would take keys that no restart
    finds again.
    """

    def file() -> tuple[int, int]:
        found = path.stat()
        return found.st_dev, found.st_ino

    def remember(_: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        record.info[path] = file()

    def compare(_: DBAPIConnection, record: ConnectionPoolEntry, __: object) -> None:
        if record.info[path] != file():
            raise sa.exc.DisconnectionError

    sa.event.listen(engine.sync_engine, "connect", remember)
    sa.event.listen(engine.sync_engine, "checkout", compare)


def _upgrade(connection: sa.Connection) -> None:
    config = Config()
    scripts = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", scripts.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
