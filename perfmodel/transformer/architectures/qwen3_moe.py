"""Qwen 3 mixtures (Alibaba): Qwen 3's attention over experts, none shared. Defaults: no window, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, model, sparse_layers
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def build(fields: HfFields) -> ModelSpec:
    """A window, if use_sliding_window, is on every layer."""
    fields.settled("max_window_layers", "intermediate_size", "shared_expert_intermediate_size")
    window = fields.optional("sliding_window", 4096)
    window = window if fields.flag("use_sliding_window", False) else None
    heads = attention(fields, window, qk_norm=True)
    mlps: dict[bool, DenseMlp | MoeMlp] = {True: experts(fields, "moe_intermediate_size")}
    if not all(sparse_layers(fields)):
        mlps[False] = gated(fields)
    return model(fields, [Layer(heads, mlps[moe]) for moe in sparse_layers(fields)], tied=False)
