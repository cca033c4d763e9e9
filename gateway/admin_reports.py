"""What the admin API tells: usage, limits as they stand, why a request was refused, plans, the audit log."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from structlog.typing import FilteringBoundLogger

from gateway.admin_auth import Actor
from gateway.errors import Conflict, InvalidRequest, PathNotFound
from gateway.identity import KeyDirectory
from gateway.ledger import Ledger
from gateway.limits import Limiter, Reading, Refused
from gateway.plans import Plans, PlansFile
from gateway.refusals import Refusal, RefusalLog, explain
from gateway.settings import ConfigurationError
from gateway.store import DayUsage, Store, StoreError

MAX_DAYS = 366
MAX_AUDIT = 1_000

By = Literal["day", "key", "tenant", "model"]


class LimitView(BaseModel):
    """`reset_seconds`: until nothing of it is used; null for what ends only when requests do."""

    name: str
    scope: str
    subject: str
    amount: int
    shadow: bool
    used: int
    remaining: int
    reset_seconds: float | None

    @classmethod
    def of(cls, reading: Reading) -> "LimitView":
        limit = reading.limit
        return cls(
            name=limit.name,
            scope=limit.scope,
            subject=limit.subject,
            amount=limit.amount,
            shadow=limit.shadow,
            used=reading.used,
            remaining=reading.remaining,
            reset_seconds=_finite(reading.reset),
        )


class LimitList(BaseModel):
    plan: str
    limits: Sequence[LimitView]


class HeldLimit(BaseModel):
    """`retry_after_seconds` null: the request is larger than the whole limit."""

    name: str
    scope: str
    subject: str
    amount: int
    used: int
    asked: int
    retry_after_seconds: float | None

    @classmethod
    def of(cls, refused: Refused) -> "HeldLimit":
        limit = refused.limit
        return cls(
            name=limit.name,
            scope=limit.scope,
            subject=limit.subject,
            amount=limit.amount,
            used=refused.used,
            asked=refused.asked,
            retry_after_seconds=_finite(refused.retry_after),
        )


class RefusalView(BaseModel):
    """A refused request: `why`, and `remedies`, each of which would let it pass or leads there."""

    request_id: str
    at: datetime
    route: str
    model: str
    status: int
    code: str
    message: str
    param: str | None
    tenant: str | None
    key_id: str | None
    plan: str | None
    limits: Sequence[HeldLimit]
    why: Sequence[str]
    remedies: Sequence[str]

    @classmethod
    def of(cls, refusal: Refusal) -> "RefusalView":
        explanation = explain(refusal)
        return cls(
            request_id=refusal.request_id,
            at=datetime.fromtimestamp(refusal.at, UTC),
            route=refusal.route,
            model=refusal.model,
            status=refusal.status,
            code=refusal.code,
            message=refusal.message,
            param=refusal.param,
            tenant=refusal.tenant,
            key_id=refusal.key_id,
            plan=refusal.plan,
            limits=[HeldLimit.of(held) for held in refusal.limits],
            why=explanation.why,
            remedies=explanation.remedies,
        )


class UsageSum(BaseModel):
    """`estimated_requests`: those whose tokens the engine did not say, as after a disconnect."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    estimated_requests: int = 0

    def add(self, row: DayUsage) -> None:
        self.requests += row.requests
        self.prompt_tokens += row.prompt_tokens
        self.completion_tokens += row.completion_tokens
        self.total_tokens += row.prompt_tokens + row.completion_tokens
        self.estimated_requests += row.estimated_requests


class UsageRow(UsageSum):
    """`name`: the day, key id, tenant or model that the sum is of. Of a key, also whose and what it is called
    now.
    """

    name: str
    tenant: str | None = None
    key_name: str | None = None


class UsageReport(BaseModel):
    """Days, the first and the last included, in the plans' time zone."""

    first: date = Field(alias="from")
    last: date = Field(alias="to")
    timezone: str
    by: By
    rows: Sequence[UsageRow]
    total: UsageSum


class PlansView(BaseModel):
    """`problem`: why the file as it now is was refused, and `plans` are older; null: nothing is wrong."""

    path: str
    generation: int
    problem: str | None
    plans: Plans


class AuditView(BaseModel):
    id: int
    at: datetime
    actor: str
    action: str
    key_id: str | None
    tenant: str | None
    detail: Mapping[str, Any]


class AuditPage(BaseModel):
    """Newest first. `next`: what to give as `before` for older ones; null at the end."""

    entries: Sequence[AuditView]
    next: int | None


@dataclass(frozen=True, slots=True)
class ReportRoutes:
    """`clock` gives seconds since the epoch."""

    directory: KeyDirectory
    store: Store
    limiter: Limiter
    ledger: Ledger
    plans: PlansFile
    refusals: RefusalLog
    clock: Callable[[], float]
    log: FilteringBoundLogger

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin")
        router.get("/usage", tags=["usage"])(self.usage)
        router.get("/limits/{key_id}", tags=["usage"])(self.limits)
        router.get("/explain/{request_id}", tags=["usage"])(self.explain)
        router.get("/plans", tags=["plans"])(self.show_plans)
        router.post("/plans/reload", tags=["plans"])(self.reload_plans)
        router.get("/audit", tags=["audit"])(self.audit)
        return router

    async def limits(self, key_id: str) -> LimitList:
        """Every limit that the key's requests count against, as it stands."""
        record = self.directory.get(key_id)
        if record is None:
            raise PathNotFound("There is no key with this id. `make keys ARGS=list` shows all.")
        principal = self.directory.principal_of(record)
        readings = await self.limiter.readings(principal.limits)
        return LimitList(plan=principal.plan_name, limits=[LimitView.of(reading) for reading in readings])

    async def explain(self, request_id: str) -> RefusalView:
        """Why the request was refused, and what would let it pass."""
        refusal = self.refusals.find(request_id)
        if refusal is None:
            raise PathNotFound(
                "No refusal of this request is remembered here. The last ones are, since this process "
                "started; a request that was not refused has its line in the access log: "
                "`make logs ARGS=gateway`."
            )
        return RefusalView.of(refusal)

    async def usage(
        self,
        first: Annotated[date | None, Query(alias="from", description="default: the month's first")] = None,
        last: Annotated[date | None, Query(alias="to", description="default: today")] = None,
        by: By = "day",
        tenant: str | None = None,
        key_id: str | None = None,
    ) -> UsageReport:
        """Tokens and requests, summed."""
        zone = self.plans.plans.zone
        today = datetime.fromtimestamp(self.clock(), zone).date()
        last = last or today
        first = first or last.replace(day=1)
        if first > last:
            raise InvalidRequest(f"from: {first} is after {last}.", param="from")
        if (last - first).days >= MAX_DAYS:
            raise InvalidRequest(f"from: {MAX_DAYS} days at most; {first} to {last} are more.", param="from")
        rows: dict[str, UsageRow] = {}
        total = UsageSum()
        # A day at a time: no request waits while a year is summed.
        for day in (first + timedelta(days) for days in range((last - first).days + 1)):
            for found in await self.ledger.usage(str(day), str(day), tenant=tenant, key_id=key_id):
                name = _name(found, by)
                row = rows.get(name) or rows.setdefault(name, self._row(name, found, by))
                row.add(found)
                total.add(found)
        return UsageReport.model_validate(
            {
                "from": first,
                "to": last,
                "timezone": self.plans.plans.timezone,
                "by": by,
                "rows": [rows[name] for name in sorted(rows)],
                "total": total,
            }
        )

    def _row(self, name: str, found: DayUsage, by: By) -> UsageRow:
        if by != "key":
            return UsageRow(name=name)
        record = self.directory.get(name)
        return UsageRow(name=name, tenant=found.tenant, key_name=record.name if record else None)

    async def show_plans(self) -> PlansView:
        """The plans in force."""
        return self._plans_view()

    async def reload_plans(self, actor: Actor) -> PlansView:
        """Reads the plans file now. A bad file changes nothing."""
        before = self.plans.generation
        try:
            self.plans.reload()
        except ConfigurationError as error:
            raise Conflict(f"{error} The plans stay as they were.") from None
        if self.plans.generation != before:
            await self._note_reload(actor)
        return self._plans_view()

    async def _note_reload(self, actor: str) -> None:
        detail = {"generation": self.plans.generation, "plans": sorted(self.plans.plans.plans)}
        try:
            await self.store.note(at=self.clock(), actor=actor, action="plans_reload", detail=detail)
        except StoreError:
            # The file is what counts, and it is read: to answer that nothing was done would be wrong.
            self.log.warning("audit_missed", action="plans_reload", actor=actor, **detail)

    async def audit(
        self,
        limit: Annotated[int, Query(ge=1, le=MAX_AUDIT)] = 100,
        before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
        key_id: str | None = None,
    ) -> AuditPage:
        """Who changed what, newest first."""
        found = await self.store.audit_log(limit=limit + 1, before=before, key_id=key_id)
        entries = [
            AuditView(
                id=entry.id,
                at=datetime.fromtimestamp(entry.at, UTC),
                actor=entry.actor,
                action=entry.action,
                key_id=entry.key_id,
                tenant=entry.tenant,
                detail=entry.detail,
            )
            for entry in found[:limit]
        ]
        return AuditPage(entries=entries, next=entries[-1].id if len(found) > limit else None)

    def _plans_view(self) -> PlansView:
        plans = self.plans
        return PlansView(
            path=str(plans.path), generation=plans.generation, problem=plans.problem, plans=plans.plans
        )


def _name(row: DayUsage, by: By) -> str:
    return {"day": row.day, "key": row.key_id, "tenant": row.tenant, "model": row.model}[by]


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
