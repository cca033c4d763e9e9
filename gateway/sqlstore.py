"""The Store on SQLAlchemy: SQLite in WAL mode by default, PostgreSQL where several processes share it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from gateway.store import AuditEntry, DayUsage, Duplicate, KeyRecord, KeyTokens, Stale, StoreError, StoreUnfit
from gateway.tables import API_KEYS, AUDIT, LEDGER_MARKS, USAGE_DAYS

CONNECT_SECONDS = 5.0
# One operation as a whole, waiting for a connection included: a server that swallows everything is a store
# that is gone.
OPERATION_SECONDS = 10.0
POOL_SIZE = 5
# Any number that all gateways share and nobody else uses.
_MIGRATION_LOCK = 0x6761_7465_686F
_SECRET_FIELDS = frozenset({"digest", "previous_digest"})
# What an entry of the audit log does not repeat: it has columns of its own for these, or the change is their
# cause.
_NOT_IN_DETAIL = _SECRET_FIELDS | {"id", "tenant", "changed_at", "created_at"}
_FIRST_STANDS = ("disabled_at", "revoked_at")
_UNFIT = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


class SqlStore:
    """The Store on either database. Operations time out, and each opens the database first if that has not
    succeeded yet: a gateway may start before its database.
    """

    def __init__(self, engine: AsyncEngine, *, migrated: bool) -> None:
        self._engine = engine
        self._migrated = migrated
        self._migrating = asyncio.Lock()
        self._insert = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    @classmethod
    def open_sqlite(cls, path: Path) -> "SqlStore":
        """Opens the file and brings its schema up to date. Blocks: for the start. Raises StoreError."""
        # Without a worker thread: one that dies while it opens a file says so on stderr, with a traceback.
        first = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
        sa.event.listen(first, "connect", _durable_wal)
        sa.event.listen(first, "connect", _leave_transactions_to_us)
        sa.event.listen(first, "begin", _one_migration_at_a_time)
        try:
            with first.begin() as connection:
                _migrate(connection)
        except (sa.exc.SQLAlchemyError, CommandError, OSError) as error:
            # CommandError: the file's schema is one that this version does not know.
            raise StoreError(f"the store {path} cannot be opened") from error
        finally:
            first.dispose()
        # `rw`: a file that is gone is a store that is gone, not a reason to begin an empty one.
        existing = {"uri": "true", "mode": "rw"}
        url = sa.URL.create("sqlite+aiosqlite", database=path.absolute().as_uri(), query=existing)
        engine = create_async_engine(url)
        sa.event.listen(engine.sync_engine, "connect", _durable_wal)
        _leave_replaced_file(engine, path)
        return cls(engine, migrated=True)

    @classmethod
    def postgresql(cls, url: str, password: str | None) -> "SqlStore":
        """A store at `postgresql://user@host:port/database`. Connects at the first use. Raises StoreError
        where the URL is none.
        """
        try:
            where = sa.make_url(url).set(drivername="postgresql+asyncpg")
        except sa.exc.ArgumentError as error:
            raise StoreError("the database URL is not one") from error
        if password is not None:
            where = where.set(password=password)
        engine = create_async_engine(
            where,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_pre_ping=True,
            pool_timeout=OPERATION_SECONDS,
            connect_args={"timeout": CONNECT_SECONDS, "command_timeout": OPERATION_SECONDS},
        )
        return cls(engine, migrated=False)

    async def open(self) -> None:
        async with self._connection("opened"):
            pass

    async def all_keys(self) -> Sequence[KeyRecord]:
        query = sa.select(API_KEYS).order_by(API_KEYS.c.created_at, API_KEYS.c.id)
        async with self._connection("read") as connection:
            return [_record(row) for row in (await connection.execute(query)).mappings()]

    async def changed_since(self, moment: float) -> Sequence[KeyRecord]:
        query = sa.select(API_KEYS).where(API_KEYS.c.changed_at >= moment)
        async with self._connection("read") as connection:
            return [_record(row) for row in (await connection.execute(query)).mappings()]

    async def add(self, records: Sequence[KeyRecord], *, actor: str, action: str = "create") -> None:
        if not records:
            return
        entries = [
            _audit(r.changed_at, actor, action, r.id, r.tenant, _told(_values(r), unset=False))
            for r in records
        ]
        async with self._connection("written") as connection:
            try:
                await connection.execute(sa.insert(API_KEYS), [_values(record) for record in records])
            except sa.exc.IntegrityError as error:
                raise Duplicate("there is a key with this id") from error
            await connection.execute(sa.insert(AUDIT), entries)

    async def change(
        self,
        key_id: str,
        changes: Mapping[str, Any],
        *,
        actor: str,
        action: str,
        read_at: float | None = None,
    ) -> KeyRecord | None:
        values = {name: _column_value(value) for name, value in changes.items()}
        for name in _FIRST_STANDS:
            if values.get(name) is not None:
                values[name] = sa.func.coalesce(API_KEYS.c[name], values[name])
        this = API_KEYS.c.id == key_id
        unchanged = sa.true() if read_at is None else API_KEYS.c.changed_at == read_at
        update = sa.update(API_KEYS).where(this, unchanged).values(values).returning(*API_KEYS.columns)
        async with self._connection("written") as connection:
            row = (await connection.execute(update)).mappings().one_or_none()
            if row is None:
                if (
                    read_at is not None
                    and (await connection.execute(sa.select(API_KEYS.c.id).where(this))).all()
                ):
                    raise Stale("the key was changed since it was read")
                return None
            record = _record(row)
            detail = _told({name: row[name] for name in changes}, unset=True)
            entry = _audit(record.changed_at, actor, action, key_id, record.tenant, detail)
            await connection.execute(sa.insert(AUDIT), entry)
            return record

    async def note(self, *, at: float, actor: str, action: str, detail: Mapping[str, Any]) -> None:
        async with self._connection("written") as connection:
            await connection.execute(sa.insert(AUDIT), _audit(at, actor, action, None, None, detail))

    async def audit_log(
        self, *, limit: int, before: int | None = None, key_id: str | None = None
    ) -> Sequence[AuditEntry]:
        query = sa.select(AUDIT).order_by(AUDIT.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.id < before)
        if key_id is not None:
            query = query.where(AUDIT.c.key_id == key_id)
        async with self._connection("read") as connection:
            return [AuditEntry(**row) for row in (await connection.execute(query)).mappings()]

    async def apply_usage(
        self,
        spool: str,
        old_offset: int,
        new_offset: int,
        rows: Sequence[DayUsage],
        last_used: Mapping[str, float],
    ) -> int:
        async with self._connection("written") as connection:
            if not await self._move_mark(connection, spool, old_offset, new_offset):
                here = sa.select(LEDGER_MARKS.c.offset).where(LEDGER_MARKS.c.spool == spool)
                return (await connection.execute(here)).scalar() or 0
            if rows:
                await connection.execute(self._sum_up(), _in_order(rows))
            if last_used:
                await connection.execute(
                    _LAST_USED, [{"key": k, "at": last_used[k]} for k in sorted(last_used)]
                )
            return new_offset

    async def forget_spools(self, spools: Sequence[str]) -> None:
        async with self._connection("written") as connection:
            await connection.execute(sa.delete(LEDGER_MARKS).where(LEDGER_MARKS.c.spool.in_(spools)))

    async def usage(
        self, from_day: str, to_day: str, *, tenant: str | None = None, key_id: str | None = None
    ) -> Sequence[DayUsage]:
        table = USAGE_DAYS.c
        query = sa.select(USAGE_DAYS).where(table.day.between(from_day, to_day))
        if tenant is not None:
            query = query.where(table.tenant == tenant)
        if key_id is not None:
            query = query.where(table.key_id == key_id)
        async with self._connection("read") as connection:
            found = [DayUsage(**row) for row in (await connection.execute(query)).mappings()]
        # Sorted here: databases differ in how they order text.
        return sorted(found, key=_row_key)

    async def tokens(self, from_day: str, to_day: str) -> Sequence[KeyTokens]:
        table = USAGE_DAYS.c
        # PostgreSQL sums bigints to a decimal.
        total = sa.cast(sa.func.sum(table.prompt_tokens + table.completion_tokens), sa.BigInteger)
        query = (
            sa.select(table.tenant, table.key_id, total.label("tokens"))
            .where(table.day.between(from_day, to_day))
            .group_by(table.tenant, table.key_id)
        )
        async with self._connection("read") as connection:
            return [KeyTokens(**row) for row in (await connection.execute(query)).mappings()]

    async def close(self) -> None:
        await self._engine.dispose()

    async def _move_mark(self, connection: AsyncConnection, spool: str, old: int, new: int) -> bool:
        """Whether the mark stood at `old`. Locks it until the transaction's end."""
        if old == 0:
            first = self._insert(LEDGER_MARKS).values(spool=spool, offset=new).on_conflict_do_nothing()
            if (await connection.execute(first)).rowcount == 1:
                return True
        mark = LEDGER_MARKS.c
        move = sa.update(LEDGER_MARKS).where(mark.spool == spool, mark.offset == old).values(offset=new)
        return (await connection.execute(move)).rowcount == 1

    def _sum_up(self) -> sa.Insert:
        insert = self._insert(USAGE_DAYS)
        added = {
            name: USAGE_DAYS.c[name] + insert.excluded[name]
            for name in ("requests", "prompt_tokens", "completion_tokens", "estimated_requests")
        }
        return insert.on_conflict_do_update(index_elements=list(USAGE_DAYS.primary_key), set_=added)

    @asynccontextmanager
    async def _connection(self, done: str) -> AsyncIterator[AsyncConnection]:
        """A transaction within the time limit, on a database that is migrated. Raises StoreError for all
        that a database may do: `done` completes its sentence.
        """
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._migrate_once()
                async with self._engine.begin() as connection:
                    yield connection
        except (sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise _store_error(error, f"the store cannot be {done}") from error
        except CommandError as error:
            raise StoreUnfit(f"the store's schema is not one that this version knows: {error}") from error

    async def _migrate_once(self) -> None:
        if self._migrated:
            return
        async with self._migrating:
            if not self._migrated:
                async with self._engine.begin() as connection:
                    # Several gateways may start at once.
                    await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                    await connection.run_sync(_migrate)
                self._migrated = True


_LAST_USED = (
    sa.update(API_KEYS)
    .where(
        API_KEYS.c.id == sa.bindparam("key"),
        sa.func.coalesce(API_KEYS.c.last_used_at, 0.0) < sa.bindparam("at", type_=sa.Double),
    )
    .values(last_used_at=sa.bindparam("at", type_=sa.Double))
)


def _store_error(error: Exception, message: str) -> StoreError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _UNFIT):
            return StoreUnfit(f"{message}: {cause}")
        cause = cause.__cause__
    return StoreError(message)


def _record(row: sa.RowMapping) -> KeyRecord:
    values: dict[str, Any] = dict(row)
    for name in ("scopes", "models"):
        values[name] = None if values[name] is None else tuple(values[name])
    return KeyRecord(**values)


def _values(record: KeyRecord) -> dict[str, Any]:
    return {f.name: _column_value(getattr(record, f.name)) for f in fields(record)}


def _column_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _told(values: Mapping[str, Any], *, unset: bool) -> dict[str, Any]:
    """What the audit log says of a key's new values; `unset`: also those that are nothing."""
    return {
        name: value
        for name, value in values.items()
        if name not in _NOT_IN_DETAIL and (unset or value not in (None, {}))
    }


def _audit(
    at: float, actor: str, action: str, key_id: str | None, tenant: str | None, detail: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "at": at,
        "actor": actor,
        "action": action,
        "key_id": key_id,
        "tenant": tenant,
        "detail": dict(detail),
    }


def _row_key(row: DayUsage) -> tuple[str, str, str, str]:
    return row.day, row.tenant, row.key_id, row.model


def _in_order(rows: Sequence[DayUsage]) -> list[dict[str, Any]]:
    """One order for all processes: two transactions that lock the same rows cannot wait for each other."""
    return [asdict(row) for row in sorted(rows, key=_row_key)]


def _durable_wal(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    # FULL: a revocation that was acknowledged survives a power cut. Writes are rare, so its price is not
    # felt.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _leave_transactions_to_us(connection: DBAPIConnection, _record: object) -> None:
    """Python's driver would commit before each change of the schema: half a migration would stay."""
    connection.isolation_level = None


def _one_migration_at_a_time(connection: sa.Connection) -> None:
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


def _migrate(connection: sa.Connection) -> None:
    config = Config()
    scripts = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", scripts.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
