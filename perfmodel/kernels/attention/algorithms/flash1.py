"""FlashAttention, K and V outermost: each key tile stays in SRAM while Q, O and the statistics stream past it.

Counts follow the algorithms as printed: the last, partial tile is computed at its real size, O and the statistics are
read and written on every pass. One thread block per head, as in the paper's kernels.
"""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.cost import READ, WRITE, ZERO_FILL, Access, Kernel, Launch, Tile, matmul_work, once
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.base import (
    DROPOUT_VECTOR,
    MASK_VECTOR,
    SOFTMAX_VECTOR,
    Algorithm,
    Tiling,
    fused_vector_work,
    key_gradients,
    key_read,
    mask_read,
    matmul_flops,
    query_rows,
    seeing_rows,
)
from perfmodel.kernels.attention.walk import distinct_query_rows, streamed_query_rows, visited_scores


def paper_tile_edges(w: Attention, m: Number) -> tuple[tuple[Number, Number], ...]:
    """B_r = min(B_c, d) and B_c, first with B_c = ceil(M / 2(d + d_v)), then with the floor; ceil(M/4d) for d = d_v.

    ``m`` in elements. Source: Dao et al. 2022, Algorithm 1, line 1.
    """
    row = 2 * (w.d + w.dv)
    return tuple((minimum(bc, w.d), bc) for bc in (ceil_div(m, row), m // row))


def default_tile(w: Attention, device: Device, sram_bytes: int, direction: str) -> Tile:
    """The paper's tile. Its ceiling can overflow M by a row or two; then the floor is taken."""
    m = sram_bytes // w.dtype.size
    origins = ("B_c = ceil(M/4d)", "B_c = floor(M/4d), as the ceiling overflows M")
    for (br, bc), origin in zip(paper_tile_edges(w, m), origins, strict=True):
        tile = Tile(max(br, 1), max(bc, 1), origin=origin)
        if sram_elements(w, tile, direction) <= m:
            break
    return tile


def sram_elements(w: Attention, tile: Tile, direction: str) -> Number:
    """K_j, V_j and Q_i, O_i; in the backward pass dO_i in place of O_i."""
    return (tile.br + tile.bc) * (w.d + w.dv)


def _streamed(w: Attention, tile: Tile, tensor: str, kind: str, width: Number, size: int, compulsory: Number = 0) -> Access:
    """A query-shaped tensor that every key tile streams: R rows per walk."""
    rows = w.row_heads * streamed_query_rows(w, tile.br, tile.bc)
    distinct = w.row_heads * distinct_query_rows(w, tile.br, tile.bc)
    return Access(tensor, kind, rows * width, size, distinct * width, compulsory * width, reread=True)


def _kernel(
    w: Attention, tile: Tile, direction: str, contractions: tuple[int, int], flops: Number, vector: Number, accesses: tuple[Access, ...]
) -> Kernel:
    """``contractions``: matmuls per score over d and over d_v. ``vector``: operations beside one set per visited score."""
    scores = w.row_heads * visited_scores(w, tile.br, tile.bc)
    executed = 2 * scores * (contractions[0] * w.d + contractions[1] * w.dv)
    work = matmul_work(w.dtype, executed, fused_vector_work(w) * scores + vector, scores)
    needed = matmul_work(w.dtype, matmul_flops(w, *contractions))
    return Kernel(direction, w.dtype, accesses, flops, executed, work, needed, launch(w, tile, direction))


def launch(w: Attention, tile: Tile, direction: str) -> Launch:
    """One block per walk: it scans Q and O alone."""
    sram_bytes = sram_elements(w, tile, direction) * w.dtype.size
    return Launch(w.row_heads, w.row_heads, sram_bytes, tile.threads, lockstep=True, private=True, shrinking=shrinking(w))


def shrinking(w: Attention) -> Number:
    """Share of streamed rows in passes that a causal mask shortens: the last n keys are seen by ever fewer queries."""
    last = minimum(w.n, w.kv_len)
    return last / (last + 2 * (w.kv_len - last)) if w.causal else 0


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel: 2 n d + 3 n d T_c + 4 n T_c elements for a square problem without mask.

    Source: Dao et al. 2022, Algorithms 1 and 2.

    >>> [kernel] = forward(Attention(n=1024, kv_len=1024, d=64, dv=64), Tile(64, 384))
    >>> kernel.elements("read", "write"), kernel.elements("zero_fill")
    (733184, 67584)
    """
    size, rows = w.dtype.size, seeing_rows(w)
    accesses = (
        key_read(w, "K", w.d),
        key_read(w, "V", w.dv),
        _streamed(w, tile, "Q", READ, w.d, size, rows),
        _streamed(w, tile, "O", READ, w.dv, size),
        _streamed(w, tile, "O", WRITE, w.dv, size, rows),
        _streamed(w, tile, "l, m", READ, 2, STATISTIC_SIZE),
        _streamed(w, tile, "l, m", WRITE, 2, STATISTIC_SIZE),
        once("O", ZERO_FILL, query_rows(w) * w.dv, size, compulsory=0),
        once("l, m", ZERO_FILL, query_rows(w) * 2, STATISTIC_SIZE, compulsory=0),
        *mask_read(w, tile),
    )
    rescale = w.row_heads * streamed_query_rows(w, tile.br, tile.bc) * w.dv
    return [_kernel(w, tile, FORWARD, (1, 1), matmul_flops(w, 1, 1), rescale, accesses)]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """One fused kernel that recomputes the scores: 4 n d + 5 n d T_c + 2 n T_c elements for a square problem.

    Source: Dao et al. 2022, Algorithm 4.

    >>> [kernel] = backward(Attention(n=1000, kv_len=1000, d=64, dv=64), Tile(128, 128))
    >>> kernel.elements("read", "write"), kernel.elements("zero_fill")
    (2832000, 192000)
    """
    size, rows = w.dtype.size, seeing_rows(w)
    accesses = (
        key_read(w, "K", w.d),
        key_read(w, "V", w.dv),
        _streamed(w, tile, "Q", READ, w.d, size, rows),
        _streamed(w, tile, "O", READ, w.dv, size, rows),
        _streamed(w, tile, "dO", READ, w.dv, size, rows),
        _streamed(w, tile, "dQ", READ, w.d, size),
        _streamed(w, tile, "dQ", WRITE, w.d, size, rows),
        _streamed(w, tile, "l, m", READ, 2, STATISTIC_SIZE),
        *key_gradients(w, ("dK", w.d), ("dV", w.dv)),
        once("dQ", ZERO_FILL, query_rows(w) * w.d, size, compulsory=0),
        once("dK", ZERO_FILL, w.row_heads * w.kv_len * w.d, size, compulsory=0),
        once("dV", ZERO_FILL, w.row_heads * w.kv_len * w.dv, size, compulsory=0),
        *mask_read(w, tile),
    )
    return [_kernel(w, tile, BACKWARD, (3, 2), 2 * matmul_flops(w, 1, 1), 0, accesses)]


ALGORITHM = Algorithm(
    name="flash1",
    title="FlashAttention, K/V outermost",
    source="Dao et al. 2022, arXiv 2205.14135, Algorithms 1, 2 and 4",
    io_class="N^2 d^2 / M + N d",
    vector_work=f"{SOFTMAX_VECTOR} per score, mask {MASK_VECTOR}, dropout {DROPOUT_VECTOR}; forward also d_v per row and pass to rescale O",
    forward=forward,
    backward=backward,
    pays_while=("d < sqrt(M / 3), as 12 N^2 d^2 / M < 4 N^2", lambda m, tile: (m / 3) ** 0.5),
    tiling=Tiling(default_tile, sram_elements, {FORWARD: "K_j, V_j, Q_i, O_i", BACKWARD: "K_j, V_j, Q_i, dO_i"}),
)
