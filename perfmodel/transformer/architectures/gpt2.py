"""GPT-2 and GPT-3 (OpenAI): learned positions, plain MLPs, layer norms, biases everywhere. Defaults: width 4 n_embd, tied embeddings."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import grouped, model, split
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Fields have GPT-2's own names: n_embd, n_layer, n_head, n_inner, n_positions (once n_ctx)."""
    hidden, heads = facts.whole("n_embd"), facts.whole("n_head")
    mlp = DenseMlp(facts.whole("n_inner", default=4 * hidden), gated=False, bias=True, activation="gelu")
    layer = Layer(grouped(heads, heads, split(facts, heads), None, qkv_bias=True, output_bias=True), mlp)
    positions = facts.whole("n_positions", "n_ctx")
    return model(facts, [layer] * facts.layers, tied=True, norm="layer", learned_positions=True, max_positions=positions)
