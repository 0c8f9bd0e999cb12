"""Mistral 7B and its successors. Defaults: a window of 4096 on every layer (null: none), embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, attention, gated, model
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Llama's layers with a window."""
    window = fields.optional("sliding_window", 4096)
    windows = fields.windows([window] * fields.layers, window)
    return model(fields, [Layer(attention(fields, w), gated(fields)) for w in windows], tied=False)
