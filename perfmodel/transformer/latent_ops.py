"""Multi-head latent attention (MLA): one latent vector per token in the cache, expanded in prefill, used as it is in decode."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import in_bits
from perfmodel.core.workload import Attention
from perfmodel.transformer.attention_parts import FRESH, attend, norm, rotate_and_keep
from perfmodel.transformer.op import CACHE, Matrix, Op, Timed, linear
from perfmodel.transformer.spec import LatentAttention, ModelSpec
from perfmodel.transformer.step import Step


def latent_ops(a: LatentAttention, model: ModelSpec, step: Step) -> list[Op]:
    """MLA. Prefill, and any step without a cache, expands the latent vectors to K and V.

    Decode leaves them: W_UK is multiplied into Q, W_UV into the result. Source: DeepSeek-V2, section 2.1.2 and appendix B.
    """
    tokens, heads, latent, rope, size = step.tokens, a.heads // step.split.tp, a.kv_lora_rank, a.qk_rope_head_dim, a.qk_head_dim
    ops: list[Op] = []
    inputs = model.hidden
    if a.q_lora_rank:
        matrices, bias = _one("q_a_proj", model.hidden, a.q_lora_rank), a.q_lora_rank if a.bias else 0
        ops.append(linear("Q down projection", step, tokens, model.hidden, a.q_lora_rank, matrices=matrices, bias=bias))
        ops.append(norm("Q latent norm", model, step, tokens, a.q_lora_rank, kind="rms"))
        inputs = a.q_lora_rank
    up = _one("q_b_proj" if a.q_lora_rank else "q_proj", inputs, heads * size)
    ops.append(linear("Q up projection", step, tokens, inputs, heads * size, matrices=up))
    down, bias = _one("kv_a_proj_with_mqa", model.hidden, latent + rope), latent + rope if a.bias else 0
    ops.append(linear("KV down projection", step, tokens, model.hidden, latent + rope, matrices=down, bias=bias))
    ops.append(norm("KV latent norm", model, step, tokens, latent, kind="rms"))
    ops += rotate_and_keep(step, heads * rope + rope, latent + rope, heads * rope)
    if step.n == 1 and step.cached:
        keys = _one("kv_b_proj", latent, heads * a.qk_nope_head_dim)
        ops.append(linear("Q times W_UK", step, tokens, a.qk_nope_head_dim, latent, matrices=keys, batch=heads))
        w = Attention(step.n, step.kv_len, latent + rope, latent, step.sequences, heads, 1, step.dtype, causal=True)
        ops.append(attend(w, step, latent=True))
        values = _one("kv_b_proj", latent, heads * a.v_head_dim)
        ops.append(linear("W_UV of the result", step, tokens, latent, a.v_head_dim, matrices=values, batch=heads))
    else:
        made = heads * (a.qk_nope_head_dim + a.v_head_dim)
        both = _one("kv_b_proj", latent, made)
        ops.append(linear("KV up projection", step, step.sequences * step.kv_len, latent, made, matrices=both))
        w = Attention(step.n, step.kv_len, size, a.v_head_dim, step.sequences, heads, heads, step.dtype, causal=True)
        ops.append(_expanded(attend(w, step), w))
    out, bias = _one("o_proj", heads * a.v_head_dim, model.hidden), model.hidden if a.bias else 0
    ops.append(linear("output projection", step, tokens, heads * a.v_head_dim, model.hidden, matrices=out, bias=bias))
    return ops


def _one(name: str, inputs: Number, outputs: Number) -> tuple[Matrix]:
    return ((f"self_attn.{name}", inputs, outputs),)


def _expanded(op: Op, w: Attention) -> Op:
    """K and V are activations that the projection has just made, not the cache."""
    fresh = tuple(in_bits(a, FRESH, 8 * w.dtype.size) if a.tensor in (CACHE, FRESH) else a for a in op.kernel.accesses)
    return replace(op, kernel=replace(op.kernel, accesses=fresh), timed=Timed("attention", w, None))
