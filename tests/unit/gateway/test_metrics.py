"""The metrics: all that are promised, with help, and labels that no client can multiply."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from pydantic import HttpUrl

from gateway import __version__
from gateway.body import BodyBudget
from gateway.configfiles import ConfigurationError
from gateway.errors import GatewayError
from gateway.exchange import Exchange
from gateway.ledger import Ledger
from gateway.limits import Calendar, Limit
from gateway.memory_limiter import MemoryLimiter
from gateway.metrics import DURATION_BUCKETS, TTFT_BUCKETS, Metrics
from gateway.plans import PlansFile
from gateway.settings import Upstream
from gateway.store import UsageEntry
from gateway.upstreams import Pool, Slot
from tests.fakes.asgi import scope
from tests.fakes.clock import Clock
from tests.fakes.directories import Process, principal
from tests.fakes.inprocess import write_plans
from tests.fakes.logs import LogLines
from tests.fakes.store import MemoryStore
from tests.fakes.transport import ScriptedTransport

PROMISED = {
    "gateway_requests": ("counter", {"tenant", "key_id", "model", "route", "status", "reason"}),
    "gateway_request_duration_seconds": ("histogram", {"route", "model"}),
    "gateway_time_to_first_token_seconds": ("histogram", {"model"}),
    "gateway_requests_in_flight": ("gauge", set()),
    "gateway_prompt_tokens": ("counter", {"tenant", "model"}),
    "gateway_completion_tokens": ("counter", {"tenant", "model"}),
    "gateway_client_disconnects": ("counter", {"route"}),
    "gateway_upstream_up": ("gauge", {"upstream"}),
    "gateway_upstream_requests_in_flight": ("gauge", {"upstream"}),
    "gateway_store_up": ("gauge", set()),
    "gateway_inflight_body_bytes": ("gauge", set()),
    "gateway_build_info": ("gauge", {"version"}),
    "gateway_limit_refusals": ("counter", {"limit", "scope"}),
    "gateway_shadow_refusals": ("counter", {"limit", "scope"}),
    "gateway_leases": ("gauge", set()),
    "gateway_limiter_degraded": ("gauge", set()),
    "gateway_ledger_waiting_bytes": ("gauge", set()),
    "gateway_ledger_lost_requests": ("gauge", set()),
    "gateway_plans_refused": ("gauge", set()),
}


class Parts:
    """What has a state of its own, tied to metrics."""

    def __init__(self, home: Path) -> None:
        self.metrics, self.store, self.transport = Metrics(), MemoryStore(), ScriptedTransport()
        clock, calendar = Clock(), Calendar("UTC")
        self.process = Process(self.store, clock)
        self.pool = Pool(
            [Slot(Upstream(name=n, url=HttpUrl(f"http://{n}")), "key") for n in "ab"], self.transport
        )
        self.budget = BodyBudget(100)
        self.ledger = Ledger(self.store, home / "spool", calendar, clock)
        self.limiter = MemoryLimiter(calendar, monotonic=clock, clock=clock)
        self.plans = PlansFile(write_plans(home, {}), LogLines().logger, models=())
        self.metrics.read_at_scrape(
            self.process.directory, self.pool, self.budget, self.ledger, self.limiter, self.plans
        )

    def value(self, name: str, **labels: str) -> float | None:
        return value(self.metrics, name, **labels)


@pytest.fixture
async def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def families(registry: CollectorRegistry) -> dict[str, Metric]:
    return {metric.name: metric for metric in registry.collect()}


def finished(**known: object) -> Exchange:
    exchange = Exchange.begin(scope("POST", "/v1/chat/completions", [("X-Request-Id", "hush")]), ())
    exchange.status = 200
    for name, value in known.items():
        setattr(exchange, name, value)
    return exchange


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


ANSWERED = {
    "principal": principal("aaaaaaaaaa"),
    "model": "served",
    "route": "/v1/chat/completions",
    "upstream": "vllm",
    "ttft": 0.3,
    "prompt_tokens": 5,
    "completion_tokens": 7,
}
LABELS = {"tenant": "acme", "key_id": "aaaaaaaaaa", "model": "served", "route": "/v1/chat/completions"}


def test_every_promised_metric_is_there_with_its_labels_and_a_help_text(parts: Parts) -> None:
    metrics = parts.metrics
    metrics.record(finished(**ANSWERED, client_left=True), 1.0)
    for shadow in (False, True):
        limit = Limit("requests_per_minute", "key", "aaaaaaaaaa", 60, shadow=shadow)
        metrics.note_limit_refusal(limit, shadow=shadow)
    found = families(metrics.registry)
    assert {name: metric.type for name, metric in found.items()} == {
        n: kind for n, (kind, _) in PROMISED.items()
    }
    for name, (_, labels) in PROMISED.items():
        seen = {label for sample in found[name].samples for label in sample.labels} - {"le"}
        assert seen == labels, name
        assert len(found[name].documentation) > 10


def test_durations_have_the_promised_buckets() -> None:
    metrics = Metrics()
    metrics.record(finished(**ANSWERED), 1.0)
    for name, buckets in (
        ("gateway_request_duration_seconds", DURATION_BUCKETS),
        ("gateway_time_to_first_token_seconds", TTFT_BUCKETS),
    ):
        edges = [s.labels["le"] for s in families(metrics.registry)[name].samples if "le" in s.labels]
        assert [float(edge) for edge in edges] == [*buckets, float("inf")]


def test_an_answered_request_is_counted_with_its_tokens_and_times() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.record(finished(**ANSWERED), 1.5)
    assert value(metrics, "gateway_requests_total", **LABELS, status="2xx", reason="ok") == 2
    assert value(metrics, "gateway_prompt_tokens_total", tenant="acme", model="served") == 10
    assert value(metrics, "gateway_completion_tokens_total", tenant="acme", model="served") == 14
    route = {"route": "/v1/chat/completions", "model": "served"}
    assert value(metrics, "gateway_request_duration_seconds_sum", **route) == 3
    assert value(metrics, "gateway_time_to_first_token_seconds_count", model="served") == 2


def test_a_refused_request_is_counted_by_its_reason_and_has_no_duration_at_an_engine() -> None:
    metrics = Metrics()
    metrics.record(finished(status=401, refused_by="missing_api_key", route="/v1/models"), 0.1)
    unknown = {"tenant": "", "key_id": "", "model": "", "route": "/v1/models"}
    assert value(metrics, "gateway_requests_total", **unknown, status="4xx", reason="missing_api_key") == 1
    samples = families(metrics.registry)["gateway_request_duration_seconds"].samples
    assert samples == []


def test_a_client_that_left_is_counted_as_such() -> None:
    metrics = Metrics()
    metrics.record(finished(**ANSWERED, client_left=True), 1.0)
    labels = {**LABELS, "status": "2xx", "reason": "client_disconnect"}
    assert value(metrics, "gateway_requests_total", **labels) == 1
    assert value(metrics, "gateway_client_disconnects_total", route="/v1/chat/completions") == 1


def test_a_stream_that_failed_after_its_begin_is_counted_by_its_reason() -> None:
    metrics = Metrics()
    metrics.record(finished(**ANSWERED, refused_by="engine_timeout"), 1.0)
    assert value(metrics, "gateway_requests_total", **LABELS, status="2xx", reason="engine_timeout") == 1


def test_nothing_that_a_client_chooses_becomes_a_label() -> None:
    metrics = Metrics()
    for number in range(50):
        exchange = Exchange.begin(
            scope(
                "POST", f"/v1/{number}", [("X-Request-Id", f"id-{number}"), ("Authorization", f"x{number}")]
            ),
            (),
        )
        exchange.status, exchange.refused_by = 404, GatewayError.code
        metrics.record(exchange, 0.0)
    samples = families(metrics.registry)["gateway_requests"].samples
    assert [sample.value for sample in samples if sample.name == "gateway_requests_total"] == [50]


def test_a_limits_refusal_is_counted_for_its_kind_and_not_for_who_met_it() -> None:
    metrics = Metrics()
    for subject in ("aaaaaaaaaa", "bbbbbbbbbb"):
        limit = Limit("tokens_per_day", "key", subject, 60, shadow=False)
        metrics.note_limit_refusal(limit, shadow=False)
        metrics.note_limit_refusal(limit, shadow=True)
    labels = {"limit": "tokens_per_day", "scope": "key"}
    assert value(metrics, "gateway_limit_refusals_total", **labels) == 2
    assert value(metrics, "gateway_shadow_refusals_total", **labels) == 2


def test_subjects_of_tokens_are_one_label() -> None:
    """An issuer has any number of them."""
    metrics = Metrics()
    for number in range(50):
        metrics.record(finished(**(ANSWERED | {"principal": principal(f"jwt-{number:016}")})), 1.0)
    labels = LABELS | {"key_id": "jwt-", "status": "2xx", "reason": "ok"}
    assert value(metrics, "gateway_requests_total", **labels) == 50


async def test_what_has_a_state_of_its_own_is_read_when_it_is_scraped(parts: Parts) -> None:
    parts.transport.down = {"b"}
    await parts.pool.probe()
    await parts.process.directory.refresh()
    parts.budget.hold(7, "acme")
    with parts.pool.pick():
        assert parts.value("gateway_upstream_requests_in_flight", upstream="a") == 1
    assert parts.value("gateway_upstream_requests_in_flight", upstream="a") == 0
    assert parts.value("gateway_upstream_up", upstream="a") == 1
    assert parts.value("gateway_upstream_up", upstream="b") == 0
    assert parts.value("gateway_store_up") == 1
    assert parts.value("gateway_inflight_body_bytes") == 7
    parts.store.gone = True
    await parts.process.directory.refresh()
    assert parts.value("gateway_store_up") == 0


async def test_what_waits_or_is_in_trouble_is_read_when_it_is_scraped(parts: Parts) -> None:
    names = ("limiter_degraded", "ledger_waiting_bytes", "ledger_lost_requests", "plans_refused", "leases")
    assert [parts.value(f"gateway_{name}") for name in names] == [0, 0, 0, 0, 0]
    parts.limiter.problem = "TimeoutError"
    parts.ledger.record(UsageEntry("r", 0.0, "acme", "k", "served", "/v1/x", 1, 1, estimated=False))
    parts.plans.path.write_text("plans: 5")
    with pytest.raises(ConfigurationError):
        parts.plans.reload()
    assert [parts.value(f"gateway_{name}") for name in ("limiter_degraded", "plans_refused")] == [1, 1]
    assert (parts.value("gateway_ledger_waiting_bytes") or 0) > 0


def test_the_version_is_told() -> None:
    assert value(Metrics(), "gateway_build_info", version=__version__) == 1


def test_two_applications_do_not_share_a_registry() -> None:
    first, second = Metrics(), Metrics()
    first.record(finished(**ANSWERED), 1.0)
    assert value(second, "gateway_requests_total", **LABELS, status="2xx", reason="ok") is None


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_names_are_in_base_units(name: str) -> None:
    assert name.startswith("gateway_")
    assert not name.endswith(("_ms", "_milliseconds", "_kb", "_percent"))
