"""One suite for every KeyStore; then what SQLite alone promises: durability, migrations, honest failure."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import gateway.store
from gateway.store import KeyRecord, KeyStore, SqlKeyStore, StoreError
from tests.fakes.store import MemoryKeyStore


def record(key_id: str = "aaaaaaaaaa", *, changed_at: float = 100.0) -> KeyRecord:
    return KeyRecord(
        id=key_id,
        name="laptop",
        tenant="default",
        digest=bytes(range(32)),
        pepper_id="0123456789ab",
        requests_per_minute=None,
        created_at=changed_at,
        expires_at=None,
        revoked_at=None,
        changed_at=changed_at,
    )


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyStore]:
    opened: KeyStore = (
        MemoryKeyStore() if request.param == "memory" else SqlKeyStore.open_sqlite(tmp_path / "gateway.db")
    )
    yield opened
    await opened.close()


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqlKeyStore]:
    opened = SqlKeyStore.open_sqlite(tmp_path / "gateway.db")
    yield opened
    await opened.close()


async def test_a_new_store_holds_nothing(store: KeyStore) -> None:
    assert list(await store.changed_since(0.0)) == []


async def test_a_key_is_read_back_as_it_was_added(store: KeyStore) -> None:
    full = replace(record(), requests_per_minute=7, expires_at=1.5e9 + 0.123456, created_at=1.4e9 + 0.654321)
    await store.add(full)
    await store.add(record("bbbbbbbbbb"))
    assert sorted(await store.changed_since(0.0), key=lambda key: key.id) == [full, record("bbbbbbbbbb")]


async def test_an_id_is_given_once(store: KeyStore) -> None:
    await store.add(record())
    with pytest.raises(StoreError):
        await store.add(replace(record(), name="other"))
    assert list(await store.changed_since(0.0)) == [record()]


async def test_only_changes_at_or_after_the_moment_are_read(store: KeyStore) -> None:
    for key_id, moment in (("aaaaaaaaaa", 1.0), ("bbbbbbbbbb", 2.0), ("cccccccccc", 3.0)):
        await store.add(record(key_id, changed_at=moment))
    assert {key.id for key in await store.changed_since(2.0)} == {"bbbbbbbbbb", "cccccccccc"}
    assert list(await store.changed_since(3.1)) == []


async def test_a_revocation_is_a_change_and_the_first_one_stands(store: KeyStore) -> None:
    await store.add(record())
    await store.add(record("bbbbbbbbbb"))
    revoked = await store.revoke("aaaaaaaaaa", 200.0)
    assert revoked == replace(record(), revoked_at=200.0, changed_at=200.0)
    assert list(await store.changed_since(150.0)) == [revoked]
    again = await store.revoke("aaaaaaaaaa", 300.0)
    assert again == replace(record(), revoked_at=200.0, changed_at=300.0)


async def test_revoking_a_key_that_is_not_there_changes_nothing(store: KeyStore) -> None:
    await store.add(record())
    assert await store.revoke("zzzzzzzzzz", 200.0) is None
    assert list(await store.changed_since(0.0)) == [record()]


async def test_keys_that_are_added_and_revoked_at_once_are_all_kept(store: KeyStore) -> None:
    ids = [f"key{number:07d}" for number in range(20)]
    await asyncio.gather(*(store.add(record(key_id)) for key_id in ids))
    await asyncio.gather(*(store.revoke(key_id, 200.0) for key_id in ids[::2]))
    found = await store.changed_since(0.0)
    assert {key.id: key.revoked_at for key in found} == {
        key_id: 200.0 if number % 2 == 0 else None for number, key_id in enumerate(ids)
    }


async def test_quotes_in_names_are_text(store: KeyStore) -> None:
    hostile = replace(record(), name="'); DROP TABLE api_keys; --", tenant='"x"')
    await store.add(hostile)
    assert await store.revoke("' OR '1'='1", 200.0) is None
    assert list(await store.changed_since(0.0)) == [hostile]


def test_a_records_repr_shows_no_digest() -> None:
    assert repr(record()) == "KeyRecord(id='aaaaaaaaaa', tenant='default')"


async def test_what_was_stored_is_there_after_a_reopening(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    first = SqlKeyStore.open_sqlite(path)
    await first.add(record())
    await first.revoke("aaaaaaaaaa", 200.0)
    await first.close()
    second = SqlKeyStore.open_sqlite(path)
    assert list(await second.changed_since(0.0)) == [replace(record(), revoked_at=200.0, changed_at=200.0)]
    await second.close()


async def test_two_processes_may_share_a_file(tmp_path: Path, sqlite: SqlKeyStore) -> None:
    other = SqlKeyStore.open_sqlite(tmp_path / "gateway.db")
    stores = {"aa": sqlite, "bb": other}
    adds = [store.add(record(f"{name}{n:08d}")) for n in range(10) for name, store in stores.items()]
    await asyncio.gather(*adds)
    assert len(await sqlite.changed_since(0.0)) == len(await other.changed_since(0.0)) == 20
    await other.close()


async def test_the_file_is_in_wal_mode_so_that_readers_do_not_wait_for_a_writer(
    tmp_path: Path, sqlite: SqlKeyStore
) -> None:
    await sqlite.add(record())
    plain = _plain(tmp_path)
    assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.execute("BEGIN IMMEDIATE")
    assert list(await sqlite.changed_since(0.0)) == [record()]
    plain.execute("ROLLBACK")
    plain.close()


async def test_a_change_is_on_the_disk_before_it_is_acknowledged(sqlite: SqlKeyStore) -> None:
    """A power cut cannot be had in a test; the mode that survives one can be read."""
    async with sqlite._engine.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA synchronous")).scalar() == 2  # FULL


def _plain(directory: Path) -> sqlite3.Connection:
    """A connection that is not ours, as a backup tool would open one."""
    return sqlite3.connect(directory / "gateway.db", isolation_level=None)


@pytest.mark.parametrize("name", ["gate way.db", "a?mode=memory.db", "a#b.db", "100%.db", "ü.db"])
async def test_the_file_has_the_name_it_was_given(tmp_path: Path, name: str) -> None:
    store = SqlKeyStore.open_sqlite(tmp_path / name)
    await store.add(record())
    await store.close()
    assert (tmp_path / name).stat().st_size > 0


def refused(path: Path) -> str:
    """Why a file cannot be opened."""
    with pytest.raises(StoreError) as raised:
        SqlKeyStore.open_sqlite(path)
    return str(raised.value)


def test_a_directory_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "gateway.db"
    assert refused(path) == f"the key store {path} cannot be opened"


def test_a_file_that_is_no_database_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"this is no database, it is a text" * 100)
    assert refused(tmp_path / "gateway.db")


async def test_a_schema_of_a_later_version_is_a_store_error(tmp_path: Path) -> None:
    store = SqlKeyStore.open_sqlite(tmp_path / "gateway.db")
    await store.close()
    plain = _plain(tmp_path)
    plain.execute("UPDATE alembic_version SET version_num = '9999'")
    plain.close()
    assert refused(tmp_path / "gateway.db")


async def test_a_store_that_breaks_while_it_is_open_is_a_store_error(
    tmp_path: Path, sqlite: SqlKeyStore
) -> None:
    await sqlite.add(record())
    plain = _plain(tmp_path)
    plain.execute("DROP TABLE api_keys")
    plain.close()
    with pytest.raises(StoreError):
        await sqlite.changed_since(0.0)
    with pytest.raises(StoreError):
        await sqlite.add(record("bbbbbbbbbb"))
    with pytest.raises(StoreError):
        await sqlite.revoke("aaaaaaaaaa", 1.0)


def configured(connection: sa.Connection) -> Config:
    config = Config()
    scripts = Path(gateway.store.__file__).parent / "migrations"
    config.set_main_option("script_location", str(scripts))
    config.attributes["connection"] = connection
    return config


def test_migrations_go_up_and_down_and_up_again_with_data(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'gateway.db'}")
    with engine.begin() as connection:
        command.upgrade(configured(connection), "head")
        connection.execute(
            sa.insert(gateway.store.API_KEYS).values(
                id="aaaaaaaaaa",
                name="n",
                tenant="t",
                digest=b"d",
                pepper_id="p",
                created_at=1.0,
                changed_at=1.0,
            )
        )
        command.downgrade(configured(connection), "base")
        assert "api_keys" not in sa.inspect(connection).get_table_names()
        command.upgrade(configured(connection), "head")
        assert (
            connection.execute(sa.select(sa.func.count()).select_from(gateway.store.API_KEYS)).scalar() == 0
        )
    engine.dispose()


def test_migrations_make_exactly_the_schema_that_the_code_uses(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'gateway.db'}")
    with engine.begin() as connection:
        command.upgrade(configured(connection), "head")
        command.check(configured(connection))
    engine.dispose()


async def test_a_deleted_file_is_a_store_that_is_gone_and_one_put_back_is_there_again(
    sqlite: SqlKeyStore, tmp_path: Path
) -> None:
    await sqlite.add(record())
    file, kept = tmp_path / "gateway.db", tmp_path / "kept.db"
    with sqlite3.connect(file) as here, sqlite3.connect(kept) as there:
        here.backup(there)
    here.close()
    there.close()
    file.unlink()
    with pytest.raises(StoreError):
        await sqlite.changed_since(0.0)
    with pytest.raises(StoreError):
        await sqlite.add(record("bbbbbbbbbb"))
    assert not file.exists()
    for left in ("gateway.db-wal", "gateway.db-shm"):
        (tmp_path / left).unlink(missing_ok=True)
    kept.rename(file)
    assert list(await sqlite.changed_since(0.0)) == [record()]
