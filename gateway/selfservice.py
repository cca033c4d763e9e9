"""What a key may ask about itself: its models, its limits as they stand, what it has used."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from urllib.parse import parse_qsl, unquote

import orjson

from gateway.endpoints import MODELS_PREFIX
from gateway.errors import InvalidRequest, ModelNotFound, StoreUnavailable
from gateway.identity import RETRY_SECONDS
from gateway.ledger import Ledger
from gateway.limits import Calendar, Limiter, Reading
from gateway.principal import Principal
from gateway.store import DayUsage, StoreError

DEFAULT_DAYS = 31
MAX_DAYS = 366


@dataclass(frozen=True, slots=True)
class SelfService:
    """Answers as JSON bytes. `clock`: seconds since the epoch; `calendar`: days of the plans' zone."""

    limiter: Limiter
    ledger: Ledger
    calendar: Calendar
    clock: Callable[[], float]

    def models(self, principal: Principal) -> bytes:
        return orjson.dumps(
            {"object": "list", "data": [_model_card(name) for name in principal.rules.models]}
        )

    def model(self, principal: Principal, raw_path: bytes) -> bytes:
        """Raises ModelNotFound, also for one that this key may not use."""
        name = unquote(raw_path.decode("latin-1").removeprefix(MODELS_PREFIX))
        if name not in principal.rules.models:
            raise ModelNotFound(
                "No such model here. GET /v1/models lists what this key may use.", param="model"
            )
        return orjson.dumps(_model_card(name))

    async def limits(self, principal: Principal) -> bytes:
        rules = principal.rules
        return orjson.dumps(
            {
                "object": "list",
                "plan": principal.plan_name,
                "output_tokens": {
                    "cap": rules.output_cap,
                    "default": rules.output_default,
                    "over_cap": rules.over_cap,
                },
                "data": [_limit(reading) for reading in await self.limiter.readings(principal.limits)],
            }
        )

    async def usage(self, principal: Principal, query: bytes) -> bytes:
        """Per day and model. Raises InvalidRequest for a wrong query, StoreUnavailable."""
        first, last = self._days(query)
        try:
            rows = await self.ledger.usage(first, last, key_id=principal.key_id)
        except StoreError:
            raise StoreUnavailable(
                "The usage ledger does not answer; nothing is lost. Try again.", retry_after=RETRY_SECONDS
            ) from None
        return orjson.dumps(
            {"object": "list", "from": first, "to": last, "data": [_usage(row) for row in rows]}
        )

    def _days(self, query: bytes) -> tuple[str, str]:
        asked = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
        if unknown := asked.keys() - {"from", "to"}:
            name = min(unknown)[:64]
            raise InvalidRequest("This route takes `from` and `to`, days like 2026-12-01.", param=name)
        last = _day(asked, "to", date.fromisoformat(self.calendar.day(self.clock()).id))
        first = _day(asked, "from", last - timedelta(days=DEFAULT_DAYS - 1))
        if not timedelta(0) <= last - first < timedelta(days=MAX_DAYS):
            raise InvalidRequest(f"`from` must not be after `to`, nor {MAX_DAYS} days before.", param="from")
        return first.isoformat(), last.isoformat()


def _day(asked: Mapping[str, str], name: str, default: date) -> date:
    text = asked.get(name)
    if text is None:
        return default
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"`{name}` must be a day like 2026-12-01.", param=name) from None


def _model_card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gatehouse"}


def _limit(reading: Reading) -> dict[str, object]:
    limit = reading.limit
    return {
        "object": "limit",
        "limit": limit.name,
        "scope": limit.scope,
        "amount": limit.amount,
        "used": reading.used,
        "remaining": reading.remaining,
        "resets_in_seconds": math.ceil(reading.reset),
        "enforced": not limit.shadow,
    }


def _usage(row: DayUsage) -> dict[str, object]:
    return {
        "object": "usage",
        "day": row.day,
        "model": row.model,
        "requests": row.requests,
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "estimated_requests": row.estimated_requests,
    }
