"""The process that runs kernels in numba's CUDA simulator, on arrays that count loads and stores of each element.

Standard input: one JSON object, cases by key. Standard output: a JSON object per case and line. Needs NUMBA_ENABLE_CUDASIM=1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.validation.kernels import flash, flash1, matmul, probes, standard
from perfmodel.validation.kernels.reference import attention_error, relative_error
from perfmodel.validation.simulator import LOADS, STORES, workload

Answer = dict[str, Any]


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


def poisoned(*shape: int) -> Counting:
    """An output array, filled with NaN so that an element that is never written shows."""
    return Counting(np.full(shape, np.nan))


def totals(*tensors: tuple[str, Counting]) -> dict[str, dict[str, int]]:
    """Loads and stores by name, summed over the arrays of that name."""
    sums: dict[str, dict[str, int]] = {}
    for name, array in tensors:
        counts = sums.setdefault(name, {LOADS: 0, STORES: 0})
        counts[LOADS] += int(array.loads.sum())
        counts[STORES] += int(array.stores.sum())
    return sums


def _attention(case: Mapping[str, Any], rng: Any) -> Answer:
    w, family = workload(case), {"flash2": flash, "flash1": flash1, "standard": standard}[case["kernel"]]
    rows, keys = (w.query_heads, w.n, w.d), (w.stored_kv_heads, w.kv_len, w.d)
    q, k, v = (Counting(rng.standard_normal(shape)) for shape in (rows, keys, keys))
    o, extras = poisoned(*rows), [(name, poisoned(count)) for name, count in family.extras(w)]
    geometry: Any
    formula: Answer = {}
    if family is standard:
        br, bc = case["tile"]
        geometry = standard.StandardGeometry(br, 2, 2, d=w.d, bc=bc, depth=8, softmax_lanes=2)
        formula = {"loads": standard.loads(w, geometry)}
    else:
        br, bc, max_scores = case["tile"]
        geometry = flash.Geometry(w.d, br, bc, lanes=2, rows=2, max_scores=max_scores)
    family.prepare(w, geometry, q, k, v, o, *(array for _, array in extras))()
    lse = family.logsumexp(*(array.values for _, array in extras))
    error = attention_error(w, q.values, k.values, v.values, o.values, lse)
    return {"counts": totals(("Q", q), ("K", k), ("V", v), ("O", o), *extras), "error": error, **formula}


def _matmul(case: Mapping[str, Any], rng: Any) -> Answer:
    (m, n, k), tile = (case["shape"][name] for name in "mnk"), case["tile"][0]
    a, b, c = Counting(rng.standard_normal((m, k))), Counting(rng.standard_normal((k, n))), poisoned(m, n)
    if tile == 1:
        matmul.prepare_naive(m, n, k, a, b, c, threads=8)()
    else:
        matmul.prepare(m, n, k, matmul.MatmulGeometry(tile, 2, 2, bc=tile, depth=8), a, b, c)()
    error = relative_error(c.values, a.values.astype(float) @ b.values.astype(float))
    return {"counts": totals(("A", a), ("B", b), ("C", c)), "own_loads": matmul.loads(m, n, k, tile), "error": error}


def _copy(case: Mapping[str, Any], rng: Any) -> Answer:
    size = case["shape"]["elements"]
    source, target = Counting(rng.standard_normal(size)), poisoned(size)
    probes.prepare_copy(source, target, threads=8)()
    single_pass = bool((source.loads == 1).all() and (target.stores == 1).all())
    error = relative_error(target.values, source.values)
    return {"counts": totals(("source", source), ("target", target)), "single_pass": single_pass, "error": error}


def run(case: Mapping[str, Any], rng: Any) -> Answer:
    """The answer to one case: loads and stores by tensor, and the relative error of the output."""
    run_kernel = {"matmul": _matmul, "copy": _copy}.get(case["kernel"], _attention)
    return run_kernel(case, rng)


if __name__ == "__main__":
    sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other at every barrier
    for key, case in json.load(sys.stdin).items():
        answer = {"key": key} | run(case, np.random.default_rng(len(key)))
        sys.stdout.writelines([json.dumps(answer) + "\n"])
        sys.stdout.flush()
