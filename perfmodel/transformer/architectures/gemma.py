"""Gemma, four generations (Google): GeGLU and tied embeddings; from the second on, windows and four norms a layer."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, grouped, model
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec, MoeMlp


def gemma(fields: HfFields) -> ModelSpec:
    """Gemma 1. Defaults: head_dim 256, no biases, tied embeddings. Llama's layers with GeGLU."""
    layer = Layer(attention(fields, head_dim=256), gated(fields, "gelu_pytorch_tanh"))
    return model(fields, [layer] * fields.layers, tied=True)


def gemma2(fields: HfFields) -> ModelSpec:
    """Gemma 2. Defaults: head_dim 256, a window of 4096 in layers 0, 2, 4, ..., four norms a layer, tied embeddings."""
    fields.settled("alternating_sliding")
    window, mlp = fields.optional("sliding_window", 4096), gated(fields, "gelu_pytorch_tanh")
    windows = fields.windows([None if index % 2 else window for index in range(fields.layers)], window)
    return model(fields, [Layer(attention(fields, w, head_dim=256), mlp, norms=4) for w in windows], tied=True)


def gemma3_text(fields: HfFields) -> ModelSpec:
    """Gemma 3, text model. Defaults: head_dim 256, a window of 4096 in all but every sixth layer, tied embeddings.

    Gemma 2's four norms, and norms on Q and K.
    """
    window, mlp = fields.optional("sliding_window", 4096), gated(fields, "gelu_pytorch_tanh")
    every = fields.whole("sliding_window_pattern", default=6)
    windows = fields.windows([window if (index + 1) % every else None for index in range(fields.layers)], window)
    return model(fields, [Layer(attention(fields, w, head_dim=256, qk_norm=True), mlp, norms=4) for w in windows], tied=True)


def gemma4_text(fields: HfFields) -> ModelSpec:
    """Gemma 4, text model: full-attention layers have their own head_dim and number of KV heads.

    Defaults: head_dim 256 and 512, a window of 512 in all but the last and every sixth layer, tied embeddings. With enable_moe_block, a
    dense MLP and experts side by side: three norms more, and a router with two learned scales.
    """
    fields.settled("moe_intermediate_size", "num_experts", "num_local_experts", "top_k_experts", "num_global_key_value_heads")
    fields.refuse("hidden_size_per_layer_input", 256, "an embedding per layer")
    fields.refuse("num_kv_shared_layers", 0, "a KV cache shared by layers")
    window = fields.whole("sliding_window", default=512)
    windows = fields.windows([window if (index + 1) % 6 else None for index in range(fields.layers)], window)
    windows[-1] = None
    local = attention(fields, window, head_dim=256, qk_norm=True)
    full = _full_attention(fields, local)
    mlp: DenseMlp | MoeMlp = gated(fields, "gelu_pytorch_tanh")
    norms = 4
    if fields.flag("enable_moe_block", False):
        scales = fields.whole("hidden_size") + fields.whole("num_experts")
        mlp = experts(fields, "moe_intermediate_size", shared_width=fields.whole("intermediate_size"), router_extra=scales)
        norms = 7
    return model(fields, [Layer(full if w is None else local, mlp, norms=norms) for w in windows], tied=True)


def _full_attention(fields: HfFields, local: GroupedAttention) -> GroupedAttention:
    """Attention to all tokens; with attention_k_eq_v one matrix makes K and V, and the KV heads may be fewer."""
    shared = fields.flag("attention_k_eq_v", False)
    kv_heads = fields.whole("num_global_key_value_heads", default=local.kv_heads) if shared else local.kv_heads
    bias, head_dim = local.qkv_bias, fields.whole("global_head_dim", default=512)
    return grouped(local.heads, kv_heads, head_dim, None, qkv_bias=bias, output_bias=bias, qk_norm=True, shared_kv=shared)


BUILDS = {"gemma": gemma, "gemma2": gemma2, "gemma3_text": gemma3_text, "gemma4_text": gemma4_text}
