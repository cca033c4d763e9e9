"""The metrics: all that are promised, with help, and labels that no client can multiply."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from pydantic import HttpUrl

from gateway import __version__
from gateway.body import BodyBudget
from gateway.errors import GatewayError
from gateway.exchange import Exchange
from gateway.identity import KeyDirectory, Principal
from gateway.metrics import DURATION_BUCKETS, TTFT_BUCKETS, Metrics
from gateway.settings import Upstream
from gateway.upstreams import Pool, Slot
from tests.fakes.asgi import scope
from tests.fakes.clock import Clock
from tests.fakes.store import MemoryKeyStore
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
}


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
    "principal": Principal("acme", "aaaaaaaaaa", 60),
    "model": "served",
    "route": "/v1/chat/completions",
    "upstream": "vllm",
    "ttft": 0.3,
    "prompt_tokens": 5,
    "completion_tokens": 7,
}
LABELS = {"tenant": "acme", "key_id": "aaaaaaaaaa", "model": "served", "route": "/v1/chat/completions"}


def test_every_promised_metric_is_there_with_its_labels_and_a_help_text() -> None:
    metrics = Metrics()
    pool = Pool([Slot(Upstream(name="vllm", url=HttpUrl("http://vllm")), "key")], ScriptedTransport())
    directory = KeyDirectory(MemoryKeyStore(), pepper=b"p", default_rpm=60, clock=Clock())
    metrics.read_at_scrape(directory, pool, BodyBudget(1))
    metrics.record(finished(**ANSWERED, client_left=True), 1.0)
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


async def test_what_has_a_state_of_its_own_is_read_when_it_is_scraped() -> None:
    metrics, transport, store = Metrics(), ScriptedTransport(), MemoryKeyStore()
    pool = Pool([Slot(Upstream(name=n, url=HttpUrl(f"http://{n}")), "key") for n in "ab"], transport)
    directory = KeyDirectory(store, pepper=b"p", default_rpm=60, clock=Clock())
    budget = BodyBudget(100)
    metrics.read_at_scrape(directory, pool, budget)
    transport.down = {"b"}
    await pool.probe()
    await directory.refresh()
    budget.hold(7)
    with pool.pick():
        assert value(metrics, "gateway_upstream_requests_in_flight", upstream="a") == 1
    assert value(metrics, "gateway_upstream_requests_in_flight", upstream="a") == 0
    assert value(metrics, "gateway_upstream_up", upstream="a") == 1
    assert value(metrics, "gateway_upstream_up", upstream="b") == 0
    assert value(metrics, "gateway_store_up") == 1
    assert value(metrics, "gateway_inflight_body_bytes") == 7
    store.gone = True
    await directory.refresh()
    assert value(metrics, "gateway_store_up") == 0


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
