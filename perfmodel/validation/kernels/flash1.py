"""``numba-flash1``: FlashAttention with K and V outermost, as Algorithm 1 prints it.

One thread block per query head keeps a key tile in shared memory while Q, O, l (row sums) and m (row maxima) stream past it. O, l and m are
read and written in global memory for every key tile, past L1, so that the L2 delivers as many bytes as the algorithm counts. All is fp32.
The parts of the kernel are those of ``flash.py``. Source: Dao et al. 2022, arXiv 2205.14135, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from perfmodel.core.workload import Attention
from perfmodel.kernels.register_tiles import FLOAT_BYTES, Geometry, geometry
from perfmodel.validation.kernels import FILL
from perfmodel.validation.kernels import _steps as steps
from perfmodel.validation.kernels._steps import FOUR, LOWEST, ZERO, U, cuda, device_function, float32, kernel, launcher
from perfmodel.validation.kernels.flash import fill_tiles, log2_scale, places, score_chunk, store_outputs, update_softmax

__all__ = ["KERNELS", "Geometry", "build", "extras", "geometry", "logsumexp", "main", "prepare"]

KERNELS = (FILL, FILL, FILL, "flash1")
FILL_THREADS = 256


@cache
def build_fill() -> Any:
    """The kernel ``(array, value)`` that sets every element."""

    def fill(array: Any, value: Any) -> None:
        width = U(cuda.blockDim.x)
        for at in range(U(cuda.blockIdx.x) * width + U(cuda.threadIdx.x), U(array.size), U(cuda.gridDim.x) * width):
            array[at] = value

    return kernel(fill)


def load_rows(shape: Geometry) -> Any:
    """Device function that loads the thread's rows of O from global memory, zeros beyond the ``real`` rows of the tile."""
    n_rows, n_width, n_step, u_d = U(shape.rows), U(shape.outputs_per_row), U(shape.layout.step), U(shape.d)
    groups, group_pitch = U(shape.outputs_per_row // 4), U(4 * shape.lanes)

    @device_function
    def load(out: Any, o: Any, base: Any, row: Any, lane: Any, real: Any) -> None:
        for i in range(n_rows):
            out_row = row + i * n_step
            for g in range(groups):
                x = i * n_width + g * FOUR
                out[x], out[x + U(1)], out[x + U(2)], out[x + U(3)] = ZERO, ZERO, ZERO, ZERO
                if out_row < real:
                    origin = (base + out_row) * u_d + lane * FOUR + g * group_pitch
                    out[x], out[x + U(1)], out[x + U(2)], out[x + U(3)] = steps.load4_global(o, origin)

    return load


@cache
def build(shape: Geometry, causal: bool) -> Any:
    """The kernel ``(Q, K, V, O, l, m, n, kv_len, group, scale)`` for one tile shape, at least ``br`` threads per block.

    Arrays are as in numba-flash, and l and m are [batch * heads, n]. Before the launch O and l hold 0, m holds LOWEST. m is the largest
    score times ``scale``, as exponentials are powers of two.
    """
    place, score, update, store = places(shape), score_chunk(shape, causal), update_softmax(shape), store_outputs(shape)
    load, (fill_q, fill_k, fill_v) = load_rows(shape), fill_tiles(shape)
    add_outputs = steps.add_product(shape.layout, shape.outputs_per_row, shape.chunk, shape.p_pitch, permuted=False)
    after_p = (shape.br + 2 * shape.bc) * shape.d + shape.br * shape.p_pitch
    l_start, m_start = U(after_p), U(after_p + shape.br)
    u_d, u_br, u_bc, u_chunk, chunk_pitch = U(shape.d), U(shape.br), U(shape.bc), U(shape.chunk), U(shape.chunk * shape.d)
    chunks, n_step, n_width = U(shape.bc // shape.chunk), U(shape.layout.step), U(shape.outputs_per_row)
    n_rows, part_size, o_size, s_size = shape.rows, 4 * shape.rows, shape.rows * shape.outputs_per_row, shape.rows * shape.scores_per_row

    def flash1(q: Any, k: Any, v: Any, o: Any, ls: Any, ms: Any, n: Any, kv_len: Any, group: Any, scale: Any) -> None:
        shared = cuda.shared.array(0, float32)
        s = cuda.local.array(s_size, float32)
        out = cuda.local.array(o_size, float32)
        part = cuda.local.array(part_size, float32)
        top = cuda.local.array(n_rows, float32)
        total = cuda.local.array(n_rows, float32)
        thread, head = U(cuda.threadIdx.x), U(cuda.blockIdx.y)
        lane, row, q_from, k_from, p_from, v_from = place(thread)
        first_key = head // group * kv_len
        for begin in range(U(0), kv_len, u_bc):
            skipped = U(0)  # rows that see no key of this tile
            if causal and begin + n > kv_len:
                skipped = (begin + n - kv_len) // u_br * u_br
            cuda.syncthreads()  # no thread reads the key tile before
            fill_k(shared, k, first_key + begin, kv_len - begin, thread)
            fill_v(shared, v, first_key + begin, kv_len - begin, thread)
            for start in range(skipped, n, u_br):
                base, real = head * n + start, min(u_br, n - start)
                cuda.syncthreads()  # no thread reads the query tile before
                fill_q(shared, q, base, real, thread)
                if thread < real:
                    shared[l_start + thread] = steps.load_global(ls, base + thread)
                    shared[m_start + thread] = steps.load_global(ms, base + thread)
                load(out, o, base, row, lane, real)
                steps.copies_done()
                cuda.syncthreads()
                for i in range(U(n_rows)):
                    old_sum = shared[l_start + row + i * n_step]
                    top[i] = shared[m_start + row + i * n_step]
                    total[i] = old_sum if lane == U(0) else ZERO
                    for x in range(n_width):
                        out[i * n_width + x] *= old_sum  # O is stored divided by the sum
                for c in range(chunks):
                    score(s, part, shared, q_from, k_from + c * chunk_pitch, start, row, begin + c * u_chunk, lane, n, kv_len)
                    update(s, out, top, total, shared, p_from + lane, scale)
                    steps.sync_warp()
                    add_outputs(out, part, shared, p_from, v_from + c * chunk_pitch)
                    steps.sync_warp()
                for i in range(U(n_rows)):
                    out_row = row + i * n_step
                    row_sum = store(o, (base + out_row) * u_d + lane * FOUR, out, i, total[i], out_row < real)
                    if out_row < real and lane == U(0):
                        ls[base + out_row], ms[base + out_row] = row_sum, top[i]

    return kernel(flash1, shape.max_registers)


def prepare(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, o: Any, ls: Any, ms: Any) -> Callable[[], None]:
    """Function that launches the fills of O, l, m and the kernel on flat fp32 arrays; dv = d, no mask, window or dropout."""
    args = (q, k, v, o, ls, ms, U(w.n), U(w.kv_len), U(w.group), log2_scale(shape.d))
    flash1_kernel, shared_bytes = main(shape, w.causal)
    fills = (
        launcher(build_fill(), (-(-array.size // (4 * FILL_THREADS)),), FILL_THREADS, 0, array, value)
        for array, value in ((o, ZERO), (ls, ZERO), (ms, LOWEST))
    )
    return steps.in_turn((*fills, launcher(flash1_kernel, (1, w.query_heads), shape.threads, shared_bytes, *args)))


def extras(w: Attention) -> list[tuple[str, int]]:
    """(name, elements) of each output beside O."""
    return [("l, m", w.query_heads * w.n)] * 2


def main(shape: Geometry, causal: bool) -> tuple[Any, int]:
    """The kernel, and the shared bytes of a block: as in numba-flash, plus l and m of a query tile."""
    return build(shape, causal), shape.shared_bytes + 2 * shape.br * FLOAT_BYTES


def logsumexp(ls: Any, ms: Any) -> Any:
    """Logsumexp from row sums ``ls`` and base-2 maxima ``ms``; -inf where a row sees no key."""
    total = ls.astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.where(total == 0, -np.inf, (ms + np.log2(total)) * math.log(2))
