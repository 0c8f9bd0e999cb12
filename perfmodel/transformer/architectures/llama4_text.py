"""Llama 4, its text model (Meta): a shared expert beside the others, and attention in chunks.

Three of four layers attend within chunks of attention_chunk_size (8192) tokens. A chunk is counted as a window of that size:
what a cache reserves. Norms on Q and K have no weights. Defaults: one expert per token, embeddings not tied.
"""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, model
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def build(fields: HfFields) -> ModelSpec:
    """Layers without rotated positions (every no_rope_layer_interval-th) see all tokens."""
    fields.settled("intermediate_size_mlp")
    every, chunk = fields.whole("no_rope_layer_interval", default=4), fields.optional("attention_chunk_size", 8192)
    rotated = fields.numbers("no_rope_layers", fields.layers) or [int((index + 1) % every != 0) for index in range(fields.layers)]
    windows = fields.windows([chunk if rotated[index] else None for index in range(fields.layers)], chunk)
    step = fields.whole("interleave_moe_layer_step", default=1)
    chosen = fields.numbers("moe_layers")
    moe = set(range(step - 1, fields.layers, step) if chosen is None else chosen)
    width = fields.whole("intermediate_size")
    mlps: dict[bool, DenseMlp | MoeMlp] = {True: experts(fields, "intermediate_size", per_token=1, shared_width=width)}
    if len(moe) < fields.layers:
        mlps[False] = gated(fields, field="intermediate_size_mlp")
    return model(fields, [Layer(attention(fields, w), mlps[index in moe]) for index, w in enumerate(windows)], tied=False)
