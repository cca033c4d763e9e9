"""/admin/keys: made, listed, shown, changed, rotated, disabled, revoked, moved; and who did it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway import keys
from gateway.errors import AuthenticationFailed
from tests.fakes.administration import PLANS, Administration

FUTURE = "2030-01-02T03:04:05+01:00"


@pytest.fixture
async def admin(tmp_path: Path) -> Administration:
    return await Administration.start(tmp_path)


def serves(admin: Administration, text: str) -> bool:
    parsed = keys.parse(text)
    assert parsed
    try:
        admin.directory.authenticate(text.encode())
    except AuthenticationFailed:
        return False
    return True


async def test_a_key_is_made_with_defaults_and_shown_once(admin: Administration) -> None:
    status, made = await admin.ask("POST", "/admin/keys", {"name": "phone"})
    assert status == 201
    assert (made["name"], made["tenant"], made["plan"], made["state"]) == ("phone", "default", None, "active")
    assert made["requests_per_minute"] is made["scopes"] is made["models"] is made["expires_at"] is None
    assert serves(admin, made["key"])
    _, listed = await admin.ask("GET", "/admin/keys")
    (view,) = listed["keys"]
    assert set(view) == set(made) - {"key"}
    assert made["key"] not in orjson.dumps(listed).decode()
    assert made["key"].encode() not in admin.log.getvalue()


async def test_a_key_is_made_as_it_was_asked_for(admin: Administration) -> None:
    asked = {
        "name": "ci runner/2",
        "tenant": "team-a",
        "plan": "wide",
        "scopes": ["generate", "embed", "generate"],
        "models": ["alias", "org/other"],
        "requests_per_minute": 7,
        "output_cap": 100,
        "over_cap": "refuse",
        "priority": 0,
        "expires_at": FUTURE,
    }
    made = await admin.key(**asked)
    assert {name: made[name] for name in asked} == asked | {
        "scopes": ["generate", "embed"],
        "expires_at": "2030-01-02T02:04:05Z",
    }
    record = admin.store.records[made["id"]]
    assert record.overrides == {
        "requests_per_minute": 7,
        "output_cap": 100,
        "over_cap": "refuse",
        "priority": 0,
    }


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"{}", "name"),
        (b'{"name": ""}', "name"),
        (b'{"name": null}', "name"),
        (b'{"name": "a\\nb"}', "name"),
        (b'{"name": "' + b"x" * 101 + b'"}', "name"),
        (b'{"name": "x", "tenant": "<b>"}', "tenant"),
        (b'{"name": "x", "plan": "gold"}', "plan"),
        (b'{"name": "x", "models": ["gpt-9"]}', "models"),
        (b'{"name": "x", "models": []}', "models"),
        (b'{"name": "x", "scopes": ["generate", "fly"]}', "scopes.1"),
        (b'{"name": "x", "scopes": []}', "scopes"),
        (b'{"name": "x", "requests_per_minute": 0}', "requests_per_minute"),
        (b'{"name": "x", "requests_per_minute": 1.5}', "requests_per_minute"),
        (b'{"name": "x", "requests_per_minute": "7"}', "requests_per_minute"),
        (b'{"name": "x", "tokens_per_day": 1e300}', "tokens_per_day"),
        (b'{"name": "x", "priority": 10}', "priority"),
        (b'{"name": "x", "over_cap": "explode"}', "over_cap"),
        (b'{"name": "x", "output_cap": 10, "output_default": 11}', "output_default"),
        (b'{"name": "x", "expires_at": "2020-01-01T00:00:00Z"}', "expires_at"),
        (b'{"name": "x", "expires_at": "2030-01-01T00:00:00"}', "expires_at"),
        (b'{"name": "x", "expires_at": "9999-12-31T23:59:59-12:00"}', "expires_at"),
        (b'{"name": "x", "expires_at": "0001-01-01T00:00:00+12:00"}', "expires_at"),
        (b'{"name": "x", "expires_at": 1e300}', "expires_at"),
    ],
)
async def test_a_wrong_request_is_refused_by_field_in_openais_shape_and_changes_nothing(
    admin: Administration, content: bytes, param: str | None
) -> None:
    made = await admin.key()
    before = dict(admin.store.records)
    for method, path in (("POST", "/admin/keys"), ("PATCH", f"/admin/keys/{made['id']}")):
        client = await admin.raw(method, path, content)
        assert client.status == 400
        assert client.error["type"] == "invalid_request_error"
        assert client.error["code"] == "invalid_parameter"
        # Of a change of nothing, no field is missing.
        assert client.error["param"] == (None if content == b"{}" and method == "PATCH" else param)
    assert admin.store.records == before


async def test_a_misspelt_field_is_told_what_it_was_meant_to_be(admin: Administration) -> None:
    status, answer = await admin.ask("POST", "/admin/keys", {"name": "x", "expire_at": FUTURE})
    assert (status, answer["error"]["param"]) == (400, "expire_at")
    assert answer["error"]["message"] == "expire_at is not known here; did you mean expires_at?"


async def test_the_list_can_be_filtered(admin: Administration) -> None:
    a = await admin.key(name="a", tenant="acme")
    b = await admin.key(name="b", tenant="other", plan="wide")
    c = await admin.key(name="c", tenant="acme", plan="standard")
    await admin.ask("POST", f"/admin/keys/{c['id']}/revoke")
    for query, names in (
        ("", ["a", "b", "c"]),
        ("?tenant=acme", ["a", "c"]),
        ("?state=active", ["a", "b"]),
        ("?tenant=acme&state=revoked", ["c"]),
        ("?plan=standard", ["a", "c"]),
        ("?plan=wide", ["b"]),
        ("?tenant=nobody", []),
    ):
        _, listed = await admin.ask("GET", f"/admin/keys{query}")
        assert sorted(key["name"] for key in listed["keys"]) == names, query
    assert {a["id"], b["id"], c["id"]} == set(admin.store.records)
    status, answer = await admin.ask("GET", "/admin/keys?state=happy")
    assert (status, answer["error"]["param"]) == (400, "state")


@pytest.mark.parametrize("path", ["/admin/keys", "/admin/keys/export"])
async def test_the_list_comes_in_pages_that_together_have_every_key_once(
    admin: Administration, path: str
) -> None:
    made = []
    for number in range(5):
        admin.clock.now += 1
        made.append((await admin.key(name=f"key {number}"))["id"])
    found: list[str] = []
    after = ""
    while True:
        _, page = await admin.ask("GET", f"{path}?limit=2{after}")
        found += [key["id"] for key in page["keys"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert found == made
    assert (await admin.ask("GET", f"{path}?after=zzzzzzzzzz"))[0] == 400
    assert (await admin.ask("GET", f"{path}?limit=0"))[0] == 400


async def test_a_state_is_the_most_final_one(admin: Administration) -> None:
    made = await admin.key(expires_at=datetime.fromtimestamp(admin.clock() + 100, UTC).isoformat())

    async def state() -> Any:
        _, listed = await admin.ask("GET", "/admin/keys")
        return listed["keys"][0]["state"]

    assert await state() == "active"
    await admin.ask("POST", f"/admin/keys/{made['id']}/rotate", {"overlap_seconds": 50})
    assert await state() == "rotating"
    await admin.ask("POST", f"/admin/keys/{made['id']}/disable")
    assert await state() == "disabled"
    admin.clock.now += 100
    assert await state() == "expired"
    await admin.ask("POST", f"/admin/keys/{made['id']}/revoke")
    assert await state() == "revoked"


async def test_the_last_use_comes_from_the_store_and_a_list_without_it_from_memory(
    admin: Administration,
) -> None:
    made = await admin.key()
    await admin.store.apply_usage("spool", 0, 1, [], {made["id"]: 1.8e9})
    _, listed = await admin.ask("GET", "/admin/keys")
    assert listed["keys"][0]["last_used_at"] == "2027-01-15T08:00:00Z"
    admin.store.gone = True
    status, listed = await admin.ask("GET", "/admin/keys")
    assert (status, len(listed["keys"])) == (200, 1)


async def test_one_key_is_shown_with_what_it_may_do(admin: Administration) -> None:
    made = await admin.key(plan="wide", output_cap=100, models=["alias"], scopes=["embed"])
    status, shown = await admin.ask("GET", f"/admin/keys/{made['id']}")
    assert status == 200
    assert shown["effective"] == {
        "plan": "wide",
        "models": ["alias"],
        "scopes": ["embed"],
        "output_cap": 100,
        "output_default": 100,
        "over_cap": "clamp",
        "priority": 5,
    }
    assert shown["problem"] is None


async def test_a_key_whose_plan_is_gone_says_so(admin: Administration) -> None:
    made = await admin.key(plan="wide")
    admin.write_plans({**PLANS, "plans": {"standard": PLANS["plans"]["standard"]}})
    admin.plans.reload()
    _, shown = await admin.ask("GET", f"/admin/keys/{made['id']}")
    assert shown["effective"] is None
    assert "'wide', does not exist" in shown["problem"]


async def test_a_change_sets_what_is_given_and_nothing_else(admin: Administration) -> None:
    made = await admin.key(plan="wide", requests_per_minute=7, tokens_per_day=9, expires_at=FUTURE)
    admin.clock.now += 10
    changes = {"requests_per_minute": 8, "tokens_per_day": None, "plan": None, "name": "tablet"}
    status, changed = await admin.ask("PATCH", f"/admin/keys/{made['id']}", changes)
    assert status == 200
    assert {name: changed[name] for name in changes} == changes
    assert changed["changed_at"] != made["changed_at"]
    assert changed["expires_at"] == made["expires_at"]
    assert admin.store.records[made["id"]].overrides == {"requests_per_minute": 8}
    _, changed = await admin.ask("PATCH", f"/admin/keys/{made['id']}", {"expires_at": None})
    assert (changed["expires_at"], changed["name"]) == (None, "tablet")


async def test_a_change_to_what_is_already_so_is_none(admin: Administration) -> None:
    made = await admin.key(plan="wide", priority=3)
    entries = len(admin.store.audit)
    status, same = await admin.ask("PATCH", f"/admin/keys/{made['id']}", {"plan": "wide", "priority": 3})
    assert (status, same["changed_at"]) == (200, made["changed_at"])
    assert len(admin.store.audit) == entries


async def test_a_change_of_what_another_gateway_has_changed_since_is_refused(
    admin: Administration, tmp_path: Path
) -> None:
    """Each would write all own values of the key: the second would undo the first."""
    made = await admin.key(requests_per_minute=7)
    late = await Administration.start(tmp_path / "late", store=admin.store)
    admin.clock.now += 1
    await admin.ask("PATCH", f"/admin/keys/{made['id']}", {"tokens_per_day": 9})
    status, answer = await late.ask("PATCH", f"/admin/keys/{made['id']}", {"priority": 3})
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert admin.store.records[made["id"]].overrides == {"requests_per_minute": 7, "tokens_per_day": 9}


async def test_after_a_rotation_both_secrets_are_good_for_the_overlap(admin: Administration) -> None:
    made = await admin.key()
    status, rotated = await admin.ask("POST", f"/admin/keys/{made['id']}/rotate", {"overlap_seconds": 60})
    assert (status, rotated["id"], rotated["state"]) == (200, made["id"], "rotating")
    assert rotated["key"] != made["key"]
    assert serves(admin, made["key"])
    assert serves(admin, rotated["key"])
    admin.clock.now += 61
    assert not serves(admin, made["key"])
    assert serves(admin, rotated["key"])


async def test_a_rotation_without_overlap_ends_the_old_secret_at_once(admin: Administration) -> None:
    made = await admin.key()
    _, rotated = await admin.ask("POST", f"/admin/keys/{made['id']}/rotate")
    assert not serves(admin, made["key"])
    assert serves(admin, rotated["key"])


@pytest.mark.parametrize("overlap", [-1, 1e9, "NaN", None])
async def test_an_overlap_that_is_none_is_refused_and_the_secret_stays(
    admin: Administration, overlap: object
) -> None:
    made = await admin.key()
    content = {"overlap_seconds": overlap}
    assert (await admin.ask("POST", f"/admin/keys/{made['id']}/rotate", content))[0] == 400
    assert serves(admin, made["key"])


async def test_a_disabled_key_is_refused_until_it_is_enabled(admin: Administration) -> None:
    made = await admin.key()
    _, view = await admin.ask("POST", f"/admin/keys/{made['id']}/disable")
    assert view["disabled_at"]
    assert not serves(admin, made["key"])
    _, view = await admin.ask("POST", f"/admin/keys/{made['id']}/enable")
    assert view["disabled_at"] is None
    assert serves(admin, made["key"])


async def test_a_revocation_is_for_good_and_its_first_moment_stands(admin: Administration) -> None:
    made = await admin.key()
    _, first = await admin.ask("POST", f"/admin/keys/{made['id']}/revoke")
    admin.clock.now += 60
    _, second = await admin.ask("POST", f"/admin/keys/{made['id']}/revoke")
    assert first["revoked_at"] == second["revoked_at"] is not None
    for action in ("enable", "rotate"):
        status, answer = await admin.ask("POST", f"/admin/keys/{made['id']}/{action}")
        assert (status, answer["error"]["code"]) == (409, "conflict")
    assert not serves(admin, made["key"])


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("GET", "", None),
        ("PATCH", "", {"name": "x"}),
        *(("POST", f"/{action}", None) for action in ("rotate", "disable", "enable", "revoke")),
    ],
)
async def test_a_key_that_is_not_there_is_a_404(
    admin: Administration, method: str, path: str, content: object
) -> None:
    status, answer = await admin.ask(method, f"/admin/keys/zzzzzzzzzz{path}", content)
    assert (status, answer["error"]["code"]) == (404, "path_not_found")


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/admin/keys", {"name": "x"}),
        ("POST", "/admin/keys/import", {"keys": [{"name": "x"}]}),
        ("PATCH", "/admin/keys/ID", {"name": "x"}),
        *(("POST", f"/admin/keys/ID/{action}", None) for action in ("rotate", "disable", "enable", "revoke")),
    ],
)
async def test_changes_are_a_503_while_the_store_is_gone(
    admin: Administration, method: str, path: str, content: object
) -> None:
    made = await admin.key()
    before = dict(admin.store.records)
    admin.store.gone = True
    status, answer = await admin.ask(method, path.replace("ID", made["id"]), content)
    assert (status, answer["error"]["code"]) == (503, "store_unavailable")
    admin.store.gone = False
    assert admin.store.records == before
    await admin.directory.refresh()
    assert serves(admin, made["key"])


@pytest.mark.parametrize(
    ("action", "event"),
    [
        ("rotate", "key_rotated"),
        ("disable", "key_disabled"),
        ("enable", "key_enabled"),
        ("revoke", "key_revoked"),
    ],
)
async def test_every_change_is_logged_with_who_made_it(
    admin: Administration, action: str, event: str
) -> None:
    made = await admin.key()
    _, answer = await admin.ask("POST", f"/admin/keys/{made['id']}/{action}", actor=b"alice")
    for name in ("key_created", event):
        (line,) = admin.lines(name)
        assert (line["key_id"], line["tenant"]) == (made["id"], "acme")
    assert line["actor"] == "alice"
    assert (admin.store.audit[-1].action, admin.store.audit[-1].actor) == (action, "alice")
    assert answer.get("key", "no secret").encode() not in admin.log.getvalue()


class TestImport:
    async def test_new_keys_come_back_in_order_with_their_texts(self, admin: Administration) -> None:
        content = {"keys": [{"name": "a", "plan": "wide"}, {"name": "b", "requests_per_minute": 3}]}
        status, result = await admin.ask("POST", "/admin/keys/import", content)
        assert (status, result["count"], result["dry_run"]) == (201, 2, False)
        assert [key["name"] for key in result["keys"]] == ["a", "b"]
        assert all(serves(admin, key["key"]) for key in result["keys"])

    async def test_what_one_gateway_exports_another_takes_over(
        self, admin: Administration, tmp_path: Path
    ) -> None:
        other = await Administration.start(tmp_path / "other")
        limits = {"requests_per_minute": 3, "over_cap": "refuse", "expires_at": FUTURE}
        made = await admin.key(plan="wide", scopes=["embed"], models=["alias"], **limits)
        admin.clock.now += 1
        gone = await admin.key(name="gone")
        await admin.ask("POST", f"/admin/keys/{gone['id']}/revoke")
        _, rotated = await admin.ask("POST", f"/admin/keys/{made['id']}/rotate", {"overlap_seconds": 60})
        _, exported = await admin.ask("GET", "/admin/keys/export")
        mixed = [*exported["keys"], {"name": "new"}]
        status, result = await other.ask("POST", "/admin/keys/import", {"keys": mixed})
        assert status == 201
        assert [bool(key["key"]) for key in result["keys"]] == [False, False, True]
        for text in (made["key"], rotated["key"], result["keys"][2]["key"]):
            assert serves(other, text)
        assert not serves(other, gone["key"])
        _, again = await other.ask("GET", "/admin/keys/export")
        assert [key for key in again["keys"] if key["name"] != "new"] == exported["keys"]

    async def test_an_export_has_no_secret(self, admin: Administration) -> None:
        made = await admin.key()
        secret = made["key"].rpartition("-")[2]
        client = await admin.raw("GET", "/admin/keys/export")
        assert secret.encode() not in client.body
        assert made["key"].encode() not in client.body

    @pytest.mark.parametrize(
        ("bad", "param"),
        [
            ({"name": ""}, "keys.1.name"),
            ({"name": "x", "plan": "gold"}, "keys.1.plan"),
            ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "keys.1.expires_at"),
            ({"name": "x", "digest": "ab"}, "keys.1.id"),
            ({"name": "x", "colour": "red"}, "keys.1.colour"),
            (7, "keys.1"),
        ],
    )
    async def test_one_bad_key_leaves_all_out_and_is_named(
        self, admin: Administration, bad: object, param: str
    ) -> None:
        content = {"keys": [{"name": "good"}, bad]}
        status, answer = await admin.ask("POST", "/admin/keys/import", content)
        assert (status, answer["error"]["param"]) == (400, param)
        assert answer["error"]["message"].startswith("keys.1")
        assert admin.store.records == {}

    @pytest.mark.parametrize("keys", [[], [{"name": "x"}] * 1001])
    async def test_no_key_and_too_many_are_refused(self, admin: Administration, keys: list[object]) -> None:
        status, answer = await admin.ask("POST", "/admin/keys/import", {"keys": keys})
        assert (status, answer["error"]["param"]) == (400, "keys")

    async def test_a_key_that_is_there_is_no_second_time_taken(self, admin: Administration) -> None:
        await admin.key()
        _, exported = await admin.ask("GET", "/admin/keys/export")
        before = dict(admin.store.records)
        for content in (exported["keys"], [{"name": "new"}, *exported["keys"]]):
            status, answer = await admin.ask("POST", "/admin/keys/import", {"keys": content})
            assert (status, answer["error"]["code"]) == (409, "conflict")
        assert admin.store.records == before

    async def test_the_store_has_the_last_word_on_what_is_there(
        self, admin: Administration, tmp_path: Path
    ) -> None:
        """Another process has made the key since."""
        late = await Administration.start(tmp_path / "late", store=admin.store)
        await admin.key()
        _, exported = await admin.ask("GET", "/admin/keys/export")
        status, answer = await late.ask("POST", "/admin/keys/import", {"keys": exported["keys"]})
        assert (status, answer["error"]["code"]) == (409, "conflict")

    async def test_twice_in_one_file_is_once_too_often(self, admin: Administration, tmp_path: Path) -> None:
        await admin.key()
        _, exported = await admin.ask("GET", "/admin/keys/export")
        other = await Administration.start(tmp_path / "other")
        status, _ = await other.ask("POST", "/admin/keys/import", {"keys": exported["keys"] * 2})
        assert (status, other.store.records) == (409, {})

    async def test_keys_of_another_pepper_are_refused(self, admin: Administration, tmp_path: Path) -> None:
        await admin.key()
        _, exported = await admin.ask("GET", "/admin/keys/export")
        other = await Administration.start(tmp_path / "other", pepper=b"another")
        status, answer = await other.ask("POST", "/admin/keys/import", {"keys": exported["keys"]})
        assert (status, answer["error"]["param"]) == (400, "keys.0.pepper_id")
        assert other.store.records == {}

    async def test_a_dry_run_checks_and_changes_nothing(self, admin: Administration) -> None:
        content = {"keys": [{"name": "a"}, {"name": "b"}], "dry_run": True}
        status, result = await admin.ask("POST", "/admin/keys/import", content)
        assert (status, result) == (201, {"count": 2, "dry_run": True, "keys": []})
        assert admin.store.records == {}
        assert admin.store.audit == []
