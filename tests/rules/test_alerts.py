"""Each alert fires just above its threshold and is silent just below it, whatever thresholds.yaml says."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from gateway.metrics import DURATION_BUCKETS, TTFT_BUCKETS
from prometheus.generate import Thresholds, threshold
from tests.rules.scenario import STEP, Stage, rising, seconds, steady

pytestmark = pytest.mark.requires("promtool")

MODEL = "qwen2.5-14b-instruct-awq"
VLLM_UP = 'up{job="vllm",instance="vllm:8000",upstream="vllm"}'
REPLICA_UP = 'up{job="vllm",instance="vllm-replica:8000",upstream="vllm-replica"}'
GATEWAY_UP = 'up{job="gateway",instance="gateway:9100"}'
ENGINE = f'engine="0",model_name="{MODEL}",instance="vllm:8000",job="vllm",upstream="vllm"'
SCRAPED = 'instance="gateway:9100",job="gateway"'


def sees(upstream: str) -> str:
    return f'gateway_upstream_up{{{SCRAPED},upstream="{upstream}"}}'


def after(duration: str | float) -> int:
    """A moment by which a condition that held from the start has fired."""
    return seconds(duration) + 3 * STEP


def just_before(duration: str | float) -> int:
    """A moment at which such a condition must still be pending."""
    return seconds(duration) - STEP


# --- engine ---


@pytest.mark.parametrize(
    ("series", "firing"),
    [
        pytest.param(
            {VLLM_UP: steady(0), sees("vllm"): steady(0), GATEWAY_UP: steady(1)},
            {"EngineDown": "critical"},
            id="stopped",
        ),
        pytest.param(
            {VLLM_UP: steady(1), sees("vllm"): steady(0), GATEWAY_UP: steady(1)},
            {"EngineDown": "critical"},
            id="its metrics answer but its health does not",
        ),
        pytest.param(
            {VLLM_UP: steady(0), GATEWAY_UP: steady(1)},
            {"EngineDown": "critical"},
            id="the gateway says nothing about it",
        ),
        pytest.param(
            {VLLM_UP: steady(0), sees("vllm"): "1 1 stale", GATEWAY_UP: "1 1 0x400"},
            {"EngineDown": "critical", "GatewayDown": "critical"},
            id="it went together with the gateway",
        ),
        pytest.param(
            {
                VLLM_UP: steady(1),
                REPLICA_UP: steady(0),
                sees("vllm"): steady(1),
                sees("vllm-replica"): steady(0),
            },
            {"EngineDown": "warning"},
            id="one of two",
        ),
        pytest.param(
            {VLLM_UP: steady(1), sees("vllm"): steady(1), GATEWAY_UP: steady(1)},
            {},
            id="both see it",
        ),
        pytest.param(
            {VLLM_UP: steady(1), sees("vllm"): "1 1 stale", GATEWAY_UP: "1 1 0x400"},
            {"GatewayDown": "critical"},
            id="only the gateway is down",
        ),
    ],
)
def test_engine_down_follows_what_users_get(
    stage: Stage, thresholds: Thresholds, series: Mapping[str, str], firing: Mapping[str, str]
) -> None:
    stage.expect(firing, series, at=after(thresholds["engine_down_for"]))


def test_engine_down_waits_for_its_time(stage: Stage, thresholds: Thresholds) -> None:
    series = {VLLM_UP: steady(0), sees("vllm"): steady(0)}
    stage.expect({}, series, at=just_before(thresholds["engine_down_for"]))


def test_an_engine_that_serves_but_is_not_scraped_is_only_a_warning(
    stage: Stage, thresholds: Thresholds
) -> None:
    series = {VLLM_UP: steady(0), sees("vllm"): steady(1), GATEWAY_UP: steady(1)}
    wait = thresholds["engine_not_scraped_for"]
    stage.expect({}, series, at=just_before(wait))
    stage.expect({"EngineNotScraped": "warning"}, series, at=after(wait))


@pytest.mark.parametrize(
    ("above", "firing"), [(0.01, {"KVCacheNearlyFull": "warning"}), (0, {}), (-0.01, {})]
)
def test_kv_cache_fires_above_its_share(
    stage: Stage, thresholds: Thresholds, above: float, firing: Mapping[str, str]
) -> None:
    series = {
        f"vllm:kv_cache_usage_perc{{{ENGINE}}}": steady(threshold(thresholds, "kv_cache_usage") + above),
        f"vllm:generation_tokens_total{{{ENGINE}}}": rising(300),
    }
    stage.expect(firing, series, at=after(thresholds["kv_cache_for"]))


def test_kv_cache_waits_for_its_time(stage: Stage, thresholds: Thresholds) -> None:
    series = {
        f"vllm:kv_cache_usage_perc{{{ENGINE}}}": steady(1),
        f"vllm:generation_tokens_total{{{ENGINE}}}": rising(300),
    }
    stage.expect({}, series, at=just_before(thresholds["kv_cache_for"]))


def test_a_gauge_left_full_by_an_idle_engine_pages_nobody(stage: Stage, thresholds: Thresholds) -> None:
    series = {
        f"vllm:kv_cache_usage_perc{{{ENGINE}}}": steady(0.99),
        f"vllm:generation_tokens_total{{{ENGINE}}}": steady(259),
    }
    stage.expect({}, series, at=after(thresholds["kv_cache_for"]))


# --- gateway ---


def test_gateway_down_after_its_time(stage: Stage, thresholds: Thresholds) -> None:
    series = {GATEWAY_UP: steady(0)}
    wait = thresholds["gateway_down_for"]
    stage.expect({}, series, at=just_before(wait))
    stage.expect({"GatewayDown": "critical"}, series, at=after(wait))


@dataclass(frozen=True)
class Latency:
    """A latency alert and the histogram that it reads."""

    alert: str
    metric: str
    labels: str
    edges: tuple[float, ...]
    name: str

    def histogram(self, per_step: Mapping[float, float]) -> dict[str, str]:
        """Its series, where `per_step` observations a scrape fall into the bucket that ends at each edge."""
        edges = [*self.edges, float("inf")]
        rates = [sum(count for at, count in per_step.items() if at <= edge) for edge in edges]
        names = [*(f"{edge:g}" for edge in self.edges), "+Inf"]
        buckets = {
            f'{self.metric}_bucket{{{self.labels},{SCRAPED},le="{le}"}}': rising(rate)
            for le, rate in zip(names, rates, strict=True)
        }
        return buckets | {f"{self.metric}_count{{{self.labels},{SCRAPED}}}": rising(rates[-1])}

    def traffic(self, thresholds: Thresholds, *, slow: float, rate: float) -> dict[str, str]:
        """`rate` requests a scrape; the share `slow` ends in the bucket above the goal, the rest below it."""
        goal = threshold(thresholds, f"{self.name}_p95_seconds")
        above = next(edge for edge in self.edges if edge > goal)
        return self.histogram({goal: rate * (1 - slow), above: rate * slow})

    def firing(self, *, fires: bool) -> dict[str, str]:
        return {self.alert: "warning"} if fires else {}


LATENCIES = [
    Latency(
        "TimeToFirstTokenHigh",
        "gateway_time_to_first_token_seconds",
        f'model="{MODEL}"',
        TTFT_BUCKETS,
        "ttft",
    ),
    Latency(
        "RequestDurationHigh",
        "gateway_request_duration_seconds",
        f'model="{MODEL}",route="/v1/chat/completions"',
        DURATION_BUCKETS,
        "request_duration",
    ),
]


def settled(thresholds: Thresholds, wait: str) -> int:
    """A moment at which a whole window has passed and then the alert's own time."""
    return seconds(thresholds["window"]) + after(thresholds[wait])


def requests_per_scrape(thresholds: Thresholds, share_of_minimum: float) -> float:
    wanted = threshold(thresholds, "minimum_requests") * share_of_minimum
    return wanted * STEP / seconds(thresholds["window"])


def by_alert(latency: Latency) -> str:
    return latency.alert


@pytest.mark.parametrize("latency", LATENCIES, ids=by_alert)
@pytest.mark.parametrize(("slow", "fires"), [(0.06, True), (0.04, False)])
def test_latency_fires_when_more_than_one_in_twenty_is_slower(
    stage: Stage, thresholds: Thresholds, latency: Latency, slow: float, *, fires: bool
) -> None:
    series = latency.traffic(thresholds, slow=slow, rate=5)
    stage.expect(latency.firing(fires=fires), series, at=settled(thresholds, f"{latency.name}_for"))


@pytest.mark.parametrize("latency", LATENCIES, ids=by_alert)
@pytest.mark.parametrize(("share", "fires"), [(1.1, True), (0.9, False)])
def test_latency_of_a_handful_of_requests_is_no_percentile(
    stage: Stage, thresholds: Thresholds, latency: Latency, share: float, *, fires: bool
) -> None:
    series = latency.traffic(thresholds, slow=1, rate=requests_per_scrape(thresholds, share))
    stage.expect(latency.firing(fires=fires), series, at=settled(thresholds, f"{latency.name}_for"))


@pytest.mark.parametrize("latency", LATENCIES, ids=by_alert)
def test_latency_of_a_gateway_without_traffic_is_silent(
    stage: Stage, thresholds: Thresholds, latency: Latency
) -> None:
    slow_before = {
        name: steady(500 if 'le="+Inf"' in name or "_count" in name else 0) for name in latency.histogram({})
    }
    stage.expect({}, slow_before, at=settled(thresholds, f"{latency.name}_for"))


def requests(per_step: Mapping[tuple[str, str], float]) -> dict[str, str]:
    labels = f'tenant="default",key_id="k",model="{MODEL}",route="/v1/chat/completions",{SCRAPED}'
    return {
        f'gateway_requests_total{{{labels},status="{status}",reason="{reason}"}}': rising(rate)
        for (status, reason), rate in per_step.items()
    }


@pytest.mark.parametrize(
    "broken",
    [("5xx", "engine_unavailable"), ("5xx", "engine_timeout"), ("2xx", "engine_error")],
    ids="/".join,
)
@pytest.mark.parametrize(("times", "firing"), [(1.1, {"ErrorRatioHigh": "critical"}), (0.9, {})])
def test_error_ratio_fires_above_its_share(
    stage: Stage,
    thresholds: Thresholds,
    broken: tuple[str, str],
    times: float,
    firing: Mapping[str, str],
) -> None:
    bad = threshold(thresholds, "error_ratio") * times
    series = requests({("2xx", "ok"): 10 * (1 - bad), broken: 10 * bad})
    stage.expect(firing, series, at=settled(thresholds, "error_ratio_for"))


@pytest.mark.parametrize(("share", "firing"), [(1.1, {"ErrorRatioHigh": "critical"}), (0.9, {})])
def test_error_ratio_of_a_handful_of_requests_is_no_outage(
    stage: Stage, thresholds: Thresholds, share: float, firing: Mapping[str, str]
) -> None:
    series = requests({("5xx", "engine_error"): requests_per_scrape(thresholds, share)})
    stage.expect(firing, series, at=settled(thresholds, "error_ratio_for"))


def test_what_clients_do_wrong_or_break_off_is_no_error_of_ours(stage: Stage, thresholds: Thresholds) -> None:
    series = requests(
        {
            ("2xx", "ok"): 1,
            ("2xx", "client_disconnect"): 10,
            ("4xx", "invalid_api_key"): 10,
            ("4xx", "rate_limit_exceeded"): 10,
        }
    )
    stage.expect({}, series, at=settled(thresholds, "error_ratio_for"))
