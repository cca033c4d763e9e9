"""From who is calling to what they may do under the present plans."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from gateway.errors import PlanMissing
from gateway.limits import Limit, LimitScope
from gateway.plans import ANY_MODEL, Limits, Overrides, Plan, PresentPlans
from gateway.policy import Rules
from gateway.settings import EngineProfile

# generate: chat, completions, responses, messages; tokenize: tokenize, count_tokens; rank: rerank, score.
Scope = Literal["generate", "embed", "tokenize", "rank"]
ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

MAX_CACHED = 10_000
# What the key id of a token's subject begins with.
TOKEN_KEY_ID = "jwt-"  # noqa: S105 - no secret


@dataclass(frozen=True, slots=True)
class Grant:
    """What identity establishes. `plan` None: the default plan. `models`, names that clients use, None: the
    plan's; otherwise they stand in place of the plan's.
    """

    tenant: str
    key_id: str
    plan: str | None
    scopes: frozenset[Scope]
    models: tuple[str, ...] | None
    overrides: Overrides


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is from, and all that it may do, worked out beforehand.

    `limits` has every limit that the request counts against: the key's, the tenant's, everyone's.
    """

    tenant: str
    key_id: str
    plan_name: str
    priority: int
    standby: tuple[str, ...]
    scopes: frozenset[Scope]
    rules: Rules
    limits: tuple[Limit, ...]


class Entitlements:
    """Grants to principals. A principal is kept until its grant or the plans change."""

    def __init__(
        self, plans: PresentPlans, *, profile: EngineProfile, aliases: Mapping[str, str], salt_key: bytes
    ) -> None:
        self._plans = plans
        self._max_model_len = profile.max_model_len
        self._models = client_models(profile, aliases)
        self._salt_key = salt_key
        self._kept: dict[str, tuple[Grant, int, Principal]] = {}

    def principal(self, grant: Grant) -> Principal:
        """What this grant is worth now. Raises PlanMissing."""
        kept = self._kept.get(grant.key_id)
        generation = self._plans.generation
        if kept is not None and kept[0] is grant and kept[1] == generation:
            return kept[2]
        principal = self._work_out(grant)
        if kept is None and len(self._kept) >= MAX_CACHED:
            del self._kept[next(iter(self._kept))]  # the oldest; to work it out again is cheap
        self._kept[grant.key_id] = (grant, generation, principal)
        return principal

    @property
    def kept(self) -> int:
        """How many principals are kept; MAX_CACHED at most."""
        return len(self._kept)

    def _work_out(self, grant: Grant) -> Principal:
        plans = self._plans.plans
        plan_name = grant.plan or plans.default_plan
        plan = plans.plans.get(plan_name)
        if plan is None:
            raise PlanMissing(
                f"This key's plan, {plan_name!r}, does not exist. Ask your operator to give it another."
            )
        plan = grant.overrides.applied_to(plan)
        return Principal(
            tenant=grant.tenant,
            key_id=grant.key_id,
            plan_name=plan_name,
            priority=plan.priority,
            standby=plan.standby,
            scopes=grant.scopes,
            rules=self._rules(grant, plan),
            limits=(
                *_limits(plan.limits, "key", grant.key_id),
                *_limits(plans.for_tenant(grant.tenant), "tenant", grant.tenant),
                *_limits(plans.everyone, "everyone", ""),
            ),
        )

    def _rules(self, grant: Grant, plan: Plan) -> Rules:
        return Rules(
            models=self._allowed(plan.models if grant.models is None else grant.models),
            max_model_len=self._max_model_len,
            output_default=plan.output.default,
            output_cap=plan.output.cap,
            over_cap=plan.output.over_cap,
            unknown_fields=plan.unknown_fields,
            parameters=plan.parameters,
            cache_salt=cache_salt(self._salt_key, grant.tenant),
        )

    def _allowed(self, names: tuple[str, ...]) -> Mapping[str, str]:
        if ANY_MODEL in names:
            return self._models
        return MappingProxyType({name: self._models[name] for name in names if name in self._models})


def client_models(profile: EngineProfile, aliases: Mapping[str, str]) -> Mapping[str, str]:
    """Every name that a client may use, and the engine's name for it."""
    return MappingProxyType({name: name for name in profile.served_model_name} | dict(aliases))


def cache_salt(salt_key: bytes, tenant: str) -> str:
    """Parts the engine's prefix cache by tenant: no tenant can tell by the time what another has asked."""
    mac = hmac.digest(salt_key, tenant.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode("ascii")


def _limits(limits: Limits, scope: LimitScope, subject: str) -> list[Limit]:
    return [
        Limit(name, scope, subject, amount, shadow=name in limits.shadow)
        for name, amount in limits.amounts().items()
    ]
