"""Formulas that claims share, built from the project's own. Attention is fp16, one head per batch entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfmodel.arith import Number
from perfmodel.attention.algorithms import block_sparse, flash1, flash2, standard
from perfmodel.attention.base import key_rows_stored, matmul_flops
from perfmodel.attention.evaluate import memory
from perfmodel.attention.patterns import Density
from perfmodel.attention.walk import visible_scores
from perfmodel.bounds import theta
from perfmodel.claims.base import device
from perfmodel.cost import READ, WRITE, ZERO_FILL, Kernel, Tile, memory_bytes
from perfmodel.dtypes import STATISTIC_SIZE
from perfmodel.trace import named
from perfmodel.workload import FORWARD, Attention

UNTILED = Tile(1, 1)


def square(n: Number, d: Number, batch: Number = 1, **options: bool | float) -> Attention:
    """Self-attention over ``n`` tokens."""
    return Attention(n=n, kv_len=n, d=d, dv=d, batch=batch, **options)  # type: ignore[arg-type]


def elements(kernels: Iterable[Kernel]) -> Number:
    """Reads and writes, in elements."""
    return sum(named(f"[{kernel.name}]", "elements", kernel.elements(READ, WRITE)) for kernel in kernels)


def moved_bytes(kernels: Iterable[Kernel], *kinds: str) -> Number:
    """Reads and writes, and accesses of other ``kinds``, in bytes."""
    return sum(named(f"[{kernel.name}]", "B", kernel.bytes(READ, WRITE, *kinds)) for kernel in kernels)


def _executed(kernels: Iterable[Kernel]) -> Number:
    return sum(named(f"[{kernel.name}]", "FLOP", kernel.executed_flops) for kernel in kernels)


# Standard attention


def score_bytes(n: Number, d: Number, batch: Number = 1) -> Number:
    """Bytes of the N x N scores that the first kernel writes."""
    return standard.forward(square(n, d, batch), UNTILED)[0].bytes(WRITE)


def query_key_read_bytes(n: Number, d: Number, batch: Number) -> Number:
    """Bytes of Q and K that the first kernel reads."""
    return standard.forward(square(n, d, batch), UNTILED)[0].bytes(READ)


def query_key_intensity(n: Number, d: Number) -> Number:
    """FLOP/B of Q K^T alone."""
    first = standard.forward(square(n, d), UNTILED)[0]
    return first.flops / first.bytes(READ, WRITE)


def table_bytes(n: Number, d: Number) -> Number:
    """Bytes with mask and dropout as kernels of their own; neither the mask itself nor the dropout decisions counted."""
    kernels = standard.forward(square(n, d, mask=True, dropout=0.1), UNTILED)
    return sum(access.bytes for kernel in kernels for access in kernel.accesses if access.tensor not in ("mask", "dropout mask"))


def decision_bytes(n: Number, d: Number) -> Number:
    """Bytes of the dropout decisions that the forward pass stores."""
    kernels = standard.forward(square(n, d, mask=True, dropout=0.1), UNTILED)
    return sum(access.bytes for kernel in kernels for access in kernel.accesses if access.tensor == "dropout mask")


def table_intensity(n: Number, d: Number) -> Number:
    """FLOP per byte of ``table_bytes``: both matmuls, and 2 FLOP per score for each of mask, softmax and dropout."""
    w = square(n, d)
    return (matmul_flops(w, 1, 1) + 6 * visible_scores(w)) / table_bytes(n, d)


def standard_forward(n: Number, d: Number) -> Number:
    """Elements that the forward pass moves."""
    return elements(standard.forward(square(n, d), UNTILED))


def standard_backward(n: Number, d: Number) -> Number:
    """Elements that the backward pass moves."""
    return elements(standard.backward(square(n, d), UNTILED))


def kernel_count(n: Number, d: Number) -> Number:
    """Kernels of the forward pass."""
    return len(standard.forward(square(n, d), UNTILED))


def masked_kernel_count(n: Number, d: Number) -> Number:
    """The same with a mask."""
    return len(standard.forward(square(n, d, mask=True), UNTILED))


def tensor_passes(n: Number, d: Number, kind: str) -> Number:
    """How often the forward pass reads or writes a tensor."""
    return sum(access.kind == kind for kernel in standard.forward(square(n, d), UNTILED) for access in kernel.accesses)


# FlashAttention


def paper_tile(m: Number, d: Number) -> Tile:
    """The tile of Algorithm 1 for 16-bit elements, ``m`` of which fit the SRAM.

    >>> tile = paper_tile(98304, 64)
    >>> tile.br, tile.bc
    (64, 384)
    """
    return flash1.default_tile(square(1, d), device("nvidia-a100-sxm-40gb"), 2 * m, FORWARD)


def flash1_forward(n: Number, d: Number, m: Number) -> Number:
    """Elements that Algorithm 1 moves."""
    return elements(flash1.forward(square(n, d), paper_tile(m, d)))


def flash2_forward(n: Number, d: Number, br: Number, bc: Number) -> Number:
    """Elements that FlashAttention-2's forward pass moves."""
    return elements(flash2.forward(square(n, d), Tile(br, bc)))


def _flash1_both(n: Number, d: Number, heads: Number, batch: Number, br: Number, bc: Number) -> list[Kernel]:
    w, tile = square(n, d, batch * heads), Tile(br, bc)
    return [*flash1.forward(w, tile), *flash1.backward(w, tile)]


def flash1_both_bytes(n: Number, d: Number, heads: Number, batch: Number, br: Number, bc: Number) -> Number:
    """Bytes that Algorithms 1 and 4 move."""
    return moved_bytes(_flash1_both(n, d, heads, batch, br, bc))


def flash1_both_bytes_filled(n: Number, d: Number, heads: Number, batch: Number, br: Number, bc: Number) -> Number:
    """The same with every zero fill."""
    return moved_bytes(_flash1_both(n, d, heads, batch, br, bc), ZERO_FILL)


def flash1_both_flops(n: Number, d: Number, heads: Number, batch: Number, br: Number, bc: Number) -> Number:
    """FLOP of the matmuls of Algorithms 1 and 4 as run, recomputation included."""
    return _executed(_flash1_both(n, d, heads, batch, br, bc))


def standard_both_bytes(n: Number, d: Number, heads: Number, batch: Number) -> Number:
    """Bytes of Algorithms 0 and 3, with mask and dropout as kernels of their own; the mask, of all heads, comes from DRAM once."""
    w = square(n, d, batch * heads, mask=True, dropout=0.1)
    kernels = [*standard.forward(w, UNTILED), *standard.backward(w, UNTILED)]
    again = sum((one.elements - one.footprint) * one.element_size for kernel in kernels for one in kernel.accesses if one.tensor == "mask")
    return moved_bytes(kernels) - again


def plain_both_bytes(n: Number, d: Number, heads: Number, batch: Number) -> Number:
    """Bytes of Algorithms 0 and 3 alone."""
    w = square(n, d, batch * heads)
    return moved_bytes([*standard.forward(w, UNTILED), *standard.backward(w, UNTILED)])


def standard_both_flops(n: Number, d: Number, heads: Number, batch: Number) -> Number:
    """FLOP of the matmuls of Algorithms 0 and 3."""
    w = square(n, d, batch * heads)
    return _executed([*standard.forward(w, UNTILED), *standard.backward(w, UNTILED)])


def fused_memory(n: Number, d: Number) -> Number:
    """Bytes of every tensor of FlashAttention-2's forward pass."""
    return memory_bytes(flash2.forward(square(n, d), Tile(128, 128)))


def _statistics(kernels: list[Kernel], w: Attention) -> Number:
    return memory(kernels, w)[1] / STATISTIC_SIZE


def flash1_statistics(n: Number, d: Number) -> Number:
    """Numbers that FlashAttention-1 keeps beside inputs and outputs."""
    return _statistics(flash1.forward(square(n, d), Tile(64, 64)), square(n, d))


def flash2_statistics(n: Number, d: Number) -> Number:
    """Numbers that FlashAttention-2 keeps beside inputs and outputs."""
    return _statistics(flash2.forward(square(n, d), Tile(64, 64)), square(n, d))


def block_sparse_streamed(n: Number, d: Number, numerator: Number, denominator: Number, br: Number, bc: Number) -> Number:
    """Elements of block-sparse FlashAttention beside K and V, a share ``numerator / denominator`` of the blocks nonzero.

    >>> block_sparse_streamed(1024, 64, 1, 1, 64, 384) + 2 * 1024 * 64 == flash1_forward(1024, 64, 98304)
    True
    """
    w = replace(square(n, d), sparsity=Density(int(numerator), int(denominator)))
    return elements(block_sparse.forward(w, Tile(br, bc))) - 2 * d * key_rows_stored(w)


def sram_over_d2(m: Number, d: Number) -> Number:
    """M / d^2: N^2 over the growth class N^2 d^2 / M without its constant."""
    n = 1 << 20
    bound = theta(square(n, d), m)
    assert bound is not None
    return n * n / bound.value_without_constant


# Devices


def ridge_point(flops_per_s: Number, bandwidth: Number) -> Number:
    """FLOP/B at which compute and memory take the same time.

    Source: roofline model, Williams, Waterman & Patterson 2009.

    >>> ridge_point(312e12, 1.5e12)
    208.0
    """
    return flops_per_s / bandwidth


def quotient(before: Number, after: Number) -> Number:
    """How many times ``before`` is ``after``.

    Source: the two numbers as published.
    """
    return before / after
