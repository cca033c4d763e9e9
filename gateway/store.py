"""The key store: one interface, on SQLAlchemy. SQLite in WAL mode is the default."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

METADATA = sa.MetaData()

# Times are seconds since the epoch, UTC: SQLite has no type of its own for them, and a number has one reading
# everywhere.
API_KEYS = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("id", sa.String(10), primary_key=True),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("tenant", sa.String(100), nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("pepper_id", sa.String(12), nullable=False),
    sa.Column("requests_per_minute", sa.Integer),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.Column("changed_at", sa.Double, nullable=False, index=True),
)


class StoreError(Exception):
    """The store did not answer, or refused. The cause is chained."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key as it is stored. Times in seconds since the epoch."""

    id: str
    name: str
    tenant: str
    digest: bytes
    pepper_id: str
    requests_per_minute: int | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    changed_at: float

    def __repr__(self) -> str:
        return f"KeyRecord(id={self.id!r}, tenant={self.tenant!r})"


class KeyStore(Protocol):
    """Where keys are kept. Every method raises StoreError when the store is gone."""

    async def changed_since(self, moment: float) -> Sequence[KeyRecord]:
        """Records changed at or after `moment`."""

    async def add(self, record: KeyRecord) -> None:
        """Stores a new key, durably, before it returns."""

    async def revoke(self, key_id: str, moment: float) -> KeyRecord | None:
        """Marks a key revoked (an earlier revocation stands) and returns it; None: no such key."""

    async def close(self) -> None: ...


class SqlKeyStore:
    """The KeyStore on any database that SQLAlchemy reaches."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    def open_sqlite(cls, path: Path) -> "SqlKeyStore":
        """Opens the file and brings its schema up to date. Blocks: for the start. Raises StoreError."""
        # Without a worker thread: one that dies while it opens a file says so on stderr, with a traceback.
        first = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
        sa.event.listen(first, "connect", _durable_wal)
        try:
            with first.begin() as connection:
                _migrate(connection)
        except (sa.exc.SQLAlchemyError, CommandError, OSError) as error:
            # CommandError: the file's schema is one that this version does not know.
            raise StoreError(f"the key store {path} cannot be opened") from error
        finally:
            first.dispose()
        # `rw`: a file that is gone is a store that is gone, not a reason to begin an empty one.
        existing = {"uri": "true", "mode": "rw"}
        url = sa.URL.create("sqlite+aiosqlite", database=path.absolute().as_uri(), query=existing)
        engine = create_async_engine(url)
        sa.event.listen(engine.sync_engine, "connect", _durable_wal)
        _leave_replaced_file(engine, path)
        return cls(engine)

    async def changed_since(self, moment: float) -> Sequence[KeyRecord]:
        query = sa.select(API_KEYS).where(API_KEYS.c.changed_at >= moment)
        try:
            async with self._engine.connect() as connection:
                return [KeyRecord(**row) for row in (await connection.execute(query)).mappings()]
        except (sa.exc.SQLAlchemyError, OSError) as error:
            raise StoreError("the key store cannot be read") from error

    async def add(self, record: KeyRecord) -> None:
        values = {column.name: getattr(record, column.name) for column in API_KEYS.columns}
        try:
            async with self._engine.begin() as connection:
                await connection.execute(sa.insert(API_KEYS).values(values))
        except (sa.exc.SQLAlchemyError, OSError) as error:
            raise StoreError("the key store cannot be written") from error

    async def revoke(self, key_id: str, moment: float) -> KeyRecord | None:
        change = (
            sa.update(API_KEYS)
            .where(API_KEYS.c.id == key_id)
            .values(revoked_at=sa.func.coalesce(API_KEYS.c.revoked_at, moment), changed_at=moment)
            .returning(*API_KEYS.columns)
        )
        try:
            async with self._engine.begin() as connection:
                row = (await connection.execute(change)).mappings().one_or_none()
        except (sa.exc.SQLAlchemyError, OSError) as error:
            raise StoreError("the key store cannot be written") from error
        return None if row is None else KeyRecord(**row)

    async def close(self) -> None:
        await self._engine.dispose()


def _durable_wal(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    # FULL: a revocation that was acknowledged survives a power cut. Writes are rare, so its price is not
    # felt.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


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


def _migrate(connection: sa.Connection) -> None:
    config = Config()
    scripts = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", scripts.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
