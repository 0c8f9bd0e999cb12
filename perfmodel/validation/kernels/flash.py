"""``numba-flash``: FlashAttention-2's forward pass in fp32; a query tile stays in shared memory while K and V stream past it.

There is one thread block per query tile of one query head, also for grouped heads, so that each query head reads its K and V. Scores and
outputs live in registers; probabilities pass through shared memory to the threads of the same row. A key tile is multiplied in chunks of
keys whose scores fit the registers. Copies to shared memory are asynchronous: V of a tile arrives during Q K^T, K of the next tile during
P V. Source: Dao 2023, arXiv 2307.08691, Algorithm 1.

The functions below make the parts of the kernel, ``build`` puts them together. Shared memory holds Q, K, V and P in this order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.core.workload import Attention
from perfmodel.kernels.register_tiles import Geometry, geometry
from perfmodel.validation.kernels import _steps as steps
from perfmodel.validation.kernels._steps import F32, FOUR, HIDDEN, LOWEST, ZERO, U, cuda, device_function, float32, kernel, launcher

__all__ = ["KERNELS", "Geometry", "build", "extras", "geometry", "logsumexp", "main", "prepare"]

KERNELS = ("flash",)
LN2 = F32(math.log(2))
NOTHING = F32(-math.inf)
"""logsumexp of a row that sees no key."""


def log2_scale(d: int) -> Any:
    """log2(e) / sqrt(d): exponentials are powers of two."""
    return F32(math.log2(math.e) / math.sqrt(d))


def places(shape: Geometry) -> Any:
    """Device function: thread -> its lane, its first row, and where it begins to read Q, K, P and V in shared memory."""
    layout, d = shape.layout, shape.d
    n_lanes, first_row, u_d, u_p_pitch = U(layout.lanes), steps.first_row(layout), U(d), U(shape.p_pitch)
    n_q_spread, n_k_spread = U(layout.row_spread(d)), U(layout.column_spread(d))
    k_start, v_start, p_start = U(shape.br * d), U((shape.br + shape.bc) * d), U((shape.br + 2 * shape.bc) * d)

    @device_function
    def place(thread: Any) -> Any:
        lane = thread % n_lanes
        row = first_row(thread)
        q_from = steps.keep(row * u_d + row % n_q_spread * FOUR)
        k_from = steps.keep(k_start + lane * u_d + lane % n_k_spread * FOUR)
        p_from = steps.keep(p_start + row * u_p_pitch)
        v_from = steps.keep(v_start + lane * FOUR)
        return lane, row, q_from, k_from, p_from, v_from

    return place


def fill_tiles(shape: Geometry) -> tuple[Any, Any, Any]:
    """Device functions (shared, source, first, remaining, thread) that copy a tile of Q, of K and of V to its place in shared memory.

    ``first``: first row in the source; ``remaining``: number of rows from there on, beyond which the tile is cleared.
    """
    layout, u_d = shape.layout, U(shape.d)

    def filler(rows: int, rows_before: int, spread: int) -> Any:
        copy, n_rows, to = steps.fill_tile(layout.threads, rows, shape.d, spread), U(rows), U(rows_before * shape.d)

        @device_function
        def fill(shared: Any, source: Any, first: Any, remaining: Any, thread: Any) -> None:
            copy(shared, to, source, first * u_d, u_d, min(n_rows, remaining), u_d, thread)

        return fill

    fill_q = filler(shape.br, 0, layout.row_spread(shape.d))
    fill_k = filler(shape.bc, shape.br, layout.column_spread(shape.d))
    fill_v = filler(shape.bc, shape.br + shape.bc, 1)
    return fill_q, fill_k, fill_v


def hide_scores(shape: Geometry, causal: bool) -> Any:
    """Device function that masks the scores of keys that do not exist or that a row does not see.

    ``row``: the thread's first row in the head; ``first``: the chunk's first key.
    """
    n_rows, n_columns, n_lanes, n_step = U(shape.rows), U(shape.scores_per_row), U(shape.lanes), U(shape.layout.step)

    @device_function
    def hide(s: Any, row: Any, first: Any, lane: Any, n: Any, kv_len: Any) -> None:
        for i in range(n_rows):
            limit = steps.seen_keys(row + i * n_step + U(1), n, kv_len) if causal else kv_len
            for x in range(n_columns):
                if first + lane + x * n_lanes >= limit:
                    s[i * n_columns + x] = HIDDEN

    return hide


def score_chunk(shape: Geometry, causal: bool) -> Any:
    """Device function that computes the masked scores of a chunk of keys from ``first`` on; the query tile begins at row ``start``."""
    n_scores, u_chunk = U(shape.rows * shape.scores_per_row), U(shape.chunk)
    add, hide = steps.add_row_products(shape.layout, shape.scores_per_row, shape.d), hide_scores(shape, causal)

    @device_function
    def score(s: Any, part: Any, shared: Any, a: Any, b: Any, start: Any, row: Any, first: Any, lane: Any, n: Any, kv_len: Any) -> None:
        for i in range(n_scores):
            s[i] = ZERO
        add(s, part, shared, a, b)
        end = first + u_chunk
        if end > kv_len or (causal and end + n > start + kv_len + U(1)):  # row ``start`` does not see key ``end`` - 1
            hide(s, start + row, first, lane, n, kv_len)

    return score


def update_softmax(shape: Geometry) -> Any:
    """Device function that makes probabilities of a chunk's scores, in shared memory from ``to`` on.

    It also updates the running maximum ``top`` of each row, the outputs, and ``total``, the sum over the keys of this thread's lane; the
    lanes' sums are added at the end.
    """
    n_rows, n_columns, n_lanes = U(shape.rows), U(shape.scores_per_row), U(shape.lanes)
    n_width, row_pitch = U(shape.outputs_per_row), U(shape.layout.step * shape.p_pitch)

    @device_function
    def update(s: Any, out: Any, top: Any, total: Any, shared: Any, to: Any, scale: Any) -> None:
        for i in range(n_rows):
            highest = s[i * n_columns]
            for x in range(U(1), n_columns):
                highest = max(highest, s[i * n_columns + x])
            highest = max(top[i], steps.lane_max(highest, n_lanes) * scale)
            decay = F32(math.exp2(top[i] - highest))
            top[i] = highest
            subtotal = total[i] * decay
            for x in range(n_columns):
                p = F32(math.exp2(s[i * n_columns + x] * scale - highest))
                subtotal += p
                shared[to + i * row_pitch + x * n_lanes] = p
            total[i] = subtotal
            for x in range(n_width):
                out[i * n_width + x] *= decay

    return update


def store_outputs(shape: Geometry) -> Any:
    """Device function that divides the thread's i-th row of O by its sum and stores it if the row exists; returns the row's sum.

    ``total``: the sum of this thread's lane.
    """
    n_lanes, store = U(shape.lanes), steps.store_row(shape.layout, shape.outputs_per_row)

    @device_function
    def store_divided(o: Any, to: Any, out: Any, i: Any, total: Any, exists: Any) -> Any:
        row_sum = steps.lane_sum(total, n_lanes)
        if exists:
            store(o, to, out, i, F32(1) / row_sum if row_sum > ZERO else ZERO)
        return row_sum

    return store_divided


@cache
def build(shape: Geometry, causal: bool) -> Any:
    """The kernel ``(Q, K, V, O, logsumexp, n, kv_len, group, scale)`` for one tile shape.

    Arrays are flat fp32 views of Q, O [batch * heads, n, d], K, V [batch * kv_heads, kv_len, d], logsumexp [batch * heads, n].
    ``group`` query heads share a KV head; ``scale`` is ``log2_scale(d)``. A thread keeps its scores of a chunk (``s``), its outputs, and of
    each of its rows the maximum (``top``) and its lane's sum (``total``); ``part`` is the room that ``add_row_products`` asks for.
    """
    place, score, update, store = places(shape), score_chunk(shape, causal), update_softmax(shape), store_outputs(shape)
    fill_q, fill_k, fill_v = fill_tiles(shape)
    add_outputs = steps.add_product(shape.layout, shape.outputs_per_row, shape.chunk, shape.p_pitch, permuted=False)
    u_d, u_br, u_bc, chunk_pitch = U(shape.d), U(shape.br), U(shape.bc), U(shape.chunk * shape.d)
    u_chunk, chunks, n_step = U(shape.chunk), U(shape.bc // shape.chunk), U(shape.layout.step)
    n_rows, part_size, o_size, s_size = shape.rows, 4 * shape.rows, shape.rows * shape.outputs_per_row, shape.rows * shape.scores_per_row

    def flash(q: Any, k: Any, v: Any, o: Any, lse: Any, n: Any, kv_len: Any, group: Any, scale: Any) -> None:
        shared = cuda.shared.array(0, float32)
        s = cuda.local.array(s_size, float32)
        out = cuda.local.array(o_size, float32)
        part = cuda.local.array(part_size, float32)
        top = cuda.local.array(n_rows, float32)
        total = cuda.local.array(n_rows, float32)
        thread, head = U(cuda.threadIdx.x), U(cuda.blockIdx.y)
        start = (U(cuda.gridDim.x) - U(1) - U(cuda.blockIdx.x)) * u_br  # the longest causal rows first
        lane, row, q_from, k_from, p_from, v_from = place(thread)
        seen = steps.seen_keys(start + min(u_br, n - start), n, kv_len) if causal else kv_len
        tiles, first_key = (seen + u_bc - U(1)) // u_bc, head // group * kv_len
        fill_q(shared, q, head * n + start, n - start, thread)
        if tiles > U(0):
            fill_k(shared, k, first_key, kv_len, thread)
        for i in range(U(n_rows)):
            top[i], total[i] = LOWEST, ZERO
        for i in range(U(o_size)):
            out[i] = ZERO
        for j in range(tiles):
            begin = j * u_bc
            steps.copies_done()
            cuda.syncthreads()  # K of this tile has arrived, and no thread reads V of the tile before
            fill_v(shared, v, first_key + begin, kv_len - begin, thread)
            for c in range(chunks):
                score(s, part, shared, q_from, k_from + c * chunk_pitch, start, row, begin + c * u_chunk, lane, n, kv_len)
                update(s, out, top, total, shared, p_from + lane, scale)
                if c == U(0):
                    steps.copies_done()
                    cuda.syncthreads()  # V has arrived
                else:
                    steps.sync_warp()
                if c == chunks - U(1) and j + U(1) < tiles:
                    if chunks > U(1):
                        cuda.syncthreads()  # no thread reads K any more
                    fill_k(shared, k, first_key + begin + u_bc, kv_len - begin - u_bc, thread)
                add_outputs(out, part, shared, p_from, v_from + c * chunk_pitch)
                if chunks > U(1):
                    steps.sync_warp()
        steps.copies_done()
        for i in range(U(n_rows)):
            out_row = start + row + i * n_step
            row_sum = store(o, (head * n + out_row) * u_d + lane * FOUR, out, i, total[i], out_row < n)
            if out_row < n and lane == U(0):
                lse[head * n + out_row] = (top[i] + F32(math.log2(row_sum))) * LN2 if row_sum > ZERO else NOTHING

    return kernel(flash, shape.max_registers)


def prepare(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, o: Any, lse: Any) -> Callable[[], None]:
    """Function that launches the kernel on flat fp32 arrays; ``w`` gives lengths and heads, dv = d, no mask, window or dropout."""
    args = (q, k, v, o, lse, U(w.n), U(w.kv_len), U(w.group), log2_scale(shape.d))
    grid = (-(-w.n // shape.br), w.query_heads)
    return launcher(build(shape, w.causal), grid, shape.threads, shape.shared_bytes, *args)


def extras(w: Attention) -> list[tuple[str, int]]:
    """(name, elements) of each output beside O."""
    return [("logsumexp", w.query_heads * w.n)]


def main(shape: Geometry, causal: bool) -> tuple[Any, int]:
    """The kernel, and the shared bytes of a block."""
    return build(shape, causal), shape.shared_bytes


def logsumexp(lse: Any) -> Any:
    """The logsumexp, unchanged: the kernel writes it."""
    return lse
