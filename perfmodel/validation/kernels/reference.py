"""Attention in float64 on the CPU, and how far a kernel's output is from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.core.workload import Attention

TOLERANCE = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 1e-2}
"""Largest relative error of a kernel that is called correct, by dtype of its inputs."""


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
    top = scores.max(1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(1, keepdims=True)
    safe = np.where(total > 0, total, 1.0)
    logsumexp = np.where(total > 0, top + np.log(safe), -np.inf)[:, 0]
    return e @ v / safe, logsumexp


def attention_error(w: Attention, q: Any, k: Any, v: Any, o: Any, logsumexp: Any = None) -> float:
    """Largest relative error of the heads of ``o``, and of ``logsumexp`` if given; arrays as of ``attention``, heads first."""
    errors = []
    for head in range(w.query_heads):
        kv = head // w.group
        expected, statistic = attention(q[head], k[kv], v[kv], w.causal)
        errors.append(relative_error(o[head], expected))
        errors += [] if logsumexp is None else [relative_error(logsumexp[head], statistic)]
    return max(errors)


def relative_error(result: Any, expected: Any) -> float:
    """||found - expected|| / ||expected||; infinite where a value was never written or is -inf on one side only.

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
