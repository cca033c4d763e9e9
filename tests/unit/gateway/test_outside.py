"""What a gateway stands on: opened in order, closed in order, and said in one line where it cannot be had."""

import io
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.accesslog import AccessLog, make_logger
from gateway.memory_limiter import MemoryLimiter
from gateway.outside import DATABASE, Outside, opened
from gateway.settings import Configuration, ConfigurationError
from gateway.snapshot import SNAPSHOT, Snapshot, SnapshotFile
from gateway.sqlstore import SqlStore
from gateway.store import KeyRecord, StoreError
from gateway.valkey_limiter import ValkeyLimiter
from tests.fakes.inprocess import configuration, write_plans

PASSWORD = "a password of more than 32 characters"
NOWHERE = "127.0.0.1:1"


def configured(home: Path, **variables: str) -> Configuration:
    plans = write_plans(home, {})
    variables = {"GATEWAY_DATA_DIR": str(home), "GATEWAY_PLANS_FILE": str(plans)} | variables
    found = configuration(**variables)
    secrets = replace(
        found.secrets, database_password=PASSWORD, valkey_password=PASSWORD, jwt_secret=b"x" * 32
    )
    return replace(found, secrets=secrets)


async def open_all(home: Path, stack: AsyncExitStack, **variables: str) -> Outside:
    out = io.BytesIO()
    log = make_logger("error", out)
    return await stack.enter_async_context(opened(configured(home, **variables), log, AccessLog(out)))


async def test_alone_it_keeps_keys_in_a_file_and_limits_in_memory(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        outside = await open_all(tmp_path, stack)
        assert list(await outside.store.all_keys()) == []
        assert (tmp_path / "gateway.db").exists()
        assert isinstance(outside.limiter, MemoryLimiter)
        assert (outside.tokens, outside.key_set) == (None, None)


async def test_a_data_directory_that_is_not_there_is_named_with_what_it_must_be(tmp_path: Path) -> None:
    gone = tmp_path / "nowhere"
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError) as refused:
            await open_all(tmp_path, stack, GATEWAY_DATA_DIR=str(gone))
    assert "\n" not in str(refused.value)
    assert f"Is {gone} there, and writable for user {os.getuid()}?" in str(refused.value)


async def with_keys(home: Path, *, age: float = 0.0) -> Configuration:
    """A gateway that was here before: a store with a key, and its snapshot."""
    record = KeyRecord("aaaaaaaaaa", "laptop", "acme", b"d" * 32, "pepper", 1.0, 1.0)
    store = SqlStore.open_sqlite(home / DATABASE)
    await store.add([record], actor="test")
    await store.close()
    before = configured(home)
    SnapshotFile.of(before).save(Snapshot(time.time() - age, [record]))
    return before


def damage(file: Path) -> None:
    file.write_bytes(b"this is no database, it is a text" * 100)


@pytest.mark.parametrize("lose", [Path.unlink, damage], ids=["gone", "damaged"])
async def test_a_lost_store_is_no_reason_not_to_start_while_the_last_known_keys_may_be_served(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    await with_keys(tmp_path)
    file = tmp_path / DATABASE
    kept = file.read_bytes()
    lose(file)
    async with AsyncExitStack() as stack:
        store = (await open_all(tmp_path, stack)).store
        for _ in range(2):
            with pytest.raises(StoreError):
                await store.all_keys()
        file.write_bytes(kept)
        assert [record.id for record in await store.all_keys()] == ["aaaaaaaaaa"]


async def test_a_store_that_is_gone_is_never_begun_anew(tmp_path: Path) -> None:
    await with_keys(tmp_path)
    (tmp_path / DATABASE).unlink()
    async with AsyncExitStack() as stack:
        store = (await open_all(tmp_path, stack)).store
        with pytest.raises(StoreError):
            await store.open()
    assert not (tmp_path / DATABASE).exists()


@pytest.mark.parametrize("lose", [Path.unlink, damage], ids=["gone", "damaged"])
async def test_a_lost_store_whose_keys_are_known_no_more_stops_the_start_and_says_what_to_do(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    await with_keys(tmp_path, age=configuration().settings.snapshot_max_age + 1)
    lose(tmp_path / DATABASE)
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError, match="Put it back from a backup") as refused:
            await open_all(tmp_path, stack)
    assert "\n" not in str(refused.value)
    assert str(tmp_path / SNAPSHOT) in str(refused.value)


async def test_a_damaged_store_without_a_snapshot_stops_the_start(tmp_path: Path) -> None:
    await with_keys(tmp_path)
    (tmp_path / SNAPSHOT).write_bytes(b"forged")
    damage(tmp_path / DATABASE)
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError, match="cannot be opened"):
            await open_all(tmp_path, stack)


async def test_a_store_that_never_had_a_key_is_begun_where_there_is_none(tmp_path: Path) -> None:
    SnapshotFile.of(configured(tmp_path)).save(Snapshot(time.time(), []))
    async with AsyncExitStack() as stack:
        assert list(await (await open_all(tmp_path, stack)).store.all_keys()) == []


async def test_a_store_of_a_later_version_stops_the_start_whatever_is_known(tmp_path: Path) -> None:
    await with_keys(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError, match="later version"):
            await open_all(tmp_path, stack)


async def test_a_plans_file_with_a_mistake_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("plans: 5")
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError, match=r"bad\.yaml"):
            await open_all(tmp_path, stack, GATEWAY_PLANS_FILE=str(bad))


async def test_databases_that_do_not_answer_are_no_reason_not_to_start(tmp_path: Path) -> None:
    away = {
        "GATEWAY_DATABASE_URL": f"postgresql://gatehouse@{NOWHERE}/gatehouse",
        "GATEWAY_VALKEY_URL": f"valkey://{NOWHERE}/0",
    }
    async with AsyncExitStack() as stack:
        outside = await open_all(tmp_path, stack, **away)
        assert isinstance(outside.limiter, ValkeyLimiter)
        with pytest.raises(StoreError):
            await outside.store.all_keys()


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ({"GATEWAY_JWT_ALGORITHMS": "HS256"}, False),
        ({"GATEWAY_JWT_JWKS_URL": "https://issuer.example/keys"}, True),
    ],
)
async def test_tokens_are_taken_where_an_issuer_is_set(
    tmp_path: Path, more: dict[str, Any], *, keys: bool
) -> None:
    issuer = {"GATEWAY_JWT_ISSUER": "https://issuer.example", "GATEWAY_JWT_AUDIENCE": "gatehouse"}
    async with AsyncExitStack() as stack:
        outside = await open_all(tmp_path, stack, **issuer, **more)
        assert outside.tokens is not None
        assert (outside.key_set is not None) == keys
