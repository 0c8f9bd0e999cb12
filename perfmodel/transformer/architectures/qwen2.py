"""Qwen 1.5, 2 and 2.5 (Alibaba): Q, K and V have biases, O has none. Defaults: no window, embeddings not tied."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, gated, model, qwen_windows
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """The biases do not depend on attention_bias."""
    facts.settled("attention_bias")
    mlp = gated(facts)
    layers = [Layer(attention(facts, window, qkv_bias=True, output_bias=False), mlp) for window in qwen_windows(facts)]
    return model(facts, layers, tied=False)
