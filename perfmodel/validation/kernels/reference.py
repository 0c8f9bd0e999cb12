"""Attention in float64 on the CPU, and the error of a kernel's output against it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from perfmodel.core.workload import Attention

TOLERANCE = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 1e-2}
"""Largest relative error of a correct kernel, by dtype of its inputs."""
CHECKED_HEADS, CHECKED_ROWS = 4, 128
"""Checked heads of a large problem, and rows of a window, as the whole problem would take a CPU minutes."""


def attention(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """O and logsumexp of one head in float64.

    Shapes: q [n, d], k [kv_len, d], v [kv_len, dv] -> O [n, dv], logsumexp [n]. A row that sees no key gives 0 and -inf.
    A causal mask is aligned to the last query and the last key.

    >>> o, lse = attention(np.zeros((2, 4)), np.zeros((2, 4)), np.array([[1.0], [3.0]]), causal=True)
    >>> o.tolist(), [round(float(x), 4) for x in lse]
    ([[1.0], [2.0]], [0.0, 0.6931])
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        last = np.arange(len(q))[:, None] + len(k) - len(q)
        scores = np.where(np.arange(len(k))[None, :] <= last, scores, -np.inf)
    top = scores.max(1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(1, keepdims=True)
    safe = np.where(total > 0, total, 1.0)
    logsumexp = np.where(total > 0, top + np.log(safe), -np.inf)[:, 0]
    return e @ v / safe, logsumexp


def attention_error(w: Attention, q: Any, k: Any, v: Any, o: Any, logsumexp: Any = None, rng: Any = None) -> float:
    """Largest relative error of the heads of ``o``, and of ``logsumexp`` if given; arrays as in ``attention``, heads first, or flat.

    With ``rng`` only some heads and windows of their rows are checked. The keys of a window end with the last key that its last row sees.
    """
    q, o = (x.reshape(w.query_heads, w.n, -1) for x in (q, o))
    k, v = (x.reshape(w.stored_kv_heads, w.kv_len, -1) for x in (k, v))
    heads: Iterable[int] = range(w.query_heads)
    if rng is not None:
        heads = sorted({0, w.query_heads - 1, *rng.integers(0, w.query_heads, CHECKED_HEADS - 2).tolist()})
    errors = []
    for head in heads:
        for first in [0] if rng is None else windows(rng, w.n):
            last = w.n if rng is None else min(first + CHECKED_ROWS, w.n)
            keys = max(w.kv_len - (w.n - last), 0) if w.causal else w.kv_len
            expected, statistic = attention(q[head, first:last], k[head // w.group, :keys], v[head // w.group, :keys], w.causal)
            errors.append(relative_error(o[head, first:last], expected))
            if logsumexp is not None:
                errors.append(relative_error(logsumexp.reshape(w.query_heads, w.n)[head, first:last], statistic))
    return max(errors)


def windows(rng: Any, n: int) -> list[int]:
    """First rows of windows of CHECKED_ROWS rows: the first, the last and a random window; all if they are few."""
    if n <= 3 * CHECKED_ROWS:
        return list(range(0, n, CHECKED_ROWS))
    return [0, int(rng.integers(0, n - CHECKED_ROWS)), n - CHECKED_ROWS]


def relative_error(result: Any, expected: Any) -> float:
    """||result - expected|| / ||expected||; infinite if a value was never written or is -inf on one side only.

    >>> relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.1
    >>> relative_error(np.array([3.0, np.nan]), np.array([3.0, 4.0]))
    inf
    """
    result, expected = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(result)) or not np.array_equal(result[~finite], expected[~finite]):
        return float("inf")
    norm = float(np.linalg.norm(expected[finite]))
    return float(np.linalg.norm(result[finite] - expected[finite])) / (norm or 1.0)
