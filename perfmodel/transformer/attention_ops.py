"""The attention part of a layer: projections, rotation, cache write, attention, output projection.

Fused attention in prefill (FlashAttention-2's IO); in decode K and V are read once per KV head for all its query heads. K and V
come from the cache, into which the step has just written its own. Q, K and V are one matmul.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.arith import Number, minimum
from perfmodel.attention.algorithms.flash2 import forward
from perfmodel.cost import READ, WRITE, Access, Tile
from perfmodel.transformer.op import ATTENTION, CACHE, WEIGHTS, Op, Timed, activation, in_bits, linear, stored, stream, tile_rows
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, Layer, ModelSpec
from perfmodel.transformer.step import Step
from perfmodel.workload import Attention

FRESH = "K and V"
"""Those that the step itself has made: an L2 may hold them."""
KEY_TILE = 64
"""Columns of the roof's attention tile: FlashAttention-2's for head dims from 128 on."""


def attention_ops(layer: Layer, model: ModelSpec, step: Step) -> list[Op]:
    """From the normed hidden state to the output projection."""
    if isinstance(layer.attention, LatentAttention):
        return _latent_ops(layer.attention, model, step)
    return _grouped_ops(layer.attention, model, step)


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


def _grouped_ops(a: GroupedAttention, model: ModelSpec, step: Step) -> list[Op]:
    heads, kv, d, tokens = a.heads // step.split.tp, kv_heads(a, step), a.head_dim, step.tokens
    q, k = heads * d, kv * d
    made = q + (k if a.shared_kv else 2 * k)
    ops = [linear("QKV projection", step, tokens, model.hidden, made, bias=made if a.qkv_bias else 0)]
    if a.qk_norm:
        accesses = (activation(READ, tokens * (q + k), step), activation(WRITE, tokens * (q + k), step))
        weights = stored(WEIGHTS, READ, 2 * d, step.weight_bits)
        ops.append(stream("Q and K norm", step, "norm", (*accesses, weights), like=("norm", "torch-rms-norm", tokens * (heads + kv), d)))
    ops += _rotate_and_keep(step, 0 if model.learned_positions else q + k, 2 * k, q)
    window = None if a.window is None or a.window >= step.kv_len else a.window
    w = Attention(
        n=step.n,
        kv_len=step.kv_len,
        d=d,
        dv=d,
        batch=step.sequences,
        heads=heads,
        kv_heads=kv,
        dtype=step.dtype,
        causal=True,
        window=window,
    )
    ops.append(attend(w, step, sinks=heads if a.sinks else 0))
    ops.append(linear("output projection", step, tokens, q, model.hidden, bias=model.hidden if a.output_bias else 0))
    return ops


def _rotate_and_keep(step: Step, rotated: Number, kept: Number, queries: Number) -> list[Op]:
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
        ops.append(stream("RoPE", step, "rotate", turned, like=("scale", "torch-scale", tokens, rotated)))
    if step.cached:
        written = (activation(READ, tokens * kept, step), stored(CACHE, WRITE, tokens * kept, step.kv_bits))
        ops.append(stream("KV write", step, "copy", written, like=("scale", "torch-scale", tokens, kept)))
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
    same = step.kv_bits == 8 * step.dtype.size
    obstacle = "" if same else f"no kernel with a {step.kv_bits}-bit cache is calibrated"
    if latent:
        obstacle = "no kernel of latent attention over its compressed cache is calibrated"
    name = "attention" if window is None else f"attention, window {window}"
    return Op(name, ATTENTION, 1, replace(kernel, name=name, accesses=accesses), Timed("attention", w, None, obstacle))


def _latent_ops(a: LatentAttention, model: ModelSpec, step: Step) -> list[Op]:
    """MLA. Prefill expands the latent vectors to K and V; decode leaves them: W_UK is multiplied into Q, W_UV into the result.

    Source: DeepSeek-V2, section 2.1.2 and appendix B.
    """
    tokens, heads, latent, rope, size = step.tokens, a.heads // step.split.tp, a.kv_lora_rank, a.qk_rope_head_dim, a.qk_head_dim
    ops: list[Op] = []
    inputs = model.hidden
    if a.q_lora_rank:
        ops.append(linear("Q down projection", step, tokens, model.hidden, a.q_lora_rank, bias=a.q_lora_rank if a.bias else 0))
        ops.append(norm("Q latent norm", model, step, tokens, a.q_lora_rank, kind="rms"))
        inputs = a.q_lora_rank
    ops.append(linear("Q up projection", step, tokens, inputs, heads * size))
    ops.append(linear("KV down projection", step, tokens, model.hidden, latent + rope, bias=latent + rope if a.bias else 0))
    ops.append(norm("KV latent norm", model, step, tokens, latent, kind="rms"))
    ops += _rotate_and_keep(step, heads * rope + rope, latent + rope, heads * rope)
    if step.n == 1:
        ops.append(linear("Q times W_UK", step, tokens, a.qk_nope_head_dim, latent, batch=heads))
        w = Attention(step.n, step.kv_len, latent + rope, latent, step.sequences, heads, 1, step.dtype, causal=True)
        ops.append(attend(w, step, latent=True))
        ops.append(linear("W_UV of the result", step, tokens, latent, a.v_head_dim, batch=heads))
    else:
        keys = step.sequences * step.kv_len
        ops.append(linear("KV up projection", step, keys, latent, heads * (a.qk_nope_head_dim + a.v_head_dim)))
        w = Attention(step.n, step.kv_len, size, a.v_head_dim, step.sequences, heads, heads, step.dtype, causal=True)
        ops.append(_expanded(attend(w, step), w))
    ops.append(linear("output projection", step, tokens, heads * a.v_head_dim, model.hidden, bias=model.hidden if a.bias else 0))
    return ops


def _expanded(op: Op, w: Attention) -> Op:
    """K and V are activations that the projection has just made, not the cache."""
    fresh = tuple(in_bits(a, FRESH, 8 * w.dtype.size) if a.tensor in (CACHE, FRESH) else a for a in op.kernel.accesses)
    return replace(op, kernel=replace(op.kernel, accesses=fresh), timed=Timed("attention", w, None))


def norm(name: str, model: ModelSpec, step: Step, rows: Number, cols: Number, *, kind: str | None = None) -> Op:
    """A norm of ``rows`` vectors with learned weights."""
    layer = (kind or model.norm) == "layer"
    moved = (activation(READ, rows * cols, step), activation(WRITE, rows * cols, step))
    weights = stored(WEIGHTS, READ, cols * (2 if layer else 1), step.weight_bits)
    implementation = "torch-layer-norm" if layer else "torch-rms-norm"
    return stream(name, step, "layer norm" if layer else "norm", (*moved, weights), like=("norm", implementation, rows, cols))
