"""Mixtral (Mistral AI): every MLP is a mixture of experts. Defaults: no window, two experts per token, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, model
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Mistral's attention over experts."""
    layer = Layer(attention(fields, fields.optional("sliding_window")), experts(fields, "intermediate_size", per_token=2))
    return model(fields, [layer] * fields.layers, tied=False)
