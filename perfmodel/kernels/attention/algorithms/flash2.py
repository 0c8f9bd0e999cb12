"""FlashAttention-2: each query tile stays in SRAM while K and V stream past it; the backward pass keeps key tiles.

One thread block per query tile (forward) or key tile (backward). A kernel computes whole tiles, so partial tiles are padded in
``executed_flops``; only real rows are loaded, and real rows and columns of a mask.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.core.arith import Number, maximum, minimum
from perfmodel.core.cost import READ, WRITE, ZERO_FILL, Access, Kernel, Launch, Tile, Work, matmul_work, once
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.base import (
    FUSED_VECTOR,
    Algorithm,
    Tiling,
    fused_vector_work,
    key_gradients,
    key_read,
    mask_read,
    matmul_flops,
    query_read,
    query_rows,
    query_write,
    seeing_rows,
    seen_keys,
)
from perfmodel.kernels.attention.loops import Move, cut, everything, group_sum, heads, keys_outermost, moves, tensors, zeros
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.kernels.attention.walk import (
    distinct_key_rows,
    distinct_query_rows,
    key_tiles,
    row_tiles,
    streamed_key_rows,
    streamed_query_rows,
    visited_tiles,
)

ROW_SUM_VECTOR = 2  # D = rowsum(dO * O): multiply, add


def sram_elements(w: Attention, tile: Tile, direction: str) -> Number:
    """Elements in SRAM: Q_i, K_j, V_j, and dO_i in the backward pass, in rows padded to the width that the kernel computes."""
    d, dv = computed_widths(w, tile)
    return tile.br * d + tile.bc * (d + dv) if direction == FORWARD else (tile.br + tile.bc) * (d + dv)


def computed_widths(w: Attention, tile: Tile) -> tuple[Number, Number]:
    """Columns of Q and K, and of V and O, that a kernel computes: a head dim between two compiled ones is padded to the larger one."""
    if tile.head_dim == 0:  # false for a deferred number
        return w.d, w.dv
    return maximum(w.d, tile.head_dim), maximum(w.dv, tile.head_dim)


def length_spread(w: Attention, direction: str) -> Number:
    """1 - shortest / longest walk of a block under a causal mask. The first query tile, or the last key tile, has the shortest."""
    return minimum(w.n / w.kv_len, 1) if direction == FORWARD else 1


def forward_kernel(w: Attention, tile: Tile, name: str, splits: Number) -> Kernel:
    """The forward kernel without its stores: a block for each query tile and each of the ``splits`` parts of its keys.

    A block shares K and V with the blocks of its group that work on the same split.
    """
    size, rows = w.dtype.size, query_rows(w)
    streamed = w.row_heads * streamed_key_rows(w, tile.br, tile.bc)
    distinct, needed = w.stored_kv_heads * distinct_key_rows(w, tile.bc), seen_keys(w)
    accesses = (
        Access("Q", READ, splits * rows * w.d, size, rows * w.d, seeing_rows(w) * w.d),
        Access("K", READ, streamed * w.d, size, distinct * w.d, needed * w.d, reread=True),
        Access("V", READ, streamed * w.dv, size, distinct * w.dv, needed * w.dv, reread=True),
        *mask_read(w, tile),
    )
    tiles = w.row_heads * visited_tiles(w, tile.br, tile.bc)
    scores, flops = tiles * tile.br * tile.bc, matmul_flops(w, 1, 1)
    executed = 2 * scores * sum(computed_widths(w, tile))
    work = matmul_work(w.dtype, executed, fused_vector_work(w) * scores + tiles * tile.br * w.dv, scores)
    blocks, groups = splits * w.row_heads * row_tiles(w, tile.br), splits * w.stored_kv_heads
    sram_bytes = sram_elements(w, tile, FORWARD) * size
    launch = Launch(blocks, groups, sram_bytes, tile.threads, lockstep=not w.causal, length_spread=length_spread(w, FORWARD))
    return Kernel(name, w.dtype, accesses, flops, executed, work, matmul_work(w.dtype, flops), launch)


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel: 2 n d + 2 n d T_r + n elements for a square problem without mask.

    Per head; shapes as in ``Attention``. Source: Dao 2023, Algorithm 1.

    >>> [kernel] = forward(Attention(n=1024, kv_len=1024, d=64, dv=64), Tile(64, 384))
    >>> kernel.elements("read", "write")
    2229248
    """
    kernel = forward_kernel(w, tile, FORWARD, 1)
    stored = (query_write(w, "O", w.dv), once("logsumexp", WRITE, query_rows(w), STATISTIC_SIZE, compulsory=0))
    return [kernel._replace(accesses=(*kernel.accesses, *stored))]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """D = rowsum(dO * O), then one fused kernel: 6 n d + 4 n d T_c + 2 n T_c + n elements for a square problem.

    As printed, Algorithm 2 also loads O_i on every pass and dQ_i twice (``w.printed_backward``): 6 n d T_c in place of 4.
    Per head; shapes as in ``Attention``. Source: Dao 2023, Algorithm 2.

    >>> w = Attention(n=1000, kv_len=1000, d=64, dv=64)
    >>> sum(kernel.elements("read", "write") for kernel in backward(w, Tile(128, 128)))
    2449000
    """
    size, rows = w.dtype.size, seeing_rows(w)
    row_sums = Kernel(
        "row sums D",
        w.dtype,
        (query_read(w, "O", w.dv), query_read(w, "dO", w.dv), once("D", WRITE, query_rows(w), STATISTIC_SIZE, compulsory=0)),
        work=Work(0, ROW_SUM_VECTOR * query_rows(w) * w.dv),
    )
    streamed = w.row_heads * streamed_query_rows(w, tile.br, tile.bc)
    distinct = w.row_heads * distinct_query_rows(w, tile.br, tile.bc)

    def stream(tensor: str, kind: str, width: Number, size: int, compulsory: Number, handoff: bool = False) -> Access:
        return Access(tensor, kind, streamed * width, size, distinct * width, compulsory * width, handoff, reread=True)

    printed = (stream("O", READ, w.dv, size, 0, handoff=True), stream("dQ", READ, w.d, size, 0)) if w.printed_backward else ()
    accesses = (
        key_read(w, "K", w.d),
        key_read(w, "V", w.dv),
        stream("Q", READ, w.d, size, rows),
        stream("dO", READ, w.dv, size, rows, handoff=True),
        *printed,
        stream("dQ", READ, w.d, size, 0),
        stream("dQ", WRITE, w.d, size, rows),
        stream("logsumexp", READ, 1, STATISTIC_SIZE, 0),
        stream("D", READ, 1, STATISTIC_SIZE, 0),
        *key_gradients(w, ("dK", w.d), ("dV", w.dv)),
        once("dQ", ZERO_FILL, query_rows(w) * w.d, size, compulsory=0),
        *mask_read(w, tile),
    )
    flops, (d, dv) = 2 * matmul_flops(w, 1, 1), computed_widths(w, tile)
    scores = w.row_heads * visited_tiles(w, tile.br, tile.bc) * tile.br * tile.bc
    executed = 2 * scores * (3 * d + 2 * dv)
    work, needed = matmul_work(w.dtype, executed, fused_vector_work(w) * scores, scores), matmul_work(w.dtype, matmul_flops(w, 3, 2))
    # a key tile shares Q and dO with its own walk only
    blocks, sram_bytes = w.row_heads * key_tiles(w, tile.bc), sram_elements(w, tile, BACKWARD) * size
    launch = Launch(blocks, w.row_heads, sram_bytes, tile.threads, lockstep=not w.causal, length_spread=length_spread(w, BACKWARD))
    return [row_sums, Kernel(BACKWARD, w.dtype, accesses, flops, executed, work, needed, launch)]


def walk(w: Attention, tile: Tile, direction: str) -> Iterator[Move]:
    """Loads and stores of Algorithm 1, where Q_i stays and key tiles stream past; or of Algorithm 2, where K_j and V_j stay."""
    if direction == FORWARD:
        for head in heads(w):
            for rows in cut(len(head.rows), tile.br):
                yield from moves(tensors(w, [head], rows, ()), "Q ->")
                for keys in cut(w.kv_len, tile.bc):
                    if head.sees(rows, keys):
                        yield from moves(tensors(w, [head], rows, keys), "K & V & mask ->")
                yield from moves(tensors(w, [head], rows, ()), "-> O & logsumexp")
        return
    yield from moves(everything(w), "O & dO -> D")
    yield from zeros(everything(w), "dQ")
    printed = "O & dQ & " if w.printed_backward else ""
    yield from keys_outermost(w, tile, f"{printed}Q & dO & dQ & logsumexp & D & mask -> dQ", "dK & dV")
    yield from group_sum(w)


ALGORITHM = Algorithm(
    name="flash2",
    title="FlashAttention-2, Q outermost",
    source="Dao 2023, arXiv 2307.08691, Algorithms 1 and 2",
    io_class="N^2 d / B_r + N d",
    vector_work=f"{FUSED_VECTOR}forward also d_v per row and tile to rescale O; backward {ROW_SUM_VECTOR} d_v per row",
    forward=forward,
    backward=backward,
    walk=walk,
    pays_while=("d < 2 B_r, as 2 N^2 d / B_r < 4 N^2", lambda m, tile: 2.0 * tile.br),
    tiling=Tiling(fa2_tile, sram_elements, {FORWARD: "Q_i, K_j, V_j", BACKWARD: "K_j, V_j, Q_i, dO_i"}),
    aliases=("flash",),
)
