"""Gemma 2 (Google). Defaults: head_dim 256, every other layer, from the first on, with a window of 4096, tied embeddings."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, gated, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Norms before and after both attention and MLP."""
    facts.settled("alternating_sliding")
    window, mlp = facts.optional("sliding_window", 4096), gated(facts, "gelu_pytorch_tanh")
    windows = facts.windows([None if index % 2 else window for index in range(facts.layers)], window)
    return model(facts, [Layer(attention(facts, w, head_dim=256), mlp, norms=4) for w in windows], tied=True)
