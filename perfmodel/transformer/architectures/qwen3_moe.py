"""Qwen 3 mixtures (Alibaba): Qwen 3's attention over experts, none shared. Defaults: no window, embeddings not tied."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, experts, gated, model, sparse_layers
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def build(facts: Facts) -> ModelSpec:
    """A window, if use_sliding_window, is on every layer."""
    facts.settled("max_window_layers", "intermediate_size", "shared_expert_intermediate_size")
    window = facts.optional("sliding_window", 4096)
    window = window if facts.flag("use_sliding_window", False) else None
    heads = attention(facts, window, qk_norm=True)
    mlps: dict[bool, DenseMlp | MoeMlp] = {True: experts(facts, "moe_intermediate_size")}
    if not all(sparse_layers(facts)):
        mlps[False] = gated(facts)
    return model(facts, [Layer(heads, mlps[moe]) for moe in sparse_layers(facts)], tied=False)
