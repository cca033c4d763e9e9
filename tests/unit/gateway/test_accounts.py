"""What each way in which a request can end costs its caller; and that no way leaves a reservation behind."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounts import Account, Accounts, limit_headers, refusal
from gateway.endpoints import ENDPOINTS, Endpoint
from gateway.errors import (
    GatewayError,
    QuotaExceeded,
    RateLimited,
    RequestExceedsLimit,
    TokenRateLimited,
    TooManyParallel,
)
from gateway.estimate import FIRST_BYTES_PER_TOKEN, TEMPLATE_TOKENS, Estimator
from gateway.exchange import Exchange
from gateway.ledger import Ledger
from gateway.limits import LIMIT_NAMES, Calendar, Decision, Limit, LimitName, LimitScope, Reading, Refused
from gateway.memory_limiter import MemoryLimiter
from gateway.metrics import Metrics
from gateway.plans import Overrides
from gateway.policy import Allowed, decide
from gateway.principal import ALL_SCOPES, Entitlements, Grant, Principal
from gateway.settings import EngineProfile
from gateway.store import DayUsage
from gateway.tokenizer import Uncountable
from tests.fakes.asgi import scope
from tests.fakes.clock import Clock
from tests.fakes.plans import FixedPlans, plans
from tests.fakes.store import MemoryStore

CHAT = ENDPOINTS["/v1/chat/completions"]
TOKENIZE = ENDPOINTS["/tokenize"]
PROFILE = EngineProfile.model_validate(
    {"served-model-name": "served", "max-model-len": 8192, "max-num-seqs": 4}
)
HELLO: dict[str, Any] = {
    "model": "served",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 50,
}


@dataclass
class ScriptedTokenizer:
    """Gives its answer, and remembers that it was asked."""

    answer: int | Uncountable | None = None
    asked: int = 0

    async def count(self, endpoint: Endpoint, allowed: Allowed) -> int | None:
        self.asked += 1
        if isinstance(self.answer, Uncountable):
            raise self.answer
        return self.answer


@dataclass
class Books:
    """Accounts on real parts, one caller, and what can be seen of them."""

    accounts: Accounts
    principal: Principal
    limiter: MemoryLimiter
    ledger: Ledger
    tokenizer: ScriptedTokenizer
    clock: Clock
    monotonic: Clock
    exchanges: list[Exchange] = field(default_factory=list)

    async def open(self, endpoint: Endpoint = CHAT, **fields: Any) -> tuple[Account, Exchange]:
        body = fields if endpoint is TOKENIZE else HELLO | fields
        allowed = decide(endpoint, orjson.dumps(body), self.principal.rules)
        exchange = Exchange.begin(scope("POST", endpoint.path), ())
        self.exchanges.append(exchange)
        return await self.accounts.reserve(exchange, endpoint, allowed, self.principal), exchange

    async def used(self) -> dict[LimitName, int]:
        readings = await self.limiter.readings(self.principal.limits)
        return {reading.limit.name: reading.used for reading in readings}

    async def booked(self) -> list[DayUsage]:
        return list(await self.ledger.usage("2000-01-01", "2100-01-01"))

    def metric(self, name: str, **labels: str) -> float:
        return self.accounts.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def books(home: Path, **limits: Any) -> AsyncIterator[Books]:
    """A caller with these limits; 10,000 of each that is not given."""
    clock, monotonic, tokenizer, store = Clock(), Clock(5.0), ScriptedTokenizer(), MemoryStore()
    limiter = MemoryLimiter(Calendar("UTC"), monotonic=clock, clock=clock)
    ledger = Ledger(store, home / "spool", Calendar("UTC"), clock)
    present = FixedPlans(plans({"limits": dict.fromkeys(LIMIT_NAMES, 10_000) | limits}))
    entitlements = Entitlements(present, profile=PROFILE, aliases={}, salt_key=b"salt")
    principal = entitlements.principal(Grant("acme", "key", None, ALL_SCOPES, None, Overrides()))
    accounts = Accounts(limiter, Estimator(), ledger, tokenizer, Metrics(), monotonic, clock)
    yield Books(accounts, principal, limiter, ledger, tokenizer, clock, monotonic)
    assert limiter.leases == 0, "a reservation is left"
    await ledger.close()


async def test_tokens_are_reserved_for_the_prompt_and_the_whole_output(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        account, exchange = await desk.open()
        reserved = math.ceil(len(orjson.dumps(HELLO)) / FIRST_BYTES_PER_TOKEN) + 50
        tokens = dict.fromkeys(("tokens_per_minute", "tokens_per_day", "tokens_per_month"), reserved)
        assert await desk.used() == {"requests_per_minute": 1, "parallel_requests": 1, **tokens}
        assert (b"x-ratelimit-remaining-tokens", b"%d" % (10_000 - reserved)) in exchange.answer_headers
        await desk.accounts.settle(account, exchange, CHAT)


async def test_what_the_engine_tells_is_what_it_costs(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        account, exchange = await desk.open()
        exchange.prompt_tokens, exchange.completion_tokens = 12, 7
        await desk.accounts.settle(account, exchange, CHAT)
        assert await desk.used() == {
            "requests_per_minute": 1,
            "tokens_per_minute": 19,
            "parallel_requests": 0,
            "tokens_per_day": 19,
            "tokens_per_month": 19,
        }
        [row] = await desk.booked()
        assert (row.tenant, row.key_id, row.model) == ("acme", "key", "served")
        assert (row.requests, row.prompt_tokens, row.completion_tokens, row.estimated_requests) == (
            1,
            12,
            7,
            0,
        )
        assert not exchange.estimated


@pytest.mark.parametrize("settled", [1, 2, 3])
async def test_a_request_is_settled_once(tmp_path: Path, settled: int) -> None:
    async with books(tmp_path) as desk:
        account, exchange = await desk.open()
        exchange.prompt_tokens = 5
        for _ in range(settled):
            await desk.limiter.settle(account.lease, 5)
        assert (await desk.used())["tokens_per_minute"] == 5


async def test_an_engine_that_failed_before_its_first_event_costs_no_tokens(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        account, exchange = await desk.open(stream=True)
        await desk.accounts.settle(account, exchange, CHAT)
        assert (await desk.used())["tokens_per_minute"] == 0
        assert (await desk.used())["requests_per_minute"] == 1
        assert await desk.booked() == []


@pytest.mark.parametrize(
    ("events", "cut_off", "seconds", "made"),
    [
        (7, True, 1.0, 7),  # a stream that its client left
        (7, False, 1.0, 7),  # a stream that broke off
        (70, True, 1.0, 50),  # never more than the cap
        (0, True, 1.0, 50),  # a client that left before anything came: nothing is known of the model's speed
    ],
)
async def test_what_nobody_saw_the_end_of_is_estimated_and_marked(
    tmp_path: Path,
    events: int,
    *,
    cut_off: bool,
    seconds: float,
    made: int,
) -> None:
    async with books(tmp_path) as desk:
        account, exchange = await desk.open(stream=True)
        exchange.events, exchange.cut_off = events, cut_off
        desk.monotonic.now += seconds
        await desk.accounts.settle(account, exchange, CHAT)
        assert exchange.estimated
        assert (exchange.prompt_tokens, exchange.completion_tokens) == (account.prompt_tokens, made)
        [row] = await desk.booked()
        assert (row.completion_tokens, row.estimated_requests) == (made, 1)


async def test_a_client_that_stopped_reading_pays_for_what_was_made(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        account, exchange = await desk.open()
        exchange.client_left = True
        await desk.accounts.settle(account, exchange, CHAT)
        [row] = await desk.booked()
        assert (row.completion_tokens, row.estimated_requests) == (50, 1)


async def test_an_abandoned_answer_is_estimated_by_the_models_own_speed(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        account, exchange = await desk.open()
        exchange.prompt_tokens, exchange.completion_tokens = 12, 20
        desk.monotonic.now += 2.0
        await desk.accounts.settle(account, exchange, CHAT)
        account, exchange = await desk.open()
        exchange.cut_off = True
        desk.monotonic.now += 1.0
        desk.clock.now -= 3600.0  # a clock that is set back changes nothing
        await desk.accounts.settle(account, exchange, CHAT)
        assert exchange.completion_tokens == 10


async def test_a_route_without_tokens_counts_as_a_request_alone(tmp_path: Path) -> None:
    async with books(tmp_path, tokens_per_minute=1) as desk:
        account, exchange = await desk.open(TOKENIZE, model="served", prompt="Hello " * 500)
        exchange.cut_off = True
        assert (await desk.used())["requests_per_minute"] == 1
        await desk.accounts.settle(account, exchange, TOKENIZE)
        assert (await desk.used())["tokens_per_minute"] == 0
        assert await desk.booked() == []


async def test_the_tokenizer_is_asked_near_a_limit_and_only_there(tmp_path: Path) -> None:
    size = len(orjson.dumps(HELLO))
    async with books(tmp_path, tokens_per_minute=size + TEMPLATE_TOKENS + 50) as desk:
        account, exchange = await desk.open()
        assert desk.tokenizer.asked == 0, "even the upper bound fits"
        exchange.prompt_tokens = 30
        await desk.accounts.settle(account, exchange, CHAT)
        desk.tokenizer.answer = 12
        account, exchange = await desk.open()
        assert desk.tokenizer.asked == 1
        assert (account.prompt_tokens, account.lease.tokens) == (12, 62)
        await desk.accounts.settle(account, exchange, CHAT)


async def test_while_the_tokenizer_is_busy_a_retry_may_succeed_soon(tmp_path: Path) -> None:
    """It was told that it never would, although the next attempt passed."""
    async with books(tmp_path, tokens_per_minute=100, tokens_per_day=100) as desk:
        with pytest.raises(RateLimited) as raised:
            await desk.open()
        assert raised.value.retry_after == 1
        assert [one.limit.name for one in desk.exchanges[-1].refused] == [
            "tokens_per_minute",
            "tokens_per_day",
        ]
        desk.tokenizer.answer = 50
        account, exchange = await desk.open()
        await desk.accounts.settle(account, exchange, CHAT)


async def test_a_full_window_holds_longer_than_a_busy_tokenizer(tmp_path: Path) -> None:
    async with books(tmp_path, requests_per_minute=1, tokens_per_day=100) as desk:
        desk.tokenizer.answer = 50
        account, exchange = await desk.open()
        await desk.accounts.settle(account, exchange, CHAT)
        desk.tokenizer.answer = None
        with pytest.raises(RateLimited) as raised:
            await desk.open()
        assert type(raised.value) is RateLimited
        assert raised.value.retry_after == 60, "not until midnight: the day may have room"


async def test_where_nobody_can_count_the_upper_bound_is_taken(tmp_path: Path) -> None:
    async with books(tmp_path, tokens_per_minute=100) as desk:
        desk.tokenizer.answer = Uncountable()
        with pytest.raises(RequestExceedsLimit):
            await desk.open()
        assert desk.tokenizer.asked == 1
        assert (await desk.used())["requests_per_minute"] == 0


async def test_a_refused_request_costs_nothing_and_is_told_by_every_limit_that_held(tmp_path: Path) -> None:
    async with books(tmp_path, requests_per_minute=1, parallel_requests=1) as desk:
        account, exchange = await desk.open()
        before = await desk.used()
        with pytest.raises(RateLimited) as raised:
            await desk.open()
        assert await desk.used() == before
        names = [one.limit.name for one in desk.exchanges[-1].refused]
        assert names == ["requests_per_minute", "parallel_requests"]
        assert (b"x-ratelimit-remaining-requests", b"0") in desk.exchanges[-1].answer_headers
        assert raised.value.retry_after == 60, "the limit that holds longest decides"
        for name in names:
            assert desk.metric("gateway_limit_refusals_total", limit=name, scope="key") == 1
        await desk.accounts.settle(account, exchange, CHAT)


async def test_a_limit_in_shadow_is_counted_and_lets_pass(tmp_path: Path) -> None:
    async with books(tmp_path, requests_per_minute=1, shadow=["requests_per_minute"]) as desk:
        for _ in range(2):
            account, exchange = await desk.open()
            await desk.accounts.settle(account, exchange, CHAT)
        assert desk.metric("gateway_shadow_refusals_total", limit="requests_per_minute", scope="key") == 1
        assert desk.metric("gateway_limit_refusals_total", limit="requests_per_minute", scope="key") == 0


def refused(name: LimitName, retry_after: float, scope: LimitScope = "key") -> Refused:
    return Refused(Limit(name, scope, "s", 100), 90, 20, retry_after)


NEEDS = "90 are used and this request may need 20. Wait 5 s."


@pytest.mark.parametrize(
    ("name", "scope", "kind", "text"),
    [
        ("requests_per_minute", "key", RateLimited, "requests per minute; 90 are used. Wait 5 s."),
        ("tokens_per_minute", "tenant", TokenRateLimited, f"tokens per minute; {NEEDS}"),
        ("parallel_requests", "everyone", TooManyParallel, "requests at a time. Wait for one to end."),
        ("tokens_per_day", "key", QuotaExceeded, f"tokens per day; {NEEDS}"),
        ("tokens_per_month", "tenant", QuotaExceeded, f"tokens per month; {NEEDS}"),
    ],
)
def test_each_limit_has_its_error_and_says_what_it_holds(
    name: LimitName, scope: LimitScope, kind: type[RateLimited], text: str
) -> None:
    error = refusal((refused(name, 4.2, scope),))
    who = {"key": "This key", "tenant": "Your tenant", "everyone": "This service"}[scope]
    may = "have" if name == "parallel_requests" else "use"
    assert type(error) is kind
    assert error.message == f"{who} may {may} 100 {text}"
    assert dict(error.headers)[b"retry-after"] == b"5"


@given(st.lists(st.tuples(st.sampled_from(LIMIT_NAMES), st.floats(0.1, 5000)), min_size=1, max_size=5))
def test_the_longest_wait_is_the_one_that_is_named(waits: list[tuple[LimitName, float]]) -> None:
    error = refusal(tuple(refused(name, wait) for name, wait in waits))
    assert isinstance(error, RateLimited)
    assert error.retry_after == math.ceil(max(wait for _, wait in waits))
    told = dict(error.headers).get(b"x-should-retry")
    assert (told == b"false") == (error.retry_after > 60)


def test_what_never_fits_is_not_to_be_tried_again() -> None:
    error: GatewayError = refusal((refused("requests_per_minute", 5), refused("tokens_per_day", math.inf)))
    assert isinstance(error, RequestExceedsLimit)
    assert dict(error.headers) == {b"x-should-retry": b"false"}


def test_without_limits_per_minute_there_are_no_headers_of_them() -> None:
    assert limit_headers(Decision(None)) == ()
    reading = Reading(Limit("tokens_per_minute", "key", "k", 100), 60, 40, 59.5)
    assert limit_headers(Decision(None, tokens=reading)) == (
        (b"x-ratelimit-limit-tokens", b"100"),
        (b"x-ratelimit-remaining-tokens", b"40"),
        (b"x-ratelimit-reset-tokens", b"59.5s"),
    )
