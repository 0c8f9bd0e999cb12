"""Which matrix of which layer a quantization_config stores how: its patterns, met with the names that Hugging Face gives the modules."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.transformer.spec import Layer, LayerFormats, ModelSpec, MoeMlp
from perfmodel.transformer.weight_formats._base import PREFIXES, MatrixFormat, Quantized, matcher

HEAD = "lm_head"
MLP = ("gate_proj", "up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
RENAMED = {
    "gpt2": "self_attn.o_proj=attn.c_proj self_attn.=attn.c_attn. mlp.up=mlp.c_fc. mlp.down=mlp.c_proj.",
    "gpt_oss": "mlp.experts.0.=mlp.experts.",
    "llama4_text": "mlp.experts.0.=feed_forward.experts. mlp.shared_experts.=feed_forward.shared_expert. mlp.=feed_forward.",
    "mixtral": "mlp.experts.0.gate_proj=block_sparse_moe.experts.0.w1 mlp.experts.0.up_proj=block_sparse_moe.experts.0.w3 "
    "mlp.experts.0.down_proj=block_sparse_moe.experts.0.w2",
    "phi3": "self_attn.q_=self_attn.qkv_ self_attn.k_=self_attn.qkv_ self_attn.v_=self_attn.qkv_ "
    "mlp.gate_=mlp.gate_up_ mlp.up_=mlp.gate_up_",
    "qwen2_moe": "mlp.shared_experts.=mlp.shared_expert.",
}
"""Where an architecture's names differ from Llama's and DeepSeek's, in the order of replacement."""


def assigned(model: ModelSpec, found: Quantized | None) -> ModelSpec:
    """``model`` with the format of each of its matrices, which nothing here reads if it is that of none. Experts of a layer are alike."""
    if found is None or not found.rules:
        return replace(model, quantized=found)
    kept = matcher(found.kept)
    rules = [(rule.stored, None if rule.targets is None else matcher(rule.targets)) for rule in found.rules]

    def stored(name: str, prefixes: tuple[str, ...]) -> MatrixFormat | None:
        names = [prefix + name for prefix in prefixes]
        if any(kept.match(one) for one in names):
            return None
        return next((form for form, targets in rules if targets is None or any(targets.match(one) for one in names)), None)

    def formats(index: int, layer: Layer) -> LayerFormats:
        found = {name: stored(f"layers.{index}.{_spelt(name, model.architecture)}", PREFIXES) for name in modules(layer)}
        return tuple((name, form) for name, form in found.items() if form is not None)

    made: dict[tuple[int, LayerFormats], Layer] = {}
    layers, count = [], len(model.layers)
    for index, layer in enumerate((*model.layers, *model.draft)):
        own = formats(index, layer)
        layers.append(made.setdefault((id(layer), own), replace(layer, formats=own)))
    if not any(layer.formats for layer in layers):
        return replace(model, quantized=Quantized(found.words))
    head = None if model.tied_embeddings else stored(HEAD, ("", "language_model."))
    return replace(model, layers=tuple(layers[:count]), draft=tuple(layers[count:]), head_format=head, quantized=found)


def modules(layer: Layer) -> list[str]:
    """Names of the layer's matrices, as Llama and DeepSeek have them."""
    mlps = ("mlp.experts.0.", "mlp.shared_experts.") if isinstance(layer.mlp, MoeMlp) else ("mlp.",)
    return [*(f"self_attn.{name}" for name in ATTENTION), *(f"{mlp}{name}" for mlp in mlps for name in MLP)]


def _spelt(name: str, architecture: str) -> str:
    for pair in RENAMED.get(architecture, "").split():
        old, _, new = pair.partition("=")
        if name.startswith(old):
            return name.replace(old, new, 1)
    return name
