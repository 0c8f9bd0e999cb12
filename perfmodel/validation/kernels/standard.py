"""``numba-standard``: unfused fp32 attention, S = Q K^T / sqrt(d), P = softmax(S), O = P V, with S and P in global memory.

The full n x kv_len matrices are moved even if a causal mask hides half of them; the softmax applies the mask. Source: Dao et al. 2022,
arXiv 2205.14135, Algorithm 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import Attention
from perfmodel.kernels.register_tiles import FLOAT_BYTES, SHARED_LIMIT, WARP, TileLayout
from perfmodel.validation.kernels import _steps as steps
from perfmodel.validation.kernels import matmul
from perfmodel.validation.kernels._steps import F32, FOUR, HIDDEN, LOWEST, ZERO, U, cuda, float32, kernel, launcher

KERNELS = ("standard_scores", "standard_softmax", "matmul")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardGeometry(TileLayout):
    """Tiles of the two products: ``br`` x ``bc`` scores, and ``br`` x ``d`` outputs, ``depth`` keys at a time.

    ``softmax_lanes`` threads share a row of the softmax.
    """

    d: int
    bc: int
    depth: int = 32
    softmax_lanes: int = WARP


def geometry(d: int, br: int = 128, bc: int = 64) -> StandardGeometry:
    """The fast layout for d 64 or 128."""
    return StandardGeometry(br, d // 8, d=d, bc=bc)


def loads(w: Attention, shape: StandardGeometry) -> dict[str, int]:
    """Elements of each tensor loaded from global memory; operands of a product once per tile of the other one.

    They equal Algorithm 0's if one tile covers all: ``br`` >= n and ``bc`` >= kv_len.
    """
    row_tiles, key_tiles, heads = -(-w.n // shape.br), -(-w.kv_len // shape.bc), w.query_heads
    queries, keys, scores = heads * w.n * w.d, heads * w.kv_len * w.d, heads * w.n * w.kv_len
    return {"Q": queries * key_tiles, "K": keys * row_tiles, "S": scores, "P": scores, "V": keys * row_tiles}


@cache
def build_scores(shape: StandardGeometry) -> Any:
    """The kernel ``(Q, K, S, n, kv_len, group, scale)``: Q [heads, n, d], K [kv heads, kv_len, d], S [heads, n, kv_len]."""
    d, br, bc = shape.d, shape.br, shape.bc
    q_spread, k_spread, columns = shape.row_spread(d), shape.column_spread(d), bc // shape.lanes
    first_of, add = steps.first_row(shape), steps.add_row_products(shape, columns, d)
    fill_q, fill_k = steps.fill_tile(shape.threads, br, d, q_spread), steps.fill_tile(shape.threads, bc, d, k_spread)
    n_q_spread, n_k_spread, k_at, u_d, u_br, u_bc = U(q_spread), U(k_spread), U(br * d), U(d), U(br), U(bc)
    n_rows, n_columns, n_lanes, n_step = U(shape.rows), U(columns), U(shape.lanes), U(shape.step)
    s_size, part_size = shape.rows * columns, 4 * shape.rows

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
        steps.copies_done()
        cuda.syncthreads()
        add(out, part, shared, row * u_d + row % n_q_spread * FOUR, k_at + lane * u_d + lane % n_k_spread * FOUR)
        for i in range(n_rows):
            out_row = row + i * n_step
            for x in range(n_columns):
                if out_row < rows and lane + x * n_lanes < keys:
                    s[(head * n + top + out_row) * kv_len + left + lane + x * n_lanes] = out[i * n_columns + x] * scale

    return kernel(standard_scores)


@cache
def build_softmax(lanes: int, causal: bool) -> Any:
    """The kernel ``(S, P, rows, n, kv_len)``: ``lanes`` threads per row, which stays in shared memory: one load and one store a score."""
    n_lanes = U(lanes)

    def standard_softmax(s: Any, p: Any, rows: Any, n: Any, kv_len: Any) -> None:
        shared = cuda.shared.array(0, float32)
        thread = U(cuda.threadIdx.x)
        row = U(cuda.blockIdx.x) * (U(cuda.blockDim.x) // n_lanes) + thread // n_lanes
        at, lane = thread // n_lanes * kv_len, thread % n_lanes
        seen = U(0)
        if row < rows:
            seen = steps.seen_keys(row % n + U(1), n, kv_len) if causal else kv_len
        top = LOWEST
        for x in range(lane, kv_len if row < rows else U(0), n_lanes):
            value = s[row * kv_len + x]
            value = value if x < seen else HIDDEN
            shared[at + x] = value
            top = max(top, value)
        top = steps.lane_max(top, n_lanes)
        total = ZERO
        for x in range(lane, seen, n_lanes):
            value = F32(math.exp(shared[at + x] - top))
            shared[at + x] = value
            total += value
        total = steps.lane_sum(total, n_lanes)
        inverse = F32(1) / total if total > ZERO else ZERO
        for x in range(lane, kv_len if row < rows else U(0), n_lanes):
            p[row * kv_len + x] = shared[at + x] * inverse if x < seen else ZERO

    return kernel(standard_softmax)


def prepare(w: Attention, shape: StandardGeometry, q: Any, k: Any, v: Any, o: Any, s: Any, p: Any) -> Callable[[], None]:
    """Function that launches the three kernels on flat fp32 arrays; kv_len is a multiple of 4, dv = d, no mask, window or dropout."""
    row_bytes = w.kv_len * FLOAT_BYTES
    if w.kv_len % 4 or row_bytes > SHARED_LIMIT:
        raise UsageError(f"numba-standard with kv_len {w.kv_len}", f"give a multiple of 4 up to {SHARED_LIMIT // FLOAT_BYTES}")
    n, kv_len, group, rows, lanes = U(w.n), U(w.kv_len), U(w.group), w.query_heads * w.n, shape.softmax_lanes
    scores_kernel, shared_bytes = main(shape, w.causal)
    scores_grid = (-(-w.kv_len // shape.bc), -(-w.n // shape.br), w.query_heads)
    scores_args = (q, k, s, n, kv_len, group, F32(1 / math.sqrt(w.d)))
    per_block = max(min(4, 64 * 1024 // row_bytes), 1)  # rows per block of the softmax, so that several blocks fit
    softmax_launch = (-(-rows // per_block),), per_block * lanes, per_block * row_bytes
    outputs = matmul.MatmulGeometry(shape.br, shape.lanes, shape.rows, bc=shape.d, depth=shape.depth)
    return steps.in_turn(
        (
            launcher(scores_kernel, scores_grid, shape.threads, shared_bytes, *scores_args),
            launcher(build_softmax(lanes, w.causal), *softmax_launch, s, p, U(rows), n, kv_len),
            matmul.prepare(w.n, w.d, w.kv_len, outputs, p, v, o, w.query_heads, w.group),
        )
    )


def extras(w: Attention) -> list[tuple[str, int]]:
    """(name, elements) of each output beside O."""
    return [(name, w.query_heads * w.n * w.kv_len) for name in "SP"]


def main(shape: StandardGeometry, causal: bool) -> tuple[Any, int]:
    """The first kernel, and the shared bytes of a block."""
    return build_scores(shape), (shape.br + shape.bc) * shape.d * FLOAT_BYTES


def logsumexp(s: Any, p: Any) -> None:
    """None, as no logsumexp is written."""
