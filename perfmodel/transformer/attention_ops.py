"""The attention part of a layer: projections, rotation, cache write, attention, output projection. Q, K and V are one matmul."""

from __future__ import annotations

from perfmodel.core.cost import READ, WRITE, stored
from perfmodel.core.workload import Attention
from perfmodel.transformer.attention_parts import attend, kv_heads, rotate_and_keep
from perfmodel.transformer.latent_ops import latent_ops
from perfmodel.transformer.op import WEIGHTS, Op, activation, linear, stream
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, Layer, ModelSpec
from perfmodel.transformer.step import Step


def attention_ops(layer: Layer, model: ModelSpec, step: Step) -> list[Op]:
    """From the normed hidden state to the output projection."""
    if isinstance(layer.attention, LatentAttention):
        return latent_ops(layer.attention, model, step)
    return _grouped_ops(layer.attention, model, step)


def _grouped_ops(a: GroupedAttention, model: ModelSpec, step: Step) -> list[Op]:
    heads, kv, d, tokens = a.heads // step.split.tp, kv_heads(a, step), a.head_dim, step.tokens
    q, k = heads * d, kv * d
    made = q + (k if a.shared_kv else 2 * k)
    into = tuple((f"self_attn.{name}_proj", model.hidden, size) for name, size in (("q", q), ("k", k), ("v", k))[: 2 if a.shared_kv else 3])
    ops = [linear("QKV projection", step, tokens, model.hidden, made, matrices=into, bias=made if a.qkv_bias else 0)]
    if a.qk_norm:
        accesses = (activation(READ, tokens * (q + k), step), activation(WRITE, tokens * (q + k), step))
        weights = stored(WEIGHTS, READ, 2 * d, step.weight_bits)
        ops.append(stream("Q and K norm", step, "norm", (*accesses, weights), like=("norm", "torch-rms-norm", tokens * (heads + kv), d)))
    ops += rotate_and_keep(step, 0 if model.learned_positions else q + k, 2 * k, q)
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
    out = (("self_attn.o_proj", q, model.hidden),)
    ops.append(linear("output projection", step, tokens, q, model.hidden, matrices=out, bias=model.hidden if a.output_bias else 0))
    return ops
