"""What the attention of every kind of layer is made of: cache, rotation, the fused kernel, norms.

Fused attention in prefill (FlashAttention-2's IO); in decode K and V are read once per KV head for all its query heads. K and V
come from the cache, into which the step has just written its own.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number, minimum
from perfmodel.core.cost import READ, WRITE, Access, Tile, in_bits, stored
from perfmodel.core.dtypes import Dtype
from perfmodel.core.trace import plain
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms.flash2 import forward
from perfmodel.kernels.latent_decode import LatentDecode, NarrowCacheAttention
from perfmodel.transformer.op import ATTENTION, CACHE, WEIGHTS, Op, Timed, activation, narrow, stream, tile_rows
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, ModelSpec
from perfmodel.transformer.step import Step

FRESH = "K and V"
"""Those that the step itself has made: an L2 may hold them."""
KEY_TILE = 64
"""Columns of the roof's attention tile: FlashAttention-2's for head dims from 128 on."""


def kv_elements_per_token(attention: GroupedAttention | LatentAttention, step: Step) -> Number:
    """Cached elements of one token and layer on one GPU. Latent vectors are copied to each GPU, KV heads only beyond one each."""
    if isinstance(attention, LatentAttention):
        return attention.kv_lora_rank + attention.qk_rope_head_dim
    return 2 * kv_heads(attention, step) * attention.head_dim


def kv_heads(attention: GroupedAttention, step: Step) -> Number:
    """KV heads on one GPU."""
    return max(attention.kv_heads // step.split.tp, 1)


def visible(attention: GroupedAttention | LatentAttention, kv_len: Number) -> Number:
    """Tokens that a layer has to keep."""
    return kv_len if attention.window is None else minimum(kv_len, attention.window)


def rotate_and_keep(step: Step, rotated: Number, kept: Number, queries: Number) -> list[Op]:
    """RoPE over ``rotated`` elements per token, and ``kept`` elements per token written to the cache; one kernel if fused."""
    tokens = step.tokens
    if step.fused and step.cached and rotated:
        moved = queries + kept
        accesses = (
            activation(READ, tokens * moved, step),
            activation(WRITE, tokens * queries, step),
            stored(CACHE, WRITE, tokens * kept, step.kv_bits),
        )
        return [stream("RoPE and KV write", step, "rotate", accesses, like=("scale", "torch-scale", tokens, moved))]
    ops = []
    if rotated:
        turned = (activation(READ, tokens * rotated, step), activation(WRITE, tokens * rotated, step))
        ops.append(stream("RoPE", step, "rotate", turned, like=("scale", "torch-rope", tokens, rotated)))
    if step.cached:
        written = (activation(READ, tokens * kept, step), stored(CACHE, WRITE, tokens * kept, step.kv_bits))
        ops.append(stream("KV write", step, "copy", written, like=("scale", "torch-scale", tokens, kept), strided=True))
    return ops


def attend(w: Attention, step: Step, *, sinks: Number = 0, latent: bool = False) -> Op:
    """Attention over the cache. ``latent``: V is the first part of K. ``sinks``: learned scores that join the softmax.

    A single query sees the last ``window`` keys only: they are all the kernel is given.
    """
    window = w.window
    if w.n == 1:
        w = replace(w, causal=False, kv_len=w.kv_len if window is None else minimum(w.kv_len, window), window=None, packed=True)
    rows = w.row_group * w.n
    [kernel] = forward(w, Tile(tile_rows(rows), KEY_TILE))
    accesses: tuple[Access, ...] = tuple(
        in_bits(access, CACHE if step.kv_len > step.n else FRESH, step.kv_bits) if access.tensor in ("K", "V") else access
        for access in kernel.accesses
        if not (latent and access.tensor == "V")
    )
    if sinks:
        accesses = (*accesses, stored(WEIGHTS, READ, sinks, step.weight_bits))
    form = narrow(step, step.kv_bits, step.integer_kv) if w.n == 1 else None
    name = "attention" if window is None else f"attention, window {plain(window)}"
    timed = _latent_timed(w, step) if latent else _timed(w, step, form)
    return Op(name, ATTENTION, 1, replace(kernel, name=name, accesses=accesses), timed, form)


def _timed(w: Attention, step: Step, form: Dtype | None) -> Timed:
    """``form``: what it multiplies in, if that is narrower than the activations."""
    if form is None:
        same = step.kv_bits == 8 * step.dtype.size and not step.integer_kv
        return Timed("attention", w, None, "" if same else _no_cache_kernel(step))
    sizes = {name: getattr(w, name) for name in ("n", "kv_len", "d", "dv", "batch", "heads", "kv_heads", "dtype")}
    return Timed("attention", NarrowCacheAttention(**sizes, packed=True, kv_bits=step.kv_bits), ("vllm-flash-attn-fp8-cache",))


def _latent_timed(w: Attention, step: Step) -> Timed:
    """The cache's rows are K, the first ``dv`` elements of each V; Q is rotated and the cache written by other rows."""
    sizes = {name: getattr(w, name) for name in ("batch", "heads", "kv_len", "n", "dtype")}
    obstacle = "" if step.kv_bits in (8, 16) and not step.integer_kv else _no_cache_kernel(step)
    cache = LatentDecode(**sizes, kv_lora_rank=w.dv, rope=w.d - w.dv, kv_bits=step.kv_bits, appends=False)
    return Timed("latent-attention", cache, ("trtllm-mla",), obstacle)


def _no_cache_kernel(step: Step) -> str:
    return f"no kernel with a {step.kv_bits}-bit {'integer ' if step.integer_kv else ''}cache is calibrated"


def norm(name: str, model: ModelSpec, step: Step, rows: Number, cols: Number, *, kind: str | None = None) -> Op:
    """A norm of ``rows`` vectors with learned weights."""
    layer = (kind or model.norm) == "layer"
    moved = (activation(READ, rows * cols, step), activation(WRITE, rows * cols, step))
    weights = stored(WEIGHTS, READ, cols * (2 if layer else 1), step.weight_bits)
    implementation = "torch-layer-norm" if layer else "torch-rms-norm"
    return stream(name, step, "layer norm" if layer else "norm", (*moved, weights), like=("norm", implementation, rows, cols))
