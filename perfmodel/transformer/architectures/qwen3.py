"""Qwen 3 (Alibaba): norms on Q and K. Defaults: head_dim 128, no biases, no window, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, attention, gated, model, qwen_windows
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Heads together may be wider than the hidden state."""
    mlp = gated(fields)
    return model(fields, [Layer(attention(fields, w, head_dim=128, qk_norm=True), mlp) for w in qwen_windows(fields)], tied=False)
