"""One suite for every Store: in memory, on SQLite, on PostgreSQL."""

import asyncio
from dataclasses import replace

import pytest

from gateway.store import DayUsage, Duplicate, KeyRecord, KeyTokens, Stale, Store

BARE = KeyRecord(
    id="aaaaaaaaaa",
    name="laptop",
    tenant="default",
    digest=bytes(range(32)),
    pepper_id="0123456789ab",
    created_at=100.0,
    changed_at=100.0,
)
FULL = replace(
    BARE,
    id="ffffffffff",
    previous_digest=b"\xff" * 32,
    previous_pepper_id="ba9876543210",
    previous_until=1.6e9 + 0.5,
    plan="wide",
    scopes=("generate", "embed"),
    models=("small", "large"),
    overrides={"requests_per_minute": 7, "over_cap": "refuse"},
    created_at=1.4e9 + 0.654321,
    expires_at=1.5e9 + 0.123456,
    changed_at=1.4e9 + 0.654321,
)
USAGE = DayUsage("2026-12-01", "default", "aaaaaaaaaa", "large", 2, 30, 7, 1)


def key(key_id: str, *, changed_at: float = 100.0) -> KeyRecord:
    return replace(BARE, id=key_id, created_at=changed_at, changed_at=changed_at)


async def add(store: Store, *records: KeyRecord) -> None:
    await store.add(records, actor="alice")


async def test_a_new_store_holds_nothing(store: Store) -> None:
    await store.open()
    assert list(await store.all_keys()) == list(await store.changed_since(0.0)) == []
    assert list(await store.audit_log(limit=10)) == []
    assert list(await store.usage("0001-01-01", "9999-12-31")) == []
    assert list(await store.tokens("0001-01-01", "9999-12-31")) == []


async def test_a_key_is_read_back_as_it_was_added(store: Store) -> None:
    await add(store, FULL, BARE)
    assert list(await store.all_keys()) == [BARE, FULL]
    assert sorted(await store.changed_since(0.0), key=lambda record: record.id) == [BARE, FULL]


async def test_no_models_at_all_is_not_the_plans_models(store: Store) -> None:
    await add(store, replace(BARE, models=(), scopes=()))
    [found] = await store.all_keys()
    assert (found.models, found.scopes) == ((), ())


async def test_an_id_is_given_once(store: Store) -> None:
    await add(store, BARE)
    with pytest.raises(Duplicate):
        await add(store, replace(BARE, name="other"))
    assert list(await store.all_keys()) == [BARE]


async def test_of_several_keys_all_are_stored_or_none(store: Store) -> None:
    await add(store, BARE)
    with pytest.raises(Duplicate):
        await add(store, key("bbbbbbbbbb"), replace(BARE, name="other"))
    with pytest.raises(Duplicate):
        await add(store, key("cccccccccc"), key("cccccccccc"))
    assert list(await store.all_keys()) == [BARE]
    assert [entry.key_id for entry in await store.audit_log(limit=10)] == [BARE.id]
    await add(store)
    await add(store, *(key(f"key{number:07d}") for number in range(300)))
    assert len(await store.all_keys()) == 301


async def test_only_changes_at_or_after_the_moment_are_read(store: Store) -> None:
    for key_id, moment in (("aaaaaaaaaa", 1.0), ("bbbbbbbbbb", 2.0), ("cccccccccc", 3.0)):
        await add(store, key(key_id, changed_at=moment))
    assert {found.id for found in await store.changed_since(2.0)} == {"bbbbbbbbbb", "cccccccccc"}
    assert list(await store.changed_since(3.1)) == []


async def test_a_change_sets_what_it_names_and_returns_the_whole_key(store: Store) -> None:
    await add(store, FULL, BARE)
    changes = {
        "plan": None,
        "models": ("tiny",),
        "scopes": None,
        "overrides": {"priority": 9},
        "expires_at": None,
        "changed_at": 2e9,
    }
    changed = await store.change(FULL.id, changes, actor="bob", action="change")
    expected = replace(
        FULL,
        plan=None,
        models=("tiny",),
        scopes=None,
        overrides={"priority": 9},
        expires_at=None,
        changed_at=2e9,
    )
    assert changed == expected
    assert list(await store.changed_since(1.9e9)) == [expected]
    assert BARE in await store.all_keys()


async def test_changing_a_key_that_is_not_there_changes_nothing(store: Store) -> None:
    await add(store, BARE)
    revoked = {"revoked_at": 2.0, "changed_at": 2.0}
    assert await store.change("zzzzzzzzzz", revoked, actor="bob", action="revoke") is None
    assert await store.change("' OR '1'='1", revoked, actor="bob", action="revoke", read_at=1.0) is None
    assert list(await store.all_keys()) == [BARE]
    assert len(await store.audit_log(limit=10)) == 1


@pytest.mark.parametrize("field", ["revoked_at", "disabled_at"])
async def test_the_first_moment_of_a_keys_end_stands(store: Store, field: str) -> None:
    await add(store, BARE)
    for moment in (200.0, 300.0):
        changes = {field: moment, "changed_at": moment}
        found = await store.change(BARE.id, changes, actor="bob", action="end")
    assert found == replace(BARE, **{field: 200.0, "changed_at": 300.0})  # type: ignore[arg-type]


async def test_a_disabled_key_can_be_enabled(store: Store) -> None:
    await add(store, replace(BARE, disabled_at=150.0))
    changes = {"disabled_at": None, "changed_at": 200.0}
    assert await store.change(BARE.id, changes, actor="bob", action="enable") == replace(
        BARE, changed_at=200.0
    )


async def test_of_two_changes_that_were_made_from_the_same_record_one_is_refused(store: Store) -> None:
    await add(store, BARE)

    async def rotate(digest: bytes) -> KeyRecord | None:
        changes = {"digest": digest, "previous_digest": BARE.digest, "changed_at": 200.0}
        return await store.change(BARE.id, changes, actor="bob", action="rotate", read_at=BARE.changed_at)

    outcomes = await asyncio.gather(rotate(b"1" * 32), rotate(b"2" * 32), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {KeyRecord, Stale}
    [winner] = [outcome for outcome in outcomes if isinstance(outcome, KeyRecord)]
    assert list(await store.all_keys()) == [winner]
    assert [entry.action for entry in await store.audit_log(limit=10)] == ["rotate", "create"]


async def test_keys_that_are_added_and_revoked_at_once_are_all_kept(store: Store) -> None:
    ids = [f"key{number:07d}" for number in range(20)]
    await asyncio.gather(*(add(store, key(key_id)) for key_id in ids))
    revoked = {"revoked_at": 200.0, "changed_at": 200.0}
    await asyncio.gather(*(store.change(i, revoked, actor="bob", action="revoke") for i in ids[::2]))
    found = await store.changed_since(0.0)
    assert {record.id: record.revoked_at for record in found} == {
        key_id: 200.0 if number % 2 == 0 else None for number, key_id in enumerate(ids)
    }


async def test_quotes_in_names_are_text(store: Store) -> None:
    hostile = replace(BARE, name="'); DROP TABLE api_keys; --", tenant='"x"')
    await add(store, hostile)
    assert list(await store.changed_since(0.0)) == [hostile]


def test_a_records_repr_shows_no_digest() -> None:
    assert repr(BARE) == "KeyRecord(id='aaaaaaaaaa', tenant='default')"


async def test_the_audit_log_says_who_made_a_key_and_of_what_but_no_digest(store: Store) -> None:
    await store.add([FULL], actor="alice", action="import")
    [entry] = await store.audit_log(limit=10)
    assert (entry.at, entry.actor, entry.action) == (FULL.changed_at, "alice", "import")
    assert (entry.key_id, entry.tenant) == (FULL.id, "default")
    assert entry.detail == {
        "name": "laptop",
        "pepper_id": FULL.pepper_id,
        "previous_pepper_id": FULL.previous_pepper_id,
        "previous_until": FULL.previous_until,
        "plan": "wide",
        "scopes": ["generate", "embed"],
        "models": ["small", "large"],
        "overrides": {"requests_per_minute": 7, "over_cap": "refuse"},
        "expires_at": FULL.expires_at,
    }


async def test_the_audit_log_says_what_a_change_set(store: Store) -> None:
    await add(store, FULL)
    changes = {"digest": b"x" * 32, "plan": None, "models": ("a",), "changed_at": 5.0}
    await store.change(FULL.id, changes, actor="bob", action="rotate")
    [entry, _] = await store.audit_log(limit=10)
    assert (entry.at, entry.actor, entry.action, entry.key_id) == (5.0, "bob", "rotate", FULL.id)
    assert entry.detail == {"plan": None, "models": ["a"]}


async def test_the_audit_log_is_read_page_by_page_newest_first(store: Store) -> None:
    for number in range(5):
        await add(store, key(f"key{number:07d}"))
    await store.note(at=7.0, actor="carol", action="reload plans", detail={"plans": ["a", "b"]})
    first = await store.audit_log(limit=2)
    assert [entry.key_id for entry in first] == [None, "key0000004"]
    assert (first[0].at, first[0].actor, first[0].tenant) == (7.0, "carol", None)
    assert first[0].detail == {"plans": ["a", "b"]}
    rest = await store.audit_log(limit=10, before=first[-1].id)
    assert [entry.key_id for entry in rest] == ["key0000003", "key0000002", "key0000001", "key0000000"]
    assert [entry.key_id for entry in await store.audit_log(limit=9, key_id="key0000002")] == ["key0000002"]
    ids = [entry.id for entry in (*first, *rest)]
    assert ids == sorted(set(ids), reverse=True)


async def test_usage_adds_up_per_day_tenant_key_and_model(store: Store) -> None:
    other = [replace(USAGE, day="2026-12-02"), replace(USAGE, tenant="b"), replace(USAGE, model="m")]
    assert await store.apply_usage("spool", 0, 10, [USAGE, *other], {}) == 10
    assert await store.apply_usage("spool", 10, 20, [USAGE], {}) == 20
    twice = replace(USAGE, requests=4, prompt_tokens=60, completion_tokens=14, estimated_requests=2)
    order = [other[1], twice, other[2], other[0]]
    assert list(await store.usage("2026-12-01", "2026-12-31")) == order
    assert list(await store.usage("2026-12-02", "2026-12-02")) == [other[0]]
    assert list(await store.usage("2026-12-01", "2026-12-01", tenant="b")) == [other[1]]
    assert list(await store.usage("2026-12-01", "2026-12-01", key_id="nobody")) == []


async def test_tokens_add_up_per_key(store: Store) -> None:
    rows = [
        USAGE,
        replace(USAGE, day="2026-12-02"),
        replace(USAGE, model="m", prompt_tokens=2**40),
        replace(USAGE, key_id="bbbbbbbbbb"),
    ]
    await store.apply_usage("spool", 0, 10, rows, {})
    found = sorted(await store.tokens("2026-12-01", "2026-12-31"), key=lambda one: one.key_id)
    assert found == [
        KeyTokens("default", "aaaaaaaaaa", 37 + 37 + 2**40 + 7),
        KeyTokens("default", "bbbbbbbbbb", 37),
    ]
    assert type(found[0].tokens) is int
    assert list(await store.tokens("2026-12-02", "2026-12-02")) == [KeyTokens("default", "aaaaaaaaaa", 37)]


async def test_lines_that_were_counted_are_not_counted_again(store: Store) -> None:
    assert await store.apply_usage("spool", 0, 10, [USAGE], {}) == 10
    assert await store.apply_usage("spool", 0, 10, [USAGE], {}) == 10
    assert await store.apply_usage("spool", 0, 25, [USAGE], {}) == 10
    assert await store.apply_usage("spool", 20, 30, [USAGE], {}) == 10
    assert list(await store.usage("2026-12-01", "2026-12-01")) == [USAGE]


async def test_a_spool_that_the_store_does_not_know_begins_at_its_beginning(store: Store) -> None:
    assert await store.apply_usage("spool", 20, 30, [USAGE], {}) == 0
    assert list(await store.usage("2026-12-01", "2026-12-01")) == []


async def test_a_forgotten_spool_is_as_one_that_never_was(store: Store) -> None:
    await store.apply_usage("spool", 0, 10, [USAGE], {})
    await store.apply_usage("other", 0, 10, [], {})
    await store.forget_spools(["spool", "never seen"])
    assert await store.apply_usage("spool", 10, 20, [], {}) == 0
    assert await store.apply_usage("other", 10, 20, [], {}) == 20


async def test_of_many_attempts_to_count_the_same_lines_one_counts(store: Store) -> None:
    marks = await asyncio.gather(*(store.apply_usage("spool", 0, 10, [USAGE], {}) for _ in range(10)))
    assert marks == [10] * 10
    assert list(await store.usage("2026-12-01", "2026-12-01")) == [USAGE]


async def test_many_spools_that_count_into_the_same_rows_are_all_counted(store: Store) -> None:
    rows = [replace(USAGE, key_id=f"key{number:07d}") for number in range(400)]
    counts = [
        store.apply_usage(f"spool{n}", 0, 1, rows if n % 2 else rows[::-1], {r.key_id: 9.0 for r in rows})
        for n in range(10)
    ]
    assert await asyncio.gather(*counts) == [1] * 10
    found = await store.usage("2026-12-01", "2026-12-01")
    assert [row.requests for row in found] == [20] * 400


async def test_last_use_goes_forward_only_and_is_no_change(store: Store) -> None:
    await add(store, BARE, key("bbbbbbbbbb"))
    await store.apply_usage("spool", 0, 1, [], {BARE.id: 500.0, "jwt-aaaaaaaaaaaaaaaa": 1.0})
    await store.apply_usage("spool", 1, 2, [], {BARE.id: 400.0})
    [first, second] = await store.all_keys()
    assert (first.last_used_at, first.changed_at) == (500.0, 100.0)
    assert second.last_used_at is None


async def test_last_use_of_some_keys_can_be_asked_for(store: Store) -> None:
    ids = [f"key{number:07d}" for number in range(500)]
    await add(store, *(key(key_id) for key_id in ids))
    await store.apply_usage("spool", 0, 1, [], dict.fromkeys(ids[:400], 500.0))
    assert await store.last_used(ids[10:]) == dict.fromkeys(ids[10:400], 500.0)
    assert await store.last_used(["nobody", ids[450]]) == await store.last_used([]) == {}
