"""What SQLite alone promises: durability, one file, honest failure, whole migrations."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.sqlstore import SqlStore
from gateway.store import StoreError, StoreUnfit
from tests.unit.gateway.test_store import BARE, add, key


def plain(directory: Path) -> sqlite3.Connection:
    """A connection that is not ours, as a backup tool would open one."""
    return sqlite3.connect(directory / "gateway.db", isolation_level=None)


async def test_what_was_stored_is_there_after_a_reopening(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    first = SqlStore.open_sqlite(path)
    await add(first, BARE)
    await first.close()
    second = SqlStore.open_sqlite(path)
    assert list(await second.changed_since(0.0)) == [BARE]
    await second.close()


async def test_two_processes_may_share_a_file(tmp_path: Path, sqlite: SqlStore) -> None:
    other = SqlStore.open_sqlite(tmp_path / "gateway.db")
    stores = {"aa": sqlite, "bb": other}
    adds = [add(store, key(f"{name}{n:08d}")) for n in range(10) for name, store in stores.items()]
    await asyncio.gather(*adds)
    assert len(await sqlite.changed_since(0.0)) == len(await other.changed_since(0.0)) == 20
    await other.close()


def test_processes_that_start_at_once_migrate_a_new_file_once(tmp_path: Path) -> None:
    problems: list[Exception] = []

    def start() -> None:
        try:
            asyncio.run(SqlStore.open_sqlite(tmp_path / "gateway.db").close())
        except StoreError as error:
            problems.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


async def test_the_file_is_in_wal_mode_so_that_readers_do_not_wait_for_a_writer(
    tmp_path: Path, sqlite: SqlStore
) -> None:
    await add(sqlite, BARE)
    other = plain(tmp_path)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.execute("BEGIN IMMEDIATE")
    assert list(await sqlite.changed_since(0.0)) == [BARE]
    other.execute("ROLLBACK")
    other.close()


async def test_a_change_is_on_the_disk_before_it_is_acknowledged(sqlite: SqlStore) -> None:
    """A power cut cannot be had in a test; the mode that survives one can be read."""
    async with sqlite._engine.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA synchronous")).scalar() == 2  # FULL


@pytest.mark.parametrize("name", ["gate way.db", "a?mode=memory.db", "a#b.db", "100%.db", "ü.db"])
async def test_the_file_has_the_name_it_was_given(tmp_path: Path, name: str) -> None:
    store = SqlStore.open_sqlite(tmp_path / name)
    await add(store, BARE)
    await store.close()
    assert (tmp_path / name).stat().st_size > 0


def refused(path: Path) -> str:
    """Why a file cannot be opened."""
    with pytest.raises(StoreError) as raised:
        SqlStore.open_sqlite(path)
    return str(raised.value)


def test_a_directory_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "gateway.db"
    assert refused(path) == f"the store {path} cannot be opened"


def test_a_file_that_is_no_database_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"this is no database, it is a text" * 100)
    assert refused(tmp_path / "gateway.db")


async def test_a_schema_of_a_later_version_is_a_store_error(tmp_path: Path) -> None:
    store = SqlStore.open_sqlite(tmp_path / "gateway.db")
    await store.close()
    other = plain(tmp_path)
    other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.close()
    path = tmp_path / "gateway.db"
    with pytest.raises(StoreUnfit):
        SqlStore.open_sqlite(path)
    assert refused(path) == f"the store {path} was made by a later version"


async def test_a_deleted_file_is_a_store_that_is_gone_and_one_put_back_is_there_again(
    sqlite: SqlStore, tmp_path: Path
) -> None:
    await add(sqlite, BARE)
    file, kept = tmp_path / "gateway.db", tmp_path / "kept.db"
    with sqlite3.connect(file) as here, sqlite3.connect(kept) as there:
        here.backup(there)
    here.close()
    there.close()
    file.unlink()
    with pytest.raises(StoreError):
        await sqlite.changed_since(0.0)
    with pytest.raises(StoreError):
        await add(sqlite, key("bbbbbbbbbb"))
    assert not file.exists()
    for left in ("gateway.db-wal", "gateway.db-shm"):
        (tmp_path / left).unlink(missing_ok=True)
    kept.rename(file)
    assert list(await sqlite.changed_since(0.0)) == [BARE]


async def test_a_file_that_is_replaced_is_the_one_that_is_used(sqlite: SqlStore, tmp_path: Path) -> None:
    await add(sqlite, BARE)
    other = SqlStore.open_sqlite(tmp_path / "other.db")
    await add(other, key("bbbbbbbbbb"))
    await other.close()
    for left in ("gateway.db-wal", "gateway.db-shm"):
        (tmp_path / left).unlink(missing_ok=True)
    (tmp_path / "other.db").rename(tmp_path / "gateway.db")
    assert list(await sqlite.all_keys()) == [key("bbbbbbbbbb")]


def test_a_migration_that_breaks_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A name that the newest migration wants is taken: it fails half-way through."""
    other = plain(tmp_path)
    other.execute("CREATE TABLE usage_days (x)")
    other.close()
    assert refused(tmp_path / "gateway.db")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'gateway.db'}")
    assert sa.inspect(engine).get_table_names() == ["usage_days"]
    engine.dispose()
