"""Qwen 1.5 and 2 mixtures: a gated shared expert beside the others. Defaults: biases of Q, K and V, embeddings not tied."""

from __future__ import annotations

from perfmodel.transformer.architectures._parts import attention, experts, gated, model, qwen_windows, sparse_layers
from perfmodel.transformer.facts import Facts
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def build(facts: Facts) -> ModelSpec:
    """The shared expert has a width of its own and a learned gate."""
    facts.settled("attention_bias", "intermediate_size")
    shared = facts.whole("shared_expert_intermediate_size")
    mlps: dict[bool, DenseMlp | MoeMlp] = {True: experts(facts, "moe_intermediate_size", shared_width=shared, shared_gate=True)}
    if not all(sparse_layers(facts)):
        mlps[False] = gated(facts)
    bias = facts.flag("qkv_bias", True)
    kinds = zip(qwen_windows(facts), sparse_layers(facts), strict=True)
    return model(facts, [Layer(attention(facts, w, qkv_bias=bias, output_bias=False), mlps[moe]) for w, moe in kinds], tied=False)
