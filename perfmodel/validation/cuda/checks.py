"""How far attention on a GPU is from float64, by rows of some heads: the whole of a large problem would take a CPU minutes."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.validation.kernels import reference

CHECKED_HEADS = 4
CHECKED_ROWS = 128


def attention_error(w: Any, rng: Any, tensors: list[Any], statistics: Any) -> float:
    """Largest relative error over windows of rows of some heads. A window's keys end where its last row's view ends."""
    q, k, v, o = (
        x.reshape(heads, -1, w.d) for x, heads in zip(tensors, (w.query_heads, *[w.stored_kv_heads] * 2, w.query_heads), strict=True)
    )
    errors = []
    for head in _some(rng, w.query_heads, CHECKED_HEADS):
        for first in windows(rng, w.n):
            last = min(first + CHECKED_ROWS, w.n)
            keys = w.kv_len - (w.n - last) if w.causal else w.kv_len
            if keys < 1:  # no row of the window sees a key
                errors.append(float(np.abs(o[head, first:last]).max()))
                continue
            kv = head // w.group
            expected, logsumexp = reference.attention(q[head, first:last], k[kv, :keys], v[kv, :keys], w.causal)
            errors.append(reference.relative_error(o[head, first:last], expected))
            if statistics is not None:
                found = statistics.reshape(w.query_heads, w.n)[head, first:last]
                errors.append(reference.relative_error(found, logsumexp))
    return max(errors)


def _some(rng: Any, count: int, wanted: int) -> list[int]:
    """The first, the last, and others at random."""
    inner = rng.integers(0, count, max(wanted - 2, 0)).tolist()
    return sorted({0, count - 1, *inner})


def windows(rng: Any, n: int) -> list[int]:
    """Where windows of CHECKED_ROWS begin: the first, the last, one at random; all where there are few."""
    if n <= 3 * CHECKED_ROWS:
        return list(range(0, n, CHECKED_ROWS))
    return [0, int(rng.integers(0, n - CHECKED_ROWS)), n - CHECKED_ROWS]
