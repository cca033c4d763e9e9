"""What the admin API takes and gives of keys. A key's own limits stand beside its other fields, by the names
that plans give them; null is the plan's.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Discriminator, Field, Tag

from gateway.plans import Overrides
from gateway.principal import Scope
from gateway.store import KeyRecord

OVERRIDES = tuple(Overrides.model_fields)
MAX_IMPORT = 1_000
MAX_PAGE = 500
MAX_NAMES = 100

State = Literal["active", "rotating", "disabled", "expired", "revoked"]
Label = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@/-]*$")]
# What every part can hold as a date, in any time zone.
Moment = Annotated[
    AwareDatetime, Field(gt=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(9000, 1, 1, tzinfo=UTC))
]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


Scopes = Annotated[tuple[Scope, ...], Field(min_length=1), AfterValidator(_each_once)]
Models = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...],
    Field(min_length=1, max_length=MAX_NAMES),
    AfterValidator(_each_once),
]


class NewKey(Overrides):
    """What a key is made of. Null: the default plan, every scope, the plan's models and limits, no end."""

    name: Label
    tenant: Label = "default"
    plan: str | None = Field(None, max_length=100)
    scopes: Scopes | None = None
    models: Models | None = Field(None, description="names that clients use, in place of the plan's")
    expires_at: Moment | None = None

    def overrides(self) -> dict[str, int | str]:
        """The key's own values of its plan's entries."""
        return self.model_dump(include=set(OVERRIDES), exclude_none=True)


class KeyChanges(NewKey):
    """New values for what is given; the rest stays. Null: as for a new key."""

    # Taken only where they are given, and then they cannot be null.
    name: Label = ""
    tenant: Label = ""


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PepperId = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class ExportedKey(NewKey):
    """A key as another gateway with the same pepper can take it over: no secret, but what proves one."""

    id: str = Field(pattern=r"^[a-z2-7]{10}$")
    digest: Digest = Field(description="HMAC-SHA256 of the secret, in hex")
    pepper_id: PepperId
    previous_digest: Digest | None = None
    previous_pepper_id: PepperId | None = None
    previous_until: Moment | None = None
    created_at: Moment
    disabled_at: Moment | None = None
    revoked_at: Moment | None = None

    @classmethod
    def of(cls, record: KeyRecord) -> Self:
        return cls(
            **_settings(record),
            id=record.id,
            digest=record.digest.hex(),
            pepper_id=record.pepper_id,
            previous_digest=record.previous_digest.hex() if record.previous_digest else None,
            previous_pepper_id=record.previous_pepper_id,
            previous_until=moment(record.previous_until),
            created_at=datetime.fromtimestamp(record.created_at, UTC),
            disabled_at=moment(record.disabled_at),
            revoked_at=moment(record.revoked_at),
        )

    def record(self, now: float) -> KeyRecord:
        """What the store keeps. `now`, seconds since the epoch: the import is a change."""
        return KeyRecord(
            id=self.id,
            name=self.name,
            tenant=self.tenant,
            digest=bytes.fromhex(self.digest),
            pepper_id=self.pepper_id,
            previous_digest=bytes.fromhex(self.previous_digest) if self.previous_digest else None,
            previous_pepper_id=self.previous_pepper_id,
            previous_until=seconds(self.previous_until),
            plan=self.plan,
            scopes=self.scopes,
            models=self.models,
            overrides=self.overrides(),
            created_at=self.created_at.timestamp(),
            changed_at=now,
            expires_at=seconds(self.expires_at),
            disabled_at=seconds(self.disabled_at),
            revoked_at=seconds(self.revoked_at),
        )


def _kind(given: Any) -> str:
    exported = isinstance(given, ExportedKey) or (isinstance(given, dict) and "digest" in given)
    return "_exported" if exported else "_new"


Imported = Annotated[
    Annotated[NewKey, Tag("_new")] | Annotated[ExportedKey, Tag("_exported")], Discriminator(_kind)
]


class ImportRequest(BaseModel):
    """New keys, and keys as `export` gives them: all are taken, or none. `dry_run`: only checked."""

    model_config = ConfigDict(extra="forbid")

    keys: Annotated[list[Imported], Field(min_length=1, max_length=MAX_IMPORT)]
    dry_run: bool = False


class Rotation(BaseModel):
    """For how long the old secret is good beside the new one."""

    model_config = ConfigDict(extra="forbid")

    overlap_seconds: float = Field(0, ge=0, le=90 * 86_400, allow_inf_nan=False)


class KeyView(Overrides):
    """A key without anything that would let one use it. `previous_until`: when the secret before the last
    rotation ceases to be accepted.
    """

    id: str
    name: str
    tenant: str
    state: State
    plan: str | None
    scopes: tuple[Scope, ...] | None
    models: tuple[str, ...] | None
    created_at: datetime
    changed_at: datetime
    expires_at: datetime | None
    disabled_at: datetime | None
    revoked_at: datetime | None
    previous_until: datetime | None
    last_used_at: datetime | None = Field(description="may lag some seconds")

    @classmethod
    def of(cls, record: KeyRecord, now: float, **more: Any) -> Self:
        """`now`: seconds since the epoch."""
        return cls(
            **_settings(record),
            id=record.id,
            state=state(record, now),
            created_at=datetime.fromtimestamp(record.created_at, UTC),
            changed_at=datetime.fromtimestamp(record.changed_at, UTC),
            disabled_at=moment(record.disabled_at),
            revoked_at=moment(record.revoked_at),
            previous_until=moment(record.previous_until),
            last_used_at=moment(record.last_used_at),
            **more,
        )


class MadeKey(KeyView):
    """A key with its text, which is shown this once; null where it was imported with its digest."""

    key: str | None


class Entitlement(BaseModel):
    """What a key may do under the present plans, its own values included."""

    plan: str
    models: tuple[str, ...]
    scopes: tuple[str, ...]
    output_cap: int
    output_default: int
    over_cap: str
    priority: int


class KeyDetail(KeyView):
    """`effective` null: nothing, and `problem` says why."""

    effective: Entitlement | None
    problem: str | None


class KeyPage(BaseModel):
    """`next`: what to give as `after` for the keys that follow; null at the end."""

    keys: Sequence[KeyView]
    next: str | None


class ExportPage(BaseModel):
    keys: Sequence[ExportedKey]
    next: str | None


class ImportResult(BaseModel):
    """In the order of the request. With `dry_run` there are no keys, only their number."""

    count: int
    dry_run: bool
    keys: Sequence[MadeKey]


def state(record: KeyRecord, now: float) -> State:
    """The first that applies, from the most final on. `now`: seconds since the epoch."""
    if record.revoked_at is not None:
        return "revoked"
    if record.expires_at is not None and record.expires_at <= now:
        return "expired"
    if record.disabled_at is not None:
        return "disabled"
    return "rotating" if (record.previous_until or 0.0) > now else "active"


def moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _settings(record: KeyRecord) -> dict[str, Any]:
    return {
        **record.overrides,
        "name": record.name,
        "tenant": record.tenant,
        "plan": record.plan,
        "scopes": record.scopes,
        "models": record.models,
        "expires_at": moment(record.expires_at),
    }
