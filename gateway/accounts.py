"""What a request costs: reserved before an engine sees it, settled when its usage is known, and recorded."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.endpoints import Endpoint
from gateway.errors import (
    GatewayError,
    Headers,
    QuotaExceeded,
    RateLimited,
    RequestExceedsLimit,
    TokenRateLimited,
    TooManyParallel,
)
from gateway.estimate import Estimator
from gateway.exchange import Exchange
from gateway.ledger import Ledger
from gateway.limits import Ask, Decision, Lease, Limiter, LimitName, Reading, Refused, duration, whole_seconds
from gateway.metrics import Metrics
from gateway.policy import Allowed
from gateway.principal import Principal
from gateway.store import UsageEntry
from gateway.tokenizer import Uncountable

_ERRORS: dict[LimitName, type[RateLimited]] = {
    "requests_per_minute": RateLimited,
    "tokens_per_minute": TokenRateLimited,
    "parallel_requests": TooManyParallel,
    "tokens_per_day": QuotaExceeded,
    "tokens_per_month": QuotaExceeded,
}
_WHO = {"key": "This key", "tenant": "Your tenant", "everyone": "This service"}
_WHAT: dict[LimitName, str] = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "parallel_requests": "requests at a time",
    "tokens_per_day": "tokens per day",
    "tokens_per_month": "tokens per month",
}


_REQUESTS = (
    b"x-ratelimit-limit-requests",
    b"x-ratelimit-remaining-requests",
    b"x-ratelimit-reset-requests",
)
_TOKENS = (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens")


class Tokenizer(Protocol):
    """Exact prompt lengths, at the price of a call to an engine."""

    async def count(self, endpoint: Endpoint, allowed: Allowed) -> int | None:
        """Tokens of the request's prompt; None where it cannot be said now. Raises Uncountable where it never
        can.
        """


class Account(NamedTuple):
    """One request's reservation. `began` is in seconds since the epoch, `started` is monotonic."""

    principal: Principal
    allowed: Allowed
    lease: Lease
    prompt_tokens: int
    began: float
    started: float


class Cost(NamedTuple):
    """Tokens of one request; `estimated` where the engine did not say."""

    prompt_tokens: int
    completion_tokens: int
    estimated: bool


# In `tools`, `tool_calls` and `tool_use` alike.
_TOOLS = b'"tool'
# The tokenizer may be free again at any moment.
TOKENIZER_RETRY_SECONDS = 1.0
_NO_TOKENS = Ask(0, 0, 0)
_NOTHING = Cost(0, 0, estimated=False)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Limits, ledger and estimates as one: what stands between the policy and the relay."""

    limiter: Limiter
    estimator: Estimator
    ledger: Ledger
    tokenizer: Tokenizer
    metrics: Metrics
    monotonic: Callable[[], float]
    clock: Callable[[], float]

    async def reserve(
        self, exchange: Exchange, endpoint: Endpoint, allowed: Allowed, principal: Principal
    ) -> Account:
        """Charges the request to all of its limits, or to none. Raises RateLimited, one of its kinds, or
        RequestExceedsLimit.
        """
        ask = _NO_TOKENS
        if endpoint.usage is not None:
            again = _TOOLS in allowed.body  # templates write tools anew, with spaces and line breaks
            ask = self.estimator.ask(
                allowed.model, allowed.prompt_bytes, allowed.output_tokens, rendered_again=again
            )
        decision = await self.limiter.reserve(exchange.request_id, principal.limits, ask)
        if decision.near:
            exact = await self._exact(endpoint, allowed, ask)
            if exact is None:
                decision = _later(decision, ask)
            else:
                ask = exact
                decision = await self.limiter.reserve(exchange.request_id, principal.limits, ask)
        exchange.answer_headers += limit_headers(decision)
        for refused in decision.shadowed:
            self.metrics.note_limit_refusal(refused.limit, shadow=True)
        if decision.lease is None:
            exchange.refused = decision.refused
            for refused in decision.refused:
                self.metrics.note_limit_refusal(refused.limit, shadow=False)
            raise refusal(decision.refused)
        prompt_tokens = ask.tokens - allowed.output_tokens
        return Account(principal, allowed, decision.lease, prompt_tokens, self.clock(), self.monotonic())

    async def settle(self, account: Account, exchange: Exchange, endpoint: Endpoint) -> None:
        """Replaces what was reserved by what was used, and frees the request's place. Never raises."""
        cost = self._cost(account, exchange) if endpoint.usage is not None else _NOTHING
        await self.limiter.settle(account.lease, cost.prompt_tokens + cost.completion_tokens)
        if not cost.prompt_tokens and not cost.completion_tokens:
            return
        if not cost.estimated:
            self._learn(account, exchange, cost)
        exchange.prompt_tokens, exchange.completion_tokens = cost.prompt_tokens, cost.completion_tokens
        exchange.estimated = cost.estimated
        self.ledger.record(
            UsageEntry(
                request_id=exchange.request_id,
                at=account.began,
                tenant=account.principal.tenant,
                key_id=account.principal.key_id,
                model=account.allowed.model,
                route=endpoint.path,
                prompt_tokens=cost.prompt_tokens,
                completion_tokens=cost.completion_tokens,
                estimated=cost.estimated,
            )
        )

    async def _exact(self, endpoint: Endpoint, allowed: Allowed, ask: Ask) -> Ask | None:
        """Near a limit an estimate is not good enough; where nobody can ever count, the upper bound is taken.
        None where nobody can count now.
        """
        try:
            counted = await self.tokenizer.count(endpoint, allowed)
        except Uncountable:
            return Ask(ask.at_most, ask.at_most, ask.at_most)
        if counted is None:
            return None
        tokens = counted + allowed.output_tokens
        return Ask(tokens, tokens, tokens)

    def _cost(self, account: Account, exchange: Exchange) -> Cost:
        if exchange.prompt_tokens is not None:
            return Cost(exchange.prompt_tokens, exchange.completion_tokens or 0, estimated=False)
        # An engine that failed before its first event is not the client's to pay; one whose client left, or
        # stopped reading, has worked all the same.
        if not (exchange.events or exchange.cut_off or exchange.client_left):
            return _NOTHING
        seconds = self.monotonic() - account.started
        allowed = account.allowed
        made = self.estimator.abandoned(allowed.model, exchange.events, seconds, allowed.output_tokens)
        return Cost(account.prompt_tokens, made, estimated=True)

    def _learn(self, account: Account, exchange: Exchange, cost: Cost) -> None:
        allowed = account.allowed
        self.estimator.learn(allowed.model, allowed.prompt_bytes, cost.prompt_tokens)
        if cost.completion_tokens:
            seconds = self.monotonic() - account.started
            self.estimator.learn_output(allowed.model, cost.completion_tokens, exchange.events, seconds)


def _later(decision: Decision, ask: Ask) -> Decision:
    """Where nobody can count the prompt now: limits that it only might not fit may let it pass as soon as
    somebody can.
    """
    return decision._replace(
        refused=tuple(
            one._replace(asked=ask.at_most, retry_after=TOKENIZER_RETRY_SECONDS)
            if one.limit.of_tokens and one.used + ask.at_least <= one.limit.amount
            else one
            for one in decision.refused
        )
    )


def limit_headers(decision: Decision) -> Headers:
    """OpenAI's `x-ratelimit-*`, of the tightest limit of each kind."""
    headers: Headers = ()
    if decision.requests is not None:
        headers = _headers(decision.requests, _REQUESTS)
    if decision.tokens is not None:
        headers += _headers(decision.tokens, _TOKENS)
    return headers


def _headers(reading: Reading, names: tuple[bytes, bytes, bytes]) -> Headers:
    limit, remaining, reset = names
    return (
        (limit, b"%d" % reading.limit.amount),
        (remaining, b"%d" % reading.remaining),
        (reset, duration(reading.reset).encode("ascii")),
    )


def refusal(refused: tuple[Refused, ...]) -> GatewayError:
    """The error of the limit that holds longest: before that, no retry can succeed."""
    worst = max(refused, key=lambda one: one.retry_after)
    limit = worst.limit
    who, what = _WHO[limit.scope], _WHAT[limit.name]
    if math.isinf(worst.retry_after):
        return RequestExceedsLimit(
            f"{who} may use {limit.amount} {what}; this request alone may need {worst.asked}. "
            "Shorten the prompt, or lower max_tokens or n."
        )
    wait = whole_seconds(worst.retry_after)
    error = _ERRORS[limit.name]
    if limit.name == "parallel_requests":
        return error(f"{who} may have {limit.amount} {what}. Wait for one to end.", retry_after=wait)
    needs = f" and this request may need {worst.asked}" if "tokens" in limit.name else ""
    return error(
        f"{who} may use {limit.amount} {what}; {worst.used} are used{needs}. Wait {wait} s.", retry_after=wait
    )
