"""``numba-standard``: unfused attention, S = Q K^T / sqrt(d), P = softmax(S), O = P V, through global memory. fp32.

The full n x kv_len matrices are moved even if a causal mask hides half of them; the softmax applies the mask. Source: Dao et
al. 2022, arXiv 2205.14135, Algorithm 0. What a GEMM's tiles read again is in ``loads``: nothing where one tile covers all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.core.workload import Attention
from perfmodel.timing.models.register_tiles import FLOAT_BYTES, SHARED_LIMIT, WARP, TileLayout
from perfmodel.validation.kernels._launch import launcher
from perfmodel.validation.kernels._online import F32
from perfmodel.validation.kernels._softmax import build_softmax
from perfmodel.validation.kernels._steps import ZERO, U, copies_done, cuda, float32, keep, kernel, store4
from perfmodel.validation.kernels._tiles import FOUR, add_product, add_row_products, fill_tile, first_row

NAME = "numba-standard"


@dataclass(frozen=True, slots=True)
class Geometry:
    """GEMM tiles: ``br`` x ``bc`` scores; ``br`` x d outputs, ``depth`` keys at a time. ``softmax_lanes`` threads share a row."""

    d: int
    br: int
    bc: int
    lanes: int
    rows: int = 8
    depth: int = 32
    softmax_lanes: int = WARP

    @property
    def layout(self) -> TileLayout:
        """Owners of rows and columns."""
        return TileLayout(self.br, self.lanes, self.rows)

    @property
    def threads(self) -> int:
        """Threads per block of both GEMMs."""
        return self.layout.threads


def geometry(d: int, br: int = 128, bc: int = 64) -> Geometry:
    """The fast layout for d 64 or 128."""
    return Geometry(d, br, bc, lanes=d // 8)


def loads(w: Attention, shape: Geometry) -> dict[str, int]:
    """Elements of each tensor loaded from global memory; equal to Algorithm 0's where ``br`` >= n and ``bc`` >= kv_len."""
    row_tiles, key_tiles, heads = -(-w.n // shape.br), -(-w.kv_len // shape.bc), w.query_heads
    scores, keys = heads * w.n * w.kv_len, heads * w.kv_len * w.d * row_tiles
    return {"Q": heads * w.n * w.d * key_tiles, "K": keys, "S": scores, "P": scores, "V": keys}


@cache
def build_scores(shape: Geometry) -> Any:
    """The kernel ``(Q, K, S, n, kv_len, group, scale)``: Q [heads, n, d], K [kv heads, kv_len, d], S [heads, n, kv_len]."""
    layout, d, br, bc = shape.layout, shape.d, shape.br, shape.bc
    q_spread, k_spread, columns = layout.row_spread(d), layout.column_spread(d), bc // shape.lanes
    first_of, add = first_row(layout), add_row_products(layout, columns, d)
    fill_q, fill_k = fill_tile(layout.threads, br, d, q_spread), fill_tile(layout.threads, bc, d, k_spread)
    n_q_spread, n_k_spread, k_at, u_d, u_br, u_bc = U(q_spread), U(k_spread), U(br * d), U(d), U(br), U(bc)
    n_rows, n_columns, n_lanes, n_step = U(layout.rows), U(columns), U(layout.lanes), U(layout.step)
    s_size, part_size = layout.rows * columns, 4 * layout.rows

    def standard_scores(q: Any, k: Any, s: Any, n: Any, kv_len: Any, group: Any, scale: Any) -> None:
        shared = cuda.shared.array(0, float32)
        out = cuda.local.array(s_size, float32)
        part = cuda.local.array(part_size, float32)
        thread, head = U(cuda.threadIdx.x), U(cuda.blockIdx.z)
        lane, row = thread % n_lanes, first_of(thread)
        top, left = U(cuda.blockIdx.y) * u_br, U(cuda.blockIdx.x) * u_bc
        rows, keys = min(u_br, n - top), min(u_bc, kv_len - left)
        fill_q(shared, U(0), q, (head * n + top) * u_d, u_d, rows, u_d, thread)
        fill_k(shared, k_at, k, (head // group * kv_len + left) * u_d, u_d, keys, u_d, thread)
        for i in range(n_rows * n_columns):
            out[i] = ZERO
        copies_done()
        cuda.syncthreads()
        add(out, part, shared, row * u_d + row % n_q_spread * FOUR, k_at + lane * u_d + lane % n_k_spread * FOUR)
        for i in range(n_rows):
            own = row + i * n_step
            for x in range(n_columns):
                if own < rows and lane + x * n_lanes < keys:
                    s[(head * n + top + own) * kv_len + left + lane + x * n_lanes] = out[i * n_columns + x] * scale

    return kernel(standard_scores)


@cache
def build_outputs(shape: Geometry) -> Any:
    """The kernel ``(P, V, O, n, kv_len, group)``: P [heads, n, kv_len], V [kv heads, kv_len, d], O [heads, n, d]."""
    layout, d, br, depth = shape.layout, shape.d, shape.br, shape.depth
    spread, width = layout.row_spread(depth), d // shape.lanes
    first_of, add = first_row(layout), add_product(layout, width, depth, depth, permuted=True)
    fill_p, fill_v = fill_tile(layout.threads, br, depth, spread), fill_tile(layout.threads, depth, d, 1)
    n_spread, stage, v_at, u_d, u_br, u_depth = U(spread), U((br + d) * depth), U(br * depth), U(d), U(br), U(depth)
    n_rows, n_width, n_lanes, n_step = U(layout.rows), U(width), U(layout.lanes), U(layout.step)
    groups, group_pitch, o_size, part_size = U(width // 4), U(4 * layout.lanes), layout.rows * width, 4 * layout.rows

    def standard_outputs(p: Any, v: Any, o: Any, n: Any, kv_len: Any, group: Any) -> None:
        shared = cuda.shared.array(0, float32)
        out = cuda.local.array(o_size, float32)
        part = cuda.local.array(part_size, float32)
        thread, head = U(cuda.threadIdx.x), U(cuda.blockIdx.y)
        lane, row = thread % n_lanes, first_of(thread)
        top, keys = U(cuda.blockIdx.x) * u_br, head // group * kv_len
        rows, now = min(u_br, n - top), U(0)
        p_from, v_from = keep(row * u_depth + row % n_spread * FOUR), keep(v_at + lane * FOUR)
        for i in range(n_rows * n_width):
            out[i] = ZERO
        fill_p(shared, U(0), p, (head * n + top) * kv_len, kv_len, rows, min(u_depth, kv_len), thread)
        fill_v(shared, v_at, v, keys * u_d, u_d, min(u_depth, kv_len), u_d, thread)
        for begin in range(U(0), kv_len, u_depth):
            copies_done()
            cuda.syncthreads()  # this stage is there, the other one is done with
            after = begin + u_depth
            if after < kv_len:
                here = min(u_depth, kv_len - after)
                fill_p(shared, stage - now, p, (head * n + top) * kv_len + after, kv_len, rows, here, thread)
                fill_v(shared, stage - now + v_at, v, (keys + after) * u_d, u_d, here, u_d, thread)
            add(out, part, shared, now + p_from, now + v_from)
            now = stage - now
        for i in range(n_rows):
            own = row + i * n_step
            if own < rows:
                for g in range(groups):
                    x, to = i * n_width + g * FOUR, (head * n + top + own) * u_d + lane * FOUR + g * group_pitch
                    store4(o, to, out[x], out[x + U(1)], out[x + U(2)], out[x + U(3)])

    return kernel(standard_outputs)


def prepare(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, s: Any, p: Any, o: Any, stream: Any = 0) -> Callable[[], None]:
    """What launches the three kernels on flat fp32 arrays; kv_len is a multiple of 4, dv = d, no mask, window or dropout."""
    row_bytes = w.kv_len * FLOAT_BYTES
    if w.kv_len % 4 or row_bytes > SHARED_LIMIT:
        raise UsageError(f"numba-standard with kv_len {w.kv_len}", f"give a multiple of 4 up to {SHARED_LIMIT // FLOAT_BYTES}")
    n, kv_len, group, rows, lanes = U(w.n), U(w.kv_len), U(w.group), w.query_heads * w.n, shape.softmax_lanes
    per_block = max(min(4, 64 * 1024 // row_bytes), 1)  # rows per block of the softmax, so that several blocks fit
    scores = (-(-w.kv_len // shape.bc), -(-w.n // shape.br), w.query_heads)
    outputs, stages = (-(-w.n // shape.br), w.query_heads), 2 * (shape.br + shape.d) * shape.depth * FLOAT_BYTES
    tiles = (shape.br + shape.bc) * shape.d * FLOAT_BYTES
    steps = (
        launcher(build_scores(shape), scores, shape.threads, tiles, q, k, s, n, kv_len, group, F32(1 / math.sqrt(w.d)), stream=stream),
        launcher(
            build_softmax(lanes, w.causal),
            (-(-rows // per_block),),
            per_block * lanes,
            per_block * row_bytes,
            s,
            p,
            U(rows),
            n,
            kv_len,
            stream=stream,
        ),
        launcher(build_outputs(shape), outputs, shape.threads, stages, p, v, o, n, kv_len, group, stream=stream),
    )

    def launch() -> None:
        for step in steps:
            step()

    return launch


def run(w: Attention, shape: Geometry, q: Any, k: Any, v: Any, s: Any, p: Any, o: Any, stream: Any = 0) -> None:
    """S, P and O of attention ``w``: see ``prepare``."""
    prepare(w, shape, q, k, v, s, p, o, stream)()
