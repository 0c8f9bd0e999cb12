"""Inputs, outputs and calls of the CPU kernels by shape, and the check of their results against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.workload import Attention
from perfmodel.validation.cpu import kernels
from perfmodel.validation.cpu._vectors import LANES
from perfmodel.validation.cpu.shapes import Shape
from perfmodel.validation.kernels.reference import TOLERANCE, attention, relative_error

U = np.uintp
SEED = 20240229


class Scratch:
    """Two arrays for S and P that all shapes share, as large as the largest asked for."""

    def __init__(self) -> None:
        self._arrays = [np.empty(0, np.float32), np.empty(0, np.float32)]

    def views(self, size: int) -> list[Any]:
        """S and P, ``size`` elements each."""
        return [array[:size] for array in self._arrays]

    def poison(self, size: int) -> None:
        """Make room for ``size`` elements each, and fill them with NaN."""
        if self._arrays[0].size < size:
            self._arrays = [np.empty(size, np.float32) for _ in self._arrays]
        for view in self.views(size):
            view[:] = np.nan


def prepare(shape: Shape, threads: int, scratch: Scratch) -> tuple[Callable[[], None], Callable[[], float]]:
    """What runs ``shape``, and what then tells the relative error of its output, which is poisoned here."""
    rng, w = np.random.default_rng(SEED), shape.case.workload

    def random(size: int) -> Any:
        return rng.standard_normal(size, dtype=np.float32)

    if shape.implementation == "cpu-copy":
        return _copy(random(w.read_bytes // 4), threads)
    if shape.implementation == "cpu-matmul":
        return _matmul(w.m, w.n, w.k, random(w.m * w.k), random(w.k * w.n), threads)
    if w.d % LANES or w.dv != w.d:
        raise UsageError(f"{shape.implementation} with d {w.d}", f"give a multiple of {LANES}, the same for V")
    keys = w.stored_kv_heads * w.kv_len * w.d
    return _attention(shape.implementation, w, [random(w.query_heads * w.n * w.d), random(keys), random(keys)], threads, scratch)


def _copy(source: Any, threads: int) -> tuple[Callable[[], None], Callable[[], float]]:
    target = np.full_like(source, np.nan)
    return lambda: kernels.copy(source, target, np.float32(1), U(threads)), lambda: relative_error(target, source)


def _matmul(m: int, n: int, k: int, a: Any, b: Any, threads: int) -> tuple[Callable[[], None], Callable[[], float]]:
    c = np.full(m * n, np.nan, np.float32)

    def error() -> float:
        return relative_error(c.reshape(m, n), a.reshape(m, k).astype(np.float64) @ b.reshape(k, n).astype(np.float64))

    return lambda: kernels.matmul(a, b, c, U(m), U(n), U(k), U(threads)), error


def _attention(
    implementation: str, w: Attention, qkv: list[Any], threads: int, scratch: Scratch
) -> tuple[Callable[[], None], Callable[[], float]]:
    q, k, v = qkv
    o, scale = np.full_like(q, np.nan), np.float32(1 / math.sqrt(w.d))
    heads, n, kv_len, count = U(w.query_heads), U(w.n), U(w.kv_len), U(threads)
    sizes = (heads, U(w.group), n, kv_len, U(w.d))
    size = w.query_heads * w.n * w.kv_len if implementation == "cpu-standard" else 0
    if size:
        scratch.poison(size)

    def flash() -> None:
        kernels.flash(q, k, v, o, *sizes, w.causal, scale, count)

    def standard() -> None:
        s, p = scratch.views(size)
        kernels.standard_scores(q, k, s, *sizes, scale, count)
        kernels.standard_softmax(s, p, U(w.query_heads * w.n), n, kv_len, w.causal, count)
        kernels.standard_outputs(p, v, o, *sizes, count)

    def error() -> float:
        found, keys, values = o.reshape(-1, w.n, w.d), k.reshape(-1, w.kv_len, w.d), v.reshape(-1, w.kv_len, w.d)
        queries = q.reshape(-1, w.n, w.d)
        pairs = [(head, head // w.group) for head in range(w.query_heads)]
        return max(relative_error(found[h], attention(queries[h], keys[g], values[g], w.causal)[0]) for h, g in pairs)

    return (standard if size else flash), error


def checked(shape: Shape, threads: int, scratch: Scratch) -> Callable[[], None]:
    """What runs ``shape``, once its result has been found right; PerfmodelError otherwise."""
    run, error = prepare(shape, threads, scratch)
    run()
    if not (found := error()) < TOLERANCE["fp32"]:
        raise PerfmodelError(
            f"{shape.implementation} {shape.sizes}: relative error {found:.2g}, expected below {TOLERANCE['fp32']:.0e}",
            "the compiler of this machine's numba makes wrong code; report numba's version and the processor",
        )
    return run
