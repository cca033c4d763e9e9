"""What must outlive the process: keys, the audit log, usage per day. One interface; `sqlstore` implements it.

Times are seconds since the epoch, UTC; days are dates in the plans' time zone. Errors:

    StoreError          the store did not answer, or refused; what was asked may or may not have been done
    ├── Duplicate       a key with this id exists; nothing was added
    ├── Stale           the key was changed since it was read; nothing was changed
    └── StoreUnfit      no retry can help: the schema is of a later version, the password is wrong
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

_NO_OVERRIDES: Mapping[str, int | str] = MappingProxyType({})


class StoreError(Exception):
    """The store did not answer, or refused. The cause is chained."""


class Duplicate(StoreError):
    """A key with this id exists."""


class Stale(StoreError):
    """The key was changed since it was read."""


class StoreUnfit(StoreError):
    """The store will not serve this version or this user, however long one waits."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key as it is stored. None for plan, scopes and models: the default plan's, all, the plan's.

    `previous_digest` is accepted too until `previous_until`: a rotation with overlap. `overrides` holds the
    key's own values of its plan's entries. `last_used_at` is written by the ledger and may lag some seconds;
    it alone changes without `changed_at`.
    """

    id: str
    name: str
    tenant: str
    digest: bytes
    pepper_id: str
    created_at: float
    changed_at: float
    previous_digest: bytes | None = None
    previous_pepper_id: str | None = None
    previous_until: float | None = None
    plan: str | None = None
    scopes: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    overrides: Mapping[str, int | str] = field(default_factory=lambda: _NO_OVERRIDES)
    expires_at: float | None = None
    disabled_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    def __repr__(self) -> str:
        return f"KeyRecord(id={self.id!r}, tenant={self.tenant!r})"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who changed what, when. `detail` holds the new values, never a secret or a digest of one."""

    id: int
    at: float
    actor: str
    action: str
    key_id: str | None
    tenant: str | None
    detail: Mapping[str, Any]


@dataclass(slots=True)
class UsageEntry:
    """One request's settled tokens. `at`: when it began. `estimated`: the engine did not say."""

    request_id: str
    at: float
    tenant: str
    key_id: str
    model: str
    route: str
    prompt_tokens: int
    completion_tokens: int
    estimated: bool


@dataclass(frozen=True, slots=True)
class DayUsage:
    """The sum of one day ("2026-12-01", in the plans' time zone) for one key and model."""

    day: str
    tenant: str
    key_id: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    estimated_requests: int


@dataclass(frozen=True, slots=True)
class KeyTokens:
    """All tokens, prompt and completion, of one key in some days."""

    tenant: str
    key_id: str
    tokens: int


class Store(Protocol):
    """Every method raises StoreError when the store is gone, and is durable before it returns."""

    async def open(self) -> None:
        """Connects and brings the schema up to date. Not needed: the first use does the same. Raises
        StoreUnfit where waiting will not help.
        """

    async def all_keys(self) -> Sequence[KeyRecord]:
        """Every key, oldest first."""

    async def last_used(self, key_ids: Sequence[str]) -> Mapping[str, float]:
        """When each of these keys, 500 at most, was last used; those that never were are left out."""

    async def changed_since(self, moment: float) -> Sequence[KeyRecord]:
        """Records whose `changed_at` is at or after `moment`."""

    async def add(self, records: Sequence[KeyRecord], *, actor: str, action: str = "create") -> None:
        """Stores new keys, all or none, with an audit entry each. Raises Duplicate."""

    async def change(
        self,
        key_id: str,
        changes: Mapping[str, Any],
        *,
        actor: str,
        action: str,
        read_at: float | None = None,
    ) -> KeyRecord | None:
        """Sets fields of KeyRecord (`changed_at` among them), with an audit entry; the record as it then is,
        None where there is no such key. An earlier `revoked_at` or `disabled_at` stands when a later one
        comes.

        `read_at`: the `changed_at` of the record that the changes were derived from; raises Stale where it is
        no longer that.
        """

    async def note(self, *, at: float, actor: str, action: str, detail: Mapping[str, Any]) -> None:
        """An audit entry for a change that is not a key's."""

    async def audit_log(
        self, *, limit: int, before: int | None = None, key_id: str | None = None
    ) -> Sequence[AuditEntry]:
        """The newest `limit` entries with an id below `before`, newest first."""

    async def apply_usage(
        self,
        spool: str,
        old_offset: int,
        new_offset: int,
        rows: Sequence[DayUsage],
        last_used: Mapping[str, float],
    ) -> int:
        """Adds the rows and moves the spool's mark from `old_offset` to `new_offset`, in one transaction; the
        mark as it then is. A mark that was elsewhere stays there, and nothing is added: the caller goes on
        from where it is. A spool that was never seen stands at 0.
        """

    async def forget_spools(self, spools: Sequence[str]) -> None:
        """Drops the marks of spools that no longer exist."""

    async def usage(
        self, from_day: str, to_day: str, *, tenant: str | None = None, key_id: str | None = None
    ) -> Sequence[DayUsage]:
        """Sums of the days, both included, in the order of day, tenant, key and model."""

    async def tokens(self, from_day: str, to_day: str) -> Sequence[KeyTokens]:
        """Tokens per key over the days, both included."""

    async def close(self) -> None: ...
