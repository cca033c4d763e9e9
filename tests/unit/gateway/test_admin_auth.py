"""The admin API's token comes first; who asks is recorded as they say."""

import asyncio
import base64
from pathlib import Path

import pytest
from starlette.types import Message

from tests.fakes.administration import TOKEN, Administration
from tests.fakes.asgi import Client, call, scope


@pytest.fixture
async def admin(tmp_path: Path) -> Administration:
    return await Administration.start(tmp_path)


def basic(password: str, user: str = "me") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def all_headers(client: Client, name: str) -> list[str]:
    start: Message = client.got[0]
    return [value.decode() for found, value in start["headers"] if found == name.encode()]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer wrong",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer \xff\xfe",
        basic("wrong"),
        basic(""),
        "Basic !!!",
        "Basic",
    ],
)
async def test_without_the_admin_token_nothing_is_told_or_done(
    admin: Administration, authorization: str | None
) -> None:
    headers = [] if authorization is None else [("authorization", authorization)]
    for method, path in (
        ("GET", "/admin/keys"),
        ("GET", "/admin/docs"),
        ("GET", "/admin/openapi.json"),
        ("POST", "/admin/keys"),
        ("POST", "/admin/keys/x/revoke"),
        ("PATCH", "/admin/keys/x"),
    ):
        client = await call(admin.app, method, path, headers, b'{"name": "x"}')
        assert (client.status, client.error["code"]) == (401, "invalid_api_key")
    assert admin.store.records == {}


@pytest.mark.parametrize("path", ["/admin/keys", "/admin/keys/", "/admin/docs", "/docs", "/nowhere"])
async def test_without_the_admin_token_no_body_is_read_and_no_route_is_told(
    admin: Administration, path: str
) -> None:
    client = Client()  # it never sends its body
    await asyncio.wait_for(admin.app(scope("POST", path), client.receive, client.send), 1)
    assert (client.status, client.error["code"]) == (401, "invalid_api_key")
    assert client.headers["x-request-id"]
    assert all_headers(client, "www-authenticate") == ["Bearer"]


async def test_an_api_key_is_no_admin_token(admin: Administration) -> None:
    made = await admin.key()
    client = await call(admin.app, "GET", "/admin/keys", [("authorization", f"Bearer {made['key']}")])
    assert client.status == 401


async def test_a_browser_may_look_with_the_token_as_a_password_and_is_told_so(admin: Administration) -> None:
    for path in ("/admin/docs", "/admin/keys", "/admin/openapi.json"):
        client = await call(admin.app, "GET", path, [("authorization", basic(TOKEN))])
        assert client.status == 200
    asked = await call(admin.app, "GET", "/admin/docs")
    assert any(value.startswith("Basic ") for value in all_headers(asked, "www-authenticate"))


async def test_a_password_changes_nothing(admin: Administration) -> None:
    """A browser sends it along with whatever a page of another site makes it ask."""
    headers = [("authorization", basic(TOKEN)), ("content-type", "application/json")]
    for method, path in (
        ("POST", "/admin/keys"),
        ("PATCH", "/admin/keys/x"),
        ("POST", "/admin/plans/reload"),
        ("PUT", "/admin/keys"),
    ):
        client = await call(admin.app, method, path, headers, b'{"name": "x"}')
        assert client.status == 401
    assert admin.store.records == {}


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        (None, "admin"),
        (b"alice", "alice"),
        ("Zoë".encode(), "Zoë"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"a\tb", "a?b"),
        (b"", "admin"),
    ],
)
async def test_who_asks_is_in_the_audit_log_as_they_say(
    admin: Administration, given: bytes | None, recorded: str
) -> None:
    await admin.ask("POST", "/admin/keys", {"name": "x"}, actor=given)
    assert admin.store.audit[-1].actor == recorded


async def test_a_name_that_is_too_long_is_refused(admin: Administration) -> None:
    status, answer = await admin.ask("POST", "/admin/keys", {"name": "x"}, actor=b"x" * 101)
    assert (status, answer["error"]["param"]) == (400, "x-gatehouse-actor")
    assert admin.store.records == {}
