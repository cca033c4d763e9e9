"""Every metric of the gateway: name, help, unit, labels and buckets, in one place and one registry.

Labels are bounded: tenants, keys and models are ones that exist, routes are the allow-list's or `other`,
reasons are error codes.
"""

from functools import partial
from typing import TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway import __version__
from gateway.body import BodyBudget
from gateway.exchange import Exchange
from gateway.identity import KeyDirectory
from gateway.ledger import Ledger
from gateway.limits import Limit, Limiter
from gateway.plans import PlansFile
from gateway.principal import TOKEN_KEY_ID
from gateway.upstreams import Pool

MetricT = TypeVar("MetricT", Counter, Histogram)

# Every threshold that an alert uses is an edge.
TTFT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 2.5, 3, 5, 7.5, 10, 20, 40, 80)
DURATION_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 25, 30, 60, 120, 300, 600)


class Metrics:
    """The registry and what is in it. Seconds, bytes and tokens."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple[Counter | Histogram, tuple[str, ...]], Counter | Histogram] = {}
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter(
            "gateway_requests",
            "Requests answered, by who asked for what and how it ended",
            ("tenant", "key_id", "model", "route", "status", "reason"),
        )
        self.duration = histogram(
            "gateway_request_duration_seconds",
            "From the request's head to the answer's last byte, for requests that reached an engine",
            ("route", "model"),
            buckets=DURATION_BUCKETS,
        )
        self.ttft = histogram(
            "gateway_time_to_first_token_seconds",
            "From the request's head to the first event of a stream",
            ("model",),
            buckets=TTFT_BUCKETS,
        )
        tokens = ("tenant", "model")
        self.prompt_tokens = counter("gateway_prompt_tokens", "Input tokens, as the engine counted", tokens)
        self.completion_tokens = counter(
            "gateway_completion_tokens", "Output tokens, as the engine counted", tokens
        )
        self.disconnects = counter(
            "gateway_client_disconnects", "Clients that left before their answer's end", ("route",)
        )
        self.in_flight = 0
        gauge("gateway_requests_in_flight", "Requests being served now").set_function(lambda: self.in_flight)
        self.upstream_up = gauge(
            "gateway_upstream_up", "1 if the engine answered its last health probe", ("upstream",)
        )
        self.upstream_in_flight = gauge(
            "gateway_upstream_requests_in_flight", "Requests at the engine now", ("upstream",)
        )
        self.store_up = gauge("gateway_store_up", "1 if the key store answered its last refresh")
        self.body_bytes = gauge("gateway_inflight_body_bytes", "Request bodies held in memory now")
        limit = ("limit", "scope")
        self.limit_refusals = counter(
            "gateway_limit_refusals", "Requests that a limit refused, once per limit that held", limit
        )
        self.shadow_refusals = counter(
            "gateway_shadow_refusals", "Requests that a limit in shadow would have refused", limit
        )
        self.leases = gauge("gateway_leases", "Reservations of requests that are not settled yet")
        self.limiter_degraded = gauge(
            "gateway_limiter_degraded", "1 while limits are kept by this process alone, for Valkey is gone"
        )
        self.ledger_waiting = gauge(
            "gateway_ledger_waiting_bytes", "Settled usage on local disk that is not in the store yet"
        )
        self.ledger_lost = gauge("gateway_ledger_lost_requests", "Requests whose usage could be kept nowhere")
        self.plans_refused = gauge(
            "gateway_plans_refused", "1 while the plans file has a mistake and older plans are in force"
        )
        gauge("gateway_build_info", "1, labelled with the version", ("version",)).labels(__version__).set(1)

    def read_at_scrape(
        self,
        directory: KeyDirectory,
        pool: Pool,
        budget: BodyBudget,
        ledger: Ledger,
        limiter: Limiter,
        plans: PlansFile,
    ) -> None:
        """Ties the gauges of what has a state of its own to that state: they cost nothing per request."""
        self.leases.set_function(lambda: limiter.leases)
        self.limiter_degraded.set_function(lambda: limiter.problem is not None)
        self.ledger_waiting.set_function(lambda: ledger.waiting)
        self.ledger_lost.set_function(lambda: ledger.lost)
        self.plans_refused.set_function(lambda: plans.problem is not None)
        self.store_up.set_function(lambda: directory.store_up)
        self.body_bytes.set_function(lambda: budget.held)
        for slot in pool.slots:
            self.upstream_up.labels(slot.upstream.name).set_function(partial(getattr, slot, "up"))
            self.upstream_in_flight.labels(slot.upstream.name).set_function(
                partial(getattr, slot, "in_flight")
            )

    def note_limit_refusal(self, limit: Limit, *, shadow: bool) -> None:
        """Counts a refusal of one limit, enforced or not."""
        counter = self.shadow_refusals if shadow else self.limit_refusals
        self._of(counter, limit.name, limit.scope).inc()

    def record(self, exchange: Exchange, duration: float) -> None:
        """Counts one finished exchange; `duration` in seconds."""
        who = exchange.principal
        tenant, key_id = (who.tenant, who.key_id) if who else ("", "")
        if key_id.startswith(TOKEN_KEY_ID):
            key_id = TOKEN_KEY_ID  # subjects are without number
        reason = exchange.refused_by or ("client_disconnect" if exchange.client_left else "ok")
        status = f"{exchange.status // 100}xx"
        model, route = exchange.model, exchange.route
        self._of(self.requests, tenant, key_id, model, route, status, reason).inc()
        if exchange.client_left:
            self._of(self.disconnects, route).inc()
        if exchange.upstream is not None:
            self._of(self.duration, route, model).observe(duration)
        if exchange.ttft is not None:
            self._of(self.ttft, model).observe(exchange.ttft)
        if exchange.prompt_tokens is not None:
            self._of(self.prompt_tokens, tenant, model).inc(exchange.prompt_tokens)
            self._of(self.completion_tokens, tenant, model).inc(exchange.completion_tokens or 0)

    def _of(self, metric: MetricT, *labels: str) -> MetricT:
        """`metric.labels(...)`, remembered: the library's look-up takes a lock and rebuilds the labels."""
        key = (metric, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return cast("MetricT", child)
