"""Who is calling: keys are known in memory, so that a store that is gone locks nobody out, lets nobody in."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway import keys
from gateway.errors import (
    AuthenticationFailed,
    DisabledKey,
    ExpiredKey,
    PlanMissing,
    RevokedKey,
    StoreUnavailable,
)
from gateway.identity import (
    OVERLAP_SECONDS,
    REFRESH_SECONDS,
    SNAPSHOT_SECONDS,
    WIDE_EVERY_SECONDS,
    KeyDraft,
)
from gateway.principal import ALL_SCOPES
from gateway.snapshot import Snapshot
from gateway.store import Duplicate, KeyRecord, Stale, StoreError
from tests.fakes.clock import Clock
from tests.fakes.directories import MAX_AGE, PEPPER, MemorySnapshots, Process
from tests.fakes.loop import run
from tests.fakes.plans import FixedPlans, plans
from tests.fakes.standard import STANDARD
from tests.fakes.store import MemoryStore

UNKNOWN = keys.generate().encode()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def here(store: MemoryStore, clock: Clock) -> Process:
    process = Process(store, clock)
    await process.directory.refresh()
    return process


@pytest.fixture
async def there(store: MemoryStore, clock: Clock) -> Process:
    process = Process(store, clock)
    await process.directory.refresh()
    return process


async def lose(store: MemoryStore, process: Process) -> None:
    store.gone = True
    await process.directory.refresh()


# What a key is.


async def test_a_new_key_is_served_at_once_with_what_its_draft_says(store: MemoryStore, clock: Clock) -> None:
    here = Process(store, clock, plans=FixedPlans(plans(plans={"standard": STANDARD, "gold": STANDARD})))
    await here.directory.refresh()
    key, record = await here.create(plan="gold", scopes=("embed",), overrides={"requests_per_minute": 7})
    principal = here.whose(key)
    assert (principal.tenant, principal.key_id, principal.plan_name) == ("acme", record.id, "gold")
    assert principal.scopes == {"embed"}
    assert [(limit.scope, limit.amount) for limit in principal.limits] == [("key", 7)]


async def test_a_key_without_a_word_on_scopes_may_do_all(here: Process) -> None:
    key, _ = await here.create()
    assert here.whose(key).scopes == ALL_SCOPES


async def test_the_right_id_with_another_secret_is_refused_as_an_unknown_id_is(here: Process) -> None:
    _, record = await here.create()
    with pytest.raises(AuthenticationFailed) as wrong:
        here.whose(keys.generate(record.id).encode())
    with pytest.raises(AuthenticationFailed) as unknown:
        here.whose(UNKNOWN)
    assert wrong.value.code == "invalid_api_key"
    assert unknown.value.message == wrong.value.message  # or ids could be found out by asking
    assert record.id not in wrong.value.message


async def test_a_key_made_with_another_pepper_is_refused(
    store: MemoryStore, clock: Clock, here: Process
) -> None:
    key, _ = await here.create()
    other = Process(store, clock, pepper=b"another")
    await other.directory.refresh()
    with pytest.raises(AuthenticationFailed):
        other.whose(key)


async def test_the_stored_record_holds_neither_key_nor_secret(here: Process, store: MemoryStore) -> None:
    key, record = await here.create()
    parsed = keys.parse(key.decode())
    assert parsed is not None
    held = repr([getattr(store.records[record.id], name) for name in KeyRecord.__slots__])
    assert parsed.secret not in held
    assert keys.digest(parsed.secret, PEPPER) == record.digest


async def test_all_keys_are_listed_oldest_first(here: Process, clock: Clock) -> None:
    records = []
    for _ in range(3):
        records.append((await here.create())[1])
        clock.now += 1
    assert here.directory.all() == records
    assert here.directory.get(records[1].id) == records[1]
    assert here.directory.get("zzzzzzzzzz") is None


async def test_a_key_whose_own_limits_this_version_does_not_know_is_refused_and_breaks_nothing(
    here: Process, store: MemoryStore, clock: Clock
) -> None:
    """After a step back to an earlier version, for one. Without its limits it must not be served."""
    key, record = await here.create()
    other, _ = await here.create()
    store.records[record.id] = replace(record, overrides={"of_tomorrow": 1}, changed_at=clock.now + 1)
    await here.directory.refresh()
    with pytest.raises(PlanMissing):
        here.whose(key)
    here.whose(other)
    assert here.directory.get(record.id) is not None
    assert [line["key_id"] for line in here.log.lines() if line["event"] == "key_not_understood"] == [
        record.id
    ]
    await here.directory.change(record.id, {"overrides": {}}, actor="test")
    here.whose(key)


# Changes.


async def test_a_revoked_key_is_refused_at_once_and_for_good(here: Process, clock: Clock) -> None:
    key, record = await here.create()
    here.whose(key)
    revoked = await here.directory.revoke(record.id, actor="test")
    assert revoked is not None
    assert revoked.revoked_at == clock.now
    with pytest.raises(RevokedKey):
        here.whose(key)
    await here.directory.enable(record.id, actor="test")
    with pytest.raises(RevokedKey):
        here.whose(key)


async def test_a_disabled_key_is_refused_until_it_is_enabled(here: Process) -> None:
    key, record = await here.create()
    here.whose(key)
    await here.directory.disable(record.id, actor="test")
    with pytest.raises(DisabledKey):
        here.whose(key)
    await here.directory.enable(record.id, actor="test")
    here.whose(key)


async def test_a_key_expires_at_its_moment(here: Process, clock: Clock) -> None:
    key, _ = await here.create(expires_at=clock.now + 10)
    clock.now += 9.999
    here.whose(key)
    clock.now += 0.001
    with pytest.raises(ExpiredKey):
        here.whose(key)


async def test_a_change_holds_for_the_next_request(here: Process) -> None:
    key, record = await here.create()
    assert here.whose(key).tenant == "acme"
    await here.directory.change(record.id, {"tenant": "other"}, actor="test")
    assert here.whose(key).tenant == "other"


@pytest.mark.parametrize("overlap", [0.0, 60.0])
async def test_a_rotated_keys_old_secret_is_good_for_the_overlap_and_no_longer(
    here: Process, clock: Clock, overlap: float
) -> None:
    old, record = await here.create()
    here.whose(old)
    rotated = await here.directory.rotate(record.id, overlap_seconds=overlap, actor="test")
    assert rotated is not None
    new = rotated[0].encode()
    assert here.whose(new).key_id == record.id
    if overlap:
        clock.now += overlap - 0.001
        assert here.whose(old).key_id == record.id
        clock.now += 0.001
    with pytest.raises(AuthenticationFailed):
        here.whose(old)
    here.whose(new)


async def test_of_two_rotations_only_the_last_two_secrets_are_good(here: Process) -> None:
    first, record = await here.create()
    second = await here.directory.rotate(record.id, overlap_seconds=60, actor="test")
    third = await here.directory.rotate(record.id, overlap_seconds=60, actor="test")
    assert second
    assert third
    here.whose(second[0].encode())
    here.whose(third[0].encode())
    with pytest.raises(AuthenticationFailed):
        here.whose(first)


async def test_a_revoked_key_is_refused_with_either_secret(here: Process) -> None:
    old, record = await here.create()
    rotated = await here.directory.rotate(record.id, overlap_seconds=60, actor="test")
    assert rotated
    await here.directory.revoke(record.id, actor="test")
    for key in (old, rotated[0].encode()):
        with pytest.raises(RevokedKey):
            here.whose(key)


async def test_what_is_not_there_cannot_be_changed(here: Process) -> None:
    missing = "zzzzzzzzzz"
    assert await here.directory.change(missing, {"name": "n"}, actor="test") is None
    assert await here.directory.disable(missing, actor="test") is None
    assert await here.directory.enable(missing, actor="test") is None
    assert await here.directory.revoke(missing, actor="test") is None
    assert await here.directory.rotate(missing, overlap_seconds=0, actor="test") is None


async def test_who_changed_what_stands_in_the_audit_log(here: Process, store: MemoryStore) -> None:
    _, record = await here.create()
    await here.directory.change(record.id, {"name": "n"}, actor="ann")
    await here.directory.rotate(record.id, overlap_seconds=0, actor="ben")
    await here.directory.disable(record.id, actor="cem")
    await here.directory.enable(record.id, actor="dan")
    await here.directory.revoke(record.id, actor="eve")
    assert [(entry.actor, entry.action) for entry in store.audit] == [
        ("test", "create"),
        ("ann", "change"),
        ("ben", "rotate"),
        ("cem", "disable"),
        ("dan", "enable"),
        ("eve", "revoke"),
    ]


async def test_several_keys_are_made_at_once_or_none(here: Process, store: MemoryStore) -> None:
    made = await here.directory.create([KeyDraft("a"), KeyDraft("b", tenant="other")], actor="test")
    assert [record.tenant for _, record in made] == ["default", "other"]
    drafts, exported = [KeyDraft("c")], [made[0][1]]
    with pytest.raises(Duplicate):
        await here.directory.import_keys(drafts, exported, actor="test")
    assert {record.id for record in here.directory.all()} == set(store.records) == {r.id for _, r in made}


async def test_an_imported_record_is_served_with_the_secret_that_it_had(here: Process, clock: Clock) -> None:
    elsewhere = Process(MemoryStore(), clock)
    key, record = await elsewhere.create()
    assert await here.directory.import_keys([], [record], actor="test") == []
    assert here.whose(key).key_id == record.id


async def test_two_processes_that_rotate_at_once_do_not_lose_a_secret(
    here: Process, there: Process, clock: Clock
) -> None:
    _, record = await here.create()
    await there.directory.refresh()
    clock.now += 1
    await here.directory.rotate(record.id, overlap_seconds=60, actor="test")
    with pytest.raises(Stale):
        await there.directory.rotate(record.id, overlap_seconds=60, actor="test")
    with pytest.raises(Stale):
        await there.directory.change(record.id, {"name": "n"}, actor="test", read_at=record.changed_at)


# Other processes.


async def test_another_processs_keys_and_changes_are_seen_by_a_refresh(
    here: Process, there: Process, clock: Clock
) -> None:
    key, record = await there.create()
    with pytest.raises(AuthenticationFailed):
        here.whose(key)
    await here.directory.refresh()
    here.whose(key)
    clock.now += 1
    rotated = await there.directory.rotate(record.id, overlap_seconds=0, actor="test")
    await here.directory.refresh()
    assert rotated
    here.whose(rotated[0].encode())
    with pytest.raises(AuthenticationFailed):
        here.whose(key)
    clock.now += 1
    await there.directory.revoke(record.id, actor="test")
    await here.directory.refresh()
    with pytest.raises(RevokedKey):
        here.whose(rotated[0].encode())


async def test_a_change_that_is_committed_late_is_still_seen(
    here: Process, there: Process, store: MemoryStore, clock: Clock
) -> None:
    """It is stamped before it is committed: a refresh in between has already seen a later one."""
    key, late = await there.create()
    del store.records[late.id]
    clock.now += OVERLAP_SECONDS - 1
    await here.create()
    await here.directory.refresh()
    store.records[late.id] = late
    await here.directory.refresh()
    assert here.whose(key).key_id == late.id


async def test_a_stamp_from_a_clock_that_is_ahead_hides_no_later_change(
    here: Process, there: Process, store: MemoryStore, clock: Clock
) -> None:
    _, ahead = await there.create()
    store.records[ahead.id] = replace(ahead, changed_at=clock.now + 3600)
    await here.directory.refresh()
    key, _ = await there.create()
    await here.directory.refresh()
    here.whose(key)


@pytest.mark.parametrize("behind", [OVERLAP_SECONDS + 1, 3600.0])
async def test_a_change_by_a_process_whose_clock_is_behind_is_seen(
    here: Process, store: MemoryStore, clock: Clock, behind: float
) -> None:
    there = Process(store, Clock(clock.now - behind))
    key, record = await here.create()
    await there.directory.refresh()
    await there.directory.revoke(record.id, actor="test")
    made, _ = await there.create()
    await here.directory.refresh()
    with pytest.raises(RevokedKey):
        here.whose(key)
    here.whose(made)


async def test_a_change_that_a_clock_behind_stamped_before_it_heard_of_another_is_seen_later(
    here: Process, store: MemoryStore, clock: Clock
) -> None:
    there = Process(store, Clock(clock.now - 60))
    key, record = await here.create()
    clock.now += WIDE_EVERY_SECONDS
    await here.create()
    await here.directory.refresh()
    await there.directory.revoke(record.id, actor="test")
    clock.now += WIDE_EVERY_SECONDS
    await here.directory.refresh()
    with pytest.raises(RevokedKey):
        here.whose(key)


async def test_a_reading_from_before_a_revocation_does_not_undo_it(here: Process, store: MemoryStore) -> None:
    key, record = await here.create()
    await here.directory.revoke(record.id, actor="test")
    store.records[record.id] = replace(record)
    await here.directory.refresh()
    with pytest.raises(RevokedKey):
        here.whose(key)


class SlowReader(MemoryStore):
    """What is read arrives when it is let through, and is as old as the question."""

    def __init__(self) -> None:
        super().__init__()
        self.let_through = asyncio.Event()

    async def changed_since(self, moment: float) -> Sequence[KeyRecord]:
        found = await super().changed_since(moment)
        await self.let_through.wait()
        return found


async def test_a_reading_from_before_a_change_of_this_process_does_not_undo_it(clock: Clock) -> None:
    store = SlowReader()
    here = Process(store, clock)
    key, record = await here.create()
    refresh = asyncio.create_task(here.directory.refresh())
    await asyncio.sleep(0)
    await here.directory.disable(record.id, actor="test")
    store.let_through.set()
    await refresh
    with pytest.raises(DisabledKey):
        here.whose(key)


async def test_what_a_record_is_worth_is_told_whether_it_is_a_keys_or_not(here: Process) -> None:
    _, record = await here.create(overrides={"requests_per_minute": 7})
    for each in (record, replace(record, id="zzzzzzzzzz")):
        assert [limit.amount for limit in here.directory.principal_of(each).limits] == [7]


def test_a_directory_keeps_itself_fresh_until_it_is_cancelled(store: MemoryStore, clock: Clock) -> None:
    async def scenario() -> None:
        here, there = Process(store, clock), Process(store, clock)
        task = asyncio.create_task(here.directory.keep_fresh())
        key, _ = await there.create()
        await asyncio.sleep(REFRESH_SECONDS + 0.1)
        here.whose(key)
        store.gone = True
        await asyncio.sleep(REFRESH_SECONDS + 0.1)
        assert not here.directory.store_up
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())


# Without the store.


async def test_known_keys_are_served_while_the_store_is_gone_and_expire_all_the_same(
    here: Process, store: MemoryStore, clock: Clock
) -> None:
    key, _ = await here.create(expires_at=clock.now + 100)
    gone, record = await here.create()
    await here.directory.revoke(record.id, actor="test")
    await lose(store, here)
    assert not here.directory.store_up
    assert here.directory.serves
    here.whose(key)
    with pytest.raises(RevokedKey):
        here.whose(gone)
    clock.now += 100
    with pytest.raises(ExpiredKey):
        here.whose(key)


async def test_beyond_the_maximum_age_known_keys_are_served_no_more(
    here: Process, store: MemoryStore, clock: Clock
) -> None:
    key, _ = await here.create()
    await lose(store, here)
    clock.now += MAX_AGE
    here.whose(key)
    clock.now += 0.001
    assert not here.directory.serves
    with pytest.raises(StoreUnavailable):
        here.whose(key)
    store.gone = False
    await here.directory.refresh()
    here.whose(key)


async def test_an_unknown_key_is_no_401_while_the_store_is_gone(here: Process, store: MemoryStore) -> None:
    with pytest.raises(AuthenticationFailed):
        here.whose(UNKNOWN)
    await lose(store, here)
    with pytest.raises(StoreUnavailable) as refused:
        here.whose(UNKNOWN)
    assert (b"retry-after", b"5") in refused.value.headers
    store.gone = False
    await here.directory.refresh()
    with pytest.raises(AuthenticationFailed):
        here.whose(UNKNOWN)


async def test_a_wrong_secret_is_no_401_while_the_store_is_gone(here: Process, store: MemoryStore) -> None:
    """It may be the one after a rotation that has not been seen here."""
    _, record = await here.create()
    await lose(store, here)
    with pytest.raises(StoreUnavailable):
        here.whose(keys.generate(record.id).encode())


async def test_what_cannot_be_a_key_is_wrong_with_or_without_the_store(
    here: Process, store: MemoryStore
) -> None:
    await lose(store, here)
    with pytest.raises(AuthenticationFailed):
        here.whose(b"sk-proj-abc")


async def test_before_the_first_refresh_no_key_is_called_wrong(store: MemoryStore, clock: Clock) -> None:
    with pytest.raises(StoreUnavailable):
        Process(store, clock).whose(UNKNOWN)


async def test_changes_that_cannot_be_stored_are_not_made(here: Process, store: MemoryStore) -> None:
    key, record = await here.create()
    await lose(store, here)
    with pytest.raises(StoreError):
        await here.create()
    with pytest.raises(StoreError):
        await here.directory.revoke(record.id, actor="test")
    with pytest.raises(StoreError):
        await here.directory.rotate(record.id, overlap_seconds=0, actor="test")
    assert here.directory.all() == [record]
    here.whose(key)


async def test_the_store_is_said_to_be_gone_once_and_to_answer_once(
    here: Process, store: MemoryStore
) -> None:
    for gone in (True, True, False, False):
        store.gone = gone
        await here.directory.refresh()
        assert here.directory.store_up is not gone
    assert [line["event"] for line in here.log.lines()] == ["store_gone", "store_answers"]


# Snapshots.


async def test_a_start_without_the_store_serves_the_keys_of_the_snapshot(
    here: Process, store: MemoryStore, clock: Clock
) -> None:
    key, _ = await here.create()
    store.gone = True
    clock.now += MAX_AGE - 1
    later = Process(store, clock, snapshots=here.snapshots)
    await later.directory.start()
    assert later.whose(key).tenant == "acme"
    with pytest.raises(StoreUnavailable):
        later.whose(UNKNOWN)
    clock.now += 2
    with pytest.raises(StoreUnavailable):
        later.whose(key)


async def test_once_the_store_answers_what_it_says_goes_before_the_snapshot(
    here: Process, there: Process, store: MemoryStore, clock: Clock
) -> None:
    key, record = await here.create()
    clock.now += 100
    await there.directory.refresh()
    await there.directory.revoke(record.id, actor="test")
    store.gone = True
    later = Process(store, clock, snapshots=here.snapshots)
    await later.directory.start()
    later.whose(key)
    store.gone = False
    await later.directory.refresh()
    with pytest.raises(RevokedKey):
        later.whose(key)


async def test_a_start_with_the_store_asks_for_no_snapshot(store: MemoryStore, clock: Clock) -> None:
    key, record = await Process(store, clock).create()
    snapshots = MemorySnapshots()
    process = Process(store, clock, snapshots=snapshots)
    await process.directory.start()
    assert process.directory.all() == [record]
    process.whose(key)
    assert process.log.lines() == []


async def test_a_start_without_store_and_snapshot_serves_nobody(store: MemoryStore, clock: Clock) -> None:
    store.gone = True
    process = Process(store, clock)
    await process.directory.start()
    assert not process.directory.serves
    with pytest.raises(StoreUnavailable):
        process.whose(UNKNOWN)


async def test_each_change_is_in_the_snapshot_before_it_is_told(here: Process) -> None:
    key, record = await here.create()
    snapshots = here.snapshots
    assert snapshots.held is not None
    assert list(snapshots.held.records) == [record]
    revoked = await here.directory.revoke(record.id, actor="test")
    assert list(snapshots.held.records) == [revoked]
    assert key not in repr(snapshots.held).encode()


async def test_a_quiet_directory_renews_the_snapshots_time_now_and_then(here: Process, clock: Clock) -> None:
    """Or a snapshot would be too old as soon as it is needed."""
    saved = here.snapshots.saved
    for _ in range(10):
        await here.directory.refresh()
    assert here.snapshots.saved == saved
    clock.now += SNAPSHOT_SECONDS
    await here.directory.refresh()
    assert here.snapshots.saved == saved + 1
    assert here.snapshots.held is not None
    assert here.snapshots.held.taken_at == clock.now


async def test_a_snapshot_that_cannot_be_written_is_said_and_tried_again(here: Process) -> None:
    here.snapshots.full = True
    key, record = await here.create()
    here.whose(key)
    assert here.log.lines()[-1]["event"] == "snapshot_failed"
    here.snapshots.full = False
    await here.directory.refresh()
    assert here.snapshots.held is not None
    assert list(here.snapshots.held.records) == [record]


class SlowDisk(MemorySnapshots):
    """Its first write takes a while, those after it do not."""

    def save(self, snapshot: Snapshot) -> None:
        self.saved += 1
        if self.saved == 1:
            time.sleep(0.1)
        self.held = snapshot


async def test_no_snapshot_takes_the_place_of_a_newer_one(store: MemoryStore, clock: Clock) -> None:
    disk = SlowDisk()
    here = Process(store, clock, snapshots=disk)
    await asyncio.gather(here.create(), here.create())
    assert disk.held is not None
    assert len(disk.held.records) == 2
