"""Counts of attention that claims are checked with. fp16, one head per batch entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfmodel.claims.devices import A100_40, SXM_80, device
from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, ZERO_FILL, Access, Kernel, Tile, memory_bytes
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.roofline import estimate
from perfmodel.core.trace import named
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms import block_sparse, flash1, flash2, memory_efficient, split_kv, standard
from perfmodel.kernels.attention.base import key_rows_stored, matmul_flops
from perfmodel.kernels.attention.evaluate import memory
from perfmodel.kernels.attention.io_bounds import compulsory_elements, theta
from perfmodel.kernels.attention.patterns import Density
from perfmodel.kernels.attention.walk import key_tiles, row_tiles, visible_scores

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


def query_key_flops(n: Number, d: Number, batch: Number) -> Number:
    """FLOP of Q K^T."""
    return standard.forward(square(n, d, batch), UNTILED)[0].flops


def query_key_intensity(n: Number, d: Number) -> Number:
    """FLOP/B of Q K^T alone."""
    first = standard.forward(square(n, d), UNTILED)[0]
    return first.flops / first.bytes(READ, WRITE)


def _table(n: Number, d: Number) -> list[tuple[str, Access]]:
    """Every access of the forward pass, by kernel, with mask and dropout as kernels of their own."""
    kernels = standard.forward(square(n, d, mask=True, dropout=0.1), UNTILED)
    return [(kernel.name, access) for kernel in kernels for access in kernel.accesses]


def table_bytes(n: Number, d: Number) -> Number:
    """Bytes of matrices that are read or written, what the mask and the dropout decisions take not counted."""
    return sum(access.bytes for _, access in _table(n, d) if "mask" not in access.tensor)


def probabilities_read_bytes(n: Number, d: Number) -> Number:
    """Bytes that P V reads of P."""
    return sum(access.bytes for kernel, access in _table(n, d) if kernel == "O = P V" and access.tensor == "dropped P")


def decision_bytes(n: Number, d: Number) -> Number:
    """Bytes of the dropout decisions that the forward pass stores."""
    return sum(access.bytes for _, access in _table(n, d) if access.tensor == "dropout mask")


def table_intensity(n: Number, d: Number) -> Number:
    """FLOP per byte of ``table_bytes``: both matmuls, and 2 FLOP per score for each of mask, softmax and dropout."""
    w = square(n, d)
    return (matmul_flops(w, 1, 1) + 6 * visible_scores(w)) / table_bytes(n, d)


def standard_forward(n: Number, d: Number) -> Number:
    """Elements that the forward pass moves."""
    return elements(standard.forward(square(n, d), UNTILED))


def standard_bytes(n: Number, d: Number) -> Number:
    """Bytes that the forward pass moves."""
    return moved_bytes(standard.forward(square(n, d), UNTILED))


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
    return flash1.default_tile(square(1, d), device(A100_40), 2 * m, FORWARD)


def flash1_forward(n: Number, d: Number, m: Number) -> Number:
    """Elements that Algorithm 1 moves."""
    return elements(flash1.forward(square(n, d), paper_tile(m, d)))


def flash2_forward(n: Number, d: Number, br: Number, bc: Number) -> Number:
    """Elements that FlashAttention-2's forward pass moves."""
    return elements(flash2.forward(square(n, d), Tile(br, bc)))


def output_rows_per_pair(n: Number, d: Number, br: Number, bc: Number) -> Number:
    """Rows of O that Algorithm 1 writes for a pair of a query and a key tile."""
    w = square(n, d)
    accesses = [access for kernel in flash1.forward(w, Tile(br, bc)) for access in kernel.accesses]
    written = sum(access.elements for access in accesses if access.tensor == "O" and access.kind == WRITE)
    return written / (d * key_tiles(w, bc) * row_tiles(w, br))


def accesses_ratio(n: Number, d: Number, m: Number) -> Number:
    """Elements of Algorithm 1 over those of standard attention."""
    return flash1_forward(n, d, m) / standard_forward(n, d)


def largest_head_dim(m: Number) -> Number:
    """The head dim up to which Algorithm 1 moves less than standard attention, by the leading terms that it declares."""
    assert flash1.ALGORITHM.pays_while is not None
    return flash1.ALGORITHM.pays_while[1](m, Tile(1, 1))


def flash1_backward(n: Number, d: Number, m: Number) -> Number:
    """Elements that Algorithm 4 moves."""
    return elements(flash1.backward(square(n, d), paper_tile(m, d)))


def decode_ratio(n: Number, d: Number) -> Number:
    """Bytes of standard attention over those of split-KV flash decoding, one query against ``n`` keys."""
    w = Attention(n=1, kv_len=n, d=d, dv=d)
    return moved_bytes(standard.forward(w, UNTILED)) / moved_bytes(split_kv.forward(w, Tile(1, 128)))


def decode_intensity(n: Number, d: Number, batch: Number) -> Number:
    """FLOP/B of attention to ``n`` cached keys in each of ``batch`` sequences."""
    [kernel] = flash2.forward(Attention(n=1, kv_len=n, d=d, dv=d, batch=batch), Tile(1, 128))
    return kernel.flops / kernel.bytes(READ, WRITE)


def chunked_forward(n: Number, d: Number) -> Number:
    """Elements that memory-efficient attention moves in plain kernels."""
    return sum(kernel.elements(READ, WRITE) for kernel in memory_efficient.forward(square(n, d), Tile(1024, 4096)))


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


def _standard_both(n: Number, d: Number, heads: Number, batch: Number, **options: bool | float) -> list[Kernel]:
    w = square(n, d, batch * heads, **options)
    return [*standard.forward(w, UNTILED), *standard.backward(w, UNTILED)]


def plain_both_bytes(n: Number, d: Number, heads: Number, batch: Number) -> Number:
    """Bytes of Algorithms 0 and 3 alone."""
    return moved_bytes(_standard_both(n, d, heads, batch))


def _mask_once_bytes(kernels: list[Kernel]) -> Number:
    """Bytes that ``kernels`` move, an additive mask of all heads counted once: the L2 holds it."""
    masks = [access for kernel in kernels for access in kernel.accesses if access.tensor == "mask"]
    return moved_bytes(kernels) - sum((mask.elements - mask.footprint) * mask.element_size for mask in masks)


def standard_both_bytes(n: Number, d: Number, heads: Number, batch: Number) -> Number:
    """The same with mask and dropout as kernels of their own."""
    return _mask_once_bytes(_standard_both(n, d, heads, batch, mask=True, dropout=0.1))


def scaled_both_bytes(n: Number, d: Number, heads: Number, batch: Number) -> Number:
    """The same with 1/sqrt(d) as a kernel of its own too."""
    return _mask_once_bytes(_standard_both(n, d, heads, batch, mask=True, dropout=0.1, unfused_scale=True))


def fewer_writes(n: Number, d: Number, heads: Number, batch: Number, br: Number, bc: Number) -> Number:
    """Bytes written by standard attention, with mask and dropout, over those of Algorithms 1 and 4 with every zero fill."""
    kernels = _standard_both(n, d, heads, batch, mask=True, dropout=0.1)
    return sum(kernel.bytes(WRITE) for kernel in kernels) / sum(
        kernel.bytes(WRITE, ZERO_FILL) for kernel in _flash1_both(n, d, heads, batch, br, bc)
    )


def standard_both_flops(n: Number, d: Number, heads: Number, batch: Number) -> Number:
    """FLOP of the matmuls of Algorithms 0 and 3."""
    return _executed(_standard_both(n, d, heads, batch))


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


def head_flops(n: Number, d: Number) -> Number:
    """Matmul FLOP of one head, forward."""
    return matmul_flops(square(n, d), 1, 1)


def causal_entries(n: Number, d: Number) -> Number:
    """Scores that a causal mask leaves."""
    return visible_scores(square(n, d, causal=True))


def outer_passes(n: Number, d: Number, m: Number) -> Number:
    """Key tiles of Algorithm 1."""
    return key_tiles(square(n, d), paper_tile(m, d).bc)


def must_move(n: Number, d: Number) -> Number:
    """Elements that any exact algorithm moves."""
    return compulsory_elements(square(n, d), FORWARD)


def growth_class(n: Number, d: Number, m: Number) -> Number:
    """N^2 d^2 / M, or the class that holds at this M, without its constant."""
    bound = theta(square(n, d), m)
    assert bound is not None
    return bound.value_without_constant


def traffic_over_arithmetic(n: Number, d: Number, br: Number, bc: Number, flops_per_s: Number, bandwidth: Number) -> Number:
    """Seconds of Algorithm 1's accesses at ``bandwidth`` over those of its matmuls at ``flops_per_s``; as many for every head."""
    kernels = flash1.forward(square(n, d), Tile(br, bc))
    return moved_bytes(kernels) / bandwidth / (sum(kernel.executed_flops for kernel in kernels) / flops_per_s)


def standard_training_bytes(n: Number, d: Number, batch: Number) -> Number:
    """Bytes of every tensor of standard attention's backward pass with dropout."""
    return memory_bytes(standard.backward(square(n, d, batch, dropout=0.1), UNTILED))


def fused_training_bytes(n: Number, d: Number, batch: Number) -> Number:
    """Bytes of every tensor of Algorithm 4."""
    return memory_bytes(flash1.backward(square(n, d, batch, dropout=0.1), Tile(64, 64)))


def sparse_memory(n: Number, d: Number, share: Number) -> Number:
    """Bytes of every tensor of block-sparse FlashAttention with one block in ``share`` nonzero."""
    return memory_bytes(block_sparse.forward(replace(square(n, d), sparsity=Density(1, int(share))), Tile(64, 64)))


def dense_memory(n: Number, d: Number) -> Number:
    """Bytes of every tensor of Algorithm 1."""
    return memory_bytes(flash1.forward(square(n, d), Tile(64, 64)))


def sparse_seconds(n: Number, d: Number, batch: Number, share: Number) -> Number:
    """Roofline of block-sparse FlashAttention on an A100 with one block in ``share`` nonzero."""
    w = replace(square(n, d, batch), sparsity=Density(1, int(share)))
    return sum(estimate(kernel, device(SXM_80)).roofline_s for kernel in block_sparse.forward(w, Tile(64, 256)))
