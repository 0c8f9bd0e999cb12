"""Inner steps that both flash kernels share: masking and the online softmax of one chunk of keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from perfmodel.timing.models.register_tiles import Geometry
from perfmodel.validation.kernels._steps import U, device_function, lane_max

F32 = np.float32
LOWEST = F32(-1e30)
"""Running maximum before the first score: finite, so that a row that sees no key yet gets exp2 of a difference, not nan."""
HIDDEN = F32(-3e38)
"""Score of a masked key: times any scale it stays far below LOWEST; finite, as fast math knows no infinities."""


def log2_scale(d: int) -> Any:
    """log2(e) / sqrt(d): exponentials are powers of two."""
    return F32(math.log2(math.e) / math.sqrt(d))


def hide_scores(shape: Geometry, causal: bool) -> Any:
    """Device function: mask the scores of keys that do not exist or that a row does not see.

    ``row``: the thread's first row in the head, ``first`` the chunk's first key.
    """
    n_rows, n_columns, n_lanes, n_step = U(shape.rows), U(shape.columns), U(shape.lanes), U(shape.layout.step)

    @device_function
    def hide(s: Any, row: Any, first: Any, lane: Any, n: Any, kv_len: Any) -> None:
        for i in range(n_rows):
            limit = kv_len
            if causal:
                limit = row + i * n_step + U(1) + kv_len
                limit = min(limit - n if limit > n else U(0), kv_len)
            for x in range(n_columns):
                if first + lane + x * n_lanes >= limit:
                    s[i * n_columns + x] = HIDDEN

    return hide


def update_softmax(shape: Geometry) -> Any:
    """Device function: scores -> probabilities in shared memory from ``to`` on; maximum, sum and outputs brought along.

    ``total`` is this thread's part of the row's sum, to be added up over its lanes at the end.
    """
    n_rows, n_columns, n_lanes = U(shape.rows), U(shape.columns), U(shape.lanes)
    n_width, row_pitch = U(shape.width), U(shape.layout.step * shape.p_pitch)

    @device_function
    def update(s: Any, out: Any, top: Any, total: Any, shared: Any, to: Any, scale: Any) -> None:
        for i in range(n_rows):
            highest = s[i * n_columns]
            for x in range(U(1), n_columns):
                highest = max(highest, s[i * n_columns + x])
            highest = max(top[i], lane_max(highest, n_lanes) * scale)
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
