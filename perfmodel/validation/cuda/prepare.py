"""Cases made ready on the GPU: arrays, a launch function, and the error of the results against float64.

Of large results only random rows of some heads are compared with an exact computation. Outputs begin as NaN, which shows elements that a
kernel left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numba import cuda as _cuda

from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.cuda.cases import checked, needed_bytes
from perfmodel.validation.kernels import flash, flash1, matmul, probes, reference, standard

cuda: Any = _cuda
MATMUL_ROWS = 128
"""Rows of a product that are checked."""


@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """``launch`` runs the case once. ``error()``: largest relative error of the last run's results.

    ``kernels``: names of the kernels of one launch, in order. ``facts``: the launch in the terms of a record. ``tensors``: kept alive here,
    as some launches know only their addresses.
    """

    launch: Callable[[], None]
    error: Callable[[], float]
    kernels: tuple[str, ...]
    facts: dict[str, int]
    tensors: tuple[Any, ...]


def prepare(case: KernelCase, rng: Any) -> PreparedKernel:
    """``case`` with random inputs, and outputs full of NaN; UnavailableError if it does not fit the memory."""
    needed, free = needed_bytes(checked(case)), int(cuda.current_context().get_memory_info().free)
    if needed > free:
        raise UnavailableError(f"{case.label}: its tensors take {needed:,} B, {free:,} B are free", "free memory, or take a smaller shape")
    builders = {"attention": _attention, "matmul": _matmul, "copy": _copy}
    return builders[case.workload](case, rng)


def _facts(br: int, bc: int, threads: int, shared_bytes: int, dispatcher: Any) -> dict[str, int]:
    """The launch in the terms of a record, with the registers per thread of the last compiled form of ``dispatcher``."""
    registers = int(list(dispatcher.specializations.values())[-1].get_regs_per_thread())
    return {"br": br, "bc": bc, "threads": threads, "shared_bytes": shared_bytes, "registers": registers}


# Arrays


def stored(values: Any, dtype: str) -> Any:
    """fp32 ``values`` in the GPU's format; bf16, which NumPy lacks, is the upper half of fp32.

    >>> [hex(x) for x in stored(np.array([1.0, -2.0], np.float32), "bf16")]
    ['0x3f80', '0xc000']
    """
    if dtype == "fp32":
        return np.ascontiguousarray(values, np.float32)
    if dtype == "fp16":
        return values.astype(np.float16)
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def values(array: Any, dtype: str) -> Any:
    """fp32 values of an ``array`` in the GPU's format: the inverse of ``stored``."""
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def random_inputs(rng: Any, elements: int, dtype: str) -> Any:
    """Standard normal numbers in the GPU's format, as a flat array."""
    return stored(rng.standard_normal(elements, np.float32), dtype)


def poisoned(elements: int, dtype: str = "fp32") -> Any:
    """A flat array of NaN on the GPU."""
    return cuda.to_device(stored(np.full(elements, np.nan, np.float32), dtype))


def unwritten(array: Any, dtype: str) -> bool:
    """Whether any element is NaN; -inf counts as written."""
    return bool(np.isnan(values(array, dtype)).any())


# Kernels


def _attention(case: KernelCase, rng: Any) -> PreparedKernel:
    w, tile = case.attention(), (case.launch["br"], case.launch["bc"])
    if case.implementation == "numba-flash-mma":
        family: Any = import_module("perfmodel.validation.kernels.flash_mma")  # needs the numba-cuda package
        shape = family.geometry(w.d, *tile, case.dtype)
    else:
        family = {"numba-flash": flash, "numba-flash1": flash1, "numba-standard": standard}[case.implementation]
        shape = family.geometry(w.d, *tile)
    rows, keys = w.query_heads * w.n, w.stored_kv_heads * w.kv_len
    host_qkv = [random_inputs(rng, count * w.d, case.dtype) for count in (rows, keys, keys)]
    qkv = [cuda.to_device(array) for array in host_qkv]
    o, extras = poisoned(rows * w.d, case.dtype), [poisoned(count) for _, count in family.extras(w)]
    launch = family.prepare(w, shape, *qkv, o, *extras)

    def error() -> float:
        cuda.synchronize()
        host_o, statistics = o.copy_to_host(), family.logsumexp(*(extra.copy_to_host() for extra in extras))
        if unwritten(host_o, case.dtype) or (statistics is not None and unwritten(statistics, "fp32")):
            return math.inf
        q, k, v, computed = (values(array, case.dtype) for array in (*host_qkv, host_o))
        return reference.attention_error(w, q, k, v, computed, statistics, rng)

    main_kernel, shared_bytes = family.main(shape, w.causal)
    facts = _facts(*tile, shape.threads, shared_bytes, main_kernel)
    return PreparedKernel(launch, error, family.KERNELS, facts, (*qkv, o))


def _matmul(case: KernelCase, rng: Any) -> PreparedKernel:
    m, n, k = (int(case.shape[key]) for key in ("m", "n", "k"))
    a, b = (random_inputs(rng, count, case.dtype) for count in (m * k, k * n))
    c = poisoned(m * n, case.dtype)
    facts = {"br": 1, "bc": 1}
    if case.implementation == "numba-matmul-naive":
        launch, name = matmul.prepare_naive(m, n, k, cuda.to_device(a), cuda.to_device(b), c), "matmul_naive"
    else:
        shape, name = matmul.geometry(case.launch["br"]), "matmul"
        launch = matmul.prepare(m, n, k, shape, cuda.to_device(a), cuda.to_device(b), c)
        facts = _facts(shape.br, shape.bc, shape.threads, shape.shared_bytes, matmul.build(shape))

    def error() -> float:
        cuda.synchronize()
        computed = c.copy_to_host().reshape(m, n)
        rows = np.unique(rng.integers(0, m, min(m, MATMUL_ROWS)))
        expected = a.reshape(m, k)[rows].astype(np.float64) @ b.reshape(k, n).astype(np.float64)
        return math.inf if unwritten(computed, case.dtype) else reference.relative_error(computed[rows], expected)

    return PreparedKernel(launch, error, (name,), facts, (c,))


def _copy(case: KernelCase, rng: Any) -> PreparedKernel:
    elements = int(case.shape["bytes"]) // 4
    source, target = stored(rng.random(elements, np.float32), "fp32"), poisoned(elements)
    launch = probes.prepare_copy(cuda.to_device(source), target)

    def error() -> float:
        cuda.synchronize()
        return 0.0 if np.array_equal(target.copy_to_host(), source) else math.inf

    return PreparedKernel(launch, error, ("copy",), {}, (target,))
