"""How far a starting engine is, from its log: pure functions over lines.

The wordings are vLLM's, the same in 0.16.0 and 0.32.0 unless a pattern says otherwise.
"""

import re
from dataclasses import dataclass

from ops.docker import Container

_PHASES = (
    (r"Resolved architecture|non-default args|vLLM (?:API server )?version", "starting"),
    (r"Starting to load model|Loading safetensors checkpoint shards:\s+0%", "loading the weights"),
    (r"Loading safetensors checkpoint shards:\s+(?P<n>\d+)% Completed", "loading the weights: {n} %"),
    (r"Model loading took (?P<n>[\d.]+) Gi?B", "weights loaded: {n} GiB"),
    (r"Dynamo bytecode transform|Compiling a graph|torch\.compile", "compiling kernels"),
    (r"GPU KV cache size: (?P<n>[\d,]+) tokens", "KV cache: {n} tokens"),
    (r"Maximum concurrency for (?P<n>.+)$", "room for {n}"),
    (r"Capturing CUDA graphs?", "capturing CUDA graphs"),
    (r"Graph capturing finished in (?P<n>\d+) secs?", "CUDA graphs captured in {n} s"),
    (r"Application startup complete", "the engine answers"),
)
_SMALLER = "Lower max-model-len or max-num-seqs in the profile, or stop what else uses the GPU (nvidia-smi)."
_HINTS = (
    (r"CUDA out of memory|OutOfMemoryError", f"The GPU's memory is full. {_SMALLER}"),
    (r"No available memory for the cache blocks|KV cache is needed, which is larger", f"{_SMALLER}"),
    (r"Free memory on device .* is less than desired", f"Something else uses the GPU. {_SMALLER}"),
    (
        r"driver version is insufficient|forward compatibility was attempted|unsatisfied condition: cuda",
        "The driver is too old for this image: update it, or set VLLM_VERSION to the -cu129 variant in .env.",
    ),
    (r"unrecognized arguments", "The profile has an option that this VLLM_VERSION does not know."),
    (
        r"does not appear to have a file named|is not a.* local folder|LocalEntryNotFound|OfflineMode",
        "The model is missing or incomplete: run `make model`.",
    ),
    (
        r"Error while deserializing header|SafetensorError",
        'A weights file is damaged: make model ARGS="--verify"',
    ),
    (
        r"Permission denied",
        "The engine's user cannot read a file it needs: run `make model` or `make setup`.",
    ),
    (r"larger than the derived max_model_len", "max-model-len in the profile is more than the model can do."),
)


@dataclass(frozen=True, slots=True)
class Loading:
    """The engine still starts."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine answers its health check."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine will not start by itself; `reason` is one sentence."""

    reason: str


def phase_of(line: str) -> str | None:
    """What a log line says about the start, in a few words; None where it says nothing."""
    for pattern, text in reversed(_PHASES):
        if found := re.search(pattern, line):
            return text.format(n=found["n"].strip()) if "n" in found.re.groupindex else text
    return None


def hint_for(lines: list[str]) -> str:
    """What to do about a failed start. The first cause in the log counts: later errors follow from it."""
    for line in lines:
        for pattern, hint in _HINTS:
            if re.search(pattern, line, re.IGNORECASE):
                return hint
    return "Read the whole log: make logs ARGS=vllm"


def outcome(container: Container | None, restarts: int = 0) -> Loading | Ready | Failed:
    """Where the engine's container stands. `restarts` counts those since the wait began.

    Docker restarts an engine that fails after half a minute so quickly that its state hardly shows it.
    """
    if container is None:
        return Failed("The engine's container is gone.")
    if restarts > 0 or container.state in {"restarting", "exited", "dead"}:
        return Failed(f"The engine stopped while it started (exit code {container.exit_code}).")
    if container.health == "healthy":
        return Ready()
    if container.health == "unhealthy":
        return Failed("The engine runs and does not answer its health check.")
    return Loading()
