"""Gemma 1 (Google). Defaults: head_dim 256, no biases, tied embeddings."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, gated, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """Llama's layers with GeGLU."""
    layer = Layer(attention(facts, head_dim=256), gated(facts, "gelu_pytorch_tanh"))
    return model(facts, [layer] * facts.layers, tied=True)
