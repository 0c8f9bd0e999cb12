"""Every GPU kernel in the CUDA simulator: right results, and as many loads and stores as the closed forms say.

The simulator must be chosen before numba is imported, so this file runs itself once in a process of its own, which prints
one JSON object per case; the tests read those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.attention.algorithms import find
from perfmodel.cost import Tile
from perfmodel.dtypes import DTYPES
from perfmodel.workload import Attention

LENGTHS = [(13, 19), (12, 12), (9, 3), (8, 16)]  # partial tiles, square, rows that see nothing, more keys than queries
TILES = [(4, 8, 4), (8, 4, 8), (4, 8, 2)]  # B_r, B_c, most scores per thread and row: the last needs two chunks per tile
HEADS = [(1, 2, 2), (2, 4, 2)]


def fused_cases() -> dict[str, dict[str, Any]]:
    found = {}
    for name in ("flash2", "flash1"):
        for n, kv_len in LENGTHS:
            for at, (br, bc, widest) in enumerate(TILES):
                for causal in (False, True):
                    batch, heads, kv_heads = HEADS[at % 2]
                    mask = "causal" if causal else "full"
                    key = f"{name}-{n}x{kv_len}-tile{br}x{bc}-chunks{-(-bc // (2 * widest))}-h{batch * heads}-{mask}"
                    shape = {"n": n, "kv_len": kv_len, "batch": batch, "heads": heads, "kv_heads": kv_heads, "causal": causal}
                    found[key] = {"kernel": name, "shape": shape, "tile": (br, bc, widest)}
    return found


STANDARD = {
    f"standard-{n}x{kv_len}-{br}x{bc}-{'causal' if causal else 'full'}": {
        "kernel": "standard",
        "shape": {"n": n, "kv_len": kv_len, "batch": 1, "heads": 2, "kv_heads": 1, "causal": causal},
        "tile": (br, bc),
    }
    for n, kv_len, br, bc in ((13, 12, 16, 16), (13, 20, 8, 8), (9, 4, 8, 8))
    for causal in (False, True)
}
MATMUL = {
    f"matmul-{m}x{n}x{k}-tile{tile}": {"kernel": "matmul", "mnk": (m, n, k), "tile": tile}
    for m, n, k, tile in ((16, 16, 16, 8), (13, 12, 20, 8), (9, 20, 4, 1))  # tile 1: without shared memory
}
COPY = {f"copy-{size}": {"kernel": "copy", "size": size} for size in (4, 100, 1024)}
CASES: dict[str, dict[str, Any]] = fused_cases() | STANDARD | MATMUL | COPY


class Counting:
    """A flat array that counts the loads and stores of each element."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values.astype(np.float32)
        self.flat = self.values.reshape(-1)
        self.size = self.flat.size
        self.loads = np.zeros(self.size, int)
        self.stores = np.zeros(self.size, int)

    def __getitem__(self, index: int) -> np.float32:
        self.loads[int(index)] += 1
        return self.flat[int(index)]

    def __setitem__(self, index: int, value: float) -> None:
        self.stores[int(index)] += 1
        self.flat[int(index)] = value

    @classmethod
    def poisoned(cls, *shape: int) -> Counting:
        return cls(np.full(shape, np.nan))


def totals(**tensors: Counting) -> dict[str, int]:
    """Loads and stores per tensor, those that happened."""
    counts = {f"{name} read": int(x.loads.sum()) for name, x in tensors.items()}
    counts |= {f"{name} write": int(x.stores.sum()) for name, x in tensors.items()}
    return {key: count for key, count in counts.items() if count}


def inputs(w: Attention, rng: np.random.Generator) -> tuple[Counting, Counting, Counting]:
    rows, keys = (w.query_heads, w.n, w.d), (w.stored_kv_heads, w.kv_len, w.d)
    return Counting(rng.standard_normal(rows)), Counting(rng.standard_normal(keys)), Counting(rng.standard_normal(keys))


def worst_error(w: Attention, q: Counting, k: Counting, v: Counting, o: Counting, lse: Counting | None) -> float:
    from perfmodel.validation.kernels.reference import attention, relative_error

    errors = []
    for head in range(w.query_heads):
        kv = head // w.group
        expected, logsumexp = attention(q.values[head], k.values[kv], v.values[kv], w.causal)
        errors.append(relative_error(o.values[head], expected))
        if lse is not None:
            errors.append(relative_error(lse.values[head], logsumexp))
    return max(errors)


def workload(case: dict[str, Any]) -> Attention:
    return Attention(d=8, dv=8, dtype=DTYPES["fp32"], **case["shape"])


def run_flash2(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    from perfmodel.validation.kernels import flash

    w, (br, bc, widest) = workload(case), case["tile"]
    q, k, v = inputs(w, rng)
    o, lse = Counting.poisoned(w.query_heads, w.n, w.d), Counting.poisoned(w.query_heads, w.n)
    flash.run(w, flash.Geometry(w.d, br, bc, lanes=2, rows=2, widest=widest), q, k, v, o, lse)
    return {"counts": totals(Q=q, K=k, V=v, O=o, logsumexp=lse), "error": worst_error(w, q, k, v, o, lse)}


def run_flash1(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    from perfmodel.validation.kernels import flash1

    w, (br, bc, widest) = workload(case), case["tile"]
    q, k, v = inputs(w, rng)
    o, ls, ms = Counting.poisoned(w.query_heads, w.n, w.d), Counting.poisoned(w.query_heads, w.n), Counting.poisoned(w.query_heads, w.n)
    flash1.run(w, flash1.Geometry(w.d, br, bc, lanes=2, rows=2, widest=widest), q, k, v, o, ls, ms)
    counts = totals(Q=q, K=k, V=v, O=o, l=ls, m=ms)
    lse = Counting(np.where(ls.values > 0, (ms.values + np.log2(np.where(ls.values > 0, ls.values, 1))) * np.log(2), -np.inf))
    return {"counts": counts, "error": worst_error(w, q, k, v, o, lse)}


def run_standard(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    from perfmodel.validation.kernels import standard

    w, (br, bc) = workload(case), case["tile"]
    q, k, v = inputs(w, rng)
    s, p = Counting.poisoned(w.query_heads, w.n, w.kv_len), Counting.poisoned(w.query_heads, w.n, w.kv_len)
    o, shape = Counting.poisoned(w.query_heads, w.n, w.d), standard.Geometry(w.d, br, bc, lanes=2, rows=2, depth=8, softmax_lanes=2)
    standard.run(w, shape, q, k, v, s, p, o)
    formula = standard.loads(w, shape)
    return {"counts": totals(Q=q, K=k, V=v, S=s, P=p, O=o), "loads": formula, "error": worst_error(w, q, k, v, o, None)}


def run_matmul(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    from perfmodel.validation.kernels import matmul
    from perfmodel.validation.kernels.reference import relative_error

    (m, n, k), tile = case["mnk"], case["tile"]
    a, b, c = Counting(rng.standard_normal((m, k))), Counting(rng.standard_normal((k, n))), Counting.poisoned(m, n)
    if tile == 1:
        matmul.prepare_naive(m, n, k, a, b, c, threads=8)()
    else:
        matmul.run(m, n, k, matmul.Geometry(tile, 8, lanes=2, rows=2), a, b, c)
    error = relative_error(c.values, a.values.astype(float) @ b.values.astype(float))
    return {"counts": totals(A=a, B=b, C=c), "loads": matmul.loads(m, n, k, tile), "error": error}


def run_copy(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    from perfmodel.validation.kernels import copy
    from perfmodel.validation.kernels.reference import relative_error

    source, target = Counting(rng.standard_normal(case["size"])), Counting.poisoned(case["size"])
    copy.run(source, target, threads=8)
    once = bool((source.loads == 1).all() and (target.stores == 1).all())
    return {"counts": totals(source=source, target=target), "once": once, "error": relative_error(target.values, source.values)}


RUN = {"flash2": run_flash2, "flash1": run_flash1, "standard": run_standard, "matmul": run_matmul, "copy": run_copy}


def simulate() -> None:
    """Run every case and print what happened."""
    sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other at every barrier
    for key, case in CASES.items():
        print(json.dumps({"key": key} | RUN[case["kernel"]](case, np.random.default_rng(len(key)))), flush=True)


@cache
def results() -> dict[str, Any]:
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-W", "error", __file__]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    rows = [json.loads(line) for line in finished.stdout.splitlines()]
    return {row["key"]: row for row in rows}


@pytest.mark.parametrize("key", CASES)
def test_result_is_right(key: str) -> None:
    assert results()[key]["error"] < 1e-6


@pytest.mark.parametrize("key", fused_cases())
def test_fused_kernels_move_what_is_predicted(key: str) -> None:
    case, found = CASES[key], dict(results()[key]["counts"])
    [kernel] = find(case["kernel"]).forward(workload(case), Tile(*case["tile"][:2]))
    predicted = {f"{access.tensor} {access.kind}": access.elements for access in kernel.accesses if access.elements}
    if case["kernel"] == "flash1":  # l and m are two arrays; filling them and O with zeros is counted apart
        for kind in ("read", "write"):
            found[f"l, m {kind}"] = found.pop(f"l {kind}", 0) + found.pop(f"m {kind}", 0)
        for name in ("O", "l, m"):
            filled = predicted.pop(f"{name} zero_fill")
            found[f"{name} write"] -= filled
    assert {name: count for name, count in found.items() if count} == predicted


@pytest.mark.parametrize("key", STANDARD)
def test_standard_moves_what_is_predicted(key: str) -> None:
    case, row = CASES[key], results()[key]
    w, (br, bc) = workload(case), case["tile"]
    kernels = find("standard").forward(w, Tile(1, 1))
    algorithm = {f"{access.tensor} {access.kind}": access.elements for kernel in kernels for access in kernel.accesses}
    reads = {f"{name} read": count for name, count in row["loads"].items()}
    assert row["counts"] == {name: reads.get(name, count) for name, count in algorithm.items()}
    if br >= w.n and bc >= w.kv_len:
        assert row["counts"] == algorithm


@pytest.mark.parametrize("key", MATMUL)
def test_matmul_loads_a_tile_factor_less(key: str) -> None:
    m, n, _ = CASES[key]["mnk"]
    row = results()[key]
    assert row["counts"]["A read"] + row["counts"]["B read"] == row["loads"]
    assert row["counts"]["C write"] == m * n


@pytest.mark.parametrize("key", COPY)
def test_copy_touches_each_element_once(key: str) -> None:
    assert results()[key]["once"]


if __name__ == "__main__":
    simulate()
