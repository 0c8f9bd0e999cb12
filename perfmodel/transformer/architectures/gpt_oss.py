"""gpt-oss (OpenAI): biases in attention, router and experts, a learned sink per head.

Defaults: head_dim 64, every other layer, from the first on, with a window of 128, embeddings not tied.
"""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, model
from perfmodel.transformer.spec import Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """The router's bias has one weight per expert."""
    fields.settled("experts_per_token")
    window = fields.optional("sliding_window", 128)
    windows = fields.windows([None if index % 2 else window for index in range(fields.layers)], window)
    count = fields.whole("num_local_experts", "num_experts")
    mlp = experts(fields, "intermediate_size", bias=True, router_extra=count)
    return model(fields, [Layer(attention(fields, w, head_dim=64, bias=True, sinks=True), mlp) for w in windows], tied=False)
