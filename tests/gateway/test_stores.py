"""A running gateway and its database: kills, a database that stops, quotas that outlive a process."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.contract.developer import HELLO
from tests.fakes.databases import own_postgres  # noqa: F401 - a fixture
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway_process import EnginePlan, GatewayProcess, Key
from tests.fakes.postgres import PASSWORD, PostgresServer
from tests.gateway.conftest import ENGINE_KEY, MAX_MODEL_LEN, MODEL

# The standard plan's, so that nothing but the quota refuses.
MANY = {"requests_per_minute": 1000}


@pytest.fixture
def gateway(tmp_path: Path, engine: FakeEngine) -> Iterator[GatewayProcess]:
    """On SQLite; to be started."""
    made = GatewayProcess(tmp_path, EnginePlan(engine.url, ENGINE_KEY, [MODEL], MAX_MODEL_LEN))
    yield made
    assert made.stop() == 0


@pytest.fixture
def on_postgres(
    gateway: GatewayProcess,
    own_postgres: PostgresServer,  # noqa: F811 - the fixture
) -> tuple[GatewayProcess, PostgresServer]:
    gateway.write_secret("database_password", PASSWORD)
    gateway.environment["GATEWAY_DATABASE_URL"] = own_postgres.database()
    return gateway, own_postgres


def chat(gateway: GatewayProcess, key: Key, **fields: object) -> httpx2.Response:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 5} | fields
    headers = {"authorization": f"Bearer {key.text}"}
    return httpx2.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def usage(gateway: GatewayProcess, key: Key) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key.text}"}
    return httpx2.get(f"{gateway.url}/v1/usage", headers=headers, timeout=30)


def used(gateway: GatewayProcess, key: Key) -> tuple[int, int]:
    """Requests, and tokens of both kinds."""
    rows: list[dict[str, Any]] = usage(gateway, key).raise_for_status().json()["data"]
    requests = sum(row["requests"] for row in rows)
    return requests, sum(row["prompt_tokens"] + row["completion_tokens"] for row in rows)


def within(seconds: float, happens: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.1)


def kill(gateway: GatewayProcess) -> None:
    gateway.process.kill()
    gateway.process.wait()


def test_what_was_settled_before_a_kill_is_counted_once_after_it(gateway: GatewayProcess) -> None:
    gateway.start()
    key = gateway.new_key()
    tokens = 0
    for round_ in range(3):
        for _ in range(10):
            answer = chat(gateway, key)
            tokens += answer.json()["usage"]["total_tokens"]
        gateway.access_line(answer.headers["x-request-id"])
        kill(gateway)
        gateway.start()
        assert used(gateway, key) == ((round_ + 1) * 10, tokens)
    within(3, lambda: gateway.call_admin("GET", f"/admin/keys/{key.id}").json()["last_used_at"] is not None)


def test_a_quota_outlives_the_process(gateway: GatewayProcess) -> None:
    gateway.start()
    key = gateway.new_key(tokens_per_day=200)
    answers = [chat(gateway, key) for _ in range(20)]
    assert answers[-1].status_code == 429
    gateway.access_line(answers[-1].headers["x-request-id"])
    kill(gateway)
    gateway.start()
    within(2, lambda: chat(gateway, key).status_code == 429)
    assert chat(gateway, gateway.new_key()).status_code == 200


@pytest.mark.requires("postgres")
def test_a_database_that_stops_costs_no_request_and_no_usage(
    on_postgres: tuple[GatewayProcess, PostgresServer],
) -> None:
    gateway, database = on_postgres
    gateway.start()
    key = gateway.new_key()
    assert chat(gateway, key).status_code == 200
    within(3, lambda: usage(gateway, key).status_code == 200)
    database.stop()
    assert [chat(gateway, key).status_code for _ in range(5)] == [200] * 5
    assert usage(gateway, key).status_code == 503
    assert gateway.call_admin("POST", "/admin/keys", {"name": "n", "tenant": "t"}).status_code == 503
    kill(gateway)
    gateway.start()  # without its database, with the keys that it knew
    assert chat(gateway, key).status_code == 200
    database.start()
    within(5, lambda: usage(gateway, key).status_code == 200 and used(gateway, key)[0] == 7)
    assert gateway.new_key().tenant == "team-a"


@pytest.mark.requires("postgres")
def test_a_wrong_database_password_stops_the_start_and_is_not_told(
    on_postgres: tuple[GatewayProcess, PostgresServer],
) -> None:
    gateway, _ = on_postgres
    gateway.write_secret("database_password", "another-1b6f0a9d4c7e2835bd90-word")
    code, _, error = gateway.refuse_to_start()
    assert code == 2
    assert "password authentication failed" in error
    assert "another-" not in error
    gateway.write_secret("database_password", PASSWORD)
    gateway.start()
