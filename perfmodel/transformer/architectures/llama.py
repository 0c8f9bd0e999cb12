"""Llama 1, 2, 3 (Meta). Defaults: KV heads as many as heads, no biases, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, decoder
from perfmodel.transformer.spec import ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Equal layers, all tokens visible."""
    return decoder(fields)
