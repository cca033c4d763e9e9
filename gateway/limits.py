"""Limits: what one is, what a request asks of it, and what a limiter says."""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple, Protocol, get_args
from zoneinfo import ZoneInfo

LimitName = Literal[
    "requests_per_minute", "tokens_per_minute", "parallel_requests", "tokens_per_day", "tokens_per_month"
]
LIMIT_NAMES: tuple[LimitName, ...] = get_args(LimitName)
LimitScope = Literal["key", "tenant", "everyone"]

WINDOW_SECONDS = 60.0


def limit_key(name: LimitName, scope: LimitScope, subject: str) -> str:
    """What a limit's state is kept under."""
    return f"{name}:{scope}:{subject}"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of one subject: a key's id, a tenant, or the empty string for everyone.

    `shadow`: reported, not enforced.
    """

    name: LimitName
    scope: LimitScope
    subject: str
    amount: int
    shadow: bool = False
    # Worked out once, for they are asked for on every request.
    key: str = field(init=False, repr=False, compare=False)
    of_tokens: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", limit_key(self.name, self.scope, self.subject))
        object.__setattr__(self, "of_tokens", self.name.startswith("tokens_"))


class Ask(NamedTuple):
    """What a request may use, in tokens of prompt and output together: the estimate, and the bounds that it
    cannot leave. All three are the same where the prompt was counted.
    """

    tokens: int
    at_most: int
    at_least: int


class Reading(NamedTuple):
    """One limit as it stands. `reset`: seconds until nothing of it is used."""

    limit: Limit
    used: int
    remaining: int
    reset: float


class Refused(NamedTuple):
    """A limit that a request does not fit. `retry_after`: seconds until it can; infinite if it never will."""

    limit: Limit
    used: int
    asked: int
    retry_after: float


@dataclass(slots=True, eq=False)
class Lease:
    """What a request holds until it is settled. `tokens`: reserved, then used."""

    request_id: str
    tokens: int
    settled: bool = False


class Decision(NamedTuple):
    """What a limiter says of one request.

    `lease` None: nothing was charged, and `refused` says by which limits, with those that it only might not
    fit. `near`: it depends on the latter alone when a retry can succeed, now perhaps; count the prompt and
    come again with an exact Ask. `shadowed`:
    limits in shadow that would have refused it. `requests`, `tokens`: the tightest enforced limit per minute
    of each kind, after the decision.
    """

    lease: Lease | None
    near: bool = False
    refused: tuple[Refused, ...] = ()
    shadowed: tuple[Refused, ...] = ()
    requests: Reading | None = None
    tokens: Reading | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """Tokens that the ledger knows of one subject in one period, such as `2026-12-01` or `2026-12`."""

    scope: LimitScope
    subject: str
    name: LimitName
    period: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Period:
    """A day or a month. `start` and `end` in seconds since the epoch; the end is not in it."""

    id: str
    start: float
    end: float


class Calendar:
    """Days and months as the clocks of one time zone show them: a day may have 23 or 25 hours."""

    def __init__(self, zone: str) -> None:
        self._zone = ZoneInfo(zone)

    def day(self, at: float) -> Period:
        """The day that holds the moment `at` (seconds since the epoch), such as `2026-12-01`."""
        today = datetime.fromtimestamp(at, self._zone).date()
        return self._period(today.isoformat(), today, today + timedelta(days=1))

    def month(self, at: float) -> Period:
        """The month that holds the moment `at`, such as `2026-12`."""
        first = datetime.fromtimestamp(at, self._zone).date().replace(day=1)
        return self._period(f"{first:%Y-%m}", first, (first + timedelta(days=32)).replace(day=1))

    def _period(self, name: str, first: date, after: date) -> Period:
        start, end = (
            datetime(day.year, day.month, day.day, tzinfo=self._zone).astimezone(UTC).timestamp()
            for day in (first, after)
        )
        return Period(name, start, end)


# Asks the ledger; raises StoreError.
Totals = Callable[[], Awaitable[Sequence[Total]]]


class Limiter(Protocol):
    """Windows, quotas and places, for one process or for several.

    `leases`: reservations that are not settled. `problem`: why limits are kept by this process alone although
    they should be shared; None where nothing is wrong.
    """

    @property
    def leases(self) -> int: ...

    @property
    def problem(self) -> str | None: ...

    async def reserve(self, request_id: str, limits: tuple[Limit, ...], ask: Ask) -> Decision:
        """Checks all limits, then charges all: a refused request costs nothing."""

    async def settle(self, lease: Lease, tokens: int) -> None:
        """Replaces the reserved tokens by the used ones and frees the place. Idempotent; never raises."""

    async def readings(self, limits: tuple[Limit, ...]) -> tuple[Reading, ...]:
        """Every limit as it stands; changes nothing."""

    async def run(self, totals: Totals) -> None:
        """What has to be done beside the requests, quotas taken from the ledger first of all. Ends when there
        is nothing more to do, or when it is cancelled.
        """

    async def close(self) -> None: ...


def whole_seconds(seconds: float) -> int:
    """For `Retry-After`: rounded up, at least 1."""
    return max(1, math.ceil(seconds))


def duration(seconds: float) -> str:
    """OpenAI's form for `x-ratelimit-reset-*`: `6m0s`, `59.5s`, `120ms`. Rounded up, so never too early."""
    millis = max(0, math.ceil(seconds * 1000))
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    whole, part = divmod(rest, 1000)
    tail = f"{whole}.{part:03d}".rstrip("0").rstrip(".") if part else f"{whole}"
    return f"{minutes}m{tail}s" if minutes else f"{tail}s"


def tightest(name: LimitName, readings: Iterable[Reading]) -> Reading | None:
    """Of the enforced limits of this name the one with the least left."""
    found = [one for one in readings if one.limit.name == name and not one.limit.shadow]
    return min(found, key=lambda one: one.remaining, default=None)
