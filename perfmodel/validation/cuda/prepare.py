"""A case made ready on the GPU: arrays, what launches it, and how far its results are from float64.

Large results are checked in part: rows of some heads, chosen at random, against the exact computation of those rows, and every
element for having been written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda as _cuda

from perfmodel.core.errors import UnavailableError
from perfmodel.validation.cuda.arrays import poisoned, random_inputs, stored, unwritten, values
from perfmodel.validation.cuda.cases import KernelCase, needed_bytes
from perfmodel.validation.cuda.checks import attention_error
from perfmodel.validation.kernels import copy, flash, flash1, matmul, reference, standard

cuda: Any = _cuda
MATMUL_ROWS = 128
"""Rows of a product that are checked."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """``launch`` runs the case once. ``error()``: largest relative error of what the run before has written.

    ``kernels``: names of the kernels of one launch, in order; ``counted``: those whose counters are the case's. ``facts``: the
    launch as a record says it. ``tensors`` live as long as this does: some launches know only their addresses.
    """

    launch: Callable[[], None]
    error: Callable[[], float]
    kernels: tuple[str, ...]
    counted: tuple[str, ...]
    facts: dict[str, int]
    tensors: tuple[Any, ...]


def prepare(case: KernelCase, rng: Any) -> Prepared:
    """``case`` with fresh random inputs and poisoned outputs; UnavailableError where it does not fit."""
    needed, free = needed_bytes(case.check()), int(cuda.current_context().get_memory_info().free)
    if needed > free:
        raise UnavailableError(f"{case.label}: its tensors take {needed:,} B, {free:,} B are free", "free memory, or take a smaller shape")
    builders = {"attention": _attention, "matmul": _matmul, "copy": _copy}
    return builders[case.workload](case, rng)


def registers(dispatcher: Any) -> int:
    """Registers per thread of the specialised form of ``dispatcher`` that was compiled last."""
    return int(list(dispatcher.specializations.values())[-1].get_regs_per_thread())


# Attention


def _attention(case: KernelCase, rng: Any) -> Prepared:
    w, name = case.attention(), case.implementation
    rows, keys = w.query_heads * w.n, w.stored_kv_heads * w.kv_len
    held = [random_inputs(rng, count * w.d, case.dtype) for count in (rows, keys, keys)]
    q, k, v = map(cuda.to_device, held)
    o = poisoned(rows * w.d, case.dtype)
    launch, facts, kernels, logsumexp = _ATTENTION[name](case, q, k, v, o)

    def error() -> float:
        cuda.synchronize()
        out, statistics = o.copy_to_host(), logsumexp()
        if unwritten(out, case.dtype) or (statistics is not None and unwritten(statistics, "fp32")):
            return math.inf
        return attention_error(w, rng, [values(x, case.dtype) for x in (*held, out)], statistics)

    return Prepared(launch, error, kernels, kernels[-1:] if name == "numba-flash1" else kernels, facts, (q, k, v, o))


Ready = tuple[Callable[[], None], dict[str, int], tuple[str, ...], Callable[[], Any]]
"""What launches, the launch's facts, names of its kernels, and what gives the logsumexp or None."""


def _flash(case: KernelCase, q: Any, k: Any, v: Any, o: Any) -> Ready:
    w, (br, bc) = case.attention(), (case.launch["br"], case.launch["bc"])
    shape, lse = flash.geometry(w.d, br, bc), poisoned(w.query_heads * w.n, "fp32")
    launch = flash.prepare(w, shape, q, k, v, o, lse)
    facts = _facts(br, bc, shape.threads, shape.shared_bytes, flash.build(shape, w.causal))
    return launch, facts, ("flash",), lse.copy_to_host


def _flash1(case: KernelCase, q: Any, k: Any, v: Any, o: Any) -> Ready:
    w, (br, bc) = case.attention(), (case.launch["br"], case.launch["bc"])
    shape = flash1.geometry(w.d, br, bc)
    sums, tops = (poisoned(w.query_heads * w.n, "fp32") for _ in range(2))
    launch = flash1.prepare(w, shape, q, k, v, o, sums, tops)
    facts = _facts(br, bc, shape.threads, flash1.shared_bytes(shape), flash1.build(shape, w.causal))

    def logsumexp() -> Any:
        total, top = sums.copy_to_host().astype(np.float64), tops.copy_to_host()
        with np.errstate(divide="ignore"):
            return np.where(total == 0, -np.inf, (top + np.log2(total)) * math.log(2))

    return launch, facts, ("fill", "fill", "fill", "flash1"), logsumexp


def _flash_mma(case: KernelCase, q: Any, k: Any, v: Any, o: Any) -> Ready:
    from perfmodel.validation.kernels import flash_mma

    w, (br, bc) = case.attention(), (case.launch["br"], case.launch["bc"])
    shape, lse = flash_mma.geometry(w.d, br, bc, case.dtype), poisoned(w.query_heads * w.n, "fp32")
    launch = flash_mma.prepare(w, shape, q, k, v, o, lse)
    facts = _facts(br, bc, shape.threads, shape.shared_bytes, flash_mma.build(shape, w.causal))
    return launch, facts, ("flash_mma",), lse.copy_to_host


def _standard(case: KernelCase, q: Any, k: Any, v: Any, o: Any) -> Ready:
    w, (br, bc) = case.attention(), (case.launch["br"], case.launch["bc"])
    shape = standard.geometry(w.d, br, bc)
    s, p = (poisoned(w.query_heads * w.n * w.kv_len, "fp32") for _ in range(2))
    launch = standard.prepare(w, shape, q, k, v, s, p, o)
    facts = _facts(br, bc, shape.threads, 4 * (br + bc) * w.d, standard.build_scores(shape))
    return launch, facts, ("standard_scores", "standard_softmax", "standard_outputs"), lambda: None


_ATTENTION: dict[str, Callable[[KernelCase, Any, Any, Any, Any], Ready]] = {
    "numba-flash": _flash,
    "numba-flash1": _flash1,
    "numba-flash-mma": _flash_mma,
    "numba-standard": _standard,
}


def _facts(br: int, bc: int, threads: int, shared_bytes: int, dispatcher: Any) -> dict[str, int]:
    return {"br": br, "bc": bc, "threads": threads, "shared_bytes": shared_bytes, "registers": registers(dispatcher)}


# The rest


def _matmul(case: KernelCase, rng: Any) -> Prepared:
    m, n, k = (int(case.shape[key]) for key in ("m", "n", "k"))
    a, b = (random_inputs(rng, count, case.dtype) for count in (m * k, k * n))
    c = poisoned(m * n, case.dtype)
    facts = {"br": 1, "bc": 1}
    if case.implementation == "numba-matmul-naive":
        launch, name = matmul.prepare_naive(m, n, k, cuda.to_device(a), cuda.to_device(b), c), "matmul_naive"
    else:
        shape, name = matmul.geometry(case.launch["br"]), "matmul"
        launch = matmul.prepare(m, n, k, shape, cuda.to_device(a), cuda.to_device(b), c)
        facts = _facts(shape.tile, shape.tile, shape.threads, shape.shared_bytes, matmul.build(shape))

    def error() -> float:
        cuda.synchronize()
        found = c.copy_to_host().reshape(m, n)
        rows = np.unique(rng.integers(0, m, min(m, MATMUL_ROWS)))
        expected = a.reshape(m, k)[rows].astype(np.float64) @ b.reshape(k, n).astype(np.float64)
        return math.inf if unwritten(found, case.dtype) else reference.relative_error(found[rows], expected)

    return Prepared(launch, error, (name,), (name,), facts, (c,))


def _copy(case: KernelCase, rng: Any) -> Prepared:
    elements = int(case.shape["bytes"]) // 4
    source, target = stored(rng.random(elements, np.float32), "fp32"), poisoned(elements, "fp32")
    launch = copy.prepare(cuda.to_device(source), target)

    def error() -> float:
        cuda.synchronize()
        return 0.0 if np.array_equal(target.copy_to_host(), source) else math.inf

    return Prepared(launch, error, ("copy",), ("copy",), {}, (target,))
