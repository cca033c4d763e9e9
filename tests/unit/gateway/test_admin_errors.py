"""The admin API's refusals have the public API's shape."""

from pathlib import Path

import pytest

from gateway.store import Duplicate, Stale, StoreUnfit
from tests.fakes.administration import Administration


@pytest.fixture
async def admin(tmp_path: Path) -> Administration:
    return await Administration.start(tmp_path)


@pytest.mark.parametrize("path", ["/admin/other", "/docs", "/v1/models", "/admin/keys/zzzzzzzzzz"])
async def test_what_is_not_there_is_a_404_in_openais_shape(admin: Administration, path: str) -> None:
    status, answer = await admin.ask("GET", path)
    assert (status, answer["error"]["code"]) == (404, "path_not_found")


async def test_another_method_is_a_405_that_says_which_are_there(admin: Administration) -> None:
    client = await admin.raw("DELETE", "/admin/keys")
    assert (client.status, client.error["code"]) == (405, "method_not_allowed")
    assert client.headers["allow"] == "GET, POST"


async def test_a_refusal_has_a_request_id_and_says_when_to_retry(admin: Administration) -> None:
    admin.store.gone = True
    client = await admin.raw("POST", "/admin/keys", b'{"name": "x"}')
    assert (client.status, client.error["code"]) == (503, "store_unavailable")
    assert client.headers["retry-after"] == "5"
    assert client.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Duplicate("there is a key with this id"), 409, "conflict"),
        (Stale("it was changed"), 409, "conflict"),
        (StoreUnfit("a later version's schema"), 503, "store_unavailable"),
    ],
)
async def test_what_the_store_refuses_is_told_apart_from_a_store_that_is_gone(
    admin: Administration, fault: Exception, status: int, code: str
) -> None:
    admin.store.fault = fault
    client = await admin.raw("POST", "/admin/keys", b'{"name": "x"}')
    assert (client.status, client.error["code"]) == (status, code)
    assert str(fault).encode() not in client.body


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"name": "\xff"}'])
async def test_a_body_that_cannot_be_read_is_no_missing_path(admin: Administration, body: bytes) -> None:
    client = await admin.raw("POST", "/admin/keys", body)
    assert (client.status, client.error["code"]) == (400, "invalid_parameter")


async def test_where_json_is_broken_is_no_fields_name(admin: Administration) -> None:
    client = await admin.raw("POST", "/admin/keys", b'{"name": "x", ')
    assert (client.status, client.error["param"]) == (400, None)
    assert client.error["message"].startswith("body: ")
