"""Theoretical IO lower bounds of exact attention in the two-level model: SRAM of M elements, everything else memory."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.base import key_rows_stored, seeing_rows, seen_keys
from perfmodel.kernels.attention.walk import visible_scores

COMPULSORY_SOURCE = "each input read once, each output written once"
THETA_SOURCE = "Saha & Ye, ICML 2024, arXiv 2402.07443; Dao et al. 2022, Theorem 2 and Proposition 3"


@dataclass(frozen=True, slots=True)
class Theta:
    """A tight growth class without its constant, which is not known."""

    io_class: str
    regime: str
    value_without_constant: Number


def compulsory_elements(w: Attention, direction: str) -> Number:
    """Matrix elements that any exact algorithm moves, over batch and heads; statistics not counted.

    Forward: Q, K, V in, O out. Backward: Q, K, V, O, dO in, dQ, dK, dV out. Query rows that see no key, and inputs
    of keys that no query sees, are left out. An additive mask is read once, where a score is visible.

    >>> compulsory_elements(Attention(n=4096, kv_len=4096, d=64, dv=64), "forward")
    1048576
    """
    query, keys = seeing_rows(w), seen_keys(w)
    mask = visible_scores(w) if w.mask else 0
    if direction == FORWARD:
        return (query + keys) * (w.d + w.dv) + mask
    return 2 * query * (w.d + w.dv) + (keys + key_rows_stored(w)) * (w.d + w.dv) + mask


def theta(w: Attention, m: Number) -> Theta | None:
    """Growth class of the forward pass for SRAM of ``m`` elements; None outside d <= M <= N d, where it is not proved.

    M >= d^2: N^2 d^2 / M, which FlashAttention reaches. M < d^2: N^2 d / sqrt(M), as for rectangular matmul.
    None too where a window or a block pattern takes scores away: the theorem is about all of them.
    """
    if w.window is not None or w.sparsity is not None:
        return None
    d, rows = max(w.d, w.dv), min(w.n, w.kv_len)
    if not d <= m <= rows * d:
        return None
    heads = w.batch * w.heads
    if m >= d * d:
        return Theta("N^2 d^2 / M", "M >= d^2", heads * w.n * w.kv_len * d * d / m)
    return Theta("N^2 d / sqrt(M)", "M < d^2", heads * w.n * w.kv_len * d / m**0.5)
