"""What is measured, the most wanted first: fit and held-out cases in turn and variants side by side, so that a cut leaves all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from perfmodel.timing.base import WARM
from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase
from tools.measure.training.result import BOTH

Sizes = tuple[int, int]

VARIANTS = (("sdpa", False), ("eager", False), ("sdpa", True), ("eager", True))
"""Attention implementation, and whether each layer is checkpointed."""

MEDIUM_FIRST: tuple[tuple[Sizes, Sizes], ...] = (((8, 1024), (4, 1024)), ((4, 512), (8, 512)))
MEDIUM_MORE: tuple[tuple[Sizes, Sizes], ...] = (((1, 256), (2, 768)), ((32, 256), (12, 640)), ((1, 1024), (16, 384)))
MEDIUM_DROPOUT: tuple[tuple[Sizes, Sizes], ...] = (((8, 512), (6, 768)),)
"""gpt2-medium, (batch, n) to fit and held out."""

OTHERS: tuple[tuple[str, Sizes], ...] = (("gpt2", (8, 1024)), ("gpt2-large", (4, 1024)), ("gpt2-xl", (4, 768)))
OTHERS_MORE: tuple[tuple[str, Sizes], ...] = (("gpt2-xl", (8, 256)), ("gpt2-large", (2, 512)), ("gpt2", (16, 512)))
"""Held out: models that no fit sees, and their (batch, n)."""

CHAINS = {
    FIT: (
        ("bf16", 2048, 8192, 16, False),
        ("bf16", 4096, 4096, 8, True),
        ("fp32", 1024, 8192, 16, True),
        ("bf16", 1024, 16384, 64, False),
        ("bf16", 1024, 8192, 32, True),
    ),
    HELD_OUT: (
        ("bf16", 2048, 4096, 32, True),
        ("fp32", 2048, 4096, 12, False),
        ("bf16", 3072, 6144, 24, False),
        ("bf16", 1536, 8192, 64, True),
        ("fp32", 1024, 4096, 36, True),
    ),
}
"""Chains: dtype, d, batch, layers, whether a ReLU follows each."""

ATTENTION = {
    FIT: (
        (8, 16, 1024, 64, False),
        (4, 16, 2048, 64, True),
        (1, 16, 4096, 128, False),
        (2, 32, 2048, 128, True),
        (16, 12, 512, 64, False),
        (2, 8, 1024, 96, True),
    ),
    HELD_OUT: (
        (4, 12, 1536, 64, True),
        (2, 16, 4096, 64, False),
        (8, 16, 768, 128, False),
        (1, 32, 6144, 64, True),
        (16, 16, 640, 64, True),
        (3, 20, 1000, 64, False),
    ),
}
"""Attention: batch, heads, n, d, causal; bf16."""


def cases() -> Iterator[KernelCase]:
    """All of them, in order."""
    yield from _medium(MEDIUM_FIRST)
    yield from _small(0, 2)
    yield from chain.from_iterable(_step(name, size, HELD_OUT, variant) for name, size in OTHERS for variant in VARIANTS)
    yield from _small(2, 4)
    yield from _medium(MEDIUM_MORE)
    yield from _medium(MEDIUM_DROPOUT, 0.1)
    yield from _small(4, 6)
    yield from chain.from_iterable(_step(name, size, HELD_OUT, variant) for name, size in OTHERS_MORE for variant in VARIANTS)


def profiled_cases() -> Iterator[KernelCase]:
    """Steps whose kernels are listed once everything is measured: the first of each variant, and one that launches bound."""
    for (batch, n), _ in (MEDIUM_FIRST[0], MEDIUM_MORE[0]):
        yield from chain.from_iterable(_step("gpt2-medium", (batch, n), FIT, variant) for variant in VARIANTS)


def _medium(pairs: Sequence[tuple[Sizes, Sizes]], dropout: float = 0.0) -> Iterator[KernelCase]:
    for pair in pairs:
        for variant in VARIANTS:
            for role, size in zip((FIT, HELD_OUT), pair, strict=True):
                yield from _step("gpt2-medium", size, role, variant, dropout)


def _step(model: str, size: Sizes, role: str, variant: tuple[str, bool], dropout: float = 0.0) -> Iterator[KernelCase]:
    (batch, n), (attention, checkpointing) = size, variant
    shape: dict[str, Any] = {"model": model, "phase": "train", "batch": batch, "n": n, "tensor_parallel": 1}
    shape |= {"fused_elementwise": False, "cuda_graph": False, "checkpointing": checkpointing, "attention": attention}
    if dropout:
        shape["dropout"] = dropout
    yield KernelCase("transformer", "huggingface", shape, direction=BOTH, role=role, cache=WARM)


def _small(begin: int, end: int) -> Iterator[KernelCase]:
    """Chains and attention: the rows ``begin`` to ``end`` of each set."""
    for at in range(begin, end):
        for role in (FIT, HELD_OUT):
            yield from chain.from_iterable(_attention(row, role) for row in ATTENTION[role][at : at + 1])
            yield from chain.from_iterable(_chain(row, role) for row in CHAINS[role][at : at + 1])


def segment_counts(layers: int) -> list[int]:
    """None checkpointed (1), 2, 4, about the square root, and each layer its own.

    >>> segment_counts(16), segment_counts(24)
    ([1, 2, 4, 16], [1, 2, 4, 5, 24])
    """
    return sorted({1, 2, 4, round(math.sqrt(layers)), layers})


def _chain(row: tuple[str, int, int, int, bool], role: str) -> Iterator[KernelCase]:
    dtype, d, batch, layers, relu = row
    for segments in segment_counts(layers):
        shape: dict[str, Any] = {"layers": layers, "d": d, "batch": batch, "relu": relu, "segments": segments}
        yield KernelCase("mlp-chain", "torch-checkpoint", shape, dtype, BOTH, role, cache=WARM)


def _attention(row: tuple[int, int, int, int, bool], role: str) -> Iterator[KernelCase]:
    batch, heads, n, d, causal = row
    shape: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": heads, "n": n, "kv_len": n, "d": d, "causal": causal}
    masked: dict[str, Any] = {"mask": True} if causal else {}
    yield KernelCase("attention", "torch-eager", shape | masked, direction=BOTH, role=role)
    yield KernelCase("attention", "torch-sdpa-flash", shape, direction=BOTH, role=role)
