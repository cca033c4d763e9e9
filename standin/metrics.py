"""vLLM's own metrics page: the captured text, with live values for what the stand-in does."""

import re

from standin.config import EngineConfig
from standin.generation import Generation

_SAMPLE = re.compile(r"^(?P<name>[\w:]+)\{(?P<labels>.*)\} \S+$")
_LE = re.compile(r'le="([^"]+)",?')
_MODEL = re.compile(r'model_name="[^"]*"')
_RESET = ("counter", "histogram")


class MetricsPage:
    """One value per captured sample. Counters and histograms start at zero; gauges keep what was captured."""

    def __init__(self, captured: str, config: EngineConfig) -> None:
        model_name = f'model_name="{config.served_model_names[0]}"'
        self._lines: list[str] = []
        self._values: dict[str, float] = {}
        self._buckets: dict[str, list[tuple[float, str]]] = {}
        kind = ""
        for line in captured.splitlines():
            sample = _SAMPLE.match(line)
            if sample is None:
                kind = line.rpartition(" ")[2] if line.startswith("# TYPE") else kind
                self._lines.append(line)
                continue
            key = _MODEL.sub(model_name, line.rpartition(" ")[0])
            self._lines.append(key)
            self._values[key] = 0.0 if kind in _RESET else float(line.rpartition(" ")[2])
            self._index_bucket(sample["name"], sample["labels"], key)

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        return "".join(
            f"{line} {self._values[line]}\n" if line in self._values else f"{line}\n" for line in self._lines
        ).encode()

    def started(self) -> None:
        """A request runs."""
        self._add("vllm:num_requests_running", 1)

    def ended(self) -> None:
        """A request runs no more: finished, or aborted, which vLLM does not count."""
        self._add("vllm:num_requests_running", -1)

    def tokens(self, prompt: int, completion: int) -> None:
        """Count processed tokens."""
        self._add("vllm:prompt_tokens_total", prompt)
        self._add("vllm:generation_tokens_total", completion)

    def finished(self, generation: Generation, seconds: float, first_token_seconds: float) -> None:
        """Count one finished request; durations in seconds from its arrival."""
        self._add("vllm:request_success_total", 1, f'finished_reason="{generation.finish_reason}"')
        self._observe("vllm:e2e_request_latency_seconds", seconds)
        self._observe("vllm:time_to_first_token_seconds", first_token_seconds)
        self._observe("vllm:request_queue_time_seconds", 0.0)
        self._observe("vllm:request_prompt_tokens", generation.prompt_tokens)
        self._observe("vllm:request_generation_tokens", generation.total_completion_tokens)
        self._observe("vllm:request_params_max_tokens", generation.max_tokens)
        self._observe("vllm:request_params_n", generation.choices)
        gaps = generation.completion_tokens - 1
        if gaps > 0:
            gap = (seconds - first_token_seconds) / gaps
            self._observe("vllm:inter_token_latency_seconds", gap, gaps)
            self._observe("vllm:request_time_per_output_token_seconds", gap)

    def _index_bucket(self, name: str, labels: str, key: str) -> None:
        bound = _LE.search(labels)
        if bound and name.endswith("_bucket"):
            self._buckets.setdefault(name.removesuffix("_bucket"), []).append((float(bound[1]), key))

    def _add(self, name: str, amount: float, label: str = "") -> None:
        for key in self._keys(name, label):
            self._values[key] += amount

    def _observe(self, name: str, value: float, times: int = 1) -> None:
        for bound, key in self._buckets[name]:
            if value <= bound:
                self._values[key] += times
        self._add(f"{name}_count", times)
        self._add(f"{name}_sum", value * times)

    def _keys(self, name: str, label: str) -> list[str]:
        return [key for key in self._values if key.startswith(f"{name}{{") and label in key]
