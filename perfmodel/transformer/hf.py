"""Hugging Face's config.json: where multimodal models keep the language model's fields, and which fields no rule reads."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from perfmodel.core.dtypes import canonical
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.transformer.architectures import build
from perfmodel.transformer.architectures._parts import HfFields
from perfmodel.transformer.layer import operations
from perfmodel.transformer.spec import Layer, LayerFormats, ModelSpec
from perfmodel.transformer.weight_formats import quantized
from perfmodel.transformer.weight_formats._base import FIELD, PREFIXES, MatrixFormat, Quantized, matcher

OUTSIDE = ("tie_word_embeddings", "torch_dtype", "dtype", FIELD)
"""Fields that a multimodal model may have only outside of the language model's fields."""
NESTS = ("text_config", "llm_config", "language_config")
"""Field with the language model's configuration in multimodal models."""
HARMLESS = {
    # names, versions and how a program handles the model
    "_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache",
    "return_dict", "chunk_size_feed_forward", "tokenizer_class", "task_specific_params", "output_attentions", "output_hidden_states",
    "gradient_checkpointing", "cache_implementation", "pretraining_tp", "ep_size", "unsloth_fixed", "unsloth_version",
    "_attn_implementation", "_attn_implementation_autoset", "is_decoder",
    # tokens
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "image_token_id", "image_token_index",
    "boi_token_index", "eoi_token_index", "audio_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "boi_token_id", "eoi_token_id", "boa_token_id",
    # training
    "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "attn_dropout",
    "embedding_dropout", "dropout", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_jitter_noise", "output_router_logits",
    "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "label2id", "id2label",
    "problem_type",
    # arithmetic without learned numbers: positions, norms, scales, caps, how experts are picked
    "rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "rope_local_base_freq", "rope_type", "partial_rotary_factor",
    "rotary_emb_base", "global_partial_rotary_factor", "original_max_position_embeddings", "initial_context_length", "rms_norm_eps",
    "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "activation_function", "hidden_act", "hidden_activation", "swiglu_limit",
    "swiglu_alpha", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "attn_scale", "attn_temperature_tuning", "floor_scale", "use_qk_norm",
    "norm_topk_prob", "scoring_func", "topk_method", "n_group", "topk_group", "routed_scaling_factor", "router_bias_update_speed",
    "for_llm_class", "use_bidirectional_attention", "indexer_rope_interleave",
    # how text is drawn
    "length_penalty", "max_length", "min_length", "num_beam_groups", "num_beams", "num_return_sequences", "repetition_penalty",
    "temperature", "top_k", "top_p", "typical_p", "diversity_penalty", "no_repeat_ngram_size",
}  # fmt: skip
"""Fields that change no number of parameters and no visible score, whatever the architecture."""


def parse(raw: Any, name: str, source: str) -> ModelSpec:
    """The model that ``raw``, the content of a config.json, describes. DataError names field and missing rule."""
    values, place, beside = flat(raw)
    if not HfFields(values, place).text("model_type", default=""):
        raise DataError(f"{place}model_type: missing, so no rule can be chosen", "config.json of a transformers model has one")
    return spec(values, name, source, place, beside)


def spec(values: dict[str, Any], name: str, source: str, place: str = "", beside: tuple[str, ...] = ()) -> ModelSpec:
    """The model that the fields ``values`` describe, which stand under ``place``. ``beside``: other parts of a larger model."""
    fields = HfFields(values, place)
    model = build(fields)
    unread = (*fields.unread({*HARMLESS, FIELD}), *beside)
    return assigned(replace(model, name=name, source=source, unread=unread), quantized(values.get(FIELD)))


def flat(raw: Any) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """The fields of the language model, their prefix, and names of the model's other parts, which are not counted."""
    if not isinstance(raw, dict):
        raise DataError("not a mapping of fields to values", "give the config.json of a transformers model, one object {...}")
    nest = next((name for name in NESTS if isinstance(raw.get(name), dict)), None)
    if nest is None:
        return raw, "", ()
    outer = {key: raw[key] for key in OUTSIDE if key in raw}
    known = (nest, FIELD, *HARMLESS)
    other_parts = tuple(key for key, value in raw.items() if key.endswith("_config") and value and key not in known)
    return {**outer, **raw[nest]}, f"{nest}.", other_parts


HEAD = "lm_head"
RENAMED = {
    "gpt2": "self_attn.o_proj=attn.c_proj self_attn.=attn.c_attn. mlp.up=mlp.c_fc. mlp.down=mlp.c_proj.",
    "gpt_oss": "mlp.experts.0.=mlp.experts.",
    "llama4_text": "mlp.experts.0.=feed_forward.experts. mlp.shared_experts.=feed_forward.shared_expert. mlp.=feed_forward.",
    "minimax_m2": "mlp.experts.0.gate_proj=block_sparse_moe.experts.0.w1 mlp.experts.0.up_proj=block_sparse_moe.experts.0.w3 "
    "mlp.experts.0.down_proj=block_sparse_moe.experts.0.w2",
    "mixtral": "mlp.experts.0.gate_proj=block_sparse_moe.experts.0.w1 mlp.experts.0.up_proj=block_sparse_moe.experts.0.w3 "
    "mlp.experts.0.down_proj=block_sparse_moe.experts.0.w2",
    "nemotron_h": "self_attn.=mixer. mlp.=mixer.",
    "phi3": "self_attn.q_=self_attn.qkv_ self_attn.k_=self_attn.qkv_ self_attn.v_=self_attn.qkv_ "
    "mlp.gate_=mlp.gate_up_ mlp.up_=mlp.gate_up_",
    **dict.fromkeys(("qwen2_moe", "qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"), "mlp.shared_experts.=mlp.shared_expert."),
}
"""Names of matrices that differ from Llama's and DeepSeek's, by architecture, in the order of replacement."""


def assigned(model: ModelSpec, quantized: Quantized | None) -> ModelSpec:
    """``model`` with the format of each matrix; unread if no matrix has one. All experts of a layer have the same."""
    if quantized is None or not quantized.rules:
        return replace(model, quantized=quantized)
    kept = matcher(quantized.kept)
    rules = [(rule.stored, None if rule.targets is None else matcher(rule.targets)) for rule in quantized.rules]

    def format_of(name: str, prefixes: tuple[str, ...]) -> MatrixFormat | None:
        """The format of a matrix, by its name after any of ``prefixes``; None for the model's own."""
        names = [prefix + name for prefix in prefixes]
        if any(map(kept.match, names)):
            return None
        for form, targets in rules:
            if targets is None or any(map(targets.match, names)):
                return form
        return None

    @cache
    def matrix_names(layer: Layer) -> list[str]:
        return [matrix.stored for op in operations(model, layer) for matrix in op.matrices if matrix.stored]

    stored_layers: dict[tuple[int, LayerFormats], Layer] = {}  # equal layers are one object
    layers, count = [], len(model.layers)
    for index, layer in enumerate((*model.layers, *model.draft)):
        by_name = {name: format_of(f"layers.{index}.{_spelling(name, model.architecture)}", PREFIXES) for name in matrix_names(layer)}
        formats = tuple((name, form) for name, form in by_name.items() if form is not None)
        layers.append(stored_layers.setdefault((id(layer), formats), replace(layer, formats=formats)))
    if not any(layer.formats for layer in layers):
        return replace(model, quantized=Quantized(quantized.words))
    head = None if model.tied_embeddings else format_of(HEAD, ("", "language_model."))
    return replace(model, layers=tuple(layers[:count]), draft=tuple(layers[count:]), head_format=head, quantized=quantized)


def _spelling(name: str, architecture: str) -> str:
    """Name of the matrix ``name`` in checkpoints of ``architecture``."""
    for pair in RENAMED.get(architecture, "").split():
        old, _, new = pair.partition("=")
        if name.startswith(old):
            return name.replace(old, new, 1)
    return name


KEPT_OF_EXPERTS = ("self_attn*", "linear_attn*")
"""Matrices that NVFP4 checkpoints of models with experts keep in 16 bits besides the head (NVIDIA's DeepSeek-R1, Kimi-K2.5, GLM-5)."""


def published_as(model: ModelSpec, weights_dtype: str | None) -> ModelSpec:
    """``model`` as a checkpoint in ``weights_dtype`` stores it (``floats.PUBLISHED_AS`` or a mixture of GGUF); else unchanged."""
    if weights_dtype is None:
        return model
    from perfmodel.transformer.gguf import MIXTURES, in_gguf

    if weights_dtype in MIXTURES:
        return in_gguf(model, weights_dtype)
    from perfmodel.transformer.weight_formats.floats import PUBLISHED_AS

    if weights_dtype not in PUBLISHED_AS:
        return model
    kept = (HEAD, *(KEPT_OF_EXPERTS if model.is_moe and weights_dtype == "nvfp4" else ()))
    plain = replace(model, layers=tuple(replace(layer, formats=()) for layer in model.layers), head_format=None)
    published = assigned(plain, Quantized(weights_dtype, (PUBLISHED_AS[weights_dtype],), kept))
    if published.quantized is not None and not published.quantized.rules:
        words = f"--weights-dtype {weights_dtype}: checkpoints store experts so, and {model.name} has none"
        raise UsageError(words, "give nvfp4, fp8, int8, int4 or bf16")
    return published


def as_known(weights_dtype: str) -> str:
    """The canonical name of the format: resolves aliases, and names of GGUF in capitals.

    >>> as_known("Q4_K_M"), as_known("F16"), as_known("nvfp4")
    ('q4_k_m', 'fp16', 'nvfp4')
    """
    from perfmodel.transformer.gguf import MIXTURES

    low = weights_dtype.lower()
    if low not in MIXTURES and re.match(r"i?q\d", low):
        raise UsageError(f"--weights-dtype: no format of GGUF files is called {weights_dtype!r}", suggest(low, list(MIXTURES)))
    return low if low in MIXTURES else canonical(weights_dtype)


def served_as(model: ModelSpec, weights_dtype: str | None) -> tuple[ModelSpec, str | None]:
    """``model`` as engines run it in ``weights_dtype``, and the name of the format.

    fp8 is the one of its file, else the one of usual checkpoints: in blocks with experts (DeepSeek, Qwen), a scale per matrix without
    (NVIDIA, Meta).
    """
    stored = model.quantized.main if model.quantized is not None else None
    weights_dtype = weights_dtype and as_known(weights_dtype)
    if weights_dtype == "fp8":
        if stored is not None and stored.compute_dtype == "fp8":
            return model, None
        weights_dtype = "fp8-block" if model.is_moe else "fp8-tensor"
    return published_as(model, weights_dtype), weights_dtype
