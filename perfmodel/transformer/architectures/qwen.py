"""Qwen (Alibaba), dense and as mixtures of experts."""

from typing import Any

from perfmodel.core.errors import DataError
from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, model, state_bits
from perfmodel.transformer.linear_attention import GatedDeltaNet
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def _windows(fields: HfFields) -> list[int | None]:
    """Layers from max_window_layers (28) on have a window of sliding_window (4096), if use_sliding_window, which is off by default."""
    window, first = fields.optional("sliding_window", 4096), fields.whole("max_window_layers", default=28, least=0)
    if not fields.flag("use_sliding_window", False):
        return [None] * fields.layers
    return fields.windows([window if index >= first else None for index in range(fields.layers)], window)


def _mlps(fields: HfFields, **options: Any) -> list[DenseMlp | MoeMlp]:
    """The MLP of each layer: experts in every decoder_sparse_step-th (1) layer outside mlp_only_layers (none), else a dense MLP."""
    routed = experts(fields, "moe_intermediate_size", **options)
    step, mlp_only = fields.whole("decoder_sparse_step", default=1), fields.numbers("mlp_only_layers") or []
    is_moe = [index not in mlp_only and (index + 1) % step == 0 for index in range(fields.layers)]
    dense = routed if all(is_moe) else gated(fields)  # then the file need not have the dense width
    return [routed if moe else dense for moe in is_moe]


def qwen2(fields: HfFields) -> ModelSpec:
    """Qwen 1.5, 2 and 2.5: Q, K and V have biases, O has none. Defaults: no window, embeddings not tied.

    The biases do not depend on attention_bias.
    """
    fields.settled("attention_bias")
    mlp = gated(fields)
    layers = [Layer(attention(fields, window, qkv_bias=True, output_bias=False), mlp) for window in _windows(fields)]
    return model(fields, layers, tied=False)


def qwen2_moe(fields: HfFields) -> ModelSpec:
    """Qwen 1.5 and 2 mixtures: a gated shared expert beside the others. Defaults: biases of Q, K and V, embeddings not tied.

    The shared expert has a width of its own and a learned gate.
    """
    fields.settled("attention_bias", "intermediate_size")
    shared = fields.whole("shared_expert_intermediate_size")
    mlps = _mlps(fields, shared_width=shared, shared_gate=True)
    bias = fields.flag("qkv_bias", True)
    kinds = zip(_windows(fields), mlps, strict=True)
    return model(fields, [Layer(attention(fields, w, qkv_bias=bias, output_bias=False), mlp) for w, mlp in kinds], tied=False)


def qwen3(fields: HfFields) -> ModelSpec:
    """Qwen 3: norms on Q and K. Defaults: head_dim 128, no biases, no window, embeddings not tied.

    Heads together may be wider than the hidden state.
    """
    mlp = gated(fields)
    return model(fields, [Layer(attention(fields, w, head_dim=128, qk_norm=True), mlp) for w in _windows(fields)], tied=False)


def qwen3_moe(fields: HfFields) -> ModelSpec:
    """Qwen 3 mixtures: Qwen 3's attention over experts, none shared. Defaults: no window, embeddings not tied.

    A window, if use_sliding_window, is on every layer.
    """
    fields.settled("max_window_layers", "intermediate_size", "shared_expert_intermediate_size")
    window = fields.optional("sliding_window", 4096)
    window = window if fields.flag("use_sliding_window", False) else None
    heads = attention(fields, window, qk_norm=True)
    return model(fields, [Layer(heads, mlp) for mlp in _mlps(fields)], tied=False)


def _hybrid(fields: HfFields, mlps: list[DenseMlp | MoeMlp]) -> ModelSpec:
    """Gated DeltaNet in all layers but every full_attention_interval-th (4), whose attention has a gate on its output.

    Layers that predict further tokens are not counted.
    """
    fields.settled("intermediate_size", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "attn_output_gate")
    linear = GatedDeltaNet(
        key_heads=fields.whole("linear_num_key_heads", default=16),
        value_heads=fields.whole("linear_num_value_heads", default=32),
        key_head_dim=fields.whole("linear_key_head_dim", default=128),
        value_head_dim=fields.whole("linear_value_head_dim", default=128),
        conv_kernel=fields.whole("linear_conv_kernel_dim", default=4),
        state_bits=state_bits(fields, "mamba_ssm_dtype"),
    )
    if linear.value_heads % linear.key_heads:
        raise DataError(f"linear_num_key_heads is {linear.key_heads}: it must divide the {linear.value_heads} value heads")
    heads = attention(fields, head_dim=256, qk_norm=True, output_gate=fields.flag("attn_output_gate", True))
    every = fields.whole("full_attention_interval", default=4)
    is_full = fields.kinds({"full_attention": True, "linear_attention": False})
    if not is_full:
        is_full = [(index + 1) % every == 0 for index in range(fields.layers)]
    return model(fields, [Layer(heads if full else linear, mlp) for full, mlp in zip(is_full, mlps, strict=True)], tied=False)


def qwen3_next(fields: HfFields) -> ModelSpec:
    """Qwen 3 Next and Qwen 3.5 mixtures: linear attention in three of four layers, experts and a gated shared one in each.

    Defaults: 16 key and 32 value heads of 128, convolution over 4 tokens, head_dim 256, a state in fp32, embeddings not tied.
    """
    shared = fields.whole("shared_expert_intermediate_size")
    return _hybrid(fields, _mlps(fields, shared_width=shared, shared_gate=True))


def qwen3_5(fields: HfFields) -> ModelSpec:
    """Qwen 3.5, dense: the layers of the mixtures with one MLP each, and the same defaults."""
    return _hybrid(fields, [gated(fields)] * fields.layers)


BUILDS = {
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen3_5_moe": qwen3_next,
    "qwen3_5_moe_text": qwen3_next,
    "qwen3_5": qwen3_5,
    "qwen3_5_text": qwen3_5,
}
