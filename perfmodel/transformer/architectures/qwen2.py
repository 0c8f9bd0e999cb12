"""Qwen 1.5, 2 and 2.5 (Alibaba): Q, K and V have biases, O has none. Defaults: no window, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, attention, gated, model, qwen_windows
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """The biases do not depend on attention_bias."""
    fields.settled("attention_bias")
    mlp = gated(fields)
    layers = [Layer(attention(fields, window, qkv_bias=True, output_bias=False), mlp) for window in qwen_windows(fields)]
    return model(fields, layers, tied=False)
