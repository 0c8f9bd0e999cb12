"""Kernels on arrays that count their accesses; import it under NUMBA_ENABLE_CUDASIM=1 only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.core.workload import Attention
from perfmodel.validation.kernels import copy, flash, flash1, matmul, standard
from perfmodel.validation.kernels.reference import attention, relative_error
from perfmodel.validation.simulator.cases import workload

Found = dict[str, Any]


class Counting:
    """A flat array that counts the loads and stores of each element."""

    def __init__(self, values: Any) -> None:
        self.values = values.astype(np.float32)
        self.flat = self.values.reshape(-1)
        self.size = self.flat.size
        self.loads = np.zeros(self.size, int)
        self.stores = np.zeros(self.size, int)

    def __getitem__(self, index: int) -> Any:
        self.loads[int(index)] += 1
        return self.flat[int(index)]

    def __setitem__(self, index: int, value: float) -> None:
        self.stores[int(index)] += 1
        self.flat[int(index)] = value

    @classmethod
    def poisoned(cls, *shape: int) -> Counting:
        """An output: NaN until it is written."""
        return cls(np.full(shape, np.nan))


def totals(tensors: Mapping[str, tuple[Counting, ...]]) -> dict[str, dict[str, int]]:
    """Loads and stores per tensor, which may be several arrays."""
    return {
        name: {"loads": sum(int(x.loads.sum()) for x in arrays), "stores": sum(int(x.stores.sum()) for x in arrays)}
        for name, arrays in tensors.items()
    }


def run(case: Mapping[str, Any], rng: Any) -> Found:
    """Counts and relative error of one case."""
    return _RUN[case["kernel"]](case, rng)


def _inputs(w: Attention, rng: Any) -> tuple[Counting, Counting, Counting]:
    rows, keys = (w.query_heads, w.n, w.d), (w.stored_kv_heads, w.kv_len, w.d)
    return Counting(rng.standard_normal(rows)), Counting(rng.standard_normal(keys)), Counting(rng.standard_normal(keys))


def _worst_error(w: Attention, q: Counting, k: Counting, v: Counting, o: Counting, lse: Counting | None) -> float:
    errors = []
    for head in range(w.query_heads):
        kv = head // w.group
        expected, logsumexp = attention(q.values[head], k.values[kv], v.values[kv], w.causal)
        errors.append(relative_error(o.values[head], expected))
        if lse is not None:
            errors.append(relative_error(lse.values[head], logsumexp))
    return max(errors)


def _flash2(case: Mapping[str, Any], rng: Any) -> Found:
    w, (br, bc, widest) = workload(case), case["tile"]
    q, k, v = _inputs(w, rng)
    o, lse = Counting.poisoned(w.query_heads, w.n, w.d), Counting.poisoned(w.query_heads, w.n)
    flash.run(w, flash.Geometry(w.d, br, bc, lanes=2, rows=2, widest=widest), q, k, v, o, lse)
    counts = totals({"Q": (q,), "K": (k,), "V": (v,), "O": (o,), "logsumexp": (lse,)})
    return {"counts": counts, "error": _worst_error(w, q, k, v, o, lse)}


def _flash1(case: Mapping[str, Any], rng: Any) -> Found:
    w, (br, bc, widest) = workload(case), case["tile"]
    q, k, v = _inputs(w, rng)
    o, ls, ms = Counting.poisoned(w.query_heads, w.n, w.d), Counting.poisoned(w.query_heads, w.n), Counting.poisoned(w.query_heads, w.n)
    flash1.run(w, flash1.Geometry(w.d, br, bc, lanes=2, rows=2, widest=widest), q, k, v, o, ls, ms)
    counts = totals({"Q": (q,), "K": (k,), "V": (v,), "O": (o,), "l, m": (ls, ms)})
    sums = np.where(ls.values > 0, ls.values, 1)
    lse = Counting(np.where(ls.values > 0, (ms.values + np.log2(sums)) * np.log(2), -np.inf))
    return {"counts": counts, "error": _worst_error(w, q, k, v, o, lse)}


def _standard(case: Mapping[str, Any], rng: Any) -> Found:
    w, (br, bc) = workload(case), case["tile"]
    q, k, v = _inputs(w, rng)
    s, p = Counting.poisoned(w.query_heads, w.n, w.kv_len), Counting.poisoned(w.query_heads, w.n, w.kv_len)
    o, shape = Counting.poisoned(w.query_heads, w.n, w.d), standard.Geometry(w.d, br, bc, lanes=2, rows=2, depth=8, softmax_lanes=2)
    standard.run(w, shape, q, k, v, s, p, o)
    counts = totals({"Q": (q,), "K": (k,), "V": (v,), "S": (s,), "P": (p,), "O": (o,)})
    return {"counts": counts, "loads": standard.loads(w, shape), "error": _worst_error(w, q, k, v, o, None)}


def _matmul(case: Mapping[str, Any], rng: Any) -> Found:
    (m, n, k), tile = (case["shape"][name] for name in "mnk"), case["tile"][0]
    a, b, c = Counting(rng.standard_normal((m, k))), Counting(rng.standard_normal((k, n))), Counting.poisoned(m, n)
    if tile == 1:
        matmul.prepare_naive(m, n, k, a, b, c, threads=8)()
    else:
        matmul.run(m, n, k, matmul.Geometry(tile, 8, lanes=2, rows=2), a, b, c)
    error = relative_error(c.values, a.values.astype(float) @ b.values.astype(float))
    return {"counts": totals({"A": (a,), "B": (b,), "C": (c,)}), "own_loads": matmul.loads(m, n, k, tile), "error": error}


def _copy(case: Mapping[str, Any], rng: Any) -> Found:
    size = case["shape"]["elements"]
    source, target = Counting(rng.standard_normal(size)), Counting.poisoned(size)
    copy.run(source, target, threads=8)
    once = bool((source.loads == 1).all() and (target.stores == 1).all())
    error = relative_error(target.values, source.values)
    return {"counts": totals({"source": (source,), "target": (target,)}), "once": once, "error": error}


_RUN = {"flash2": _flash2, "flash1": _flash1, "standard": _standard, "matmul": _matmul, "copy": _copy}
