"""vLLM 0.16.0's compiled CPU kernels, `vllm._C`, in plain torch: for decoder-only models in eager mode.

Copied to site-packages/vllm/_C.py in place of _C.abi3.so, it lets the rest of vLLM 0.16.0 (API server, engine
core, scheduler, sampler, metrics) run unmodified on any CPU build of torch. For tiny test models only. The
names, schemas and argument lists are those that vLLM calls.
"""
# ruff: noqa: FBT001, PLR0917 - so does vLLM call them

from collections.abc import Callable
from typing import Any

# mypy does not see vLLM's environment.
import torch  # type: ignore[import-not-found]
from torch import Tensor
from torch.library import Library  # type: ignore[import-not-found]
from torch.nn import functional  # type: ignore[import-not-found]

# What the engine is told where the kernels would have said how threads are bound.
_NOT_BOUND = ""
# Named by vLLM when it starts, called for no model in these tests.
_UNUSED = ("static_scaled_fp8_quant", "dynamic_scaled_fp8_quant", "dynamic_per_token_scaled_fp8_quant")


def rms_norm(result: Tensor, input_: Tensor, weight: Tensor, epsilon: float) -> None:
    x = input_.float()
    result.copy_((x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)).to(input_.dtype) * weight)


def fused_add_rms_norm(input_: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    residual.add_(input_)
    rms_norm(input_, residual, weight, epsilon)


def silu_and_mul(out: Tensor, input_: Tensor) -> None:
    half = input_.shape[-1] // 2
    out.copy_(functional.silu(input_[..., :half]) * input_[..., half:])


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    angles = cos_sin_cache.index_select(0, positions.flatten())
    cos, sin = (part.unsqueeze(1) for part in angles.chunk(2, dim=-1))
    size = cos_sin_cache.shape[-1]
    for tensor in (query, key):
        if tensor is None:
            continue
        heads = tensor.view(positions.numel(), -1, head_size)
        turned = heads[..., :size].float()
        if is_neox:
            a, b = turned.chunk(2, dim=-1)
            result = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        else:
            a, b = turned[..., ::2], turned[..., 1::2]
            result = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        heads[..., :size].copy_(result.to(tensor.dtype))


def get_scheduler_metadata(*_: Any) -> Tensor:
    return torch.zeros(1, dtype=torch.int8)


def cpu_attn_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, isa: str
) -> None:
    block = key_cache.shape[2]
    count = slot_mapping.numel()
    keep = slot_mapping >= 0
    slots = slot_mapping[keep]
    key_cache[slots // block, :, slots % block, :] = key[:count][keep]
    value_cache[slots // block, :, slots % block, :] = value[:count][keep]


def cpu_attention_with_kv_cache(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, output: Tensor, query_start_loc: Tensor,
    seq_lens: Tensor, scale: float, causal: bool, alibi_slopes: Tensor | None, sliding_window_left: int,
    sliding_window_right: int, block_table: Tensor, softcap: float, scheduler_metadata: Tensor,
    s_aux: Tensor | None,
) -> None:  # fmt: skip
    if alibi_slopes is not None or s_aux is not None or softcap:
        raise NotImplementedError("no model in these tests needs it")
    block = key_cache.shape[2]
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    out = output.view(output.shape[0], query.shape[1], -1)
    for at, length in enumerate(lengths):
        first, end = starts[at], starts[at + 1]
        if end <= first:
            continue
        blocks = block_table[at, : -(-length // block)].long()
        keys = key_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length].float()
        values = value_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length].float()
        queries = query[first:end].transpose(0, 1).float()
        group = queries.shape[0] // keys.shape[0]
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        mask = _mask(length, end - first, sliding_window_left) if causal else None
        result = functional.scaled_dot_product_attention(
            queries[None], keys[None], values[None], attn_mask=mask, scale=scale
        )[0]
        out[first:end].copy_(result.transpose(0, 1).to(output.dtype))


def _mask(length: int, queries: int, window: int) -> Tensor:
    query_at = torch.arange(length - queries, length).unsqueeze(1)
    key_at = torch.arange(length).unsqueeze(0)
    mask = key_at <= query_at
    return mask & (key_at >= query_at - window) if window >= 0 else mask


def init_cpu_threads_env(cpu_ids: str) -> str:
    return _NOT_BOUND


def _define(library: Library, implementation: Callable[..., Any], schema: str) -> None:
    library.define(implementation.__name__ + schema)
    library.impl(implementation.__name__, implementation, "CompositeExplicitAutograd")


if not hasattr(torch._C._cpu, "_is_amx_tile_supported"):  # renamed after torch 2.10
    torch._C._cpu._is_amx_tile_supported = lambda: False

_SCHEMAS: dict[Callable[..., Any], str] = {
    rms_norm: "(Tensor! result, Tensor input, Tensor weight, float epsilon) -> ()",
    fused_add_rms_norm: "(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()",
    silu_and_mul: "(Tensor! out, Tensor input) -> ()",
    rotary_embedding: (
        "(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox) -> ()"
    ),
    get_scheduler_metadata: (
        "(int num_req, int num_heads_q, int num_heads_kv, int head_dim, Tensor seq_lens, ScalarType dtype, "
        "Tensor query_start_loc, bool causal, int window_size, str isa_hint, bool enable_kv_split) -> Tensor"
    ),
    cpu_attn_reshape_and_cache: (
        "(Tensor key, Tensor value, Tensor(a2!) key_cache, Tensor(a3!) value_cache, Tensor slot_mapping, "
        "str isa) -> ()"
    ),
    cpu_attention_with_kv_cache: (
        "(Tensor query, Tensor key_cache, Tensor value_cache, Tensor(a3!) output, Tensor query_start_loc, "
        "Tensor seq_lens, float scale, bool causal, Tensor? alibi_slopes, SymInt sliding_window_left, "
        "SymInt sliding_window_right, Tensor block_table, float softcap, Tensor scheduler_metadata, "
        "Tensor? s_aux) -> ()"
    ),
}
# torch drops the operators of a library that nobody holds.
_ops, _utils, _cache_ops = Library("_C", "DEF"), Library("_C_utils", "DEF"), Library("_C_cache_ops", "DEF")
for _implementation, _schema in _SCHEMAS.items():
    _define(_ops, _implementation, _schema)
for _name in _UNUSED:
    _ops.define(f"{_name}() -> ()")
_define(_utils, init_cpu_threads_env, "(str cpu_ids) -> str")
