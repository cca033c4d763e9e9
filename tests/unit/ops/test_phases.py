"""The engine's log lines, as vLLM 0.16.0 and 0.32.0 write them."""

import pytest

from ops import phases
from ops.docker import Container


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("INFO 11-30 22:01:07 [model.py:541] Resolved architecture: Qwen2ForCausalLM", "starting"),
        ("INFO [gpu_model_runner.py:4011] Starting to load model /models/Qwen/x...", "loading the weights"),
        (
            "Loading safetensors checkpoint shards:  33% Completed | 1/3 [00:00<00:01]",
            "loading the weights: 33 %",
        ),
        ("INFO Model loading took 9.38 GiB memory and 4.9 seconds", "weights loaded: 9.38 GiB"),
        ("INFO [backends.py:653] Dynamo bytecode transform time: 6.13 s", "compiling kernels"),
        ("INFO [kv_cache_utils.py:1307] GPU KV cache size: 62,544 tokens", "KV cache: 62,544 tokens"),
        (
            "INFO Maximum concurrency for 8,192 tokens per request: 7.63x",
            "room for 8,192 tokens per request: 7.63x",
        ),
        ("Capturing CUDA graphs (decode, FULL):  50%|#####", "capturing CUDA graphs"),
        ("INFO Graph capturing finished in 12 secs, took 0.45 GiB", "CUDA graphs captured in 12 s"),
        ("INFO:     Application startup complete.", "the engine answers"),
        ("INFO 127.0.0.1:0 - GET /health 200", None),
    ],
)
def test_a_line_says_its_phase(line: str, phase: str | None) -> None:
    assert phases.phase_of(line) == phase


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "memory is full"),
        ("ValueError: No available memory for the cache blocks.", "max-model-len"),
        (
            "ValueError: Free memory on device cuda:0 (3.1/23.6 GiB) on startup is less than desired",
            "Something else",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old; CUDA driver version is insufficient",
            "driver",
        ),
        ("vllm: error: unrecognized arguments: --swap-space", "VLLM_VERSION"),
        ("OSError: /models/x does not appear to have a file named config.json", "make model"),
        ("safetensors_rust.SafetensorError: Error while deserializing header", "--verify"),
        ("something never seen", "make logs"),
    ],
)
def test_a_cause_has_its_hint(line: str, hint: str) -> None:
    assert hint in phases.hint_for(["INFO fine", line, "RuntimeError: Engine core initialization failed."])


def test_the_first_cause_counts() -> None:
    assert "driver" in phases.hint_for(["CUDA driver version is insufficient", "CUDA out of memory"])


@pytest.mark.parametrize(
    ("state", "health", "kind"),
    [
        ("running", "starting", phases.Loading),
        ("created", "", phases.Loading),
        ("running", "healthy", phases.Ready),
        ("running", "unhealthy", phases.Failed),
        ("exited", "", phases.Failed),
        ("dead", "", phases.Failed),
    ],
)
def test_the_container_says_where_the_engine_stands(state: str, health: str, kind: type) -> None:
    assert isinstance(phases.outcome(Container("vllm", state, health, 0, "", "")), kind)


def test_a_container_that_is_gone_has_failed() -> None:
    assert isinstance(phases.outcome(None), phases.Failed)
