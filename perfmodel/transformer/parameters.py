"""Parameters of a transformer, part by part and exact: what a checkpoint stores.

Counts are of learned numbers, whatever their dtype. A matrix a -> b counts a * b, with a bias a * b + b.
Source: the modules of huggingface/transformers for each architecture; totals agree with the published checkpoints.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.trace import named
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, LatentAttention, Layer, ModelSpec, MoeMlp


def attention_matrices(hidden: Number, attention: GroupedAttention | LatentAttention) -> Number:
    """Weights of the projections, without biases: what multiplies the hidden state of each token.

    >>> attention_matrices(4096, GroupedAttention(heads=32, kv_heads=8, head_dim=128))
    41943040
    """
    if isinstance(attention, GroupedAttention):
        queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        return 2 * hidden * queries + (1 if attention.shared_kv else 2) * hidden * keys
    a = attention
    queries = a.heads * a.qk_head_dim
    into_q = hidden * queries if a.q_lora_rank is None else a.q_lora_rank * (hidden + queries)
    latent = hidden * (a.kv_lora_rank + a.qk_rope_head_dim)
    return into_q + latent + a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim) + a.heads * a.v_head_dim * hidden


def attention_rest(hidden: Number, attention: GroupedAttention | LatentAttention) -> Number:
    """Biases of the projections, norms of Q, K and latents, sinks."""
    if isinstance(attention, GroupedAttention):
        a = attention
        keys = (1 if a.shared_kv else 2) * a.kv_heads * a.head_dim
        biases = (a.heads * a.head_dim + keys) * int(a.qkv_bias) + hidden * int(a.output_bias)
        return biases + 2 * a.head_dim * int(a.qk_norm) + a.heads * int(a.sinks)
    q_rank = 0 if attention.q_lora_rank is None else attention.q_lora_rank
    biases = (q_rank + attention.kv_lora_rank + attention.qk_rope_head_dim + hidden) * int(attention.bias)
    return biases + q_rank + attention.kv_lora_rank


def mlp_matrices(hidden: Number, width: Number, gated: bool) -> Number:
    """Weights of one MLP, without biases.

    >>> mlp_matrices(4096, 11008, gated=True)
    135266304
    """
    return (3 if gated else 2) * hidden * width


def mlp_biases(hidden: Number, width: Number, gated: bool) -> Number:
    """Biases of one MLP that has them."""
    return (2 if gated else 1) * width + hidden


def expert(hidden: Number, mlp: MoeMlp) -> Number:
    """One routed expert, with its biases."""
    return mlp_matrices(hidden, mlp.width, mlp.gated) + mlp_biases(hidden, mlp.width, mlp.gated) * int(mlp.bias)


def router(hidden: Number, mlp: MoeMlp) -> Number:
    """The router: hidden -> experts, and its biases or scales."""
    return hidden * mlp.experts + mlp.router_extra


def norm(spec: ModelSpec) -> Number:
    """One norm over the hidden state."""
    return spec.hidden if spec.norm == "rms" else 2 * spec.hidden


def layer_parts(spec: ModelSpec, layer: Layer) -> dict[str, Number]:
    """Parameters of one layer by part: attention, mlp (dense or shared), experts, router, norms."""
    hidden, mlp = spec.hidden, layer.mlp
    parts = {"attention": attention_matrices(hidden, layer.attention) + attention_rest(hidden, layer.attention)}
    if isinstance(mlp, DenseMlp):
        parts["mlp"] = mlp_matrices(hidden, mlp.width, mlp.gated) + mlp_biases(hidden, mlp.width, mlp.gated) * int(mlp.bias)
    else:
        parts["mlp"] = mlp_matrices(hidden, mlp.shared_width, mlp.gated) + hidden * int(mlp.shared_gate)
        parts["experts"] = mlp.experts * expert(hidden, mlp)
        parts["router"] = router(hidden, mlp)
    return {**parts, "norms": layer.norms * norm(spec)}


def parts(spec: ModelSpec) -> dict[str, Number]:
    """Parameters by part: embedding, positions, the parts of all layers, last norm, head (0 if tied)."""
    found: dict[str, Number] = {"embedding": spec.vocab * spec.hidden}
    if spec.learned_positions and spec.max_positions is not None:
        found["positions"] = spec.max_positions * spec.hidden
    for layer, count in spec.layer_kinds:
        for name, size in layer_parts(spec, layer).items():
            found[name] = found.get(name, 0) + count * size
    found["norms"] = found.get("norms", 0) + norm(spec)
    found["head"] = 0 if spec.tied_embeddings else spec.vocab * spec.hidden
    return found


def total(spec: ModelSpec) -> Number:
    """All parameters; a tied head counts once."""
    return named("P", "parameters", sum(named(f"P {name}", "parameters", size) for name, size in parts(spec).items()))


def inactive_experts(spec: ModelSpec) -> Number:
    """Parameters of the experts that a token does not visit."""
    idle = [
        (count * (layer.mlp.experts - layer.mlp.experts_per_token)) * expert(spec.hidden, layer.mlp)
        for layer, count in spec.layer_kinds
        if isinstance(layer.mlp, MoeMlp)
    ]
    return sum(idle)


def active(spec: ModelSpec) -> Number:
    """Parameters that one token uses: all but the experts it does not visit and the tables it only looks a row up in.

    The head counts, tied or not; the embedding and learned positions do not. DeepSeek and gpt-oss state theirs so.
    """
    sizes = parts(spec)
    looked_up = sizes["embedding"] - _tied_head(spec) + sizes.get("positions", 0)
    return named("P_active", "parameters that a token uses", total(spec) - looked_up - inactive_experts(spec))


def _tied_head(spec: ModelSpec) -> Number:
    return spec.vocab * spec.hidden if spec.tied_embeddings else 0


def layer_matrices(spec: ModelSpec, layer: Layer) -> Number:
    """Weights of one layer that multiply a token's hidden state: projections, the MLPs it visits, the router."""
    mlp, hidden = layer.mlp, spec.hidden
    projections = attention_matrices(hidden, layer.attention)
    if isinstance(mlp, DenseMlp):
        return projections + mlp_matrices(hidden, mlp.width, mlp.gated)
    visited = mlp.experts_per_token * mlp_matrices(hidden, mlp.width, mlp.gated) + mlp_matrices(hidden, mlp.shared_width, mlp.gated)
    return projections + visited + hidden * (mlp.experts + int(mlp.shared_gate))


def head_matrix(spec: ModelSpec) -> Number:
    """Weights of the matrix hidden -> vocab."""
    return spec.vocab * spec.hidden
