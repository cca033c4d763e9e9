"""What a gateway stands on: opened in order, closed in order, and said in one line where it cannot be had."""

import io
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.accesslog import AccessLog, make_logger
from gateway.memory_limiter import MemoryLimiter
from gateway.outside import Outside, opened
from gateway.settings import Configuration, ConfigurationError
from gateway.store import StoreError
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
