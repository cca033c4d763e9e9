"""What the admin API tells: usage, limits as they stand, why a request was refused, plans, the audit log."""

import math
from pathlib import Path
from typing import Any

import pytest

from gateway.limits import Ask, Limit, Refused
from gateway.refusals import Refusal
from gateway.store import UsageEntry
from tests.fakes.administration import PLANS, Administration

# 15 January 2027, 23:30 UTC: in Berlin it is the 16th.
LATE = 1_800_055_800.0


@pytest.fixture
async def admin(tmp_path: Path) -> Administration:
    return await Administration.start(tmp_path)


def use(admin: Administration, key: dict[str, Any], at: float, **given: Any) -> None:
    fields: dict[str, Any] = {
        "model": "served",
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "estimated": False,
    }
    admin.ledger.record(
        UsageEntry("req", at, key["tenant"], key["id"], route="/v1/chat/completions", **(fields | given))
    )


class TestUsage:
    async def test_it_is_summed_by_day_in_the_plans_time_zone(self, admin: Administration) -> None:
        key = await admin.key()
        use(admin, key, LATE - 86_400)
        use(admin, key, LATE)
        use(admin, key, LATE + 60, estimated=True)
        admin.clock.now = LATE + 120
        status, report = await admin.ask("GET", "/admin/usage")
        assert status == 200
        assert (report["from"], report["to"], report["timezone"]) == (
            "2027-01-01",
            "2027-01-16",
            "Europe/Berlin",
        )
        assert [(row["name"], row["requests"], row["total_tokens"]) for row in report["rows"]] == [
            ("2027-01-15", 1, 15),
            ("2027-01-16", 2, 30),
        ]
        assert report["total"] == {
            "requests": 3,
            "prompt_tokens": 30,
            "completion_tokens": 15,
            "total_tokens": 45,
            "estimated_requests": 1,
        }

    async def test_it_is_the_same_before_and_after_it_reaches_the_store(self, admin: Administration) -> None:
        use(admin, await admin.key(), LATE)
        query = "/admin/usage?from=2027-01-16&to=2027-01-16&by=key"
        before = await admin.ask("GET", query)
        await admin.ledger.flush()
        assert await admin.ask("GET", query) == before

    async def test_it_can_be_summed_by_key_tenant_and_model_and_narrowed(self, admin: Administration) -> None:
        one, other = await admin.key(name="one"), await admin.key(name="other", tenant="beta")
        use(admin, one, LATE)
        use(admin, one, LATE - 86_400, model="org/other")
        use(admin, other, LATE)
        admin.clock.now = LATE

        async def rows(query: str) -> dict[str, int]:
            _, report = await admin.ask("GET", f"/admin/usage?{query}")
            assert report["total"]["requests"] == sum(row["requests"] for row in report["rows"])
            return {row["name"]: row["requests"] for row in report["rows"]}

        assert await rows("by=key") == {one["id"]: 2, other["id"]: 1}
        assert await rows("by=tenant") == {"acme": 2, "beta": 1}
        assert await rows("by=model") == {"served": 2, "org/other": 1}
        assert await rows("by=model&tenant=beta") == {"served": 1}
        assert await rows(f"by=tenant&key_id={one['id']}") == {"acme": 2}
        assert await rows("to=2027-01-15") == {"2027-01-15": 1}

    async def test_a_key_is_shown_with_its_name(self, admin: Administration) -> None:
        key = await admin.key(name="laptop")
        use(admin, key, LATE)
        use(admin, {"tenant": "acme", "id": "jwt-aaaaaaaaaaaaaaaa"}, LATE)
        _, report = await admin.ask("GET", "/admin/usage?by=key&from=2027-01-16&to=2027-01-16")
        names = {row["name"]: (row["key_name"], row["tenant"]) for row in report["rows"]}
        assert names == {key["id"]: ("laptop", "acme"), "jwt-aaaaaaaaaaaaaaaa": (None, "acme")}

    @pytest.mark.parametrize(
        ("query", "param"),
        [
            ("from=yesterday", "from"),
            ("to=2027-02-30", "to"),
            ("by=hour", "by"),
            ("from=2027-02-01&to=2027-01-01", "from"),
            ("from=2025-01-01&to=2027-01-01", "from"),
            ("from=9999-12-31", "from"),
        ],
    )
    async def test_a_period_that_is_none_is_refused(
        self, admin: Administration, query: str, param: str
    ) -> None:
        status, answer = await admin.ask("GET", f"/admin/usage?{query}")
        assert (status, answer["error"]["param"]) == (400, param)

    @pytest.mark.parametrize("period", ["from=0001-01-01&to=0001-01-02", "from=9999-12-30&to=9999-12-31"])
    async def test_the_first_and_the_last_days_there_are_have_no_usage(
        self, admin: Administration, period: str
    ) -> None:
        status, report = await admin.ask("GET", f"/admin/usage?{period}")
        assert (status, report["rows"]) == (200, [])

    async def test_without_the_store_it_is_a_503(self, admin: Administration) -> None:
        admin.store.gone = True
        status, answer = await admin.ask("GET", "/admin/usage")
        assert (status, answer["error"]["code"]) == (503, "store_unavailable")


class TestLimits:
    async def test_a_keys_limits_are_shown_as_they_stand(self, admin: Administration) -> None:
        key = await admin.key(tokens_per_minute=1000)
        record = admin.directory.get(key["id"])
        assert record
        limits = admin.directory.principal_of(record).limits
        await admin.limiter.reserve("req", limits, Ask(100, 100, 100))
        status, found = await admin.ask("GET", f"/admin/limits/{key['id']}")
        assert (status, found["plan"]) == (200, "standard")
        shown = {
            limit["name"]: (limit["amount"], limit["used"], limit["remaining"]) for limit in found["limits"]
        }
        assert shown == {"requests_per_minute": (60, 1, 59), "tokens_per_minute": (1000, 100, 900)}
        assert all(0 < limit["reset_seconds"] <= 60 for limit in found["limits"])
        assert (await admin.ask("GET", f"/admin/limits/{key['id']}"))[1]["limits"] == found["limits"]

    async def test_a_key_that_is_not_there_is_a_404(self, admin: Administration) -> None:
        assert (await admin.ask("GET", "/admin/limits/zzzzzzzzzz"))[0] == 404

    async def test_a_key_whose_plan_is_gone_says_so(self, admin: Administration) -> None:
        key = await admin.key(plan="wide")
        admin.write_plans({**PLANS, "plans": {"standard": PLANS["plans"]["standard"]}})
        admin.plans.reload()
        status, answer = await admin.ask("GET", f"/admin/limits/{key['id']}")
        assert (status, answer["error"]["code"]) == (403, "plan_missing")


class TestExplain:
    async def test_a_refusal_is_explained_with_what_its_limits_held(self, admin: Administration) -> None:
        held = (
            Refused(Limit("tokens_per_minute", "key", "abcdefghij", 100), 90, 30, 12.5),
            Refused(Limit("tokens_per_day", "tenant", "acme", 20), 0, 30, math.inf),
        )
        admin.refusals.note(
            Refusal(
                "req-1", 1.8e9, "/v1/chat/completions", 429, "request_exceeds_limit", "Too much.",
                model="served", tenant="acme", key_id="abcdefghij", plan="standard", limits=held,
            )
        )  # fmt: skip
        status, found = await admin.ask("GET", "/admin/explain/req-1")
        assert status == 200
        assert (found["status"], found["code"], found["tenant"], found["at"]) == (
            429,
            "request_exceeds_limit",
            "acme",
            "2027-01-15T08:00:00Z",
        )
        assert [(limit["name"], limit["used"], limit["asked"]) for limit in found["limits"]] == [
            ("tokens_per_minute", 90, 30),
            ("tokens_per_day", 0, 30),
        ]
        assert [limit["retry_after_seconds"] for limit in found["limits"]] == [12.5, None]
        assert len(found["why"]) == 2
        assert "waiting does not help" in found["remedies"][0]

    async def test_a_request_that_was_not_refused_is_a_404_that_says_where_to_look(
        self, admin: Administration
    ) -> None:
        status, answer = await admin.ask("GET", "/admin/explain/req-1")
        assert status == 404
        assert "access log" in answer["error"]["message"]


class TestPlans:
    async def test_the_plans_in_force_are_shown(self, admin: Administration) -> None:
        status, found = await admin.ask("GET", "/admin/plans")
        assert (status, found["problem"], found["path"]) == (200, None, str(admin.plans_path))
        assert found["plans"]["default_plan"] == "standard"
        assert found["plans"]["plans"]["wide"]["output"]["cap"] == 8192

    async def test_a_changed_file_is_read_at_once_and_that_is_in_the_audit_log(
        self, admin: Administration
    ) -> None:
        admin.write_plans({**PLANS, "default_plan": "wide"})
        status, found = await admin.ask("POST", "/admin/plans/reload", actor=b"alice")
        assert (status, found["plans"]["default_plan"]) == (200, "wide")
        entry = admin.store.audit[-1]
        assert (entry.actor, entry.action, entry.key_id) == ("alice", "plans_reload", None)

    async def test_a_file_that_is_the_same_is_no_change(self, admin: Administration) -> None:
        assert (await admin.ask("POST", "/admin/plans/reload"))[0] == 200
        assert admin.store.audit == []

    async def test_a_bad_file_changes_nothing_and_says_where_it_is_bad(self, admin: Administration) -> None:
        admin.write_plans({**PLANS, "default_plan": "gold"})
        status, answer = await admin.ask("POST", "/admin/plans/reload")
        assert (status, answer["error"]["code"]) == (409, "conflict")
        assert "gold" in answer["error"]["message"]
        _, found = await admin.ask("GET", "/admin/plans")
        assert found["plans"]["default_plan"] == "standard"
        assert "gold" in found["problem"]
        assert admin.store.audit == []

    async def test_the_file_counts_even_while_the_store_is_gone(self, admin: Administration) -> None:
        admin.write_plans({**PLANS, "default_plan": "wide"})
        admin.store.gone = True
        status, found = await admin.ask("POST", "/admin/plans/reload", actor=b"alice")
        assert (status, found["plans"]["default_plan"]) == (200, "wide")
        (line,) = admin.lines("audit_missed")
        assert line["actor"] == "alice"


class TestAudit:
    async def test_it_is_newest_first_and_comes_in_pages(self, admin: Administration) -> None:
        made = [(await admin.key(name=f"key {number}"))["id"] for number in range(3)]
        await admin.ask("POST", f"/admin/keys/{made[0]}/revoke", actor=b"alice")
        _, first = await admin.ask("GET", "/admin/audit?limit=2")
        assert [(entry["action"], entry["key_id"]) for entry in first["entries"]] == [
            ("revoke", made[0]),
            ("create", made[2]),
        ]
        assert first["entries"][0]["actor"] == "alice"
        _, second = await admin.ask("GET", f"/admin/audit?limit=2&before={first['next']}")
        assert [entry["key_id"] for entry in second["entries"]] == [made[1], made[0]]
        assert second["next"] is None

    async def test_it_can_be_one_keys(self, admin: Administration) -> None:
        made = [(await admin.key())["id"] for _ in range(2)]
        _, page = await admin.ask("GET", f"/admin/audit?key_id={made[1]}")
        assert [entry["key_id"] for entry in page["entries"]] == [made[1]]

    async def test_it_has_no_secret_and_no_digest(self, admin: Administration) -> None:
        made = await admin.key()
        await admin.ask("POST", f"/admin/keys/{made['id']}/rotate", {"overlap_seconds": 5})
        client = await admin.raw("GET", "/admin/audit")
        record = admin.store.records[made["id"]]
        assert record.previous_digest
        for secret in (made["key"][-49:], record.digest.hex(), record.previous_digest.hex()):
            assert secret.encode() not in client.body

    @pytest.mark.parametrize("query", ["limit=0", "limit=1001", "before=0", "before=9223372036854775808"])
    async def test_a_page_that_is_none_is_refused(self, admin: Administration, query: str) -> None:
        assert (await admin.ask("GET", f"/admin/audit?{query}"))[0] == 400

    async def test_without_the_store_it_is_a_503(self, admin: Administration) -> None:
        admin.store.gone = True
        assert (await admin.ask("GET", "/admin/audit"))[0] == 503
