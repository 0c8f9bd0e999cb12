"""``numba-flash``: FlashAttention-2's forward pass, a query tile stays in shared memory while K and V stream past it.

One thread block per query tile of one query head (unpacked: grouped heads read their K and V each for itself). fp32 inputs
and accumulation. Scores and outputs live in registers, probabilities pass through shared memory to the threads of the same
row. Copies to shared memory are asynchronous: V of a tile arrives during Q K^T, K of the next one during P V.
Source: Dao 2023, arXiv 2307.08691, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.core.workload import Attention
from perfmodel.timing.models.register_tiles import Geometry, geometry
from perfmodel.validation.kernels._launch import launcher
from perfmodel.validation.kernels._online import F32, LOWEST, hide_scores, log2_scale, update_softmax
from perfmodel.validation.kernels._steps import ZERO, U, copies_done, cuda, float32, keep, kernel, lane_sum, store4, sync_warp
from perfmodel.validation.kernels._tiles import FOUR, add_product, add_row_products, fill_tile, first_row

__all__ = ["Geometry", "build", "geometry", "grid", "prepare", "run"]

NAME = "numba-flash"
LN2 = F32(math.log(2))
NOTHING = F32(-math.inf)
"""logsumexp of a row that sees no key."""


def grid(w: Attention, shape: Geometry) -> tuple[int, int]:
    """Thread blocks: query tiles by query heads."""
    return -(-w.n // shape.br), w.query_heads


@cache
def build(shape: Geometry, causal: bool) -> Any:  # noqa: PLR0915 - constants of one kernel, and its loops
    """The kernel ``(Q, K, V, O, logsumexp, n, kv_len, group, scale)`` for one tile shape.

    Arrays are flat fp32 views of Q, O [batch * heads, n, d], K, V [batch * kv_heads, kv_len, d], logsumexp [batch * heads, n].
    ``group`` query heads share a KV head; ``scale`` is ``log2_scale(d)``.
    """
    layout, d, br, bc, chunk = shape.layout, shape.d, shape.br, shape.bc, shape.chunk
    q_spread, k_spread = layout.row_spread(d), layout.column_spread(d)
    first_of = first_row(layout)
    fill_q = fill_tile(layout.threads, br, d, q_spread)
    fill_k = fill_tile(layout.threads, bc, d, k_spread)
    fill_v = fill_tile(layout.threads, bc, d, 1)
    add_scores = add_row_products(layout, shape.columns, d)
    add_outputs = add_product(layout, shape.width, chunk, shape.p_pitch, permuted=False)
    hide, update = hide_scores(shape, causal), update_softmax(shape)
    k_at, v_at, p_at = U(br * d), U((br + bc) * d), U((br + 2 * bc) * d)
    n_q_spread, n_k_spread = U(q_spread), U(k_spread)
    n_rows, n_columns, n_width, n_lanes, n_step = U(layout.rows), U(shape.columns), U(shape.width), U(layout.lanes), U(layout.step)
    u_d, u_br, u_bc, u_chunk, u_p_pitch = U(d), U(br), U(bc), U(chunk), U(shape.p_pitch)
    chunks, groups, group_pitch = U(bc // chunk), U(shape.width // 4), U(4 * layout.lanes)
    s_size, o_size, rows_size, part_size = layout.rows * shape.columns, layout.rows * shape.width, layout.rows, 4 * layout.rows

    def flash(q: Any, k: Any, v: Any, o: Any, lse: Any, n: Any, kv_len: Any, group: Any, scale: Any) -> None:  # noqa: PLR0912, PLR0915
        shared = cuda.shared.array(0, float32)
        s = cuda.local.array(s_size, float32)
        out = cuda.local.array(o_size, float32)
        part = cuda.local.array(part_size, float32)
        top = cuda.local.array(rows_size, float32)
        total = cuda.local.array(rows_size, float32)
        thread = U(cuda.threadIdx.x)
        head = U(cuda.blockIdx.y)
        start = (U(cuda.gridDim.x) - U(1) - U(cuda.blockIdx.x)) * u_br  # the longest causal rows first
        lane = thread % n_lanes
        row = first_of(thread)
        q_from = keep(row * u_d + row % n_q_spread * FOUR)
        k_from = keep(k_at + lane * u_d + lane % n_k_spread * FOUR)
        p_from = keep(p_at + row * u_p_pitch)
        v_from = keep(v_at + lane * FOUR)
        real = min(u_br, n - start)
        seen = kv_len
        if causal:
            last = start + real + kv_len
            seen = last - n if last > n else U(0)
        tiles = (seen + u_bc - U(1)) // u_bc
        keys = head // group * kv_len
        fill_q(shared, U(0), q, (head * n + start) * u_d, u_d, real, u_d, thread)
        if tiles > U(0):
            fill_k(shared, k_at, k, keys * u_d, u_d, min(u_bc, kv_len), u_d, thread)
        for i in range(n_rows):
            top[i] = LOWEST
            total[i] = ZERO
        for i in range(n_rows * n_width):
            out[i] = ZERO
        for j in range(tiles):
            begin = j * u_bc
            copies_done()
            cuda.syncthreads()  # K is there, V of the tile before is done with
            fill_v(shared, v_at, v, (keys + begin) * u_d, u_d, min(u_bc, kv_len - begin), u_d, thread)
            for c in range(chunks):
                for i in range(n_rows * n_columns):
                    s[i] = ZERO
                add_scores(s, part, shared, q_from, k_from + c * u_chunk * u_d)
                first = begin + c * u_chunk
                end = first + u_chunk
                if end > kv_len or (causal and end + n > start + kv_len + U(1)):
                    hide(s, start + row, first, lane, n, kv_len)
                update(s, out, top, total, shared, p_from + lane, scale)
                if c == U(0):
                    copies_done()
                    cuda.syncthreads()  # V is there
                else:
                    sync_warp()
                if c == chunks - U(1) and j + U(1) < tiles:
                    if chunks > U(1):
                        cuda.syncthreads()  # K is done with
                    fill_k(shared, k_at, k, (keys + begin + u_bc) * u_d, u_d, min(u_bc, kv_len - begin - u_bc), u_d, thread)
                add_outputs(out, part, shared, p_from, v_from + c * u_chunk * u_d)
                if chunks > U(1):
                    sync_warp()
        copies_done()
        for i in range(n_rows):
            whole = lane_sum(total[i], n_lanes)
            inverse = F32(1) / whole if whole > ZERO else ZERO
            own = start + row + i * n_step
            if own < n:
                for g in range(groups):
                    x = i * n_width + g * FOUR
                    to = (head * n + own) * u_d + lane * FOUR + g * group_pitch
                    store4(o, to, out[x] * inverse, out[x + U(1)] * inverse, out[x + U(2)] * inverse, out[x + U(3)] * inverse)
                if lane == U(0):
                    lse[head * n + own] = (top[i] + F32(math.log2(whole))) * LN2 if whole > ZERO else NOTHING

    return kernel(flash, shape.max_registers)


def prepare(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, o: Any, lse: Any, stream: Any = 0) -> Callable[[], None]:
    """What launches the kernel on flat fp32 arrays; ``w`` gives lengths and heads, dv = d, no mask, window or dropout."""
    args = (q, k, v, o, lse, U(w.n), U(w.kv_len), U(w.group), log2_scale(shape.d))
    return launcher(build(shape, w.causal), grid(w, shape), shape.threads, shape.shared_bytes, *args, stream=stream)


def run(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, o: Any, lse: Any, stream: Any = 0) -> None:
    """O and logsumexp of attention ``w``: see ``prepare``."""
    prepare(w, shape, q, k, v, o, lse, stream)()
