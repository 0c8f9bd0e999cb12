"""What the architectures share: grouped attention, gated MLPs, mixtures of experts, and the frame around the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.core.errors import DataError
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec, MoeMlp

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}


def model(facts: Facts, layers: Sequence[Layer], *, tied: bool, **options: Any) -> ModelSpec:
    """``layers`` between embedding and head. ``tied``: the architecture's default of tie_word_embeddings."""
    facts.check_windows([layer.attention.window is None for layer in layers])
    return ModelSpec(
        name="",
        architecture=facts.architecture,
        hidden=facts.whole("hidden_size", "n_embd"),
        vocab=facts.whole("vocab_size"),
        layers=tuple(layers),
        tied_embeddings=facts.flag("tie_word_embeddings", tied),
        max_positions=options.pop("max_positions", None) or facts.optional("max_position_embeddings"),
        native_dtype=_DTYPES.get(facts.text("torch_dtype", "dtype", default="")),
        **options,
    )


def attention(
    facts: Facts, window: int | None = None, *, head_dim: int | None = None, bias: bool = False, **options: Any
) -> GroupedAttention:
    """Grouped attention. ``head_dim``: the architecture's default, else hidden_size / heads; ``bias``: its default of attention_bias."""
    heads = facts.whole("num_attention_heads")
    kv_heads = facts.whole("num_key_value_heads", default=heads)
    biased = facts.flag("attention_bias", bias)
    options = {"qkv_bias": biased, "output_bias": biased, **options}
    return grouped(heads, kv_heads, facts.whole("head_dim", default=head_dim or split(facts, heads)), window, **options)


def grouped(heads: int, kv_heads: int, head_dim: int, window: int | None, **options: Any) -> GroupedAttention:
    """Grouped attention; DataError unless every KV head serves as many query heads."""
    if heads % kv_heads:
        raise DataError(f"num_key_value_heads is {kv_heads}: it must divide the {heads} attention heads")
    return GroupedAttention(heads, kv_heads, head_dim, window, **options)


def split(facts: Facts, heads: int) -> int:
    """Features per head where a file has no head_dim."""
    hidden = facts.whole("hidden_size", "n_embd")
    if facts.values.get("head_dim") is None and hidden % heads:
        raise DataError(f"head_dim: missing, and hidden size {hidden} does not divide by {heads} heads", "add head_dim")
    return hidden // heads


def gated(facts: Facts, activation: str = "silu", *, field: str = "intermediate_size", bias: bool = False) -> DenseMlp:
    """A gated MLP."""
    return DenseMlp(facts.whole(field), bias=bias, activation=facts.text("hidden_activation", "hidden_act", default=activation))


def experts(facts: Facts, width: str, *, per_token: int | None = None, **options: Any) -> MoeMlp:
    """Experts of the width in field ``width``; their number has three names. ``per_token``: the architecture's default."""
    count = facts.whole("num_experts", "n_routed_experts", "num_local_experts")
    picked = facts.whole("num_experts_per_tok", "top_k_experts", default=per_token)
    if picked > count:
        raise DataError(f"num_experts_per_tok is {picked}: more than the {count} experts")
    return MoeMlp(count, picked, facts.whole(width), activation=facts.text("hidden_activation", "hidden_act", default="silu"), **options)


def decoder(facts: Facts, *, tied: bool = False, **options: Any) -> ModelSpec:
    """Equal layers of grouped attention and a gated MLP, as in Llama."""
    layer = Layer(attention(facts, **options), gated(facts, bias=facts.flag("mlp_bias", False)))
    return model(facts, [layer] * facts.layers, tied=tied)


def qwen_windows(facts: Facts) -> list[int | None]:
    """Layers from max_window_layers (28) on have a window of sliding_window (4096), if use_sliding_window, which is off by default."""
    window, first = facts.optional("sliding_window", 4096), facts.whole("max_window_layers", default=28, least=0)
    if not facts.flag("use_sliding_window", False):
        return [None] * facts.layers
    return facts.windows([window if index >= first else None for index in range(facts.layers)], window)


def sparse_layers(facts: Facts) -> list[bool]:
    """Which layers of a Qwen mixture have experts: every decoder_sparse_step-th (1), but for mlp_only_layers (none)."""
    step, dense = facts.whole("decoder_sparse_step", default=1), facts.numbers("mlp_only_layers") or []
    return [index not in dense and (index + 1) % step == 0 for index in range(facts.layers)]
