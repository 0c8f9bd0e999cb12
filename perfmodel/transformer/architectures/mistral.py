"""Mistral 7B and its successors. Defaults: a window of 4096 on every layer (null: none), embeddings not tied."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, gated, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Llama's layers with a window."""
    window = facts.optional("sliding_window", 4096)
    windows = facts.windows([window] * facts.layers, window)
    return model(facts, [Layer(attention(facts, w), gated(facts)) for w in windows], tied=False)
