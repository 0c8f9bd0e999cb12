"""``numba-flash1``: FlashAttention with K and V outermost, as Algorithm 1 prints it.

One thread block per query head keeps a key tile in shared memory while Q, O, l and m stream past it: O, l and m are read and
written through global memory on every pass, past L1, so that what L2 delivers is what the algorithm counts. fp32.
Source: Dao et al. 2022, arXiv 2205.14135, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.core.workload import Attention
from perfmodel.timing.models.register_tiles import FLOAT_BYTES, Geometry, geometry
from perfmodel.validation.kernels._launch import launcher
from perfmodel.validation.kernels._online import F32, LOWEST, hide_scores, log2_scale, update_softmax
from perfmodel.validation.kernels._steps import (
    ZERO,
    U,
    copies_done,
    cuda,
    float32,
    keep,
    kernel,
    lane_sum,
    load4_global,
    load_global,
    store4,
    sync_warp,
)
from perfmodel.validation.kernels._tiles import FOUR, add_product, add_row_products, fill_tile, first_row

__all__ = ["Geometry", "build", "build_fill", "geometry", "grid", "prepare", "run", "shared_bytes"]

NAME = "numba-flash1"
FILL_THREADS = 256


def grid(w: Attention, shape: Geometry) -> tuple[int, int]:
    """Thread blocks: one per query head."""
    return 1, w.query_heads


def shared_bytes(shape: Geometry) -> int:
    """Shared memory of a block: that of numba-flash, and l and m of a query tile."""
    return shape.shared_bytes + 2 * shape.br * FLOAT_BYTES


@cache
def build_fill() -> Any:
    """The kernel ``(array, value)`` that sets every element."""

    def fill(array: Any, value: Any) -> None:
        width = U(cuda.blockDim.x)
        for at in range(U(cuda.blockIdx.x) * width + U(cuda.threadIdx.x), U(array.size), U(cuda.gridDim.x) * width):
            array[at] = value

    return kernel(fill)


@cache
def build(shape: Geometry, causal: bool) -> Any:  # noqa: PLR0915 - constants of one kernel, and its loops
    """The kernel ``(Q, K, V, O, l, m, n, kv_len, group, scale)`` for one tile shape, at least ``br`` threads per block.

    Arrays as in numba-flash; l, m [batch * heads, n], filled with 0 and LOWEST before, and O with 0. m is a power of two's
    exponent: the largest score times ``scale``.
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
    l_at, m_at = U((br + 2 * bc) * d + br * shape.p_pitch), U((br + 2 * bc) * d + br * (shape.p_pitch + 1))
    n_q_spread, n_k_spread = U(q_spread), U(k_spread)
    n_rows, n_columns, n_width, n_lanes, n_step = U(layout.rows), U(shape.columns), U(shape.width), U(layout.lanes), U(layout.step)
    u_d, u_br, u_bc, u_chunk, u_p_pitch = U(d), U(br), U(bc), U(chunk), U(shape.p_pitch)
    chunks, groups, group_pitch = U(bc // chunk), U(shape.width // 4), U(4 * layout.lanes)
    s_size, o_size, rows_size, part_size = layout.rows * shape.columns, layout.rows * shape.width, layout.rows, 4 * layout.rows

    def flash1(q: Any, k: Any, v: Any, o: Any, ls: Any, ms: Any, n: Any, kv_len: Any, group: Any, scale: Any) -> None:  # noqa: PLR0912, PLR0915
        shared = cuda.shared.array(0, float32)
        s = cuda.local.array(s_size, float32)
        out = cuda.local.array(o_size, float32)
        part = cuda.local.array(part_size, float32)
        top = cuda.local.array(rows_size, float32)
        total = cuda.local.array(rows_size, float32)
        thread = U(cuda.threadIdx.x)
        head = U(cuda.blockIdx.y)
        lane = thread % n_lanes
        row = first_of(thread)
        q_from = keep(row * u_d + row % n_q_spread * FOUR)
        k_from = keep(k_at + lane * u_d + lane % n_k_spread * FOUR)
        p_from = keep(p_at + row * u_p_pitch)
        v_from = keep(v_at + lane * FOUR)
        keys = head // group * kv_len
        for begin in range(U(0), kv_len, u_bc):
            skipped = U(0)  # rows that see no key of this tile
            if causal and begin + n > kv_len:
                skipped = (begin + n - kv_len) // u_br * u_br
            here = min(u_bc, kv_len - begin)
            cuda.syncthreads()  # the key tile before is done with
            fill_k(shared, k_at, k, (keys + begin) * u_d, u_d, here, u_d, thread)
            fill_v(shared, v_at, v, (keys + begin) * u_d, u_d, here, u_d, thread)
            for start in range(skipped, n, u_br):
                base = head * n + start
                real = min(u_br, n - start)
                cuda.syncthreads()  # the query tile before is done with
                fill_q(shared, U(0), q, base * u_d, u_d, real, u_d, thread)
                if thread < real:
                    shared[l_at + thread] = load_global(ls, base + thread)
                    shared[m_at + thread] = load_global(ms, base + thread)
                for i in range(n_rows):
                    own = row + i * n_step
                    for g in range(groups):
                        x = i * n_width + g * FOUR
                        out[x], out[x + U(1)], out[x + U(2)], out[x + U(3)] = ZERO, ZERO, ZERO, ZERO
                        if own < real:
                            origin = (base + own) * u_d + lane * FOUR + g * group_pitch
                            out[x], out[x + U(1)], out[x + U(2)], out[x + U(3)] = load4_global(o, origin)
                copies_done()
                cuda.syncthreads()
                for i in range(n_rows):
                    old = shared[l_at + row + i * n_step]
                    top[i] = shared[m_at + row + i * n_step]
                    total[i] = old if lane == U(0) else ZERO
                    for x in range(n_width):
                        out[i * n_width + x] *= old
                for c in range(chunks):
                    for i in range(n_rows * n_columns):
                        s[i] = ZERO
                    add_scores(s, part, shared, q_from, k_from + c * u_chunk * u_d)
                    first = begin + c * u_chunk
                    end = first + u_chunk
                    if end > kv_len or (causal and end + n > start + kv_len + U(1)):
                        hide(s, start + row, first, lane, n, kv_len)
                    update(s, out, top, total, shared, p_from + lane, scale)
                    sync_warp()
                    add_outputs(out, part, shared, p_from, v_from + c * u_chunk * u_d)
                    sync_warp()
                for i in range(n_rows):
                    whole = lane_sum(total[i], n_lanes)
                    inverse = F32(1) / whole if whole > ZERO else ZERO
                    own = row + i * n_step
                    if own < real:
                        for g in range(groups):
                            x = i * n_width + g * FOUR
                            to = (base + own) * u_d + lane * FOUR + g * group_pitch
                            store4(o, to, out[x] * inverse, out[x + U(1)] * inverse, out[x + U(2)] * inverse, out[x + U(3)] * inverse)
                        if lane == U(0):
                            ls[base + own] = whole
                            ms[base + own] = top[i]

    return kernel(flash1, shape.max_registers)


def prepare(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, o: Any, ls: Any, ms: Any, stream: Any = 0) -> Callable[[], None]:
    """What launches the fills of O, l, m and the kernel on flat fp32 arrays; dv = d, no mask, window or dropout."""
    args = (q, k, v, o, ls, ms, U(w.n), U(w.kv_len), U(w.group), log2_scale(shape.d))
    main = launcher(build(shape, w.causal), grid(w, shape), shape.threads, shared_bytes(shape), *args, stream=stream)
    fills = [
        launcher(build_fill(), (-(-array.size // (4 * FILL_THREADS)),), FILL_THREADS, 0, array, value, stream=stream)
        for array, value in ((o, ZERO), (ls, ZERO), (ms, LOWEST))
    ]

    def launch() -> None:
        for step in (*fills, main):
            step()

    return launch


def run(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, o: Any, ls: Any, ms: Any, stream: Any = 0) -> None:
    """O, l and m of attention ``w``: see ``prepare``."""
    prepare(w, shape, q, k, v, o, ls, ms, stream)()
