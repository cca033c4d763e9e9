"""API keys in memory: who a key is, without a store on the data path, and every change to keys."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from gateway import keys
from gateway.credentials import Credentials, Known, grant_of
from gateway.errors import (
    AuthenticationFailed,
    DisabledKey,
    ExpiredKey,
    GatewayError,
    PlanMissing,
    RevokedKey,
    StoreUnavailable,
)
from gateway.principal import Entitlements, Principal
from gateway.snapshot import Snapshot
from gateway.store import KeyRecord, Store, StoreError

REFRESH_SECONDS = 1.0
# A change is stamped before it is committed, perhaps by another machine's clock: a refresh looks back this
# far for changes that were still under way.
OVERLAP_SECONDS = 10.0
# And this far now and then: where clocks differ, two changes within a second may be stamped the wrong way.
WIDE_SECONDS = 3600.0
WIDE_EVERY_SECONDS = 60.0
# How far the time in a snapshot may lag behind the store's last answer.
SNAPSHOT_SECONDS = 60.0
RETRY_SECONDS = 5

# The same for an id that exists and for one that does not: ids are not to be found out by asking.
_WRONG = "There is no such API key. Send `Authorization: Bearer sk-gh-…`."


@dataclass(frozen=True, slots=True)
class KeyDraft:
    """What a new key is made of; None for plan, scopes and models as in a KeyRecord."""

    name: str
    tenant: str = "default"
    plan: str | None = None
    scopes: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    overrides: Mapping[str, int | str] = field(default_factory=dict)
    expires_at: float | None = None


class Snapshots(Protocol):
    """Where a directory keeps its last good state."""

    def save(self, snapshot: Snapshot) -> None: ...

    def load(self) -> Snapshot | None: ...


class KeyDirectory:
    """Every key in memory, refreshed from the store. Lookups touch nothing else.

    While the store is gone, known keys are served for `max_age` seconds after its last answer, an unknown one
    is a 503 and not a 401, and changes raise StoreError.
    """

    def __init__(
        self,
        store: Store,
        *,
        pepper: bytes,
        entitlements: Entitlements,
        snapshots: Snapshots,
        max_age: float,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._store = store
        self._pepper = pepper
        self.pepper_id = keys.pepper_id(pepper)
        self._entitlements = entitlements
        self._snapshots = snapshots
        self._max_age = max_age
        self._clock = clock
        self._log = log
        self._credentials = Credentials(pepper, clock)
        self._known: dict[str, Known] = {}
        self._saving = asyncio.Lock()
        self._newest = 0.0
        self._last_stamp = 0.0
        self._looked_wide_at = 0.0
        self._changed_here: set[str] = set()
        self._unsaved = True
        self._saved_at = 0.0
        self._told_gone = False
        self.good_at = 0.0
        self.store_up = False

    @property
    def serves(self) -> bool:
        """Whether any key can be served: the store answers, or did so not too long ago."""
        return self.store_up or self._age() <= self._max_age

    def authenticate(self, credential: bytes) -> Principal:
        """Whose key this is. Raises AuthenticationFailed or one of its kinds, PlanMissing or
        StoreUnavailable.
        """
        known = self._credentials.owner(credential, self._known)
        # Without the store an unknown key may be a new one, a wrong secret the one after a rotation.
        if not self.serves or (known is None and not self.store_up):
            raise StoreUnavailable(
                "This key cannot be checked now: the key store does not answer. Try again.",
                retry_after=RETRY_SECONDS,
            )
        if known is None:
            raise AuthenticationFailed(_WRONG)
        try:
            return self._admit(known)
        except GatewayError as error:
            error.owner = known.record.tenant, known.record.id
            raise

    def _admit(self, known: Known) -> Principal:
        """Raises RevokedKey, DisabledKey, ExpiredKey or PlanMissing."""
        record = known.record
        if record.revoked_at is not None:
            raise RevokedKey("This API key was revoked. Ask your operator for a new one.")
        if record.disabled_at is not None:
            raise DisabledKey("This API key is disabled for now. Ask your operator.")
        if record.expires_at is not None and record.expires_at <= self._clock():
            raise ExpiredKey("This API key has expired. Ask your operator for a new one.")
        return self._principal(known)

    def all(self) -> list[KeyRecord]:
        """Every key, oldest first."""
        records = [known.record for known in self._known.values()]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    def get(self, key_id: str) -> KeyRecord | None:
        known = self._known.get(key_id)
        return known.record if known else None

    def principal_of(self, record: KeyRecord) -> Principal:
        """What this key may do under the present plans. Raises PlanMissing."""
        return self._principal(self._known.get(record.id) or Known(record, grant_of(record)))

    async def create(self, drafts: Sequence[KeyDraft], *, actor: str) -> list[tuple[str, KeyRecord]]:
        """New keys, stored before they are returned: their texts, which are nowhere else, and their records.
        All or none. Raises StoreError.
        """
        made = [self._make(draft) for draft in drafts]
        await self._add([record for _, record in made], actor, "create")
        return made

    async def import_keys(
        self, drafts: Sequence[KeyDraft], records: Sequence[KeyRecord], *, actor: str
    ) -> list[tuple[str, KeyRecord]]:
        """New keys and exported ones in one go; returns the new ones. Raises StoreError, and Duplicate where
        there is a key with the id of an exported one.
        """
        made = [self._make(draft) for draft in drafts]
        stamp = self._stamp()
        imported = [replace(record, changed_at=stamp) for record in records]
        await self._add([record for _, record in made] + imported, actor, "import")
        return made

    async def rotate(
        self, key_id: str, *, overlap_seconds: float, actor: str
    ) -> tuple[str, KeyRecord] | None:
        """A new secret for the same key: its text and record; None where there is no such key. The old secret
        is good for `overlap_seconds` more. Raises StoreError.
        """
        known = self._known.get(key_id)
        if known is None:
            return None
        now, old = self._clock(), known.record
        text = keys.generate(key_id)
        changes = {
            "digest": keys.digest(_parsed(text).secret, self._pepper),
            "pepper_id": self.pepper_id,
            "previous_digest": old.digest if overlap_seconds else None,
            "previous_pepper_id": old.pepper_id if overlap_seconds else None,
            "previous_until": now + overlap_seconds if overlap_seconds else None,
        }
        record = await self._change(key_id, changes, actor, "rotate", read_at=old.changed_at)
        return None if record is None else (text, record)

    async def change(
        self, key_id: str, changes: Mapping[str, Any], *, actor: str, read_at: float | None = None
    ) -> KeyRecord | None:
        """Sets fields of the record; None where there is no such key. Raises StoreError, and Stale where the
        record's `changed_at` is no longer `read_at`.
        """
        return await self._change(key_id, changes, actor, "change", read_at)

    async def disable(self, key_id: str, *, actor: str) -> KeyRecord | None:
        return await self._change(key_id, {"disabled_at": self._clock()}, actor, "disable")

    async def enable(self, key_id: str, *, actor: str) -> KeyRecord | None:
        return await self._change(key_id, {"disabled_at": None}, actor, "enable")

    async def revoke(self, key_id: str, *, actor: str) -> KeyRecord | None:
        return await self._change(key_id, {"revoked_at": self._clock()}, actor, "revoke")

    async def start(self) -> None:
        """The first refresh; without a store, from the snapshot."""
        await self.refresh()
        if not self.store_up and (snapshot := self._snapshots.load()) is not None:
            self.good_at = snapshot.taken_at
            for record in snapshot.records:
                self._apply(record)
            self._log.warning("keys_from_snapshot", keys=len(snapshot.records), age=self._age())

    async def refresh(self) -> None:
        """Takes in what other processes changed. A store that is gone is noted, not raised."""
        self._changed_here.clear()
        now = self._clock()
        wide = abs(now - self._looked_wide_at) >= WIDE_EVERY_SECONDS
        look_back = WIDE_SECONDS if wide else OVERLAP_SECONDS
        try:
            changed = await self._store.changed_since(self._newest - look_back)
        except StoreError:
            self._note_store(up=False)
            return
        for record in changed:
            # Read before a change of this process, arrived after it: the next refresh has it right.
            if record.id not in self._changed_here:
                self._apply(record)
        if wide:
            self._looked_wide_at = now
        self.good_at = self._clock()
        self._note_store(up=True)
        await self._save()

    async def keep_fresh(self) -> None:
        """Refreshes until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self.refresh()

    def _principal(self, known: Known) -> Principal:
        if known.grant is None:
            raise PlanMissing("This key's own limits are not understood here. Ask your operator.")
        return self._entitlements.principal(known.grant)

    def _age(self) -> float:
        return self._clock() - self.good_at

    def _make(self, draft: KeyDraft) -> tuple[str, KeyRecord]:
        text, now = keys.generate(), self._clock()
        parsed = _parsed(text)
        record = KeyRecord(
            id=parsed.id,
            name=draft.name,
            tenant=draft.tenant,
            digest=keys.digest(parsed.secret, self._pepper),
            pepper_id=self.pepper_id,
            created_at=now,
            changed_at=self._stamp(),
            plan=draft.plan,
            scopes=draft.scopes,
            models=draft.models,
            overrides=dict(draft.overrides),
            expires_at=draft.expires_at,
        )
        return text, record

    async def _add(self, records: Sequence[KeyRecord], actor: str, action: str) -> None:
        await self._store.add(records, actor=actor, action=action)
        for record in records:
            self._changed_here.add(record.id)
            self._apply(record)
        await self._save()

    async def _change(
        self, key_id: str, changes: Mapping[str, Any], actor: str, action: str, read_at: float | None = None
    ) -> KeyRecord | None:
        record = await self._store.change(
            key_id, {**changes, "changed_at": self._stamp()}, actor=actor, action=action, read_at=read_at
        )
        if record is not None:
            self._changed_here.add(key_id)
            self._apply(record)
            await self._save()
        return record

    def _stamp(self) -> float:
        """For a change: the time, or just after the last stamp known, or a clock that is behind would stamp
        where the other processes have looked already and never look again.
        """
        return max(self._clock(), math.nextafter(self._last_stamp, math.inf))

    def _apply(self, record: KeyRecord) -> None:
        self._last_stamp = max(self._last_stamp, record.changed_at)
        # Stamped by a clock that is ahead, it must not hide what clocks that are right have stamped.
        self._newest = max(self._newest, min(record.changed_at, self._clock()))
        known = self._known.get(record.id)
        if known is not None and (
            known.record == record or (known.record.revoked_at is not None and record.revoked_at is None)
        ):
            return  # nothing new; or read before a revocation, which is for good
        grant = grant_of(record)
        if grant is None:
            self._log.error("key_not_understood", key_id=record.id)
        self._known[record.id] = Known(record, grant)
        self._unsaved = True

    def _note_store(self, *, up: bool) -> None:
        if up and self._told_gone:
            self._log.info("store_answers", keys=len(self._known))
        elif not up and not self._told_gone:
            self._log.error("store_gone", keys=len(self._known))
        self._told_gone = not up
        self.store_up = up

    async def _save(self) -> None:
        async with self._saving:  # or an older state could be written over a newer one
            now = self._clock()
            if not self._unsaved and now - self._saved_at < SNAPSHOT_SECONDS:
                return
            self._unsaved, self._saved_at = False, now
            try:
                await asyncio.to_thread(self._snapshots.save, Snapshot(self.good_at, self.all()))
            except OSError as error:
                self._unsaved = True
                self._log.error("snapshot_failed", error=error.strerror)


def _parsed(text: str) -> keys.ParsedKey:
    parsed = keys.parse(text)
    assert parsed is not None
    return parsed
