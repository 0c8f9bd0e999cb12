"""Inputs, outputs and calls of the CPU kernels by shape, and the check of their results against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.workload import Attention
from perfmodel.validation.cpu import kernels
from perfmodel.validation.cpu.shapes import Shape
from perfmodel.validation.kernels.reference import TOLERANCE, attention, relative_error

SEED = 20240229
Prepared = tuple[Callable[[], None], Callable[[], float]]
"""What runs a shape, and what then tells the relative error of its output, which begins as NaN."""


class Scratch:
    """Two arrays for S and P that all shapes share, as large as the largest asked for."""

    def __init__(self) -> None:
        self._arrays = [np.empty(0, np.float32), np.empty(0, np.float32)]

    def views(self, shape: tuple[int, ...]) -> list[Any]:
        """S and P, [heads, n, kv_len] each."""
        return [array[: math.prod(shape)].reshape(shape) for array in self._arrays]

    def poison(self, shape: tuple[int, ...]) -> None:
        """Make room for arrays of ``shape``, and fill them with NaN."""
        if self._arrays[0].size < math.prod(shape):
            self._arrays = [np.empty(math.prod(shape), np.float32) for _ in self._arrays]
        for view in self.views(shape):
            view[:] = np.nan


def prepare(shape: Shape, threads: int, scratch: Scratch) -> Prepared:
    """``shape`` with random operands."""
    rng, w = np.random.default_rng(SEED), shape.case.workload

    def random(*sizes: int) -> Any:
        return rng.standard_normal(sizes, dtype=np.float32)

    if shape.implementation == "cpu-copy":
        return _copy(random(w.read_bytes // 4), threads)
    if shape.implementation == "cpu-matmul":
        return _matmul(random(w.m, w.k), random(w.k, w.n), threads)
    keys = w.stored_kv_heads, w.kv_len
    return _attention(shape.implementation, w, [random(w.query_heads, w.n, w.d), random(*keys, w.d), random(*keys, w.dv)], threads, scratch)


def _copy(source: Any, threads: int) -> Prepared:
    target = np.full_like(source, np.nan)
    return lambda: kernels.copy(source, target, kernels.ONE, threads), lambda: relative_error(target, source)


def _matmul(a: Any, b: Any, threads: int) -> Prepared:
    c = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    return lambda: kernels.matmul(a, b, c, threads), lambda: relative_error(c, a.astype(np.float64) @ b.astype(np.float64))


def _attention(implementation: str, w: Attention, qkv: list[Any], threads: int, scratch: Scratch) -> Prepared:
    q, k, v = qkv
    o, scale = np.full((w.query_heads, w.n, w.dv), np.nan, np.float32), np.float32(1 / math.sqrt(w.d))
    scores = w.query_heads, w.n, w.kv_len
    if implementation == "cpu-standard":
        scratch.poison(scores)

    def flash() -> None:
        kernels.flash(q, k, v, o, w.causal, scale, threads)

    def standard() -> None:
        s, p = scratch.views(scores)
        kernels.standard_scores(q, k, s, scale, threads)
        kernels.standard_softmax(s, p, w.causal, threads)
        kernels.standard_outputs(p, v, o, threads)

    def error() -> float:
        return max(relative_error(o[h], attention(q[h], k[h // w.group], v[h // w.group], w.causal)[0]) for h in range(w.query_heads))

    return (standard if implementation == "cpu-standard" else flash), error


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
