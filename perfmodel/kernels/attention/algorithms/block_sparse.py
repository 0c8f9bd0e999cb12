"""Block-sparse FlashAttention: FlashAttention's loops, K and V outermost, with the zero blocks skipped.

K_j and V_j are loaded, dK_j and dV_j stored, even where column j has no nonzero block. FLOP count visible scores in nonzero
blocks. Without nonzero blocks a query row keeps the zero that O was filled with.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.trace import label
from perfmodel.core.workload import BACKWARD, FORWARD, Attention, BlockCounts
from perfmodel.kernels.attention.algorithms import flash1
from perfmodel.kernels.attention.base import Algorithm, Tiling, key_read, mask_read
from perfmodel.kernels.attention.loops import Head, Move
from perfmodel.kernels.attention.patterns import Blocks, Density, Named
from perfmodel.kernels.attention.tiles import LARGEST_EDGE

NO_PATTERN = "which blocks are nonzero? give --sparsity, such as 0.25, or --pattern, such as local-global"


def by_blocks(w: Attention) -> bool:
    """Whether the tiles are the blocks of a pattern, so that another tile would compute other scores. A density fits any tile."""
    return not isinstance(w.sparsity, Density)


def default_tile(w: Attention, device: Device, sram_bytes: int, direction: str) -> Tile:
    """The paper's tile for a density; for a pattern a square tile, the same on every device, as patterns refer to a diagonal of blocks."""
    if by_blocks(w):
        return Tile(LARGEST_EDGE, LARGEST_EDGE, origin="blocks of the pattern")
    return flash1.default_tile(w, device, sram_bytes, direction)


def _streams(w: Attention, tile: Tile) -> flash1.Streams:
    """Rows that stream past the key tiles, without the rows of zero blocks. UsageError without a pattern.

    Algorithm 5 loads K_j and V_j even for an empty column, but an implementation could skip these. A density does not say which rows see a
    block, so none of them is compulsory.
    """
    if w.sparsity is None:
        raise UsageError(f"--algorithm block-sparse: {NO_PATTERN}")
    counts = w.sparsity.counts(w, tile.br, tile.bc)
    counts = BlockCounts(
        label("R_s", f"query rows streamed per walk, {w.sparsity.name}", counts.streamed_rows),
        label("rows in blocks", "query rows of a walk in nonzero blocks", counts.distinct_rows),
        label("rows seeing", "those of them that see a key there", counts.seeing_rows),
        label("scores computed", "scores of the nonzero blocks of a walk", counts.scores),
        label("E_s", "visible scores of the nonzero blocks of a walk", counts.visible_scores),
    )
    return flash1.Streams(
        rows=w.row_heads * counts.streamed_rows,
        distinct=w.row_heads * counts.distinct_rows,
        seeing=None if isinstance(w.sparsity, Density) else w.row_heads * counts.seeing_rows,
        scores=w.row_heads * counts.scores,
        visible=w.row_heads * counts.visible_scores,
        keys=(key_read(w, "K", w.d)._replace(compulsory=0), key_read(w, "V", w.dv)._replace(compulsory=0)),
        mask=mask_read(w, tile, counts),
    )


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel: 2 n d + s T_r T_c B_r (3 d + 4) elements for a square problem with a share s of nonzero blocks.

    Per head; shapes as in ``Attention``. UsageError without a pattern. Source: Dao et al. 2022, Algorithm 5.

    >>> w = Attention(n=1024, kv_len=1024, d=64, dv=64, sparsity=Density(1, 4))
    >>> [kernel] = forward(w, Tile(64, 64))
    >>> kernel.elements("read", "write") == 2 * 1024 * 64 + 16 * 16 // 4 * 64 * (3 * 64 + 4)
    True
    """
    return [flash1.kernel(w, tile, FORWARD, _streams(w, tile))]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel that recomputes the scores of nonzero blocks: 4 n d + s T_r T_c B_r (5 d + 2) elements for a square problem.

    Per head; shapes as in ``Attention``. UsageError without a pattern. Source: Dao et al. 2022, Algorithm 4 with Algorithm 5's skip.

    >>> w = Attention(n=1024, kv_len=1024, d=64, dv=64, sparsity=Density(1, 4))
    >>> [kernel] = backward(w, Tile(64, 64))
    >>> kernel.elements("read", "write") == 4 * 1024 * 64 + 16 * 16 // 4 * 64 * (5 * 64 + 2)
    True
    """
    return [flash1.kernel(w, tile, BACKWARD, _streams(w, tile))]


def _nonzero(w: Attention, i: int, j: int, columns: int) -> bool:
    """Whether the pattern has block (i, j). A density does not say which blocks it has, so every block counts."""
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
    """Loads and stores of FlashAttention's loops without the zero blocks, in the order in which they run."""

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
    obstacle=lambda w, direction: NO_PATTERN if w.sparsity is None else w.sparsity.obstacle(w),
)
