"""The Store on SQLAlchemy: SQLite in WAL mode by default, PostgreSQL where several processes share it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import sqlalchemy as sa
from alembic.util.exc import CommandError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.databases import migrate_postgresql, migrate_sqlite, postgresql_engine, sqlite_engine
from gateway.store import AuditEntry, DayUsage, Duplicate, KeyRecord, KeyTokens, Stale, StoreError, StoreUnfit
from gateway.tables import API_KEYS, AUDIT, LEDGER_MARKS, USAGE_DAYS

# One operation as a whole, waiting for a connection included: a server that swallows everything is a store
# that is gone.
OPERATION_SECONDS = 5.0
_SECRET_FIELDS = frozenset({"digest", "previous_digest"})
# What an entry of the audit log does not repeat: it has columns of its own for these, or the change is their
# cause.
_NOT_IN_DETAIL = _SECRET_FIELDS | {"id", "tenant", "changed_at", "created_at"}
_FIRST_STANDS = ("disabled_at", "revoked_at")
_UNFIT = (
    asyncpg.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


class SqlStore:
    """The Store on either database. Operations time out, and each opens the database first if that has not
    succeeded yet: a gateway may start before its database.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        migrate: Callable[[], Awaitable[None]] | None,
        timeout: float = OPERATION_SECONDS,
    ) -> None:
        """`migrate` brings the schema up to date; None: it is."""
        self._engine = engine
        self._timeout = timeout
        self._migrate = migrate
        self._migrating = asyncio.Lock()
        self._insert = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    @classmethod
    def open_sqlite(cls, path: Path) -> "SqlStore":
        """Opens the file and brings its schema up to date. Blocks: for the start. Raises StoreError, or
        StoreUnfit for a schema that this version does not know.
        """
        try:
            migrate_sqlite(path)
        except CommandError as error:
            raise StoreUnfit(f"the store {path} was made by a later version") from error
        except (sa.exc.SQLAlchemyError, OSError) as error:
            raise StoreError(f"the store {path} cannot be opened") from error
        return cls(sqlite_engine(path), migrate=None)

    @classmethod
    def sqlite(cls, path: Path) -> "SqlStore":
        """A store in a file that cannot be opened now, or is gone, and may come back. It is never begun
        anew.
        """

        async def migrate() -> None:
            await asyncio.to_thread(path.stat)  # raises where it is gone
            await asyncio.to_thread(migrate_sqlite, path)

        return cls(sqlite_engine(path), migrate=migrate)

    @classmethod
    def postgresql(cls, url: str, password: str | None, *, timeout: float = OPERATION_SECONDS) -> "SqlStore":
        """A store at `postgresql://user@host:port/database`. Connects at the first use. Raises StoreUnfit
        where the URL is none.
        """
        try:
            engine = postgresql_engine(url, password, timeout)
        except ValueError as error:
            raise StoreUnfit(f"the database URL is not one: {error}") from error
        return cls(engine, migrate=partial(migrate_postgresql, engine), timeout=timeout)

    async def open(self) -> None:
        async with self._connection("opened"):
            pass

    async def all_keys(self) -> Sequence[KeyRecord]:
        query = sa.select(API_KEYS).order_by(API_KEYS.c.created_at, API_KEYS.c.id)
        async with self._connection("read") as connection:
            return [_record(row) for row in (await connection.execute(query)).mappings()]

    async def last_used(self, key_ids: Sequence[str]) -> Mapping[str, float]:
        used = API_KEYS.c.last_used_at
        query = sa.select(API_KEYS.c.id, used).where(API_KEYS.c.id.in_(key_ids), used.is_not(None))
        async with self._connection("read") as connection:
            return {row.id: row.last_used_at for row in await connection.execute(query)}

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
            await self._migrate_once()
            async with asyncio.timeout(self._timeout), self._engine.begin() as connection:
                yield connection
        except (sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise _store_error(error, f"the store cannot be {done}") from error
        except CommandError as error:
            raise StoreUnfit("the store was made by a later version") from error

    async def _migrate_once(self) -> None:
        if self._migrate is None:
            return
        async with self._migrating:
            if self._migrate is not None:
                await self._migrate()
                self._migrate = None


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
