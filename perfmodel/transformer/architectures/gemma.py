"""Gemma 1 (Google). Defaults: head_dim 256, no biases, tied embeddings."""

from perfmodel.transformer.architectures._parts import HfFields, attention, gated, model
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Llama's layers with GeGLU."""
    layer = Layer(attention(fields, head_dim=256), gated(fields, "gelu_pytorch_tanh"))
    return model(fields, [layer] * fields.layers, tied=True)
