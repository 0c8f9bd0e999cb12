"""Block-sparse FlashAttention: FlashAttention's loops, K and V outermost, with the zero blocks skipped.

K_j and V_j are loaded, dK_j and dV_j stored, even where column j has no nonzero block. FLOP count visible scores in nonzero
blocks. Without nonzero blocks a query row keeps the zero that O was filled with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isqrt

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, ZERO_FILL, Access, Kernel, Tile, matmul_work, once
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.trace import named
from perfmodel.core.workload import BACKWARD, FORWARD, Attention, BlockCounts
from perfmodel.kernels.attention.algorithms import flash1
from perfmodel.kernels.attention.base import Algorithm, Tiling, fused_vector_work, key_gradients, key_read, mask_read, query_rows
from perfmodel.kernels.attention.loops import Head, Move
from perfmodel.kernels.attention.patterns import Blocks, Density, Named
from perfmodel.kernels.attention.tiles import LARGEST_EDGE

NO_PATTERN = "which blocks are nonzero? give --sparsity, such as 0.25, or --pattern, such as local-global"


def obstacle(w: Attention, direction: str) -> str | None:
    """A pattern is needed, and it must be countable under the mask."""
    return NO_PATTERN if w.sparsity is None else w.sparsity.obstacle(w)


def by_blocks(w: Attention) -> bool:
    """Whether tiles are the blocks of a pattern, so that other tiles are other scores. A density holds for any."""
    return not isinstance(w.sparsity, Density)


def default_tile(w: Attention, device: Device, sram_bytes: int, direction: str) -> Tile:
    """The paper's tile for a density; for a pattern one square on every device, as its diagonal is one only in a square grid."""
    if by_blocks(w):
        return Tile(LARGEST_EDGE, LARGEST_EDGE, origin="blocks of the pattern")
    return flash1.default_tile(w, device, sram_bytes, direction)


def _counts(w: Attention, tile: Tile) -> BlockCounts:
    if w.sparsity is None:
        raise UsageError(f"--algorithm block-sparse: {NO_PATTERN}")
    counts = w.sparsity.counts(w, tile.br, tile.bc)
    return BlockCounts(
        named("R_s", f"query rows streamed per walk, {w.sparsity.name}", counts.streamed_rows),
        named("rows in blocks", "query rows of a walk in nonzero blocks", counts.distinct_rows),
        named("rows seeing", "those of them that see a key there", counts.seeing_rows),
        named("scores computed", "scores of the nonzero blocks of a walk", counts.scores),
        named("E_s", "visible scores of the nonzero blocks of a walk", counts.visible_scores),
    )


def _keys(w: Attention) -> tuple[Access, Access]:
    """K and V: loaded by Algorithm 5 even for an empty column, but an implementation that skips those needs none of it."""
    return replace(key_read(w, "K", w.d), compulsory=0), replace(key_read(w, "V", w.dv), compulsory=0)


def _streamed(
    w: Attention, counts: BlockCounts, tensor: str, kind: str, width: Number, size: int | None = None, *, needed: bool = False
) -> Access:
    """A query-shaped tensor that every key tile streams, rows of zero blocks left out.

    A density does not say which rows see a block, so it makes none of them compulsory.
    """
    loads, distinct, seeing = (w.row_heads * rows * width for rows in (counts.streamed_rows, counts.distinct_rows, counts.seeing_rows))
    compulsory = seeing if needed and not isinstance(w.sparsity, Density) else 0
    return Access(tensor, kind, loads, size or w.dtype.size, distinct, compulsory, reread=True)


def _kernel(
    w: Attention, tile: Tile, counts: BlockCounts, direction: str, contractions: tuple[int, int], vector: Number, *accesses: Access
) -> Kernel:
    """``contractions``: matmuls per score over d and over d_v. ``vector``: operations beside one set per computed score."""
    scores, visible = w.row_heads * counts.scores, w.row_heads * counts.visible_scores
    per_score = 2 * (contractions[0] * w.d + contractions[1] * w.dv)
    flops = (1 if direction == FORWARD else 2) * 2 * visible * (w.d + w.dv)
    work = matmul_work(w.dtype, scores * per_score, fused_vector_work(w) * scores + vector, scores)
    return Kernel(
        direction,
        w.dtype,
        accesses,
        flops,
        scores * per_score,
        work,
        matmul_work(w.dtype, visible * per_score),
        flash1.launch(w, tile, direction),
    )


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel: 2 n d + s T_r T_c B_r (3 d + 4) elements for a square problem with a share s of nonzero blocks.

    Source: Dao et al. 2022, Algorithm 5.

    >>> w = Attention(n=1024, kv_len=1024, d=64, dv=64, sparsity=Density(1, 4))
    >>> [kernel] = forward(w, Tile(64, 64))
    >>> kernel.elements("read", "write") == 2 * 1024 * 64 + 16 * 16 // 4 * 64 * (3 * 64 + 4)
    True
    """
    counts, size = _counts(w, tile), w.dtype.size
    accesses = (
        *_keys(w),
        _streamed(w, counts, "Q", READ, w.d, needed=True),
        _streamed(w, counts, "O", READ, w.dv),
        _streamed(w, counts, "O", WRITE, w.dv, needed=True),
        _streamed(w, counts, "l, m", READ, 2, STATISTIC_SIZE),
        _streamed(w, counts, "l, m", WRITE, 2, STATISTIC_SIZE),
        once("O", ZERO_FILL, query_rows(w) * w.dv, size, compulsory=0),
        once("l, m", ZERO_FILL, query_rows(w) * 2, STATISTIC_SIZE, compulsory=0),
        *mask_read(w, tile, counts),
    )
    rescale = w.row_heads * counts.streamed_rows * w.dv
    return [_kernel(w, tile, counts, FORWARD, (1, 1), rescale, *accesses)]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel that recomputes the scores of nonzero blocks.

    Source: Dao et al. 2022, Algorithm 4 with Algorithm 5's skip.

    >>> w = Attention(n=1024, kv_len=1024, d=64, dv=64, sparsity=Density(1, 4))
    >>> [kernel] = backward(w, Tile(64, 64))
    >>> kernel.elements("read", "write") == 4 * 1024 * 64 + 16 * 16 // 4 * 64 * (5 * 64 + 2)
    True
    """
    counts, size = _counts(w, tile), w.dtype.size
    accesses = (
        *_keys(w),
        _streamed(w, counts, "Q", READ, w.d, needed=True),
        _streamed(w, counts, "O", READ, w.dv, needed=True),
        _streamed(w, counts, "dO", READ, w.dv, needed=True),
        _streamed(w, counts, "dQ", READ, w.d),
        _streamed(w, counts, "dQ", WRITE, w.d, needed=True),
        _streamed(w, counts, "l, m", READ, 2, STATISTIC_SIZE),
        *key_gradients(w, ("dK", w.d), ("dV", w.dv)),
        once("dQ", ZERO_FILL, query_rows(w) * w.d, size, compulsory=0),
        once("dK", ZERO_FILL, w.row_heads * w.kv_len * w.d, size, compulsory=0),
        once("dV", ZERO_FILL, w.row_heads * w.kv_len * w.dv, size, compulsory=0),
        *mask_read(w, tile, counts),
    )
    return [_kernel(w, tile, counts, BACKWARD, (3, 2), 0, *accesses)]


def _nonzero(w: Attention, i: int, j: int, columns: int) -> bool:
    """Whether the pattern has block (i, j), by its definition; of a density, which does not say, every one."""
    match w.sparsity:
        case Blocks(pairs=pairs):
            return (i, j) in pairs
        case Named(name="butterfly"):
            return i == j or (i ^ j).bit_count() == 1
        case Named(name="strided"):
            return abs(i - j) <= 1 or j % (isqrt(columns - 1) + 1) == 0
        case Named(name="local-global"):
            return abs(i - j) <= 1 or i == 0 or j == 0
    return True


def walk(w: Attention, tile: Tile, direction: str) -> Iterator[Move]:
    """FlashAttention's loops without the zero blocks."""

    def computes(head: Head, rows: range, keys: range) -> bool:
        i, j = rows.start // w.row_group // tile.br, keys.start // tile.bc
        return _nonzero(w, i, j, -(-w.kv_len // tile.bc)) and head.sees(rows, keys)

    return flash1.walk(w, tile, direction, computes)


ALGORITHM = Algorithm(
    name="block-sparse",
    title="block-sparse FlashAttention, K/V outermost",
    source="Dao et al. 2022, arXiv 2205.14135, Algorithm 5",
    io_class="s N^2 d^2 / M + N d",
    vector_work=flash1.ALGORITHM.vector_work,
    forward=forward,
    backward=backward,
    walk=walk,
    tiling=Tiling(
        default_tile, flash1.sram_elements, {FORWARD: "K_j, V_j, Q_i, O_i", BACKWARD: "K_j, V_j, Q_i, dO_i"}, settles_work=by_blocks
    ),
    obstacle=obstacle,
)
