"""/admin/keys: keys are made, listed, changed, rotated, moved and ended here."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from structlog.typing import FilteringBoundLogger

from gateway.admin_auth import Actor
from gateway.admin_views import (
    MAX_PAGE,
    OVERRIDES,
    Entitlement,
    ExportedKey,
    ExportPage,
    ImportRequest,
    ImportResult,
    KeyChanges,
    KeyDetail,
    KeyPage,
    KeyView,
    MadeKey,
    NewKey,
    Rotation,
    State,
    seconds,
    state,
)
from gateway.errors import Conflict, InvalidRequest, PathNotFound, PlanMissing
from gateway.identity import KeyDirectory, KeyDraft
from gateway.plans import PresentPlans
from gateway.store import KeyRecord, Store, StoreError

T = TypeVar("T")
After = Annotated[str | None, Query(description="the last id of the page before")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="keys on a page")]


@dataclass(frozen=True, slots=True)
class KeyRoutes:
    """`models` are the names that clients can use; `clock` gives seconds since the epoch."""

    directory: KeyDirectory
    store: Store
    plans: PresentPlans
    models: Collection[str]
    clock: Callable[[], float]
    log: FilteringBoundLogger

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/keys", tags=["keys"])
        router.post("", status_code=201)(self.create_key)
        router.get("")(self.list_keys)
        # Before what takes any word for an id.
        router.post("/import", status_code=201)(self.import_keys)
        router.get("/export")(self.export_keys)
        router.get("/{key_id}")(self.show_key)
        router.patch("/{key_id}")(self.change_key)
        router.post("/{key_id}/rotate")(self.rotate_key)
        router.post("/{key_id}/disable")(self.disable_key)
        router.post("/{key_id}/enable")(self.enable_key)
        router.post("/{key_id}/revoke")(self.revoke_key)
        return router

    async def create_key(self, new: NewKey, actor: Actor) -> MadeKey:
        """Makes a key. Its text is in this answer and nowhere else."""
        self._check(new, "")
        ((text, record),) = await self.directory.create([_draft(new)], actor=actor)
        self._tell("key_created", record, actor)
        return MadeKey.of(record, self.clock(), key=text)

    async def list_keys(
        self,
        tenant: str | None = None,
        state: State | None = None,
        plan: Annotated[str | None, Query(description="as the key names it, or the default plan")] = None,
        limit: Limit = MAX_PAGE,
        after: After = None,
    ) -> KeyPage:
        """The keys, oldest first, in pages."""
        now = self.clock()
        found = [
            record
            for record in _following(self.directory.all(), after)
            if self._is_asked_for(record, now, tenant, state, plan)
        ]
        page, following = _page(found, limit)
        return KeyPage(keys=[KeyView.of(record, now) for record in await self._used(page)], next=following)

    async def export_keys(self, limit: Limit = MAX_PAGE, after: After = None) -> ExportPage:
        """The keys as `import` takes them. No secrets: digests, worth nothing without the pepper."""
        page, following = _page(_following(self.directory.all(), after), limit)
        return ExportPage(keys=[ExportedKey.of(record) for record in page], next=following)

    async def import_keys(self, request: ImportRequest, actor: Actor) -> ImportResult:
        """Takes in new keys, whose texts are in this answer and nowhere else, and exported ones."""
        now = self.clock()
        for index, given in enumerate(request.keys):
            self._check(given, f"keys.{index}.")
        exported = [given for given in request.keys if isinstance(given, ExportedKey)]
        self._check_ids(request.keys)
        if request.dry_run:
            return ImportResult(count=len(request.keys), dry_run=True, keys=())
        drafts = [_draft(given) for given in request.keys if not isinstance(given, ExportedKey)]
        made = await self.directory.import_keys(
            drafts, [given.record(now) for given in exported], actor=actor
        )
        self.log.info("keys_imported", count=len(request.keys), actor=actor)
        new, taken = iter(made), iter(exported)
        keys = [
            MadeKey.of(next(taken).record(now), now, key=None)
            if isinstance(given, ExportedKey)
            else _with_text(next(new), now)
            for given in request.keys
        ]
        return ImportResult(count=len(keys), dry_run=False, keys=keys)

    async def show_key(self, key_id: str) -> KeyDetail:
        """One key, and what it may do under the present plans."""
        (record,) = await self._used([_found(self.directory.get(key_id))])
        try:
            return KeyDetail.of(record, self.clock(), effective=self._effective(record), problem=None)
        except PlanMissing as missing:
            return KeyDetail.of(record, self.clock(), effective=None, problem=missing.message)

    async def change_key(self, key_id: str, given: KeyChanges, actor: Actor) -> KeyView:
        """Sets what is given; the rest stays. Null: as for a new key."""
        record = _found(self.directory.get(key_id))
        if not given.model_fields_set:
            raise InvalidRequest("Nothing is given to change.")
        self._check(given, "")
        changes = _changes(record, given)
        if not changes:
            return KeyView.of(record, self.clock())
        return await self._changed(
            self.directory.change(key_id, changes, actor=actor, read_at=record.changed_at),
            "key_changed",
            actor,
        )

    async def rotate_key(self, key_id: str, actor: Actor, rotation: Rotation | None = None) -> MadeKey:
        """Gives the key a new secret: its text is in this answer and nowhere else. The id stays."""
        now = self.clock()
        record = _found(self.directory.get(key_id))
        if (is_now := state(record, now)) in ("revoked", "expired"):
            raise Conflict(f"This key is {is_now}: a new secret would be refused like the old one.")
        overlap = (rotation or Rotation()).overlap_seconds
        text, record = _found(await self.directory.rotate(key_id, overlap_seconds=overlap, actor=actor))
        self._tell("key_rotated", record, actor)
        return MadeKey.of(record, self.clock(), key=text)

    async def disable_key(self, key_id: str, actor: Actor) -> KeyView:
        """Refuses the key until it is enabled again."""
        return await self._changed(self.directory.disable(key_id, actor=actor), "key_disabled", actor)

    async def enable_key(self, key_id: str, actor: Actor) -> KeyView:
        """Takes the key again."""
        if _found(self.directory.get(key_id)).revoked_at is not None:
            raise Conflict("This key is revoked, and that is for good. Create another.")
        return await self._changed(self.directory.enable(key_id, actor=actor), "key_enabled", actor)

    async def revoke_key(self, key_id: str, actor: Actor) -> KeyView:
        """Ends the key for good."""
        return await self._changed(self.directory.revoke(key_id, actor=actor), "key_revoked", actor)

    async def _changed(self, change: Awaitable[KeyRecord | None], event: str, actor: str) -> KeyView:
        record = _found(await change)
        self._tell(event, record, actor)
        return KeyView.of(record, self.clock())

    async def _used(self, records: Sequence[KeyRecord]) -> Sequence[KeyRecord]:
        """With their last use, which the store alone knows; as they are while it is gone."""
        try:
            used = await self.store.last_used([record.id for record in records])
        except StoreError:
            return records
        return [replace(record, last_used_at=used.get(record.id, record.last_used_at)) for record in records]

    def _is_asked_for(
        self, record: KeyRecord, now: float, tenant: str | None, wanted: State | None, plan: str | None
    ) -> bool:
        return (
            (tenant is None or record.tenant == tenant)
            and (wanted is None or state(record, now) == wanted)
            and (plan is None or (record.plan or self.plans.plans.default_plan) == plan)
        )

    def _effective(self, record: KeyRecord) -> Entitlement:
        principal = self.directory.principal_of(record)
        rules = principal.rules
        return Entitlement(
            plan=principal.plan_name,
            models=tuple(rules.models),
            scopes=tuple(sorted(principal.scopes)),
            output_cap=rules.output_cap,
            output_default=rules.output_default,
            over_cap=rules.over_cap,
            priority=principal.priority,
        )

    def _check(self, given: NewKey, prefix: str) -> None:
        """Raises InvalidRequest where a key could not be used as it is described."""
        plans = self.plans.plans.plans
        if given.plan is not None and given.plan not in plans:
            raise _invalid(f"{prefix}plan", f"there is no plan {given.plan!r}; there are {', '.join(plans)}")
        for model in given.models or ():
            if model not in self.models:
                have = ", ".join(sorted(self.models))
                raise _invalid(f"{prefix}models", f"{model!r} is no model here; there are {have}")
        cap, default = given.output_cap, given.output_default
        if cap is not None and default is not None and default > cap:
            raise _invalid(f"{prefix}output_default", f"{default} is more than output_cap, {cap}")
        # What is moved may well have ended.
        moved = isinstance(given, ExportedKey)
        if not moved and given.expires_at is not None and given.expires_at.timestamp() <= self.clock():
            raise _invalid(f"{prefix}expires_at", f"{given.expires_at.isoformat()} is in the past")

    def _check_ids(self, keys: Sequence[NewKey]) -> None:
        seen: set[str] = set()
        for index, given in enumerate(keys):
            if not isinstance(given, ExportedKey):
                continue
            if given.pepper_id != self.directory.pepper_id:
                raise _invalid(
                    f"keys.{index}.pepper_id",
                    "this key was made with another pepper and could never be verified here; "
                    "secrets/key_pepper has to move with the keys",
                )
            if given.id in seen or self.directory.get(given.id) is not None:
                raise Conflict(f"keys.{index}.id: there is a key {given.id} already; nothing was imported.")
            seen.add(given.id)

    def _tell(self, event: str, record: KeyRecord, actor: str) -> None:
        self.log.info(event, key_id=record.id, tenant=record.tenant, actor=actor)


def _draft(new: NewKey) -> KeyDraft:
    return KeyDraft(
        name=new.name,
        tenant=new.tenant,
        plan=new.plan,
        scopes=new.scopes,
        models=new.models,
        overrides=new.overrides(),
        expires_at=seconds(new.expires_at),
    )


def _changes(record: KeyRecord, given: KeyChanges) -> dict[str, Any]:
    """The record's fields that become other; of the overrides, all together."""
    fields = given.model_fields_set
    values = {name: getattr(given, name) for name in fields if name not in OVERRIDES}
    if "expires_at" in values:
        values["expires_at"] = seconds(given.expires_at)
    own = {name: getattr(given, name) for name in fields if name in OVERRIDES}
    kept = {name: value for name, value in record.overrides.items() if name not in own}
    values["overrides"] = kept | {name: value for name, value in own.items() if value is not None}
    return {name: value for name, value in values.items() if value != getattr(record, name)}


def _with_text(made: tuple[str, KeyRecord], now: float) -> MadeKey:
    text, record = made
    return MadeKey.of(record, now, key=text)


def _following(records: Sequence[KeyRecord], after: str | None) -> Sequence[KeyRecord]:
    """The records after the one with this id. Looked up before any filter: a key may change between pages."""
    if after is None:
        return records
    for index, record in enumerate(records):
        if record.id == after:
            return records[index + 1 :]
    raise _invalid("after", "there is no such key")


def _page(records: Sequence[KeyRecord], limit: int) -> tuple[Sequence[KeyRecord], str | None]:
    """The first `limit` records, and the id that the next page comes after."""
    page = records[:limit]
    return page, page[-1].id if len(records) > limit else None


def _found(value: T | None) -> T:
    if value is None:
        raise PathNotFound("There is no key with this id. `make keys ARGS=list` shows all.")
    return value


def _invalid(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {problem}.", param=param)
