"""A Store in memory that can be taken away."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.store import AuditEntry, DayUsage, Duplicate, KeyRecord, KeyTokens, Stale, StoreError

_UNTOLD = ("id", "tenant", "digest", "previous_digest", "created_at", "changed_at")


class MemoryStore:
    """Several directories may share one, as several processes share a database.

    `gone`: nothing answers. `fault`: what a fault in its own code would raise.
    """

    def __init__(self) -> None:
        self.records: dict[str, KeyRecord] = {}
        self.audit: list[AuditEntry] = []
        self.days: dict[tuple[str, str, str, str], DayUsage] = {}
        self.marks: dict[str, int] = {}
        self.gone = False
        self.fault: Exception | None = None
        self.closed = False

    async def open(self) -> None:
        self._answer()

    async def all_keys(self) -> Sequence[KeyRecord]:
        self._answer()
        return sorted(self.records.values(), key=lambda record: (record.created_at, record.id))

    async def last_used(self, key_ids: Sequence[str]) -> Mapping[str, float]:
        self._answer()
        known = {key_id: self.records[key_id].last_used_at for key_id in key_ids if key_id in self.records}
        return {key_id: at for key_id, at in known.items() if at is not None}

    async def changed_since(self, moment: float) -> Sequence[KeyRecord]:
        self._answer()
        return [record for record in self.records.values() if record.changed_at >= moment]

    async def add(self, records: Sequence[KeyRecord], *, actor: str, action: str = "create") -> None:
        self._answer()
        ids = [record.id for record in records]
        if len(set(ids)) != len(ids) or any(key_id in self.records for key_id in ids):
            raise Duplicate("there is a key with this id")
        for record in records:
            self.records[record.id] = record
            values = {name: getattr(record, name) for name in KeyRecord.__slots__}
            told = {name: value for name, value in values.items() if value is not None and value != {}}
            self._note(record.changed_at, actor, action, record.id, record.tenant, told)

    async def change(
        self,
        key_id: str,
        changes: Mapping[str, Any],
        *,
        actor: str,
        action: str,
        read_at: float | None = None,
    ) -> KeyRecord | None:
        self._answer()
        known = self.records.get(key_id)
        if known is None:
            return None
        if read_at is not None and known.changed_at != read_at:
            raise Stale("the key was changed since it was read")
        changes = dict(changes)
        for name in ("disabled_at", "revoked_at"):
            if changes.get(name) is not None and getattr(known, name) is not None:
                changes[name] = getattr(known, name)
        record = self.records[key_id] = replace(known, **changes)
        told = {name: getattr(record, name) for name in changes}
        self._note(record.changed_at, actor, action, key_id, record.tenant, told)
        return record

    async def note(self, *, at: float, actor: str, action: str, detail: Mapping[str, Any]) -> None:
        self._answer()
        self._note(at, actor, action, None, None, detail)

    async def audit_log(
        self, *, limit: int, before: int | None = None, key_id: str | None = None
    ) -> Sequence[AuditEntry]:
        self._answer()
        found = [
            entry
            for entry in reversed(self.audit)
            if (before is None or entry.id < before) and (key_id is None or entry.key_id == key_id)
        ]
        return found[:limit]

    async def apply_usage(
        self,
        spool: str,
        old_offset: int,
        new_offset: int,
        rows: Sequence[DayUsage],
        last_used: Mapping[str, float],
    ) -> int:
        self._answer()
        if self.marks.get(spool, 0) != old_offset:
            return self.marks.get(spool, 0)
        self.marks[spool] = new_offset
        for row in rows:
            key = (row.day, row.tenant, row.key_id, row.model)
            known = self.days.get(key)
            self.days[key] = row if known is None else _added(known, row)
        for key_id, at in last_used.items():
            record = self.records.get(key_id)
            if record is not None and (record.last_used_at or 0.0) < at:
                self.records[key_id] = replace(record, last_used_at=at)
        return new_offset

    async def forget_spools(self, spools: Sequence[str]) -> None:
        self._answer()
        for spool in spools:
            self.marks.pop(spool, None)

    async def usage(
        self, from_day: str, to_day: str, *, tenant: str | None = None, key_id: str | None = None
    ) -> Sequence[DayUsage]:
        self._answer()
        return [
            row
            for _, row in sorted(self.days.items())
            if from_day <= row.day <= to_day
            and (tenant is None or row.tenant == tenant)
            and (key_id is None or row.key_id == key_id)
        ]

    async def tokens(self, from_day: str, to_day: str) -> Sequence[KeyTokens]:
        sums: dict[tuple[str, str], int] = {}
        for row in await self.usage(from_day, to_day):
            key = row.tenant, row.key_id
            sums[key] = sums.get(key, 0) + row.prompt_tokens + row.completion_tokens
        return [KeyTokens(*key, tokens) for key, tokens in sums.items()]

    async def close(self) -> None:
        self.closed = True

    def _note(
        self,
        at: float,
        actor: str,
        action: str,
        key_id: str | None,
        tenant: str | None,
        detail: Mapping[str, Any],
    ) -> None:
        told = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in detail.items()
            if name not in _UNTOLD
        }
        self.audit.append(AuditEntry(len(self.audit) + 1, at, actor, action, key_id, tenant, told))

    def _answer(self) -> None:
        if self.fault:
            raise self.fault
        if self.gone:
            raise StoreError("the store cannot be reached")


def _added(one: DayUsage, other: DayUsage) -> DayUsage:
    return replace(
        one,
        requests=one.requests + other.requests,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        estimated_requests=one.estimated_requests + other.estimated_requests,
    )
