"""gpt-oss (OpenAI): biases in attention, router and experts, a learned sink per head.

Defaults: head_dim 64, every other layer, from the first on, with a window of 128, embeddings not tied.
"""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, experts, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import Layer, ModelSpec


def build(facts: Facts) -> ModelSpec:
    """The router's bias has one weight per expert."""
    facts.settled("experts_per_token")
    window = facts.optional("sliding_window", 128)
    windows = facts.windows([None if index % 2 else window for index in range(facts.layers)], window)
    count = facts.whole("num_local_experts", "num_experts")
    mlp = experts(facts, "intermediate_size", bias=True, router_extra=count)
    return model(facts, [Layer(attention(facts, w, head_dim=64, bias=True, sinks=True), mlp) for w in windows], tied=False)
