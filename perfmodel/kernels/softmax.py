"""Row-wise softmax in three ways, one thread block per row: how often a row is read, and what is computed on it.

safe    three passes: maximum; sum of exponentials; read once more, exponential, divide, store
online  two passes: maximum and sum together, the sum rescaled whenever the maximum grows; then as the last pass of safe
fused   one pass: the row stays on the chip
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Launch, Work, memory_bytes, once
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.explain import explain_kernels, sourced, with_symbols
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, estimate
from perfmodel.core.trace import FormulaStep, Trace

SOURCE = "Milakov & Gimelshein 2018, arXiv 1805.02867, Algorithms 2 (safe) and 3 (online)"
THREADS = 256
"""Threads of the block that works on one row."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """softmax over each of ``rows`` rows of ``columns``. ``stored``: the output is written, not passed on in registers."""

    rows: Number
    columns: Number
    stored: bool = True
    dtype: Dtype = DTYPES["fp16"]

    def check(self) -> Softmax:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        positive_int("rows", self.rows)
        positive_int("cols", self.columns)
        return self

    @property
    def elements(self) -> Number:
        """Elements of the input."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Variant:
    """``reads`` of every element; per element ``vector`` operations and ``exponentials``, which ``operations`` lists."""

    name: str
    reads: int
    vector: int
    exponentials: int
    operations: str
    row_on_chip: bool = False


VARIANTS = (
    Variant("safe", 3, 5, 2, "max; subtract, add; subtract, divide"),
    Variant("online", 2, 7, 3, "max, subtract twice, rescale, add; subtract, divide"),
    Variant("fused", 1, 4, 1, "max, subtract, add, divide", row_on_chip=True),
)


def row_bytes(w: Softmax) -> Number:
    """SRAM that holds one row.

    >>> row_bytes(Softmax(128, 4096))
    8192
    """
    return w.columns * w.dtype.size


def kernel(w: Softmax, variant: Variant) -> Kernel:
    """One kernel: ``variant.reads`` loads of each element, and a store if the output is stored.

    >>> [kernel(Softmax(10, 100), variant).elements("read", "write") for variant in VARIANTS]
    [4000, 3000, 2000]
    """
    size = w.dtype.size
    x = Access("x", READ, variant.reads * w.elements, size, w.elements, w.elements, reread=variant.reads > 1)
    y = (once("y", WRITE, w.elements, size),) if w.stored else ()
    sram: Number = row_bytes(w) if variant.row_on_chip else 0
    launch = Launch(w.rows, w.rows, sram, THREADS, lockstep=True)  # each row is a group of its own: its block alone reads it
    work = Work(0, variant.vector * w.elements, variant.exponentials * w.elements)
    return Kernel(variant.name, w.dtype, (x, *y), work=work, launch=launch)


@dataclass(frozen=True, slots=True)
class SoftmaxResult:
    """One variant on one device. ``row_fits``: the row fits the SRAM of a block; None if unknown or not asked for."""

    variant: Variant
    kernel: Kernel
    cost: Estimate
    memory_bytes: int
    row_fits: bool | None


def evaluate(w: Softmax, device: Device) -> list[SoftmaxResult]:
    """Results of every variant. UnavailableError if the device has no peak for the dtype."""
    sram = device.level("sram")
    room = None if sram is None or sram.per_block is None else int(sram.per_block.number)
    results = []
    for variant in VARIANTS:
        traffic = kernel(w, variant)
        row_fits = None if room is None or not variant.row_on_chip else bool(row_bytes(w) <= room)
        results.append(SoftmaxResult(variant, traffic, estimate(traffic, device), int(memory_bytes([traffic])), row_fits))
    return results


def explain(result: SoftmaxResult, w: Softmax, device: Device) -> list[FormulaStep]:
    """The formula of every number of ``result``, as steps; a step uses the results of earlier ones."""
    trace = Trace()
    w = with_symbols(trace, w, {"rows": ("R", "rows"), "columns": ("C", "columns")})
    listed = explain_kernels(trace, [kernel(w, result.variant)], device, w.dtype)
    trace.define("memory", "bytes", memory_bytes(listed), "every tensor allocated at once")
    if result.variant.row_on_chip:
        trace.define("row", "B of SRAM for one row", row_bytes(w))
    return sourced(trace, SOURCE)
