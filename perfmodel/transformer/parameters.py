"""Parameters of a transformer, part by part and exact: what a checkpoint stores, summed over the operations of each layer.

Counts are of learned numbers, whatever their dtype. A matrix a -> b counts a * b, with a bias a * b + b.
Source: the modules of huggingface/transformers for each architecture; totals agree with the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.trace import label
from perfmodel.transformer.layer import first_operations, last_operations, operations
from perfmodel.transformer.operation import ATTENTION, EXPERTS, MLP, NORMS, ROUTER, Operation, summed, weights
from perfmodel.transformer.spec import AttentionLayer, DenseMlp, GroupedAttention, Layer, ModelSpec, MoeMlp


def attention_matrices(hidden: Number, attention: AttentionLayer) -> Number:
    """Weights of the projections that multiply the hidden state of each token, without biases.

    >>> attention_matrices(4096, GroupedAttention(heads=32, kv_heads=8, head_dim=128))
    41943040
    """
    return _weights(hidden, Layer(attention, DenseMlp(0)), ATTENTION)


def mlp_matrices(hidden: Number, width: Number, gated: bool) -> Number:
    """Weights of one MLP, without biases.

    >>> mlp_matrices(4096, 11008, gated=True)
    135266304
    """
    return _weights(hidden, Layer(GroupedAttention(1, 1, 1), DenseMlp(width, gated)), MLP)


def _weights(hidden: Number, layer: Layer, group: str) -> Number:
    ops = operations(ModelSpec("", "", hidden, 0, (layer,)), layer)
    return weights(matrix for op in ops for matrix in op.matrices if matrix.group == group)


def _learned(ops: Sequence[Operation], part: str) -> Number:
    """Weights and vectors of the operations that belong to ``part``."""
    ops_of_part = [op for op in ops if op.part.lower() == part]
    return weights(matrix for op in ops_of_part for matrix in op.matrices) + summed(op.vectors for op in ops_of_part)


def layer_parts(spec: ModelSpec, layer: Layer) -> dict[str, Number]:
    """Parameters of one layer by part: attention, mlp (dense or shared), experts, router, norms."""
    ops = operations(spec, layer)
    routed = (EXPERTS, ROUTER) if isinstance(layer.mlp, MoeMlp) else ()
    return {**{part: _learned(ops, part) for part in (ATTENTION, MLP, *routed)}, NORMS: layer.norms * ops[0].vectors}


def parts(spec: ModelSpec) -> dict[str, Number]:
    """Parameters by part: embedding, positions, the parts of all layers, last norm, head (0 if tied)."""
    sizes: dict[str, Number] = {table.name: table.inputs * table.outputs for table in first_operations(spec)[0].matrices}
    for layer, count in spec.layer_kinds:
        for name, size in layer_parts(spec, layer).items():
            sizes[name] = sizes.get(name, 0) + count * size
    sizes[NORMS] = sizes.get(NORMS, 0) + last_operations(spec)[0].vectors
    sizes["head"] = 0 if spec.tied_embeddings else head_matrix(spec)
    return sizes


def total(spec: ModelSpec) -> Number:
    """All parameters; a tied head counts once."""
    return label("P", "parameters", sum(label(f"P {name}", "parameters", size) for name, size in parts(spec).items()))


def inactive_experts(spec: ModelSpec) -> Number:
    """Parameters of the experts that a token does not visit."""
    idle: Number = 0
    for layer, count in spec.layer_kinds:
        if isinstance(mlp := layer.mlp, MoeMlp):
            expert = _learned(operations(spec, replace(layer, mlp=replace(mlp, experts=1))), EXPERTS)
            idle += (count * (mlp.experts - mlp.experts_per_token)) * expert
    return idle


def active(spec: ModelSpec) -> Number:
    """Parameters that one token uses: all except experts it does not visit and tables that it only looks up.

    The head counts, tied or not; the embedding and learned positions do not. DeepSeek and gpt-oss count this way.
    """
    sizes = parts(spec)
    tied = head_matrix(spec) if spec.tied_embeddings else 0
    looked_up = sizes["embedding"] - tied + sizes.get("positions", 0)
    return label("P_active", "parameters that a token uses", total(spec) - looked_up - inactive_experts(spec))


def layer_matrices(spec: ModelSpec, layer: Layer) -> Number:
    """Weights of one layer that multiply a token's hidden state: projections, the MLPs it visits, the router."""
    ops = operations(spec, layer)
    visited = layer.mlp.experts_per_token if isinstance(layer.mlp, MoeMlp) else 1
    matrices = [matrix for op in ops for matrix in op.matrices]
    met = [replace(matrix, count=visited) if matrix.group == EXPERTS else matrix for matrix in matrices]
    return weights(met) + sum(op.vectors for op in ops if op.kind == "shared_gate")


def head_matrix(spec: ModelSpec) -> Number:
    """Weights of the matrix hidden -> vocab."""
    return spec.vocab * spec.hidden
