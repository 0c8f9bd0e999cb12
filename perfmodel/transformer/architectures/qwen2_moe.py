"""Qwen 1.5 and 2 mixtures: a gated shared expert beside the others. Defaults: biases of Q, K and V, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, model, qwen_windows, sparse_layers
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def build(fields: HfFields) -> ModelSpec:
    """The shared expert has a width of its own and a learned gate."""
    fields.settled("attention_bias", "intermediate_size")
    shared = fields.whole("shared_expert_intermediate_size")
    mlps: dict[bool, DenseMlp | MoeMlp] = {True: experts(fields, "moe_intermediate_size", shared_width=shared, shared_gate=True)}
    if not all(sparse_layers(fields)):
        mlps[False] = gated(fields)
    bias = fields.flag("qkv_bias", True)
    kinds = zip(qwen_windows(fields), sparse_layers(fields), strict=True)
    return model(fields, [Layer(attention(fields, w, qkv_bias=bias, output_bias=False), mlps[moe]) for w, moe in kinds], tied=False)
