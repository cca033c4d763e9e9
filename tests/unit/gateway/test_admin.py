"""The admin API: its own token, keys made, listed and revoked; errors in OpenAI's shape."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.identity import REFRESH_SECONDS
from tests.fakes.asgi import Client, call, scope
from tests.fakes.inprocess import ADMIN_TOKEN, gateway
from tests.fakes.loop import run

VIEW = {"id", "name", "tenant", "requests_per_minute", "created_at", "expires_at", "revoked_at"}


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", ADMIN_TOKEN)],
        [("authorization", f"Basic {ADMIN_TOKEN}")],
        [("authorization", f"Bearer {ADMIN_TOKEN}x")],
        [("authorization", f"Bearer {ADMIN_TOKEN[:-1]}")],
        [("authorization", "Bearer \xff\xfe")],
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/admin/keys"), ("POST", "/admin/keys"), ("POST", "/admin/keys/x/revoke")]
)
async def test_without_the_admin_token_nothing_is_told_or_done(
    headers: list[tuple[str, str]], method: str, path: str
) -> None:
    async with gateway() as running:
        before = dict(running.store.records)
        client = await call(running.apps.admin, method, path, headers, b'{"name": "x"}')
        assert (client.status, client.error["code"]) == (401, "invalid_api_key")
        assert running.store.records == before


@pytest.mark.parametrize("path", ["/admin/keys", "/admin/keys/", "/openapi.json", "/docs", "/nowhere"])
async def test_without_the_admin_token_no_body_is_read_and_no_route_is_told(path: str) -> None:
    async with gateway() as running:
        client = Client()  # it never sends its body
        await asyncio.wait_for(running.apps.admin(scope("POST", path), client.receive, client.send), 1)
        assert (client.status, client.error["code"]) == (401, "invalid_api_key")
        assert client.headers["x-request-id"]
        assert client.headers["www-authenticate"] == "Bearer"


async def test_an_api_key_is_no_admin_token() -> None:
    async with gateway() as running:
        client = await call(
            running.apps.admin, "GET", "/admin/keys", [("authorization", f"Bearer {running.key}")]
        )
        assert client.status == 401


async def test_a_key_is_made_with_defaults_and_shown_once() -> None:
    async with gateway() as running:
        status, made = await running.admin("POST", "/admin/keys", {"name": "phone"})
        assert status == 201
        assert set(made) == VIEW | {"key"}
        assert (made["name"], made["tenant"], made["requests_per_minute"]) == ("phone", "default", None)
        assert (made["expires_at"], made["revoked_at"]) == (None, None)
        _, listed = await running.admin("GET", "/admin/keys")
        assert [set(key) for key in listed["keys"]] == [VIEW, VIEW]
        assert made["key"] not in orjson.dumps(listed).decode()
        assert made["key"].encode() not in running.log.getvalue()


async def test_a_key_is_made_as_it_was_asked_for() -> None:
    asked = {
        "name": "ci runner/2",
        "tenant": "team-a",
        "requests_per_minute": 7,
        "expires_at": "2030-01-02T03:04:05+01:00",
    }
    async with gateway() as running:
        _, made = await running.admin("POST", "/admin/keys", asked)
        assert {name: made[name] for name in ("name", "tenant", "requests_per_minute")} == {
            name: asked[name] for name in ("name", "tenant", "requests_per_minute")
        }
        assert made["expires_at"] == "2030-01-02T02:04:05Z"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"{}", "name"),
        (b'{"name": ""}', "name"),
        (b'{"name": "a\\nb"}', "name"),
        (b'{"name": "' + b"x" * 101 + b'"}', "name"),
        (b'{"name": "x", "tenant": "<b>"}', "tenant"),
        (b'{"name": "x", "requests_per_minute": 0}', "requests_per_minute"),
        (b'{"name": "x", "requests_per_minute": 1.5}', "requests_per_minute"),
        (b'{"name": "x", "expires_at": "2030-01-01T00:00:00"}', "expires_at"),
        (b'{"name": "x", "expires_at": "9999-12-31T23:59:59-12:00"}', "expires_at"),
        (b'{"name": "x", "expires_at": "0001-01-01T00:00:00+12:00"}', "expires_at"),
        (b'{"name": "x", "expires_at": 1e300}', "expires_at"),
        (b'{"name": "x", "expire": null}', "expire"),
    ],
)
async def test_a_wrong_request_is_refused_by_field_in_openais_shape(
    content: bytes, param: str | None
) -> None:
    async with gateway() as running:
        headers = [("authorization", f"Bearer {ADMIN_TOKEN}"), ("content-type", "application/json")]
        client = await call(running.apps.admin, "POST", "/admin/keys", headers, content)
        assert client.status == 400
        assert client.error["type"] == "invalid_request_error"
        assert (client.error["code"], client.error["param"]) == ("invalid_parameter", param)
        assert len(running.store.records) == 1


async def test_a_revoked_key_is_shown_as_such_and_the_first_moment_stands() -> None:
    async with gateway() as running:
        (key_id,) = running.store.records
        status, first = await running.admin("POST", f"/admin/keys/{key_id}/revoke")
        assert status == 200
        assert set(first) == VIEW
        running.clock.now += 60
        _, second = await running.admin("POST", f"/admin/keys/{key_id}/revoke")
        assert first["revoked_at"] == second["revoked_at"] is not None
        assert (await running.ask("/v1/models", method="GET")).error["code"] == "revoked_api_key"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/admin/keys/zzzzzzzzzz/revoke"),
        ("GET", "/admin/other"),
        ("DELETE", "/admin/keys"),
        ("GET", "/docs"),
        ("GET", "/v1/models"),
    ],
)
async def test_what_is_not_there_is_a_404_in_openais_shape(method: str, path: str) -> None:
    async with gateway() as running:
        status, answer = await running.admin(method, path)
        assert status == 404
        assert answer["error"]["code"] == "path_not_found"


@pytest.mark.parametrize(
    ("path", "content"), [("/admin/keys", {"name": "x"}), ("/admin/keys/ID/revoke", None)]
)
async def test_changes_are_a_503_while_the_store_is_gone(path: str, content: Any) -> None:
    async with gateway() as running:
        (key_id,) = running.store.records
        running.store.gone = True
        status, answer = await running.admin("POST", path.replace("ID", key_id), content)
        assert status == 503
        assert answer["error"]["code"] == "store_unavailable"
        running.store.gone = False
        assert (await running.ask("/v1/models", method="GET")).status == 200


async def test_a_refusal_has_a_request_id_and_says_when_to_retry() -> None:
    async with gateway() as running:
        running.store.gone = True
        headers = [("authorization", f"Bearer {ADMIN_TOKEN}"), ("content-type", "application/json")]
        client = await call(running.apps.admin, "POST", "/admin/keys", headers, b'{"name": "x"}')
        assert client.headers["retry-after"] == "5"
        assert client.headers["x-request-id"].startswith("req-")


async def test_who_was_given_or_lost_a_key_is_logged() -> None:
    async with gateway() as running:
        (key_id,) = running.store.records
        await running.admin("POST", f"/admin/keys/{key_id}/revoke")
        for event in ("key_created", "key_revoked"):
            (line,) = running.lines(event)
            assert (line["key_id"], line["tenant"]) == (key_id, "acme")


def test_keys_of_another_process_are_listed_after_the_next_refresh() -> None:
    async def scenario() -> list[str]:
        async with gateway() as here, gateway() as there:
            await there.admin("POST", "/admin/keys", {"name": "theirs"})
            here.store.records.update(there.store.records)
            await asyncio.sleep(REFRESH_SECONDS + 0.1)
            _, listed = await here.admin("GET", "/admin/keys")
            return [key["name"] for key in listed["keys"]]

    assert sorted(run(scenario())) == ["laptop", "laptop", "theirs"]
