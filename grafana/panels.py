"""What the overview shows: panels as data, without Grafana's vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the name of its lines; `{{label}}` is replaced by Grafana."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `threshold` names the value of prometheus/thresholds.yaml above which it turns red."""

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    threshold: str | None = None
    maximum: float | None = None
    kind: Literal["timeseries", "state"] = "timeseries"


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)


USERS = Row(
    "What users get",
    (
        Panel(
            "Requests by status",
            "Requests the gateway answered, by class of status. A stream counts when it ends.",
            "reqps",
            (Query("sum by (status) (rate(gateway_requests_total[$__rate_interval]))", "{{status}}"),),
        ),
        Panel(
            "Requests by reason",
            "Requests that did not end well, by the error's code. client_disconnect: the client left first.",
            "reqps",
            (
                Query(
                    'sum by (reason) (rate(gateway_requests_total{reason!="ok"}[$__rate_interval]))',
                    "{{reason}}",
                ),
            ),
        ),
        Panel(
            "Error ratio",
            "Share of requests answered 5xx or broken off by an error. Alert: ErrorRatioHigh.",
            "percentunit",
            (Query("gateway:error_ratio:rate", "errors"),),
            threshold="error_ratio",
        ),
        Panel(
            "Time to first token",
            "From the request's head to the stream's first event. Alert: TimeToFirstTokenHigh, on the P95.",
            "s",
            (
                Query("model:gateway_time_to_first_token_seconds:p50", "P50 {{model}}"),
                Query("model:gateway_time_to_first_token_seconds:p95", "P95 {{model}}"),
            ),
            threshold="ttft_p95_seconds",
        ),
        Panel(
            "Request duration, P95",
            "From the request's head to the answer's last byte. Alert: RequestDurationHigh.",
            "s",
            (Query("route_model:gateway_request_duration_seconds:p95", "{{route}} {{model}}"),),
            threshold="request_duration_p95_seconds",
        ),
        Panel(
            "Tokens",
            "Tokens in and out, as the engine counted them. Over Requests: their length.",
            "suffix:tokens/s",
            (
                Query("sum by (model) (rate(gateway_prompt_tokens_total[$__rate_interval]))", "in {{model}}"),
                Query(
                    "sum by (model) (rate(gateway_completion_tokens_total[$__rate_interval]))",
                    "out {{model}}",
                ),
            ),
        ),
    ),
)

ENGINE = Row(
    "Engine",
    (
        Panel(
            "Engines",
            "Does the gateway reach the engine? When the gateway says nothing, whether Prometheus does.",
            "bool_yes_no",
            (Query("upstream:engine_up:max", "{{upstream}}"),),
            kind="state",
        ),
        Panel(
            "In flight",
            "Requests in the gateway, and those of them at an engine. The rest is held back by the gateway.",
            "short",
            (
                Query("sum(gateway_requests_in_flight)", "gateway"),
                Query("sum by (upstream) (gateway_upstream_requests_in_flight)", "at {{upstream}}"),
            ),
        ),
        Panel(
            "Running and waiting",
            "Sequences in the engine's batch, and those that wait. An idle engine keeps its last value.",
            "short",
            (
                Query("vllm:num_requests_running", "running {{upstream}}"),
                Query("vllm:num_requests_waiting", "waiting {{upstream}}"),
            ),
        ),
        Panel(
            "KV cache",
            "Share of the engine's KV cache in use. Full: requests wait, then running ones are evicted. "
            "Alert: KVCacheNearlyFull. An idle engine keeps its last value.",
            "percentunit",
            (Query("vllm:kv_cache_usage_perc", "{{upstream}}"),),
            threshold="kv_cache_usage",
            maximum=1,
        ),
        Panel(
            "Preemptions",
            "Running requests evicted from the KV cache and computed again. Any is wasted work.",
            "short",
            (Query("increase(vllm:num_preemptions_total[$__rate_interval])", "{{upstream}}"),),
        ),
        Panel(
            "Scraped",
            "Does Prometheus reach each target? What is not scraped is not watched.",
            "bool_yes_no",
            (Query("min by (job) (up)", "{{job}}"),),
            kind="state",
        ),
    ),
)

GPU_NAME = "* on (uuid) group_left (index, name) nvidia_smi_gpu_info"
REAL_DISKS = 'fstype=~"ext[234]|xfs|btrfs|zfs|f2fs"'

HOST = Row(
    "Host",
    (
        Panel(
            "GPU temperature",
            "Core temperature. Above the line cards of the 3090's kind begin to lower their clocks.",
            "celsius",
            (Query(f"nvidia_smi_temperature_gpu {GPU_NAME}", "GPU {{index}} {{name}}"),),
            threshold="gpu_temperature_celsius",
        ),
        Panel(
            "GPU memory",
            "Share of the card's memory in use. The engine takes its share at start; growth is not its own.",
            "percentunit",
            (
                Query(
                    f"nvidia_smi_memory_used_bytes / nvidia_smi_memory_total_bytes {GPU_NAME}",
                    "GPU {{index}} {{name}}",
                ),
            ),
            threshold="gpu_memory_used_ratio",
            maximum=1,
        ),
        Panel(
            "Disk",
            "Share of each disk in use. Models, images and metrics are what grows.",
            "percentunit",
            (
                Query(
                    f"max by (device) (1 - node_filesystem_avail_bytes{{{REAL_DISKS}}}"
                    f" / node_filesystem_size_bytes{{{REAL_DISKS}}})",
                    "{{device}}",
                ),
            ),
            threshold="disk_used_ratio",
            maximum=1,
        ),
        Panel(
            "Memory",
            "Share of the host's memory in use, caches that can be dropped not counted.",
            "percentunit",
            (Query("1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes", "host"),),
            threshold="memory_used_ratio",
            maximum=1,
        ),
    ),
)

OVERVIEW = (USERS, ENGINE, HOST)
