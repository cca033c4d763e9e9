"""Who is calling: keys are known in memory, so that a store that is gone locks nobody out, lets nobody in."""

import asyncio
import inspect
from dataclasses import replace

import pytest

from gateway import identity, keys
from gateway.errors import AuthenticationFailed, ExpiredKey, MissingKey, RevokedKey, StoreUnavailable
from gateway.identity import OVERLAP_SECONDS, REFRESH_SECONDS, KeyDirectory
from gateway.store import KeyRecord, StoreError
from tests.fakes.clock import Clock
from tests.fakes.loop import run
from tests.fakes.store import MemoryKeyStore

PEPPER = b"pepper"


class Process:
    """One gateway process: a directory on a store that others may share."""

    def __init__(self, store: MemoryKeyStore, clock: Clock, *, pepper: bytes = PEPPER) -> None:
        self.directory = KeyDirectory(store, pepper=pepper, default_rpm=60, clock=clock)

    async def create(
        self, *, rpm: int | None = None, expires_at: float | None = None
    ) -> tuple[bytes, KeyRecord]:
        text, record = await self.directory.create(
            name="laptop", tenant="acme", requests_per_minute=rpm, expires_at=expires_at
        )
        return b"Bearer " + text.encode(), record


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryKeyStore:
    return MemoryKeyStore()


@pytest.fixture
async def here(store: MemoryKeyStore, clock: Clock) -> Process:
    process = Process(store, clock)
    await process.directory.refresh()
    return process


async def test_a_new_key_is_served_at_once(here: Process) -> None:
    header, record = await here.create()
    principal = here.directory.authenticate(header)
    assert (principal.tenant, principal.key_id, principal.requests_per_minute) == ("acme", record.id, 60)


async def test_a_keys_own_limit_goes_before_the_default(here: Process) -> None:
    header, _ = await here.create(rpm=7)
    assert here.directory.authenticate(header).requests_per_minute == 7


async def test_the_scheme_is_read_in_any_case_and_spaces_are_no_part_of_a_key(here: Process) -> None:
    header, record = await here.create()
    for variant in (header.replace(b"Bearer", b"bearer"), header.replace(b" ", b"   "), header + b" "):
        assert here.directory.authenticate(variant).key_id == record.id


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer ", b"Basic abc", b"sk-gh-only"])
async def test_no_bearer_token_is_a_missing_key(here: Process, header: bytes | None) -> None:
    with pytest.raises(MissingKey):
        here.directory.authenticate(header)


@pytest.mark.parametrize("token", [b"x", b"sk-gh-", b"sk-proj-abc", b"\xff\xfe", "schlüssel".encode()])
async def test_what_is_no_key_of_ours_is_refused_without_a_look_at_the_store(
    here: Process, store: MemoryKeyStore, token: bytes
) -> None:
    store.gone = True
    await here.directory.refresh()
    with pytest.raises(AuthenticationFailed, match="checksum"):
        here.directory.authenticate(b"Bearer " + token)


async def test_a_refusal_repeats_nothing_of_the_key(here: Process) -> None:
    text = keys.generate()
    for token in (text, text[:-1]):
        with pytest.raises(AuthenticationFailed) as refused:
            here.directory.authenticate(b"Bearer " + token.encode())
        assert text[6:20] not in refused.value.message


async def test_the_right_id_with_another_secret_is_refused(here: Process) -> None:
    header, record = await here.create()
    other = keys.generate().encode()
    head = header[7:24] + other[17:60]
    forged = head + keys._checksum(head.decode()).encode()
    parsed = keys.parse(forged.decode())
    assert parsed is not None
    assert parsed.id == record.id
    with pytest.raises(AuthenticationFailed) as refused:
        here.directory.authenticate(b"Bearer " + forged)
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(AuthenticationFailed) as unknown:
        here.directory.authenticate(b"Bearer " + other)
    assert unknown.value.message == refused.value.message  # or ids could be found out by asking


async def test_a_key_made_with_another_pepper_is_refused(
    store: MemoryKeyStore, clock: Clock, here: Process
) -> None:
    header, _ = await here.create()
    other = Process(store, clock, pepper=b"another")
    await other.directory.refresh()
    with pytest.raises(AuthenticationFailed):
        other.directory.authenticate(header)


def test_digests_are_compared_in_constant_time() -> None:
    """Time cannot be measured well in a test; the source can be read."""
    source = inspect.getsource(identity.KeyDirectory.authenticate)
    assert "hmac.compare_digest(" in source
    assert "digest ==" not in source
    assert "digest !=" not in source


async def test_a_revoked_key_is_refused_at_once(here: Process) -> None:
    header, record = await here.create()
    revoked = await here.directory.revoke(record.id)
    assert revoked is not None
    assert revoked.revoked_at is not None
    with pytest.raises(RevokedKey):
        here.directory.authenticate(header)


async def test_revoking_an_unknown_key_says_so(here: Process) -> None:
    assert await here.directory.revoke("zzzzzzzzzz") is None


async def test_a_key_expires_at_its_moment(here: Process, clock: Clock) -> None:
    header, _ = await here.create(expires_at=clock.now + 10)
    clock.now += 9.999
    here.directory.authenticate(header)
    clock.now += 0.001
    with pytest.raises(ExpiredKey):
        here.directory.authenticate(header)


async def test_known_keys_are_served_while_the_store_is_gone(
    here: Process, store: MemoryKeyStore, clock: Clock
) -> None:
    header, _ = await here.create(expires_at=clock.now + 100)
    store.gone = True
    await here.directory.refresh()
    assert not here.directory.store_up
    here.directory.authenticate(header)
    clock.now += 100
    with pytest.raises(ExpiredKey):
        here.directory.authenticate(header)


async def test_an_unknown_key_is_no_401_while_the_store_is_gone(here: Process, store: MemoryKeyStore) -> None:
    unknown = b"Bearer " + keys.generate().encode()
    with pytest.raises(AuthenticationFailed):
        here.directory.authenticate(unknown)
    store.gone = True
    await here.directory.refresh()
    with pytest.raises(StoreUnavailable):
        here.directory.authenticate(unknown)
    store.gone = False
    await here.directory.refresh()
    with pytest.raises(AuthenticationFailed):
        here.directory.authenticate(unknown)


async def test_before_the_first_refresh_no_key_is_called_wrong(store: MemoryKeyStore, clock: Clock) -> None:
    with pytest.raises(StoreUnavailable):
        Process(store, clock).directory.authenticate(b"Bearer " + keys.generate().encode())


async def test_changes_that_cannot_be_stored_are_not_made(here: Process, store: MemoryKeyStore) -> None:
    header, record = await here.create()
    store.gone = True
    with pytest.raises(StoreError):
        await here.create()
    with pytest.raises(StoreError):
        await here.directory.revoke(record.id)
    assert here.directory.all() == [record]
    here.directory.authenticate(header)


async def test_another_processs_keys_and_revocations_are_seen_by_a_refresh(
    here: Process, store: MemoryKeyStore, clock: Clock
) -> None:
    there = Process(store, clock)
    header, record = await there.create()
    with pytest.raises(AuthenticationFailed):
        here.directory.authenticate(header)
    await here.directory.refresh()
    here.directory.authenticate(header)
    clock.now += 1
    await there.directory.revoke(record.id)
    await here.directory.refresh()
    with pytest.raises(RevokedKey):
        here.directory.authenticate(header)


async def test_a_change_that_is_committed_late_is_still_seen(
    here: Process, store: MemoryKeyStore, clock: Clock
) -> None:
    """It is stamped before it is committed: a refresh in between has already seen a later one."""
    there = Process(store, clock)
    header, late = await there.create()
    del store.records[late.id]
    clock.now += OVERLAP_SECONDS - 1
    await here.create()
    await here.directory.refresh()
    store.records[late.id] = late
    await here.directory.refresh()
    assert here.directory.authenticate(header).key_id == late.id


async def test_a_reading_from_before_a_revocation_does_not_undo_it(
    here: Process, store: MemoryKeyStore
) -> None:
    header, record = await here.create()
    await here.directory.revoke(record.id)
    store.records[record.id] = replace(record)
    await here.directory.refresh()
    with pytest.raises(RevokedKey):
        here.directory.authenticate(header)


async def test_each_refresh_says_whether_the_store_answered(here: Process, store: MemoryKeyStore) -> None:
    assert here.directory.store_up
    store.gone = True
    await here.directory.refresh()
    assert not here.directory.store_up


async def test_all_keys_are_listed_oldest_first(here: Process, clock: Clock) -> None:
    records = []
    for _ in range(3):
        records.append((await here.create())[1])
        clock.now += 1
    assert here.directory.all() == records


async def test_the_stored_record_holds_neither_key_nor_secret(here: Process, store: MemoryKeyStore) -> None:
    header, record = await here.create()
    parsed = keys.parse(header[7:].decode())
    assert parsed is not None
    held = repr([getattr(store.records[record.id], name) for name in record.__slots__])
    assert parsed.secret not in held
    assert keys.digest(parsed.secret, PEPPER) == record.digest


def test_a_directory_keeps_itself_fresh_until_it_is_cancelled(store: MemoryKeyStore, clock: Clock) -> None:
    async def scenario() -> None:
        here, there = Process(store, clock), Process(store, clock)
        task = asyncio.create_task(here.directory.keep_fresh())
        header, _ = await there.create()
        await asyncio.sleep(REFRESH_SECONDS + 0.1)
        here.directory.authenticate(header)
        store.gone = True
        await asyncio.sleep(REFRESH_SECONDS + 0.1)
        assert not here.directory.store_up
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())
