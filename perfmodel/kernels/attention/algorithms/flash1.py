"""FlashAttention, K and V outermost: each key tile stays in SRAM while Q, O and the statistics stream past it.

Counts follow the algorithms as printed: the last, partial tile is computed at its real size, O and the statistics are
read and written on every pass. One thread block per head, as in the paper's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.cost import READ, WRITE, ZERO_FILL, Access, Kernel, Launch, Tile, matmul_work, once
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.base import (
    FUSED_VECTOR,
    Algorithm,
    Tiling,
    fused_vector_work,
    key_gradients,
    key_read,
    mask_read,
    query_rows,
    seeing_rows,
)
from perfmodel.kernels.attention.loops import Head, Move, everything, group_sum, keys_outermost, zeros
from perfmodel.kernels.attention.walk import distinct_query_rows, streamed_query_rows, visible_scores, visited_scores


def paper_tile_edges(w: Attention, m: Number) -> tuple[tuple[Number, Number], ...]:
    """B_r = min(B_c, d) and B_c, first with B_c = ceil(M / 2(d + d_v)), then with the floor; ceil(M/4d) for d = d_v.

    ``m`` in elements. Source: Dao et al. 2022, Algorithm 1, line 1.
    """
    row = 2 * (w.d + w.dv)
    return tuple((minimum(bc, w.d), bc) for bc in (ceil_div(m, row), m // row))


def default_tile(w: Attention, device: Device, sram_bytes: int, direction: str) -> Tile:
    """The paper's tile for ``sram_bytes``, its edges rounded up; rounded down where that overflows SRAM by a row or two."""
    m = sram_bytes // w.dtype.size
    origins = ("B_c = ceil(M/4d)", "B_c = floor(M/4d), as the ceiling overflows M")
    for (br, bc), origin in zip(paper_tile_edges(w, m), origins, strict=True):
        tile = Tile(max(br, 1), max(bc, 1), origin=origin)
        if sram_elements(w, tile, direction) <= m:
            break
    return tile


def sram_elements(w: Attention, tile: Tile, direction: str) -> Number:
    """Elements in SRAM: K_j, V_j, Q_i and O_i; in the backward pass dO_i in place of O_i."""
    return (tile.br + tile.bc) * (w.d + w.dv)


class Streams(NamedTuple):
    """Rows that stream past the key tiles, over all heads and sequences; it depends on which blocks are computed.

    ``rows``: streamed rows of a query-shaped tensor; ``distinct``: distinct rows among them; ``seeing``: rows that see a key (None if
    unknown). ``scores``: computed scores; ``visible``: unmasked scores. ``keys``, ``mask``: accesses of K and V, and of an additive mask.
    """

    rows: Number
    distinct: Number
    seeing: Number | None
    scores: Number
    visible: Number
    keys: tuple[Access, Access]
    mask: tuple[Access, ...]

    def access(self, tensor: str, kind: str, width: Number, size: int, *, needed: bool = False) -> Access:
        """Access to a query-shaped tensor that every key tile streams."""
        compulsory = self.seeing * width if needed and self.seeing is not None else 0
        return Access(tensor, kind, self.rows * width, size, self.distinct * width, compulsory, reread=True)


def _dense(w: Attention, tile: Tile) -> Streams:
    return Streams(
        seeing=seeing_rows(w),
        keys=(key_read(w, "K", w.d), key_read(w, "V", w.dv)),
        rows=w.row_heads * streamed_query_rows(w, tile.br, tile.bc),
        distinct=w.row_heads * distinct_query_rows(w, tile.br, tile.bc),
        mask=mask_read(w, tile),
        visible=w.query_heads * visible_scores(w),
        scores=w.row_heads * visited_scores(w, tile.br, tile.bc),
    )


def causal_share(w: Attention) -> Number:
    """Share of the streamed rows in passes that a causal mask shortens: each of the last n keys is seen by fewer queries."""
    last = minimum(w.n, w.kv_len)
    return last / (last + 2 * (w.kv_len - last)) if w.causal else 0


def _accesses(w: Attention, direction: str, streams: Streams) -> tuple[Access, ...]:
    size, stream, rows, keys = w.dtype.size, streams.access, query_rows(w), w.row_heads * w.kv_len
    if direction == FORWARD:
        return (
            stream("Q", READ, w.d, size, needed=True),
            stream("O", READ, w.dv, size),
            stream("O", WRITE, w.dv, size, needed=True),
            stream("l, m", READ, 2, STATISTIC_SIZE),
            stream("l, m", WRITE, 2, STATISTIC_SIZE),
            once("O", ZERO_FILL, rows * w.dv, size, compulsory=0),
            once("l, m", ZERO_FILL, rows * 2, STATISTIC_SIZE, compulsory=0),
        )
    return (
        stream("Q", READ, w.d, size, needed=True),
        stream("O", READ, w.dv, size, needed=True),
        stream("dO", READ, w.dv, size, needed=True),
        stream("dQ", READ, w.d, size),
        stream("dQ", WRITE, w.d, size, needed=True),
        stream("l, m", READ, 2, STATISTIC_SIZE),
        *key_gradients(w, ("dK", w.d), ("dV", w.dv)),
        once("dQ", ZERO_FILL, rows * w.d, size, compulsory=0),
        once("dK", ZERO_FILL, keys * w.d, size, compulsory=0),
        once("dV", ZERO_FILL, keys * w.dv, size, compulsory=0),
    )


def kernel(w: Attention, tile: Tile, direction: str, streams: Streams) -> Kernel:
    """The fused kernel over ``streams``. Matmuls per score: forward 1 over d and 1 over d_v, with O rescaled; backward 3 and 2."""
    over_d, over_dv = (1, 1) if direction == FORWARD else (3, 2)
    rescale = streams.rows * w.dv if direction == FORWARD else 0
    accesses = (*streams.keys, *_accesses(w, direction, streams), *streams.mask)
    flops = (1 if direction == FORWARD else 2) * (streams.visible * (2 * (w.d + w.dv)))
    executed = 2 * streams.scores * (over_d * w.d + over_dv * w.dv)
    work = matmul_work(w.dtype, executed, fused_vector_work(w) * streams.scores + rescale, streams.scores)
    needed = matmul_work(w.dtype, streams.visible * (2 * (over_d * w.d + over_dv * w.dv)))
    heads, sram_bytes = w.row_heads, sram_elements(w, tile, direction) * w.dtype.size
    # one thread block per head, which scans its own Q and O
    launch = Launch(heads, heads, sram_bytes, tile.threads, lockstep=True, exclusive_stream=True, causal_share=causal_share(w))
    return Kernel(direction, w.dtype, accesses, flops, executed, work, needed, launch)


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel: 2 n d + 3 n d T_c + 4 n T_c elements for a square problem without mask.

    Per head; shapes as in ``Attention``. Source: Dao et al. 2022, Algorithms 1 and 2.

    >>> [kernel] = forward(Attention(n=1024, kv_len=1024, d=64, dv=64), Tile(64, 384))
    >>> kernel.elements("read", "write"), kernel.elements("zero_fill")
    (733184, 67584)
    """
    return [kernel(w, tile, FORWARD, _dense(w, tile))]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel that recomputes the scores: 4 n d + 5 n d T_c + 2 n T_c elements for a square problem.

    Per head; shapes as in ``Attention``. Source: Dao et al. 2022, Algorithm 4.

    >>> [kernel] = backward(Attention(n=1000, kv_len=1000, d=64, dv=64), Tile(128, 128))
    >>> kernel.elements("read", "write"), kernel.elements("zero_fill")
    (2832000, 192000)
    """
    return [kernel(w, tile, BACKWARD, _dense(w, tile))]


def walk(w: Attention, tile: Tile, direction: str, computes: Callable[[Head, range, range], bool] = Head.sees) -> Iterator[Move]:
    """Loads and stores of Algorithm 1 or 4; ``computes``: whether a pair of tiles runs."""
    if direction == FORWARD:
        yield from zeros(everything(w), "O", "l, m")
        yield from keys_outermost(w, tile, "Q & O & l, m & mask -> O & l, m", "", computes)
        return
    yield from zeros(everything(w), "dQ", "dK", "dV")
    yield from keys_outermost(w, tile, "Q & O & dO & dQ & l, m & mask -> dQ", "dK & dV", computes)
    yield from group_sum(w)


ALGORITHM = Algorithm(
    name="flash1",
    title="FlashAttention, K/V outermost",
    source="Dao et al. 2022, arXiv 2205.14135, Algorithms 1, 2 and 4",
    io_class="N^2 d^2 / M + N d",
    vector_work=f"{FUSED_VECTOR}forward also d_v per row and pass to rescale O",
    forward=forward,
    backward=backward,
    walk=walk,
    pays_while=("d < sqrt(M / 3), as 12 N^2 d^2 / M < 4 N^2", lambda m, tile: (m / 3) ** 0.5),
    tiling=Tiling(default_tile, sram_elements, {FORWARD: "K_j, V_j, Q_i, O_i", BACKWARD: "K_j, V_j, Q_i, dO_i"}),
)
