"""The softmax kernel of ``numba-standard``."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from perfmodel.validation.kernels._online import F32, HIDDEN, LOWEST
from perfmodel.validation.kernels._steps import ZERO, U, cuda, float32, kernel, lane_max, lane_sum


@cache
def build_softmax(lanes: int, causal: bool) -> Any:
    """The kernel ``(S, P, rows, n, kv_len)``: ``lanes`` threads per row, which waits in shared memory: one load, one store."""
    n_lanes = U(lanes)

    def standard_softmax(s: Any, p: Any, rows: Any, n: Any, kv_len: Any) -> None:
        shared = cuda.shared.array(0, float32)
        thread = U(cuda.threadIdx.x)
        row = U(cuda.blockIdx.x) * (U(cuda.blockDim.x) // n_lanes) + thread // n_lanes
        at, lane = thread // n_lanes * kv_len, thread % n_lanes
        seen = kv_len if row < rows else U(0)
        if causal and row < rows:
            last = row % n + U(1) + kv_len
            seen = last - n if last > n else U(0)
        top = LOWEST
        for x in range(lane, kv_len if row < rows else U(0), n_lanes):
            value = s[row * kv_len + x]
            value = value if x < seen else HIDDEN
            shared[at + x] = value
            top = max(top, value)
        top = lane_max(top, n_lanes)
        total = ZERO
        for x in range(lane, seen, n_lanes):
            value = F32(math.exp(shared[at + x] - top))
            shared[at + x] = value
            total += value
        total = lane_sum(total, n_lanes)
        inverse = F32(1) / total if total > ZERO else ZERO
        for x in range(lane, kv_len if row < rows else U(0), n_lanes):
            p[row * kv_len + x] = shared[at + x] * inverse if x < seen else ZERO

    return kernel(standard_softmax)
