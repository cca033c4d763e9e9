"""Keys as the admin API shows them: nothing is lost on the way out and in again."""

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gateway.admin_views import ExportedKey, KeyView, MadeKey
from gateway.plans import Overrides
from gateway.principal import ALL_SCOPES
from gateway.store import KeyRecord

MOMENTS = st.floats(1e9, 4e9, allow_nan=False).map(lambda at: round(at, 6))
LABELS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,99}", fullmatch=True)
DIGESTS = st.binary(min_size=32, max_size=32)
PEPPERS = st.from_regex(r"[0-9a-f]{12}", fullmatch=True)
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "requests_per_minute": st.integers(1, 10**15),
        "output_cap": st.integers(1, 10**15),
        "over_cap": st.sampled_from(["clamp", "refuse"]),
        "priority": st.integers(0, 9),
    },
)
RECORDS = st.builds(
    KeyRecord,
    id=st.from_regex(r"[a-z2-7]{10}", fullmatch=True),
    name=LABELS,
    tenant=LABELS,
    digest=DIGESTS,
    pepper_id=PEPPERS,
    created_at=MOMENTS,
    changed_at=MOMENTS,
    previous_digest=st.none() | DIGESTS,
    previous_pepper_id=st.none() | PEPPERS,
    previous_until=st.none() | MOMENTS,
    plan=st.none() | LABELS,
    scopes=st.none() | st.lists(st.sampled_from(sorted(ALL_SCOPES)), min_size=1, unique=True).map(tuple),
    models=st.none() | st.just(("a", "b")),
    overrides=OVERRIDES,
    expires_at=st.none() | MOMENTS,
    disabled_at=st.none() | MOMENTS,
    revoked_at=st.none() | MOMENTS,
)


@given(RECORDS, MOMENTS)
def test_a_key_that_is_exported_and_imported_is_the_same_key(record: KeyRecord, now: float) -> None:
    text = ExportedKey.of(record).model_dump_json()
    assert ExportedKey.model_validate_json(text).record(now) == replace(record, changed_at=now)


@given(RECORDS, MOMENTS)
def test_every_key_can_be_shown_and_what_is_shown_is_no_secret(record: KeyRecord, now: float) -> None:
    shown = KeyView.of(record, now)
    text = shown.model_dump_json()
    assert record.digest.hex() not in text
    assert shown.id == record.id
    assert {name: getattr(shown, name) for name in record.overrides} == record.overrides
    assert shown.created_at == datetime.fromtimestamp(record.created_at, UTC)


@given(RECORDS)
def test_a_key_ends_at_the_moment_that_it_names(record: KeyRecord) -> None:
    plain = replace(record, revoked_at=None, disabled_at=None, previous_until=None, expires_at=2e9)
    assert KeyView.of(plain, 2e9 - 0.001).state == "active"
    assert KeyView.of(plain, 2e9).state == "expired"


def test_a_view_has_every_value_that_a_key_can_have_of_its_own() -> None:
    assert set(Overrides.model_fields) <= set(KeyView.model_fields)
    assert set(MadeKey.model_fields) - set(KeyView.model_fields) == {"key"}
