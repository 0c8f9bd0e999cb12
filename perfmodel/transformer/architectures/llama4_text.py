"""Llama 4, its text model (Meta): a shared expert beside the others, and attention in chunks.

Three of four layers attend within chunks of attention_chunk_size (8192) tokens. A chunk is counted as a window of that size:
what a cache reserves. Norms on Q and K have no weights. Defaults: one expert per token, embeddings not tied.
"""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, experts, gated, model
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def build(facts: Facts) -> ModelSpec:
    """Layers without rotated positions (every no_rope_layer_interval-th) see all tokens."""
    facts.settled("intermediate_size_mlp")
    every, chunk = facts.whole("no_rope_layer_interval", default=4), facts.optional("attention_chunk_size", 8192)
    rotated = facts.numbers("no_rope_layers", facts.layers) or [int((index + 1) % every != 0) for index in range(facts.layers)]
    windows = facts.windows([chunk if rotated[index] else None for index in range(facts.layers)], chunk)
    step = facts.whole("interleave_moe_layer_step", default=1)
    chosen = facts.numbers("moe_layers")
    moe = set(range(step - 1, facts.layers, step) if chosen is None else chosen)
    width = facts.whole("intermediate_size")
    mlps: dict[bool, DenseMlp | MoeMlp] = {True: experts(facts, "intermediate_size", per_token=1, shared_width=width)}
    if len(moe) < facts.layers:
        mlps[False] = gated(facts, field="intermediate_size_mlp")
    return model(facts, [Layer(attention(facts, w), mlps[index in moe]) for index, w in enumerate(windows)], tied=False)
