"""Llama 1, 2, 3 (Meta). Defaults: KV heads as many as heads, no biases, embeddings not tied."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import decoder
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Equal layers, all tokens visible."""
    return decoder(facts)
