"""Gemma 3, its text model (Google). Defaults: head_dim 256, a window of 4096 but for every sixth layer, tied embeddings."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, gated, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Gemma 2's four norms, and norms on Q and K."""
    window, mlp = facts.optional("sliding_window", 4096), gated(facts, "gelu_pytorch_tanh")
    every = facts.whole("sliding_window_pattern", default=6)
    windows = facts.windows([window if (index + 1) % every else None for index in range(facts.layers)], window)
    return model(facts, [Layer(attention(facts, w, head_dim=256, qk_norm=True), mlp, norms=4) for w in windows], tied=True)
