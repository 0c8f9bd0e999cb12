"""Attention as one fused kernel whose softmax takes several passes over the keys: K is read past each query tile once per pass.

Each pass computes the scores again and stores none; V is read in the last pass alone, and no partial O is rescaled. Passes and operations
per score are those of ``kernels/softmax.py``: three passes for safe softmax, two for online softmax; with one pass it is FlashAttention.
The backward pass is FlashAttention-2's, from the same logsumexp.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.core.cost import Access, Kernel, Tile, matmul_work
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms.flash2 import backward, computed_widths, sram_elements
from perfmodel.kernels.attention.algorithms.flash2 import forward as single_pass
from perfmodel.kernels.attention.algorithms.flash2 import walk as gradient_walk
from perfmodel.kernels.attention.base import DROPOUT_VECTOR, MASK_VECTOR, Algorithm, Tiling, query_rows
from perfmodel.kernels.attention.loops import Move, cut, heads, moves, tensors
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.kernels.attention.walk import visited_tiles


def several_passes(w: Attention, tile: Tile, passes: int, vector: int, exponentials: int) -> Kernel:
    """One fused kernel of ``passes`` over the keys. ``vector`` operations and ``exponentials`` are per score, summed over the passes."""
    [kernel] = single_pass(w, tile)
    scores = w.row_heads * visited_tiles(w, tile.br, tile.bc) * tile.br * tile.bc

    def in_each_pass(access: Access) -> Access:
        scans = None if access.scans is None else passes * access.scans
        return access._replace(elements=passes * access.elements, scans=scans)

    accesses = tuple(in_each_pass(access) if access.tensor in ("K", "mask") else access for access in kernel.accesses)
    executed = kernel.executed_flops + 2 * (passes - 1) * scores * computed_widths(w, tile)[0]
    per_score = vector + passes * MASK_VECTOR * w.mask + DROPOUT_VECTOR * (w.dropout > 0)
    work = matmul_work(w.dtype, executed, per_score * scores + query_rows(w) * w.dv, exponentials * scores)  # O is divided, not every P
    return kernel._replace(accesses=accesses, executed_flops=executed, work=work)


def query_tiles(passes: int, w: Attention, tile: Tile) -> Iterator[Move]:
    """Moves of every query tile: the keys stream past it once per pass, V in the last pass only."""
    for head in heads(w):
        for rows in cut(len(head.rows), tile.br):
            yield from moves(tensors(w, [head], rows, ()), "Q ->")
            for read in (*["K & mask ->"] * (passes - 1), "K & V & mask ->"):
                for keys in cut(w.kv_len, tile.bc):
                    if head.sees(rows, keys):
                        yield from moves(tensors(w, [head], rows, keys), read)
            yield from moves(tensors(w, [head], rows, ()), "-> O & logsumexp")


def algorithm(softmax: str, passes_word: str, passes: int, vector: int, exponentials: int) -> Algorithm:
    """The algorithm of ``passes`` (in words ``passes_word``) over ``softmax``; ``vector`` and ``exponentials`` are per score."""

    def forward(w: Attention, tile: Tile) -> list[Kernel]:
        """One fused kernel: 2 n d + (p + 1) n d T_r + n elements in p passes for a square problem without mask.

        Per head; shapes as in ``Attention``. Source: Nayak et al. 2024, with Milakov & Gimelshein 2018, Algorithms 2 and 3.
        """
        return [several_passes(w, tile, passes, vector, exponentials)]

    def walk(w: Attention, tile: Tile, direction: str) -> Iterator[Move]:
        """Loads and stores of the passes; backward they are FlashAttention-2's."""
        return gradient_walk(w, tile, direction) if direction == BACKWARD else query_tiles(passes, w, tile)

    return Algorithm(
        name=f"{passes_word}-pass",
        title=f"{passes_word} passes over the keys, {softmax} softmax fused",
        source=f"Nayak et al. 2024 (FuseMax), arXiv 2406.10491, the {passes}-pass cascade; backward Dao 2023, Algorithm 2",
        io_class="N^2 d / B_r + N d",
        vector_work=f"{vector} and {exponentials} exponentials per score, mask {MASK_VECTOR} a pass; d_v per row to divide O",
        forward=forward,
        backward=backward,
        walk=walk,
        # K once per pass and V once, N^2 d / B_r each, against the 4 N^2 of scores in memory
        pays_while=(f"{passes + 1} d < 4 B_r, as {passes + 1} N^2 d / B_r < 4 N^2", lambda m, tile: 4 * tile.br / (passes + 1)),
        tiling=Tiling(fa2_tile, sram_elements, {FORWARD: "Q_i, K_j, V_j", BACKWARD: "K_j, V_j, Q_i, dO_i"}),
        aliases=(f"{softmax}-softmax",),
    )
