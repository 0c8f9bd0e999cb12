"""Spot checks of attention in float64: some query rows of the first and the last KV head, all rows where they are few."""

from __future__ import annotations

import math
from typing import Any

from perfmodel.validation.libraries.base import Torch, relative_error

ROWS = 48
"""Query rows checked per head of a large problem."""

WHOLE_SCORES = 1 << 22
"""Scores of one KV head up to which every row is checked, and with them the gradients of K and V."""


def _rows(torch: Torch, n: int, scores: int) -> Any:
    count = n if scores <= WHOLE_SCORES else min(n, ROWS)
    return torch.linspace(0, n - 1, count, device="cuda").long().unique()


def _attend(torch: Torch, q: Any, k: Any, v: Any, rows: Any, causal: bool) -> Any:
    """q [group, rows, d], k [kv_len, d], v [kv_len, dv]; a causal mask hides the keys after a row's own."""
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.arange(k.shape[0], device="cuda") > rows[:, None], -math.inf)
    return scores.softmax(-1) @ v


def _heads(q: Any, k: Any) -> list[tuple[int, int, slice]]:
    """(batch, KV head, its query heads): the first and the last."""
    group, last = q.shape[1] // k.shape[1], k.shape[1] - 1
    return [(0, 0, slice(0, group)), (q.shape[0] - 1, last, slice(last * group, (last + 1) * group))]


def output_error(torch: Torch, q: Any, k: Any, v: Any, causal: bool, out: Any) -> float:
    """Largest relative error of the heads checked. Tensors are [batch, heads, length, d]."""
    errors = []
    for batch, kv_head, heads in _heads(q, k):
        rows = _rows(torch, q.shape[2], q.shape[1] // k.shape[1] * q.shape[2] * k.shape[2])
        some = q[batch, heads][:, rows].double()
        wanted = _attend(torch, some, k[batch, kv_head].double(), v[batch, kv_head].double(), rows, causal)
        errors.append(relative_error(out[batch, heads][:, rows], wanted))
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def gradient_error(torch: Torch, q: Any, k: Any, v: Any, causal: bool, grad: Any, found: tuple[Any, Any, Any]) -> float:
    """Largest relative error of dQ, and of dK and dV where every row is checked; ``grad`` is that of the output."""
    errors = []
    for batch, kv_head, heads in _heads(q, k):
        rows = _rows(torch, q.shape[2], q.shape[1] // k.shape[1] * q.shape[2] * k.shape[2])
        parts = (q[batch, heads][:, rows], k[batch, kv_head], v[batch, kv_head])
        leaves = [part.detach().double().requires_grad_() for part in parts]
        out = _attend(torch, leaves[0], leaves[1], leaves[2], rows, causal)
        wanted = torch.autograd.grad(out, leaves, grad[batch, heads][:, rows].double())
        errors.append(relative_error(found[0][batch, heads][:, rows], wanted[0]))
        if len(rows) == q.shape[2]:
            errors += [relative_error(got[batch, kv_head], want) for got, want in zip(found[1:], wanted[1:], strict=True)]
    return math.nan if any(map(math.isnan, errors)) else max(errors)
