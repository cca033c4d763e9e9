"""The whole set of alerts is silent on a stack that is well: idle, and busy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from tests.rules.scenario import Stage, rising, steady

pytestmark = pytest.mark.requires("promtool")

CAPTURES = Path(__file__).parent / "captures"
ENGINES = ["v0.16.0", "v0.32.0"]
JOBS = ("vllm", "gateway", "caddy", "gpu", "node", "prometheus", "alertmanager", "grafana")
HOUR = 3600
COUNTERS = ("_total", "_count", "_sum", "_bucket")


def selector(name: str, labels: dict[str, str], **target: str) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in (labels | target).items())
    return f"{name}{{{pairs}}}"


def scraped(exposition: str, *, busy: bool, **target: str) -> Iterator[tuple[str, str]]:
    """An hour of scrapes of one target; if it is busy, every counter gains a hundredth per scrape."""
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            counts = busy and sample.name.endswith(COUNTERS)
            values = rising(sample.value / 100, start=sample.value) if counts else steady(sample.value)
            yield selector(sample.name, sample.labels, **target), values


def healthy_gateway() -> str:
    """The real registry after 2,000 quick answers, one in a hundred of them refused."""
    metrics = Metrics()
    metrics.upstream_up.labels("vllm").set(1)
    labels = ("default", "k", "qwen2.5-14b-awq", "/v1/chat/completions")
    metrics.requests.labels(*labels, "2xx", "ok").inc(1980)
    metrics.requests.labels(*labels, "5xx", "overloaded").inc(20)
    for _ in range(1980):
        metrics.ttft.labels(labels[2]).observe(0.6)
        metrics.duration.labels(labels[3], labels[2]).observe(9)
    return generate_latest(metrics.registry).decode()


def stack(version: str, *, busy: bool) -> dict[str, str]:
    series = {selector("up", {"job": job}): steady(1) for job in JOBS if job != "vllm"}
    vllm = {"job": "vllm", "instance": "vllm:8000", "upstream": "vllm"}
    series[selector("up", vllm)] = steady(1)
    series |= scraped((CAPTURES / f"vllm-{version}.txt").read_text(), busy=busy, **vllm)
    series |= scraped(healthy_gateway(), busy=busy, job="gateway", instance="gateway:9100")
    return series


@pytest.mark.parametrize("version", ENGINES)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_nothing_fires_on_a_healthy_stack(stage: Stage, version: str, *, busy: bool) -> None:
    stage.expect({}, stack(version, busy=busy), at=HOUR)


@pytest.mark.parametrize("version", ENGINES)
def test_the_same_stack_fires_once_its_cache_is_full(stage: Stage, version: str) -> None:
    series = stack(version, busy=True)
    [cache] = [name for name in series if name.startswith("vllm:kv_cache_usage_perc{")]
    stage.expect({"KVCacheNearlyFull": "warning"}, series | {cache: steady(0.95)}, at=HOUR)


@pytest.mark.parametrize("version", ENGINES)
def test_the_same_stack_fires_once_its_engine_stops(stage: Stage, version: str) -> None:
    series = stack(version, busy=True)
    [seen] = [name for name in series if name.startswith("gateway_upstream_up{")]
    stage.expect({"EngineDown": "critical"}, series | {seen: steady(0)}, at=HOUR)
