"""Hugging Face's config.json: which fields are read, their types, and where multimodal models hide them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from perfmodel.errors import DataError
from perfmodel.transformer.architectures import build
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.quantized import quantized
from perfmodel.transformer.spec import ModelSpec

OUTSIDE = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config")
"""Fields that may stand outside of that place only."""
NESTS = ("text_config", "llm_config", "language_config")
"""Where the configuration of the language model stands if the model does more than language."""
WANTED = {"int": ("a whole number", "4096"), "bool": ("true or false", "true"), "string": ("text", '"silu"'), "list": ("a list", "[0, 1]")}
"""What a field of that type takes, and how it is written, by the start of pydantic's name for the mistake."""
MOST_SHOWN = 40
"""Characters of a value from a file."""


@dataclass(frozen=True)
class Config:
    """The fields that rules read; all others are ignored."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"strict": True, "extra": "ignore"}

    model_type: str
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    sliding_window: int | None = None
    max_window_layers: int | None = None
    sliding_window_pattern: int | None = None
    global_head_dim: int | None = None
    num_global_key_value_heads: int | None = None
    num_kv_shared_layers: int | None = None
    hidden_size_per_layer_input: int | None = None
    attention_chunk_size: int | None = None
    no_rope_layer_interval: int | None = None
    interleave_moe_layer_step: int | None = None
    intermediate_size_mlp: int | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    num_experts_per_tok: int | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None
    n_shared_experts: int | None = None
    shared_expert_intermediate_size: int | None = None
    first_k_dense_replace: int | None = None
    moe_layer_freq: int | None = None
    decoder_sparse_step: int | None = None
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    n_embd: int | None = None
    n_layer: int | None = None
    n_head: int | None = None
    n_inner: int | None = None
    n_positions: int | None = None
    n_ctx: int | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    qkv_bias: bool | None = None
    use_sliding_window: bool | None = None
    enable_moe_block: bool | None = None
    attention_k_eq_v: bool | None = None
    hidden_act: str | None = None
    hidden_activation: str | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    layer_types: list[str] | None = None
    mlp_only_layers: list[int] | None = None
    no_rope_layers: list[int] | None = None
    moe_layers: list[int] | None = None
    quantization_config: dict[str, Any] | None = None


def parse(raw: Any, name: str, source: str) -> ModelSpec:
    """The model that ``raw``, the content of a config.json, describes. DataError names field and missing rule."""
    values, place = flat(raw)
    return spec(validated(values, place), name, source)


def spec(values: dict[str, Any], name: str, source: str) -> ModelSpec:
    """The model that the fields ``values`` describe."""
    return replace(build(Facts(values)), name=name, source=source, quantized=quantized(values.get("quantization_config")))


def flat(raw: Any) -> tuple[dict[str, Any], str]:
    """The fields of the language model, and the prefix under which they stand."""
    if not isinstance(raw, dict):
        raise DataError("not a mapping of fields to values", "give the config.json of a transformers model, one object {...}")
    nest = next((nest for nest in NESTS if isinstance(raw.get(nest), dict)), None)
    if nest is None:
        return raw, ""
    outer = {key: raw[key] for key in OUTSIDE if key in raw}
    return {**outer, **raw[nest]}, f"{nest}."


def validated(values: dict[str, Any], place: str = "") -> dict[str, Any]:
    """The fields that rules read, with types checked; the rest is left out. DataError names the field."""
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(Config).validate_json(json.dumps(values))  # strict, and a mapping is a Config, only in JSON
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = place + ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise DataError(f"{field}: missing, so no rule can be chosen", "config.json of a transformers model has one") from None
        raise _wrong(field, _at(values, first["loc"]), first["type"], first["msg"]) from None
    return {field.name: values[field.name] for field in fields(Config) if field.name in values}


def _wrong(field: str, value: Any, kind: str, words: str) -> DataError:
    """A value of the wrong type, shown as the file has it, with how to write it instead."""
    shown = json.dumps(value)
    shown = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."
    wanted, example = WANTED.get(kind.partition("_")[0], ("", ""))
    if not wanted:
        return DataError(f"{field} is {shown}: {words[:1].lower()}{words[1:]}", "write it as config.json of a transformers model does")
    hint = ", without quotes, fraction or exponent" if wanted == WANTED["int"][0] else ""
    return DataError(f"{field} is {shown}: it should be {wanted}", f"write it like {example}{hint}")


def _at(values: Any, place: tuple[int | str, ...]) -> Any:
    for key in place:
        values = values[key]
    return values
