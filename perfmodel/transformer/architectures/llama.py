"""Llama (Meta) and what its layers became elsewhere: Mistral's windows, Mixtral's experts, Phi's fused matrices."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, model
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def llama(fields: HfFields) -> ModelSpec:
    """Llama 1, 2, 3 (Meta). Defaults: KV heads as many as heads, no biases, embeddings not tied. Equal layers, all tokens visible."""
    layer = Layer(attention(fields), gated(fields, bias=fields.flag("mlp_bias", False)))
    return model(fields, [layer] * fields.layers, tied=False)


def mistral(fields: HfFields) -> ModelSpec:
    """Mistral 7B and successors. Defaults: a window of 4096 on every layer (null: none), embeddings not tied. Else Llama's layers."""
    window = fields.optional("sliding_window", 4096)
    windows = fields.windows([window] * fields.layers, window)
    return model(fields, [Layer(attention(fields, w), gated(fields)) for w in windows], tied=False)


def mixtral(fields: HfFields) -> ModelSpec:
    """Mixtral (Mistral AI): Mistral's attention, and experts in place of each MLP. Defaults: no window, 2 experts per token, not tied."""
    layer = Layer(attention(fields, fields.optional("sliding_window")), experts(fields, "intermediate_size", per_token=2))
    return model(fields, [layer] * fields.layers, tied=False)


def phi3(fields: HfFields) -> ModelSpec:
    """Phi-3 and Phi-4 (Microsoft): Q, K and V from one matrix, gate and up from another. Defaults: no window, embeddings not tied.

    Fused matrices have as many weights as separate ones.
    """
    return model(fields, [Layer(attention(fields, fields.optional("sliding_window")), gated(fields))] * fields.layers, tied=False)


def llama4_text(fields: HfFields) -> ModelSpec:
    """Llama 4, its text model (Meta): a shared expert beside the others, and attention in chunks.

    Layers with rotated positions attend within chunks of attention_chunk_size (8192) tokens; every no_rope_layer_interval-th (4) has none
    and sees all tokens. A chunk is counted as a window of its size, which is what a cache reserves. Experts are in the layers moe_layers,
    else in every interleave_moe_layer_step-th (1). Norms on Q and K have no weights. Defaults: one expert per token, embeddings not tied.
    """
    fields.settled("intermediate_size_mlp")
    every, chunk = fields.whole("no_rope_layer_interval", default=4), fields.optional("attention_chunk_size", 8192)
    rotated = fields.numbers("no_rope_layers", fields.layers)  # 1 for rotated, whatever the name says
    if not rotated:
        rotated = [int((index + 1) % every != 0) for index in range(fields.layers)]
    windows = fields.windows([chunk if rotated[index] else None for index in range(fields.layers)], chunk)
    step, moe_layers = fields.whole("interleave_moe_layer_step", default=1), fields.numbers("moe_layers")
    if moe_layers is None:
        moe_layers = list(range(step - 1, fields.layers, step))
    routed = experts(fields, "intermediate_size", per_token=1, shared_width=fields.whole("intermediate_size"))
    mlps: list[DenseMlp | MoeMlp] = [routed] * fields.layers
    if len(set(moe_layers)) < fields.layers:
        dense = gated(fields, field="intermediate_size_mlp")
        mlps = [routed if index in moe_layers else dense for index in range(fields.layers)]
    return model(fields, [Layer(attention(fields, w), mlp) for w, mlp in zip(windows, mlps, strict=True)], tied=False)


BUILDS = {"llama": llama, "mistral": mistral, "mixtral": mixtral, "phi3": phi3, "llama4_text": llama4_text}
