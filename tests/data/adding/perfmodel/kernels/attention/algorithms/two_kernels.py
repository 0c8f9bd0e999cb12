"""Two passes over the keys: one for the logsumexp of each row, one for O; the backward pass has a kernel for dQ and one for dK, dV.

No partial O is ever rescaled, at the price of loading K, and computing Q K^T, twice. In the backward pass nothing is added up across
blocks: dQ is stored once by the block of its query tile, dK and dV once by the block of their key tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Launch, Tile, Work, matmul_work, once
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.base import (
    MASK_VECTOR,
    SOFTMAX_VECTOR,
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
from perfmodel.kernels.attention.loops import Move, cut, everything, group_sum, heads, moves, tensors
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
    """Elements in SRAM: Q_i, K_j, V_j; in the backward pass dO_i as well."""
    return tile.br * w.d + tile.bc * (w.d + w.dv) if direction == FORWARD else (tile.br + tile.bc) * (w.d + w.dv)


def keys_streamed(w: Attention, tile: Tile, tensor: str, width: Number, *, again: bool = False) -> Access:
    """K or V past each query tile; ``again``: an earlier kernel has loaded it."""
    loads, distinct = w.row_heads * streamed_key_rows(w, tile.br, tile.bc), w.stored_kv_heads * distinct_key_rows(w, tile.bc)
    return Access(tensor, READ, loads * width, w.dtype.size, distinct * width, seen_keys(w) * width, again, reread=True)


def kernel(w: Attention, tile: Tile, name: str, accesses: tuple[Access, ...], per_d: tuple[int, int], per_dv: tuple[int, int]) -> Kernel:
    """A fused kernel. ``per_d`` and ``per_dv``: products over d and d_v that it runs, and those of them that count as FLOP."""
    scores = w.row_heads * visited_tiles(w, tile.br, tile.bc) * tile.br * tile.bc
    executed, flops = 2 * scores * (per_d[0] * w.d + per_dv[0] * w.dv), matmul_flops(w, per_d[1], per_dv[1])
    by_keys = name == "dK and dV"
    direction = BACKWARD if name.startswith("d") else FORWARD
    blocks = w.row_heads * (key_tiles(w, tile.bc) if by_keys else row_tiles(w, tile.br))
    groups = w.row_heads if by_keys else w.stored_kv_heads
    launch = Launch(blocks, groups, sram_elements(w, tile, direction) * w.dtype.size, tile.threads, lockstep=not w.causal)
    work, needed = matmul_work(w.dtype, executed, fused_vector_work(w) * scores, scores), matmul_work(w.dtype, flops)
    return Kernel(name, w.dtype, accesses, flops, executed, work, needed, launch)


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """Kernels of the forward pass: 3 n d + 3 n d T_r + 2 n elements for a square problem without mask.

    >>> found = forward(Attention(n=1024, kv_len=1024, d=64, dv=64), Tile(64, 128))
    >>> sum(kernel.elements("read", "write") for kernel in found) == 3 * 1024 * 64 * 17 + 2 * 1024
    True
    """
    query, rows = query_read(w, "Q", w.d), query_rows(w)
    stored = once("logsumexp", WRITE, rows, STATISTIC_SIZE, compulsory=0)
    loaded = once("logsumexp", READ, rows, STATISTIC_SIZE, compulsory=0)
    first = (query, keys_streamed(w, tile, "K", w.d), *mask_read(w, tile), stored)
    keys = keys_streamed(w, tile, "K", w.d, again=True), keys_streamed(w, tile, "V", w.dv)
    second = (replace(query, handoff=True), *keys, *mask_read(w, tile), loaded, query_write(w, "O", w.dv))
    return [kernel(w, tile, "row statistics", first, (1, 1), (0, 0)), kernel(w, tile, "output", second, (1, 0), (1, 1))]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """Kernels of the backward pass: the row sums D, dQ by query tiles, dK and dV by key tiles.

    >>> found = backward(Attention(n=1000, kv_len=1000, d=64, dv=64), Tile(128, 128))
    >>> sum(kernel.elements("read", "write") for kernel in found) == 1000 * (9 * 64 + 4 * 64 * 8 + 2 * 8 + 3)
    True
    """
    size, rows = w.dtype.size, query_rows(w)
    output_gradient = query_read(w, "dO", w.dv)
    row_sums = Kernel(
        "row sums D",
        w.dtype,
        (query_read(w, "O", w.dv), output_gradient, once("D", WRITE, rows, STATISTIC_SIZE, compulsory=0)),
        work=Work(0, ROW_SUM_VECTOR * rows * w.dv),
    )
    again = replace(output_gradient, handoff=True)
    statistics = tuple(once(name, READ, rows, STATISTIC_SIZE, compulsory=0) for name in ("logsumexp", "D"))
    of_keys = keys_streamed(w, tile, "K", w.d), keys_streamed(w, tile, "V", w.dv)
    by_rows = (query_read(w, "Q", w.d), again, *statistics, *of_keys, *mask_read(w, tile), query_write(w, "dQ", w.d))
    streamed, distinct = w.row_heads * streamed_query_rows(w, tile.br, tile.bc), w.row_heads * distinct_query_rows(w, tile.br, tile.bc)

    def past(tensor: str, width: Number, size: int, compulsory: Number) -> Access:
        return Access(tensor, READ, streamed * width, size, distinct * width, compulsory * width, handoff=True, reread=True)

    by_keys = (
        replace(key_read(w, "K", w.d), handoff=True),
        replace(key_read(w, "V", w.dv), handoff=True),
        past("Q", w.d, size, seeing_rows(w)),
        past("dO", w.dv, size, seeing_rows(w)),
        past("logsumexp", 1, STATISTIC_SIZE, 0),
        past("D", 1, STATISTIC_SIZE, 0),
        *mask_read(w, tile),
        *key_gradients(w, ("dK", w.d), ("dV", w.dv)),
    )
    return [row_sums, kernel(w, tile, "dQ", by_rows, (2, 1), (1, 1)), kernel(w, tile, "dK and dV", by_keys, (2, 1), (2, 1))]


def walk(w: Attention, tile: Tile, direction: str) -> Iterator[Move]:
    """Query tiles, past which the keys stream: once for the statistics, once for O; or for dQ, then key tiles for dK and dV."""
    passes = (
        [("Q ->", "K & mask ->", "-> logsumexp"), ("Q & logsumexp ->", "K & V & mask ->", "-> O")]
        if direction == FORWARD
        else [("Q & dO & logsumexp & D ->", "K & V & mask ->", "-> dQ")]
    )
    if direction != FORWARD:
        yield from moves(everything(w), "O & dO -> D")
    for before, inside, after in passes:
        for head in heads(w):
            for rows in cut(len(head.rows), tile.br):
                yield from moves(tensors(w, [head], rows, ()), before)
                for keys in cut(w.kv_len, tile.bc):
                    if head.sees(rows, keys):
                        yield from moves(tensors(w, [head], rows, keys), inside)
                yield from moves(tensors(w, [head], rows, ()), after)
    if direction != FORWARD:
        yield from key_walk(w, tile)


def key_walk(w: Attention, tile: Tile) -> Iterator[Move]:
    """The kernel of dK and dV: each key tile stays, the query tiles that see it stream past."""
    for head in heads(w):
        for keys in cut(w.kv_len, tile.bc):
            yield from moves(tensors(w, [head], (), keys), "K & V ->")
            for rows in cut(len(head.rows), tile.br):
                if head.sees(rows, keys):
                    yield from moves(tensors(w, [head], rows, keys), "Q & dO & logsumexp & D & mask ->")
            yield from moves(tensors(w, [head], (), keys), "-> dK & dV")
    yield from group_sum(w)


ALGORITHM = Algorithm(
    name="two-kernels",
    title="two kernels over the keys, no rescaling",
    source="Nayak et al. 2024 (FuseMax), arXiv 2406.10491, the 2-pass cascade; backward as Triton's tutorial of fused attention",
    io_class="N^2 d / B_r + N d",
    vector_work=f"{SOFTMAX_VECTOR} per score and pass, mask {MASK_VECTOR}; backward {ROW_SUM_VECTOR} d_v per row",
    forward=forward,
    backward=backward,
    walk=walk,
    tiling=Tiling(fa2_tile, sram_elements, {FORWARD: "Q_i, K_j, V_j", BACKWARD: "K_j, V_j, Q_i, dO_i"}),
)
