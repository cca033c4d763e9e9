"""Whose secret a credential holds: recognised cheaply, and never longer than it is the key's."""

import inspect
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import credentials, keys
from gateway.credentials import MAX_RECOGNISED, Credentials, Known, grant_of
from gateway.errors import AuthenticationFailed, MistypedKey
from gateway.principal import ALL_SCOPES
from gateway.store import KeyRecord
from tests.fakes.clock import Clock

PEPPER = b"pepper"


def digest(text: str) -> bytes:
    parsed = keys.parse(text)
    assert parsed is not None
    return keys.digest(parsed.secret, PEPPER)


def known(text: str, **fields: object) -> Known:
    parsed = keys.parse(text)
    assert parsed is not None
    record = KeyRecord(parsed.id, "laptop", "acme", digest(text), keys.pepper_id(PEPPER), 0.0, 0.0)
    record = replace(record, **fields)  # type: ignore[arg-type]
    return Known(record, grant_of(record))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recognise(clock: Clock) -> Credentials:
    return Credentials(PEPPER, clock)


def test_a_key_is_recognised_by_its_secret_the_first_and_every_time(recognise: Credentials) -> None:
    text = keys.generate()
    key = known(text)
    present = {key.record.id: key}
    assert all(recognise.owner(text.encode(), present) is key for _ in range(3))
    assert recognise.kept == 1


def test_another_secret_of_the_same_id_is_nobodys(recognise: Credentials) -> None:
    text = keys.generate()
    key = known(text)
    present = {key.record.id: key}
    assert recognise.owner(text.encode(), present) is key
    assert recognise.owner(keys.generate(key.record.id).encode(), present) is None
    assert recognise.owner(keys.generate().encode(), present) is None
    assert recognise.kept == 1


def test_what_was_recognised_is_forgotten_with_any_change_of_the_key(recognise: Credentials) -> None:
    text = keys.generate()
    before = known(text)
    assert recognise.owner(text.encode(), {before.record.id: before}) is before
    rotated = known(keys.generate(before.record.id))
    assert recognise.owner(text.encode(), {before.record.id: rotated}) is None
    assert recognise.owner(text.encode(), {}) is None
    renamed = known(text, name="other")
    assert recognise.owner(text.encode(), {before.record.id: renamed}) is renamed


def test_a_previous_secret_ends_at_its_moment_however_often_it_was_seen(
    recognise: Credentials, clock: Clock
) -> None:
    old, new = keys.generate(), ""
    parsed = keys.parse(old)
    assert parsed is not None
    new = keys.generate(parsed.id)
    key = known(
        new,
        previous_digest=digest(old),
        previous_pepper_id=keys.pepper_id(PEPPER),
        previous_until=clock.now + 10,
    )
    present = {key.record.id: key}
    assert all(recognise.owner(old.encode(), present) is key for _ in range(3))
    clock.now += 10
    assert recognise.owner(old.encode(), present) is None
    assert recognise.owner(new.encode(), present) is key


@pytest.mark.parametrize("part", ["pepper_id", "previous_pepper_id"])
def test_a_digest_of_another_pepper_is_no_ones(recognise: Credentials, clock: Clock, part: str) -> None:
    text = keys.generate()
    of_the_old = {"digest": b"x" * 32, "previous_digest": digest(text), "previous_until": clock.now + 10}
    fields = {"previous_pepper_id": keys.pepper_id(PEPPER)} | (
        of_the_old if part == "previous_pepper_id" else {}
    )
    key = known(text, **(fields | {part: "another"}))
    assert recognise.owner(text.encode(), {key.record.id: key}) is None


def test_no_more_than_so_many_are_remembered(recognise: Credentials) -> None:
    texts = [keys.generate() for _ in range(50)]
    present = {key.record.id: key for key in map(known, texts)}
    for number in range(MAX_RECOGNISED - 10):
        recognise._recognised[b"%d" % number] = next(iter(present.values()))
    for text in texts:
        owner = recognise.owner(text.encode(), present)
        assert owner is not None
        assert owner.record.digest == digest(text)
    assert recognise.kept == MAX_RECOGNISED


def test_a_credential_is_not_held_as_it_is(recognise: Credentials) -> None:
    text = keys.generate()
    key = known(text)
    recognise.owner(text.encode(), {key.record.id: key})
    assert text[17:60] not in repr(vars(recognise))


@pytest.mark.parametrize("foreign", [b"x", b"sk-proj-abc", b"\xff\xfe", "schlüssel".encode(), b"a.b.c"])
def test_what_is_no_key_of_this_service_is_called_so(recognise: Credentials, foreign: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="not one of this service's"):
        recognise.owner(foreign, {})


@pytest.mark.parametrize(
    "wrong",
    [keys.generate()[:-1], keys.generate() + "a", "sk-gh-", "sk-gh-ABC"],
    ids=["cut", "longer", "empty", "short"],
)
def test_a_key_that_was_cut_or_mistyped_is_told_from_a_wrong_one(recognise: Credentials, wrong: str) -> None:
    with pytest.raises(MistypedKey, match="checksum") as refused:
        recognise.owner(wrong.encode(), {})
    assert wrong[6:] == "" or wrong[6:] not in refused.value.message


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_key_or_break_anything(credential: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        Credentials(PEPPER, Clock()).owner(credential, {})


def test_digests_are_compared_in_constant_time() -> None:
    """Time cannot be measured well in a test; the source can be read."""
    source = inspect.getsource(credentials)
    assert "hmac.compare_digest(" in source
    assert "digest ==" not in source
    assert "digest !=" not in source


def test_a_record_grants_what_it_says() -> None:
    record = known(keys.generate(), scopes=("embed",), models=("m",), overrides={"output_cap": 5}).record
    grant = grant_of(record)
    assert grant is not None
    assert (grant.tenant, grant.key_id, grant.models) == ("acme", record.id, ("m",))
    assert grant.scopes == {"embed"}
    assert grant.overrides.output_cap == 5
    plain = grant_of(replace(record, scopes=None, models=None, overrides={}))
    assert plain is not None
    assert (plain.scopes, plain.models) == (ALL_SCOPES, None)


@pytest.mark.parametrize("overrides", [{"of_tomorrow": 1}, {"output_cap": 0}, {"output_cap": "many"}])
def test_limits_that_are_not_understood_grant_nothing(overrides: dict[str, int | str]) -> None:
    assert grant_of(replace(known(keys.generate()).record, overrides=overrides)) is None
