"""The metrics page is the captured one, and moves with the requests."""

import re

import httpx2
import pytest

from standin.config import EngineConfig
from standin.generation import Generation, plan
from standin.metrics import MetricsPage
from standin.replies import Captures

MODEL = "some-model"


def value(page: bytes, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", page.decode(), re.MULTILINE)
    assert found, f"no sample {sample}"
    return float(found[1])


@pytest.fixture
def page(captures: Captures) -> MetricsPage:
    return MetricsPage(captures.metrics, EngineConfig(served_model_names=(MODEL,)))


def generation(captures: Captures, max_tokens: int) -> Generation:
    body = {"prompt": "one two three", "max_tokens": max_tokens}
    return plan("completions", body, EngineConfig(tokens=10), captures)


def test_the_samples_are_the_captured_ones_under_the_served_name(
    captures: Captures, page: MetricsPage
) -> None:
    def names(text: str) -> list[str]:
        return [line.rpartition(" ")[0] for line in text.splitlines()]

    captured = re.sub(r'model_name="[^"]*"', f'model_name="{MODEL}"', captures.metrics)
    assert names(page.render().decode()) == names(captured)


def test_counters_start_at_zero_and_gauges_at_what_was_captured(page: MetricsPage) -> None:
    labels = f'engine="0",model_name="{MODEL}"'
    assert value(page.render(), f"vllm:prompt_tokens_total{{{labels}}}") == 0
    assert value(page.render(), f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}}') == 1


def test_a_finished_request_is_counted_with_its_tokens_and_latency(
    captures: Captures, page: MetricsPage
) -> None:
    one = generation(captures, max_tokens=4)
    page.started()
    running = value(page.render(), f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}}')
    page.tokens(one.prompt_tokens, one.completion_tokens)
    page.finished(one, seconds=0.7, first_token_seconds=0.03)
    page.ended()
    text = page.render()
    labels = f'engine="0",model_name="{MODEL}"'
    assert running == 1
    assert value(text, f"vllm:num_requests_running{{{labels}}}") == 0
    assert value(text, f"vllm:prompt_tokens_total{{{labels}}}") == 3
    assert value(text, f"vllm:generation_tokens_total{{{labels}}}") == 4
    assert (
        value(text, f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{MODEL}"}}')
        == 1
    )
    assert (
        value(text, f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.02",model_name="{MODEL}"}}')
        == 0
    )
    assert (
        value(text, f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.04",model_name="{MODEL}"}}')
        == 1
    )
    assert value(text, f"vllm:e2e_request_latency_seconds_sum{{{labels}}}") == pytest.approx(0.7)
    assert value(text, f"vllm:inter_token_latency_seconds_count{{{labels}}}") == 3


async def test_requests_move_the_page(engine: httpx2.AsyncClient) -> None:
    await engine.post("/v1/completions", json={"prompt": "hello there"})
    reply = await engine.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    labels = 'engine="0",model_name="qwen2.5-14b-awq"'
    assert value(reply.content, f"vllm:prompt_tokens_total{{{labels}}}") == 2
    assert value(reply.content, f"vllm:generation_tokens_total{{{labels}}}") == 2


async def test_a_stream_counts_its_tokens_and_not_its_events(engine: httpx2.AsyncClient) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "n": 3}
    await engine.post("/v1/completions", json={"prompt": "hello there"} | options)
    page = (await engine.get("/metrics")).content
    assert value(page, 'vllm:generation_tokens_total{engine="0",model_name="qwen2.5-14b-awq"}') == 6
