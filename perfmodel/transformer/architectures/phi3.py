"""Phi-3 and Phi-4 (Microsoft): Q, K and V from one matrix, gate and up from another. Defaults: no window, embeddings not tied."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, gated, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Fused matrices have as many weights as separate ones."""
    return model(facts, [Layer(attention(facts, facts.optional("sliding_window")), gated(facts))] * facts.layers, tied=False)
