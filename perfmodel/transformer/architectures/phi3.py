"""Phi-3 and Phi-4 (Microsoft): Q, K and V from one matrix, gate and up from another. Defaults: no window, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, attention, gated, model
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Fused matrices have as many weights as separate ones."""
    return model(fields, [Layer(attention(fields, fields.optional("sliding_window")), gated(fields))] * fields.layers, tied=False)
