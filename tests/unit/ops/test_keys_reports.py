"""The `keys` commands that tell: what is asked, and what is on a screen of 80 columns."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.ops.conftest import Checkout, Terminal
from tests.unit.ops.fake_admin import KEY, FakeAdmin, refused, said

READING = {
    "name": "requests_per_minute",
    "scope": "key",
    "subject": "abcdefghij",
    "amount": 1200,
    "shadow": False,
    "used": 3,
    "remaining": 1197,
    "reset_seconds": 59.2,
}
EVERYONE = {**READING, "name": "parallel_requests", "scope": "everyone", "subject": "", "reset_seconds": None}
EFFECTIVE = {
    "plan": "standard",
    "models": ["qwen2.5-14b-instruct", "fast"],
    "scopes": ["embed", "generate"],
    "output_cap": 4096,
    "output_default": 1024,
    "over_cap": "clamp",
    "priority": 5,
}


@pytest.fixture
def admin(checkout: Checkout) -> FakeAdmin:
    return FakeAdmin(checkout.commands)


@pytest.fixture
def screen(terminal: Terminal) -> Terminal:
    terminal.width = 80
    return terminal


def shown(screen: Terminal, *arguments: str) -> str:
    """What a command that must succeed prints, no line of it wider than the screen."""
    code, out, errors = screen.run("keys", *arguments)
    assert (code, errors) == (0, "")
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    return out


def test_the_list_shows_state_and_last_use_and_survives_markup_in_names(
    admin: FakeAdmin, screen: Terminal
) -> None:
    used = (datetime.now(UTC) - timedelta(hours=3, minutes=5)).isoformat()
    other = {**KEY, "id": "klmnopqrst", "name": "x" * 60, "state": "revoked", "plan": "wide"}
    record = {**KEY, "last_used_at": used, "expires_at": "2027-01-31T00:00:00Z"}
    admin.on("GET /admin/keys", said(200, {"keys": [record, other], "next": None}))
    out = shown(screen, "list")
    for text in ("abcdefghij", "alice [x]", "web", "active", "3 h ago", "2027-01-31", "revoked", "wide"):
        assert text in out
    assert json.loads(shown(screen, "list", "--json").replace("\n", ""))["keys"] == [record, other]


def test_all_pages_of_a_filtered_list_are_asked_for(admin: FakeAdmin, screen: Terminal) -> None:
    query = "tenant=web&state=revoked&plan=wide"
    admin.on(f"GET /admin/keys?{query}", said(200, {"keys": [KEY], "next": "abcdefghij"}))
    admin.on(f"GET /admin/keys?{query}&after=abcdefghij", said(200, {"keys": [KEY], "next": None}))
    arguments = ("list", "--tenant", "web", "--state", "revoked", "--plan", "wide")
    assert shown(screen, *arguments).count("abcdefghij") == 2


def test_an_empty_list_says_what_it_means(admin: FakeAdmin, screen: Terminal) -> None:
    for path in ("/admin/keys", "/admin/keys?tenant=web"):
        admin.on(f"GET {path}", said(200, {"keys": [], "next": None}))
    assert "no keys yet: make keys" in shown(screen, "list")
    assert shown(screen, "list", "--tenant", "web") == "no such keys\n"


def test_one_key_is_shown_with_its_plan_and_its_present_use(admin: FakeAdmin, screen: Terminal) -> None:
    record = {**KEY, "effective": EFFECTIVE, "problem": None}
    admin.on("GET /admin/keys/abcdefghij", said(200, record))
    admin.on("GET /admin/limits/abcdefghij", said(200, {"plan": "standard", "limits": [READING, EVERYONE]}))
    out = shown(screen, "show", "abcdefghij")
    for text in (
        "standard (the default)",
        "qwen2.5-14b-instruct, fast",
        "up to 4096 tokens, above: clamp",
        "requests_per_minute=120",
        "never",
        "1,200",
        "59 s",
        "everyone",
    ):
        assert text in out
    found = json.loads(screen.run("keys", "show", "abcdefghij", "--json")[1])
    assert found == {**record, "limits": [READING, EVERYONE]}


def test_a_key_without_a_plan_shows_why_it_may_nothing(admin: FakeAdmin, screen: Terminal) -> None:
    gone = {
        **KEY,
        "state": "rotating",
        "disabled_at": "2026-12-01T01:02:03Z",
        "previous_until": "2026-12-02T01:02:03Z",
        "effective": None,
        "problem": "This key's plan, 'gold', does not exist.",
    }
    admin.on("GET /admin/keys/abcdefghij", said(200, gone))
    out = shown(screen, "show", "abcdefghij")
    assert "'gold', does not exist" in out
    assert "accepted until 2026-12-02 01:02" in out
    assert "2026-12-01 01:02" in out
    assert admin.asked() == ["GET /admin/keys/abcdefghij"]


def test_limits_are_shown_shadow_ones_marked(admin: FakeAdmin, screen: Terminal) -> None:
    day = {**READING, "name": "tokens_per_month", "shadow": True, "scope": "tenant", "subject": "web"}
    found: dict[str, Any] = {"plan": "standard", "limits": [{**day, "reset_seconds": 200_000.0}]}
    admin.on("GET /admin/limits/abcdefghij", said(200, found))
    out = shown(screen, "limits", "abcdefghij")
    for text in ("tokens_per_month (shadow)", "tenant web", "2 d"):
        assert text in out
    assert json.loads(screen.run("keys", "limits", "abcdefghij", "--json")[1]) == found
    admin.on("GET /admin/limits/abcdefghij", said(200, {"plan": "free", "limits": []}))
    assert shown(screen, "limits", "abcdefghij") == "the plan free has no limits\n"


def usage(by: str, **row: Any) -> dict[str, Any]:
    sums = {
        "requests": 12,
        "prompt_tokens": 1_234_567,
        "completion_tokens": 89,
        "total_tokens": 1_234_656,
        "estimated_requests": 1,
    }
    return {
        "from": "2026-12-01",
        "to": "2026-12-02",
        "timezone": "Europe/Berlin",
        "by": by,
        "rows": [{"name": "web", "tenant": None, "key_name": None, **sums, **row}],
        "total": sums,
    }


def test_usage_is_asked_for_as_typed_and_summed(admin: FakeAdmin, screen: Terminal) -> None:
    report = usage("tenant")
    admin.on(
        "GET /admin/usage?from=2026-12-01&to=2026-12-02&by=tenant&tenant=web&key_id=x", said(200, report)
    )
    days = ("--from", "2026-12-01", "--to", "2026-12-02")
    typed = ("usage", *days, "--by", "tenant", "--tenant", "web", "--key", "x")
    out = shown(screen, *typed)
    assert out.count("1,234,567") == 2
    assert "days of Europe/Berlin" in out
    assert json.loads(screen.run("keys", *typed, "--json")[1]) == report


def test_usage_by_key_has_the_keys_names(admin: FakeAdmin, screen: Terminal) -> None:
    admin.on(
        "GET /admin/usage?by=key",
        said(200, usage("key", name="abcdefghij", key_name="alice [x]", tenant="web")),
    )
    out = shown(screen, "usage", "--by", "key")
    assert "abcdefghij" in out
    assert "alice [x]" in out


def test_no_usage_is_said(admin: FakeAdmin, screen: Terminal) -> None:
    admin.on("GET /admin/usage?by=day", said(200, {**usage("day"), "rows": []}))
    assert shown(screen, "usage") == "no usage from 2026-12-01 to 2026-12-02\n"


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_day_that_is_none_is_wrong_usage(admin: FakeAdmin, screen: Terminal, option: str) -> None:
    code, _, errors = screen.run("keys", "usage", option, "2026-02-30")
    assert code == 2
    assert "no date" in errors
    assert admin.asked() == []


def test_a_refusal_is_explained_in_words(admin: FakeAdmin, screen: Terminal) -> None:
    found = {
        "request_id": "req-1",
        "at": "2026-12-01T01:02:03.5Z",
        "route": "/v1/chat/completions",
        "model": "fast",
        "status": 429,
        "code": "token_rate_limit_exceeded",
        "message": "x",
        "tenant": "web",
        "key_id": "abcdefghij",
        "plan": "standard",
        "limits": [],
        "why": ["key abcdefghij: tokens_per_minute is 100; 90 were used and the request needed 30."],
        "remedies": ["The same request 5 s later, if nothing else takes the place."],
    }
    admin.on("GET /admin/explain/req-1", said(200, found))
    out = screen.run("keys", "explain", "req-1")[1]
    for text in (
        "req-1: 429 token_rate_limit_exceeded\n",
        "2026-12-01 01:02:03 UTC, /v1/chat/completions, model fast, key abcdefghij of tenant web",
        "Why:\n  - key abcdefghij: tokens_per_minute is 100",
        "What would let it pass:\n  - The same request 5 s later",
    ):
        assert text in out
    assert json.loads(screen.run("keys", "explain", "req-1", "--json")[1]) == found
    stranger = {**found, "key_id": None, "tenant": None, "plan": None, "model": ""}
    admin.on("GET /admin/explain/req-1", said(200, stranger))
    assert "/v1/chat/completions, nobody known" in screen.run("keys", "explain", "req-1")[1]


def test_a_request_that_was_not_refused_is_one_line(admin: FakeAdmin, screen: Terminal) -> None:
    admin.on("GET /admin/explain/req-1", refused(404, "x"))
    code, out, errors = screen.run("keys", "explain", "req-1")
    assert (code, out) == (1, "")
    assert errors.startswith("error: No refusal of req-1 is remembered.")
    assert errors.count("\n") == 1


def test_the_audit_log_is_shown_newest_first_with_the_way_to_older_ones(
    admin: FakeAdmin, screen: Terminal
) -> None:
    entry = {
        "id": 7,
        "at": "2026-12-01T01:02:03Z",
        "actor": "alice",
        "action": "change",
        "key_id": "abcdefghij",
        "tenant": "web",
        "detail": {
            "plan": "wide",
            "scopes": None,
            "expires_at": 1_800_000_000.5,
            "previous_pepper_id": "aabbccddeeff",
            "overrides": {"priority": 3},
        },
    }
    admin.on("GET /admin/audit?limit=50", said(200, {"entries": [entry], "next": 7}))
    out = shown(screen, "audit")
    for text in (
        "2026-12-01 01:02",
        "alice",
        "change",
        "abcdefghij",
        "plan=wide",
        "priority=3",
        "--before 7",
    ):
        assert text in out
    words = out.split()
    assert "expires_at=2027-01-15" in words
    assert "scopes=-," in words
    assert "aabbccddeeff" not in out
    page = {"entries": [entry], "next": None}
    admin.on("GET /admin/audit?limit=1&before=7&key_id=abcdefghij", said(200, page))
    typed = ("audit", "--limit", "1", "--before", "7", "--key", "abcdefghij")
    assert "--before" not in shown(screen, *typed)
    assert json.loads(screen.run("keys", *typed, "--json")[1]) == page


def plans(problem: str | None) -> dict[str, Any]:
    limits = {"requests_per_minute": 60, "tokens_per_minute": None, "tokens_per_day": 2_000_000}
    return {
        "path": "/etc/plans.yaml",
        "generation": 3,
        "problem": problem,
        "plans": {
            "default_plan": "standard",
            "plans": {"standard": {"limits": limits, "output": {"cap": 4096, "default": 1024}}},
        },
    }


def test_plans_are_shown_and_read_again_when_asked(admin: FakeAdmin, screen: Terminal) -> None:
    admin.on("GET /admin/plans", said(200, plans(None)))
    out = shown(screen, "plans")
    for text in ("standard (default)", "60", "2,000,000", "4,096"):
        assert text in out
    admin.on("GET /admin/plans", said(200, plans("plans.yaml: bad")))
    assert "these are older: plans.yaml: bad" in screen.run("keys", "plans")[1]
    admin.on("POST /admin/plans/reload", refused(409, "plans.yaml: bad. The plans stay as they were."))
    code, _, errors = screen.run("keys", "plans", "--reload")
    assert code == 1
    assert "The plans stay as they were." in errors
    admin.on("POST /admin/plans/reload", said(200, plans(None)))
    assert json.loads(screen.run("keys", "plans", "--reload", "--json")[1]) == plans(None)
