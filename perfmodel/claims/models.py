"""Whole models as claims ask for them: KV caches, generation, weights, training steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from perfmodel.catalog import calibrated_devices, find_model, find_system
from perfmodel.claims.devices import A100_40, T4, device
from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.core.trace import plain
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.base import key_rows_stored
from perfmodel.transformer.cache_plan import generation_on, workload
from perfmodel.transformer.generation import Generation, with_cache, without_cache
from perfmodel.transformer.kv_cache import CacheFormat, equivalent_kv_heads, layer_token_bytes, token_bytes
from perfmodel.transformer.parameters import attention_matrices, mlp_matrices
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, ModelSpec
from perfmodel.transformer.training.question import Parallel, TrainingConfig
from perfmodel.transformer.training.state import state_bytes
from perfmodel.transformer.training.step.estimate import estimate

TRAINING_SIZES = {"gpt2": 16, "gpt2-medium": 8}
"""Sequences per GPU and micro-batch that fit 40 GB without FlashAttention."""


# KV cache


def kv_elements(batch: Number, n: Number, kv_heads: Number, d: Number) -> Number:
    """K and V of one layer.

    >>> kv_elements(1, 1, 12, 64)
    1536
    """
    return key_rows_stored(Attention(n=1, kv_len=n, d=d, dv=d, batch=batch, heads=kv_heads, kv_heads=kv_heads)) * 2 * d


def cache_bytes(model: str) -> Number:
    """Bytes that a shipped model keeps of a token, 16 bit."""
    return token_bytes(find_model(model), CacheFormat())


def latent(model: str) -> LatentAttention:
    """The latent attention of a shipped model."""
    attention = find_model(model).layers[0].attention
    assert isinstance(attention, LatentAttention)
    return attention


def latent_groups(model: str) -> Number:
    """KV heads of grouped attention that keep as much."""
    return equivalent_kv_heads(latent(model))


def narrow_latent_bytes(model: str) -> Number:
    """Bytes of one layer and token: fp8 latent with a scale per 128 elements, bf16 rotated key."""
    return layer_token_bytes(latent(model), CacheFormat("fp8", "bf16", scale_group=128))


# Generation


def _gpt2(n: Number, cached: bool) -> Generation:
    spec = find_model("gpt2")
    return with_cache(spec, n, "fp32", CacheFormat("fp32")) if cached else without_cache(spec, n, "fp32")


def matrix_flops(n: Number, cached: bool) -> Number:
    """FLOP of GPT-2's layers without attention, to generate ``n`` tokens."""
    return _gpt2(n, cached).layers


def layer_flops(n: Number, cached: bool) -> Number:
    """The same with attention."""
    found = _gpt2(n, cached)
    return found.layers + found.attention


def generation_gain(n: Number) -> Number:
    """How many times faster a KV cache makes ``n`` tokens of GPT-2 in fp32 on a T4, at its roofs."""
    times = generation_on(workload(find_model("gpt2"), plain(n), 1, CacheFormat("fp32"), "fp32"), device(T4))
    assert not isinstance(times, UnavailableError)
    cached, uncached = (one.cost.roofline_s for one in times)
    return uncached / cached


def _with_heads(kv_heads: Number) -> ModelSpec:
    """Llama-2-70B with another number of KV heads."""
    spec = find_model("llama-2-70b")
    layer = spec.layers[0]
    assert isinstance(layer.attention, GroupedAttention)
    return replace(spec, layers=(replace(layer, attention=replace(layer.attention, kv_heads=kv_heads)),) * len(spec.layers))


def step_bytes(kv_heads: Number, n: Number, batch: Number) -> Number:
    """Bytes that a decode step of Llama-2-70B with so many KV heads reads: weights once, ``batch`` caches of ``n`` tokens."""
    spec = _with_heads(kv_heads)
    weights = with_cache(spec, 1, "fp16", CacheFormat()).weights_read
    return weights + batch * n * token_bytes(spec, CacheFormat())


# Weights and training


def projections(d: Number, heads: Number, kv_heads: Number, head_dim: Number) -> Number:
    """Weights of Q, K, V and O."""
    return attention_matrices(d, GroupedAttention(heads, kv_heads, head_dim))


def layer_weights(d: Number, heads: Number, kv_heads: Number, head_dim: Number, hidden: Number) -> Number:
    """Weights of one layer's attention and two-matrix feed-forward part."""
    return projections(d, heads, kv_heads, head_dim) + mlp_matrices(d, hidden, gated=False)


def state_per_parameter(zero: Number, dp: Number) -> Number:
    """Bytes per parameter of weights, gradients and Adam's state on each of ``dp`` GPUs."""
    state = state_bytes(TrainingConfig(find_model("llama-2-7b"), dp, 1, parallel=Parallel(dp=int(dp), zero=int(zero))))
    return state.total / state.parameters


_lenders = cache(calibrated_devices)


@cache
def _step_s(model: str, implementation: str, flash: bool, n: Number) -> float:
    """Seconds of a step of 512 x 1024 tokens on 8 A100 40 GB, dropout and mixed precision."""
    micro = TRAINING_SIZES[model] * 1024 // int(n)
    spec = replace(find_model(model), max_positions=max(1024, int(n)))
    training = TrainingConfig(spec, 512 * 1024 // int(n), n, micro, flash=flash, dropout=True, parallel=Parallel(dp=8))
    found = estimate(training, device(A100_40), _lenders, find_system("selene-a100"), implementation, half="fp16", overlap=True)
    return found.seconds


def huggingface_s(model: str) -> float:
    """Seconds of a training step of the modules of huggingface/transformers, as published before FlashAttention."""
    return _step_s(model, "huggingface", False, 1024)


def megatron_s(model: str) -> float:
    """The same with fused kernels, and scores in memory, as Megatron-LM has them."""
    return _step_s(model, "fused", False, 1024)


def flash_s(model: str, n: Number = 1024) -> float:
    """The same with FlashAttention, at context ``n`` and as many tokens a step."""
    return _step_s(model, "fused", True, n)
