"""Gemma 2 (Google). Defaults: head_dim 256, every other layer, from the first on, with a window of 4096, tied embeddings."""

from perfmodel.transformer.architectures._parts import HfFields, attention, gated, model
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Norms before and after both attention and MLP."""
    fields.settled("alternating_sliding")
    window, mlp = fields.optional("sliding_window", 4096), gated(fields, "gelu_pytorch_tanh")
    windows = fields.windows([None if index % 2 else window for index in range(fields.layers)], window)
    return model(fields, [Layer(attention(fields, w, head_dim=256), mlp, norms=4) for w in windows], tied=True)
