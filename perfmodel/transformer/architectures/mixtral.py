"""Mixtral (Mistral AI): every MLP is a mixture of experts. Defaults: no window, two experts per token, embeddings not tied."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, experts, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Mistral's attention over experts."""
    layer = Layer(attention(facts, facts.optional("sliding_window")), experts(facts, "intermediate_size", per_token=2))
    return model(facts, [layer] * facts.layers, tied=False)
