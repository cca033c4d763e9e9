"""Plans: what keys may do and how much, in one YAML file that is read again whenever it changes.

A bad file is refused, at start and later: then the plans that were there stay.
"""

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from structlog.typing import FilteringBoundLogger

from gateway.configfiles import ConfigurationError, load_yaml
from gateway.limits import LIMIT_NAMES, LimitName
from gateway.parameters import ParameterRules

__all__ = ["LIMIT_NAMES", "LimitName", "Limits", "Output", "Overrides", "Plan", "Plans", "PlansFile"]

WATCH_SECONDS = 1.0
ANY_MODEL = "*"

OverCap = Literal["clamp", "refuse"]
# Strict, so that `yes` or "60" is no number. The bound keeps sums exact where numbers are doubles.
Amount = Annotated[int, Field(strict=True, ge=1, le=10**15)]
Priority = Annotated[int, Field(strict=True, ge=0, le=9)]
PlanName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
ModelName = Annotated[str, Field(min_length=1)]


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, KeyError, ValueError):  # a directory's name, no file of that name, no name at all
        raise ValueError(f"{name!r} is no time zone's name, such as UTC or Europe/Berlin") from None
    return name


class _Strict(BaseModel):
    """Takes the fields that it has and no other; of an unknown one it says what it was meant to be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_field(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for name in value:
                if name not in cls.model_fields:
                    near = difflib.get_close_matches(str(name), cls.model_fields, n=1)
                    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(cls.model_fields)}"
                    raise ValueError(f"{name} is not known here; {hint}")
        return value


class Limits(_Strict):
    """How much; None: no limit. A limit named in `shadow` is counted and reported, not enforced."""

    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    parallel_requests: Amount | None = None
    tokens_per_day: Amount | None = None
    tokens_per_month: Amount | None = None
    shadow: frozenset[LimitName] = frozenset()

    def amounts(self) -> Mapping[LimitName, int]:
        """The limits that are set."""
        return {name: amount for name in LIMIT_NAMES if (amount := getattr(self, name)) is not None}

    def over(self, base: "Limits") -> "Limits":
        """These where they are given (None too, which lifts one), `base`'s where they are not."""
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class Output(_Strict):
    """Output tokens of one request, all its choices together: at most `cap`; `default` per choice where it
    names none.
    """

    cap: Amount
    default: Amount
    over_cap: OverCap = "clamp"

    @model_validator(mode="after")
    def _default_fits(self) -> Self:
        if self.default > self.cap:
            raise ValueError(f"default ({self.default}) is more than cap ({self.cap})")
        return self


class Plan(_Strict):
    """What the keys of a plan may do. `models` are names that clients use; `*` is every one. Of two requests
    that wait, the one with the higher `priority` goes first. `standby`: qualities of other engines that may
    stand in.
    """

    limits: Limits = Limits()
    output: Output
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] = (ANY_MODEL,)
    unknown_fields: Literal["pass", "refuse"] = "refuse"
    parameters: ParameterRules = ParameterRules()
    priority: Priority = 5
    standby: tuple[str, ...] = ()


class Overrides(_Strict):
    """A key's own values, each in place of its plan's; None: the plan's."""

    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    parallel_requests: Amount | None = None
    tokens_per_day: Amount | None = None
    tokens_per_month: Amount | None = None
    output_cap: Amount | None = None
    output_default: Amount | None = None
    over_cap: OverCap | None = None
    priority: Priority | None = None

    def applied_to(self, plan: Plan) -> Plan:
        """The plan with these values in it. A default above a lowered cap is lowered with it."""
        own = self.model_dump(exclude_none=True)
        if not own:
            return plan
        limits = plan.limits.model_copy(update={name: own[name] for name in LIMIT_NAMES if name in own})
        cap = own.get("output_cap", plan.output.cap)
        default = min(own.get("output_default", plan.output.default), cap)
        output = Output(cap=cap, default=default, over_cap=own.get("over_cap", plan.output.over_cap))
        priority = own.get("priority", plan.priority)
        return plan.model_copy(update={"limits": limits, "output": output, "priority": priority})


class Plans(_Strict):
    """The whole file. `everyone` is what all requests together may take, `each_tenant` what one tenant's keys
    may together; `tenants` has tenants with values of their own. Days and months begin in `timezone`.
    """

    timezone: Annotated[str, AfterValidator(_known_zone)] = "UTC"
    default_plan: PlanName
    everyone: Limits = Limits()
    each_tenant: Limits = Limits()
    tenants: dict[str, Limits] = {}
    plans: Annotated[dict[PlanName, Plan], Field(min_length=1)]

    @model_validator(mode="after")
    def _default_plan_exists(self) -> Self:
        if self.default_plan not in self.plans:
            names = ", ".join(self.plans)
            raise ValueError(f"default_plan: there is no plan {self.default_plan!r}; there are {names}")
        return self

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @classmethod
    def load(cls, path: Path) -> "Plans":
        """The file's plans. Raises ConfigurationError: one line with file, place and what is allowed."""
        return load_yaml(cls, path)

    def for_tenant(self, tenant: str) -> Limits:
        """The limits of all its keys together."""
        own = self.tenants.get(tenant)
        return self.each_tenant if own is None else own.over(self.each_tenant)

    def check_models(self, names: Iterable[str]) -> None:
        """Raises ConfigurationError where a plan has a model that is none of `names`."""
        known = {ANY_MODEL, *names}
        for plan_name, plan in self.plans.items():
            for model in plan.models:
                if model not in known:
                    have = ", ".join(sorted(known - {ANY_MODEL}))
                    raise ConfigurationError(
                        f'plans.{plan_name}.models: {model!r} is no model here; allowed: {have}, "*".'
                    )


class PresentPlans(Protocol):
    """The plans in force. `generation` is another whenever they are."""

    @property
    def plans(self) -> Plans: ...

    @property
    def generation(self) -> int: ...


class PlansFile:
    """The plans in force, followed as the file changes. A bad file changes nothing: the old plans stay, and
    `problem` says why (None: nothing is wrong).
    """

    def __init__(self, path: Path, log: FilteringBoundLogger, *, models: Iterable[str]) -> None:
        """`models`: the names that clients can use. Raises ConfigurationError: a gateway does not start on a
        bad file.
        """
        self.path = path
        self.generation = 0
        self.problem: str | None = None
        self._log = log
        self._models = frozenset(models)
        self._seen = self._stamp()
        self.plans = self._read()

    def reload(self) -> Plans:
        """Reads the file now. Raises ConfigurationError and keeps the old plans where it is bad."""
        self._seen = self._stamp()
        try:
            plans = self._read()
            self._take(plans)
        except ConfigurationError as error:
            self._refuse(str(error))
            raise
        return plans

    async def keep_watching(self) -> None:
        """Takes a changed file in within WATCH_SECONDS, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Reads the file if it is not the one that was read last; in a thread, so that no request waits."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._take(await asyncio.to_thread(self._read))
        except ConfigurationError as error:
            self._refuse(str(error))

    def _read(self) -> Plans:
        plans = Plans.load(self.path)
        try:
            plans.check_models(self._models)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}: {error}") from None
        return plans

    def _take(self, plans: Plans) -> None:
        if plans.timezone != self.plans.timezone:
            raise ConfigurationError(
                f"{self.path}: timezone: stays {self.plans.timezone} until the gateway is started again."
            )
        self.problem = None
        if plans != self.plans:
            self.plans = plans
            self.generation += 1
            self._log.info("plans_changed", plans=sorted(plans.plans))

    def _refuse(self, problem: str) -> None:
        self.problem = problem
        self._log.error("plans_refused", problem=problem)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
