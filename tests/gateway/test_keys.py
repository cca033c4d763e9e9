"""Keys of running gateways: changes that other processes see, a store that is gone, logins that fail."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway import keys
from gateway.outside import DATABASE
from gateway.snapshot import SNAPSHOT
from tests.contract.developer import HELLO
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway_process import EnginePlan, GatewayProcess, Key
from tests.gateway.conftest import ENGINE_KEY, MAX_MODEL_LEN, MODEL

MAX_AGE = 12.0


def unstarted(home: Path, engine: FakeEngine, **settings: str) -> GatewayProcess:
    home.mkdir(exist_ok=True)
    return GatewayProcess(home, EnginePlan(engine.url, ENGINE_KEY, [MODEL], MAX_MODEL_LEN), settings)


@pytest.fixture
def here(tmp_path: Path, engine: FakeEngine) -> Iterator[GatewayProcess]:
    """A gateway whose keys may be served for MAX_AGE without its store."""
    gateway = unstarted(
        tmp_path / "here",
        engine,
        GATEWAY_SNAPSHOT_MAX_AGE=str(MAX_AGE),
        GATEWAY_FAILED_LOGINS_PER_MINUTE="5",
    )
    gateway.start()
    yield gateway
    assert gateway.stop() == 0
    assert gateway.errors() == ""


@pytest.fixture
def there(tmp_path: Path, here: GatewayProcess, engine: FakeEngine) -> Iterator[GatewayProcess]:
    """Another on the same data directory."""
    gateway = unstarted(tmp_path / "there", engine, GATEWAY_DATA_DIR=str(here.home / "data"))
    shutil.copy(here.secrets_dir / "key_pepper", gateway.secrets_dir)
    gateway.start()
    yield gateway
    assert gateway.stop() == 0


def database(gateway: GatewayProcess) -> Path:
    return gateway.home / "data" / DATABASE


def damage(file: Path) -> None:
    """In place; what SQLite keeps beside it too."""
    for each in file.parent.glob(f"{file.name}*"):
        each.write_bytes(b"this is no database, it is a text" * 1000)


def ask(gateway: GatewayProcess, key: str, path: str = "/v1/models") -> httpx2.Response:
    return httpx2.get(gateway.url + path, headers={"authorization": f"Bearer {key}"})


def told(gateway: GatewayProcess, key: str) -> tuple[int, str]:
    """The status, and an error's code."""
    answer = ask(gateway, key)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def within(seconds: float, happens: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.1)


def change(gateway: GatewayProcess, key: Key, what: str = "", body: object = None) -> dict[str, Any]:
    """A change through the admin API: `what` is the last part of the path; without it, a PATCH."""
    path = f"/admin/keys/{key.id}"
    answer = gateway.call_admin(*(("POST", f"{path}/{what}", body) if what else ("PATCH", path, body)))
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def readiness(gateway: GatewayProcess) -> tuple[int, str]:
    answer = httpx2.get(f"{gateway.url}/readyz")
    return answer.status_code, answer.json()["status"]


# Two processes.


def test_what_is_done_to_a_key_in_one_process_holds_in_another_within_two_seconds(
    here: GatewayProcess, there: GatewayProcess
) -> None:
    def amounts() -> list[int]:
        limits = ask(there, key.text, "/v1/limits").json()["data"]
        return [limit["amount"] for limit in limits if limit["limit"] == "requests_per_minute"]

    key = here.new_key()
    assert told(here, key.text) == (200, "")
    within(2, lambda: told(there, key.text) == (200, ""))
    change(here, key, body={"requests_per_minute": 777})
    within(2, lambda: amounts() == [777])
    change(here, key, "disable")
    within(2, lambda: told(there, key.text) == (401, "disabled_api_key"))
    change(here, key, "enable")
    within(2, lambda: told(there, key.text) == (200, ""))
    change(there, key, "revoke")
    within(2, lambda: told(here, key.text) == (401, "revoked_api_key"))


def test_a_rotation_holds_in_both_processes_and_its_overlap_ends_in_both(
    here: GatewayProcess, there: GatewayProcess
) -> None:
    key = here.new_key()
    within(2, lambda: told(there, key.text) == (200, ""))
    new = change(here, key, "rotate", {"overlap_seconds": 4})["key"]
    end = time.monotonic() + 4
    within(2, lambda: told(there, new) == (200, ""))
    assert told(here, key.text) == told(there, key.text) == (200, "")
    time.sleep(max(0.0, end - time.monotonic()))
    assert told(here, key.text) == told(there, key.text) == (401, "invalid_api_key")
    assert told(here, new) == told(there, new) == (200, "")


# Without the store.


def assert_degraded(gateway: GatewayProcess, known: Key) -> None:
    assert told(gateway, known.text) == (200, "")
    unknown = ask(gateway, keys.generate())
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "store_unavailable")
    assert int(unknown.headers["retry-after"]) >= 1
    assert told(gateway, keys.generate(known.id)) == (503, "store_unavailable")
    for method, path, body in (
        ("POST", "/admin/keys", {"name": "n", "tenant": "t"}),
        ("POST", f"/admin/keys/{known.id}/revoke", None),
        ("PATCH", f"/admin/keys/{known.id}", {"name": "n"}),
    ):
        assert gateway.call_admin(method, path, body).status_code == 503
    assert readiness(gateway) == (200, "degraded")
    assert gateway.metric("gateway_store_up") == 0


def test_a_store_that_is_taken_away_locks_nobody_out_and_lets_nobody_in(here: GatewayProcess) -> None:
    known = here.new_key()
    ends_at = time.time() + 4
    ends = here.new_key(expires_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends_at)))
    gone = here.new_key()
    here.revoke(gone)
    file = database(here)
    away = file.rename(file.with_name("away.db"))
    within(5, lambda: readiness(here) == (200, "degraded"))
    assert_degraded(here, known)
    assert told(here, gone.text) == (401, "revoked_api_key")
    within(5, lambda: told(here, ends.text) == (401, "expired_api_key"))
    assert not file.exists()
    away.rename(file)
    within(5, lambda: readiness(here) == (200, "ready"))
    assert told(here, keys.generate()) == (401, "invalid_api_key")
    assert told(here, here.new_key().text) == (200, "")


@pytest.mark.parametrize("lose", [Path.unlink, damage], ids=["gone", "damaged"])
def test_a_start_without_the_store_serves_the_last_known_keys_until_they_are_too_old(
    here: GatewayProcess, lose: Callable[[Path], None]
) -> None:
    known = here.new_key()
    file = database(here)
    here.stop()
    kept = file.read_bytes()
    lose(file)
    here.start()
    started = time.monotonic()
    assert_degraded(here, known)
    within(MAX_AGE + 2, lambda: told(here, known.text) == (503, "store_unavailable"))
    assert time.monotonic() - started > 2
    assert readiness(here) == (503, "unavailable")
    file.write_bytes(kept)  # back from a backup
    within(5, lambda: readiness(here) == (200, "ready"))
    assert told(here, known.text) == (200, "")


def test_a_snapshot_that_was_spoilt_is_not_used(here: GatewayProcess) -> None:
    known = here.new_key(tenant="team-a")
    here.stop()
    kept = database(here).read_bytes()
    damage(database(here))
    snapshot = here.home / "data" / SNAPSHOT
    held, pepper = snapshot.read_bytes(), (here.secrets_dir / "key_pepper").read_text()
    assert b'"team-a"' in held
    for content, secret in (
        (held.replace(b'"team-a"', b'"team-b"'), pepper),
        (held[:-2], pepper),
        (held, pepper[::-1]),
    ):
        snapshot.write_bytes(content)
        here.write_secret("key_pepper", secret)
        code, _, error = here.refuse_to_start()
        assert (code, error.count("\n")) == (2, 1)
        assert "cannot be opened" in error
    here.write_secret("key_pepper", pepper)
    database(here).write_bytes(kept)
    here.start()
    assert told(here, known.text) == (200, "")


def test_a_database_that_is_locked_at_the_start_is_a_store_that_is_gone(here: GatewayProcess) -> None:
    known = here.new_key()
    here.stop()
    here.environment["GATEWAY_SNAPSHOT_MAX_AGE"] = "3600"  # the start waits for the lock, twice
    with closing(sqlite3.connect(database(here), isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        here.start()
        assert told(here, known.text) == (200, "")
        assert told(here, keys.generate()) == (503, "store_unavailable")
        assert readiness(here) == (200, "degraded")
    within(15, lambda: readiness(here) == (200, "ready"))
    assert told(here, here.new_key().text) == (200, "")


def test_a_database_that_is_damaged_under_a_running_gateway_locks_nobody_out(here: GatewayProcess) -> None:
    known = here.new_key()
    damage(database(here))
    within(5, lambda: readiness(here) == (200, "degraded"))
    assert_degraded(here, known)


# Who fails, and which header.


def test_logins_that_fail_too_often_get_429_and_a_valid_key_from_there_passes(here: GatewayProcess) -> None:
    key = here.new_key()
    statuses = [told(here, keys.generate()) for _ in range(8)]
    assert statuses == [(401, "invalid_api_key")] * 5 + [(429, "too_many_failed_logins")] * 3
    assert told(here, key.text) == (200, "")
    refused = ask(here, "sk-proj-of-another-service")
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert httpx2.get(f"{here.url}/v1/models").status_code == 429


def test_anthropics_header_is_taken_on_anthropics_routes_alone(here: GatewayProcess) -> None:
    key = here.new_key()
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
    headers = {"x-api-key": key.text}
    assert httpx2.post(f"{here.url}/v1/messages", json=body, headers=headers).status_code == 200
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        refused = httpx2.post(here.url + path, json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_api_key")
    wrong = httpx2.post(f"{here.url}/v1/messages", json=body, headers={"x-api-key": keys.generate()})
    assert wrong.status_code == 401
    assert wrong.json()["type"] == "error"
    assert wrong.json()["error"]["type"] == "authentication_error"
