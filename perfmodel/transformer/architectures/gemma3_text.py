"""Gemma 3, its text model (Google). Defaults: head_dim 256, a window of 4096 but for every sixth layer, tied embeddings."""

from perfmodel.transformer.architectures._parts import HfFields, attention, gated, model
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Gemma 2's four norms, and norms on Q and K."""
    window, mlp = fields.optional("sliding_window", 4096), gated(fields, "gelu_pytorch_tanh")
    every = fields.whole("sliding_window_pattern", default=6)
    windows = fields.windows([window if (index + 1) % every else None for index in range(fields.layers)], window)
    return model(fields, [Layer(attention(fields, w, head_dim=256, qk_norm=True), mlp, norms=4) for w in windows], tied=True)
