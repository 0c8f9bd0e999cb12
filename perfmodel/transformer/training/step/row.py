"""One row of a training step: a kernel of a part of it, and by what its time is known.

Rows that a library runs are priced by the calibration of that kernel alone. Those that nobody times alone are priced by their bytes
and the share of the DRAM bandwidth that profiled steps show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, stored
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.matmul import kernels as matmul_kernels
from perfmodel.transformer.op import ELEMENTWISE, MATMUL, WEIGHTS, Op, Timed, activation, tile_rows
from perfmodel.transformer.step import Step

SUMS, OTHERS = "sums", "others"
SHARES = {SUMS: 0.26, OTHERS: 0.58}
"""Shares of the DRAM bandwidth: sums over all tokens (biases, weights of norms); softmax's gradient, fp32 logits, optimizer.

Bytes over time of those kernels in profiled steps of GPT-2 medium on an H200, PyTorch 2.11, batch 8, 1,024 tokens, which fits see.
"""
MATMULS = ("torch-matmul", "cublas")
TUNED = ("SHARES",)
"""Chosen on measurements that fits may see, beside the fitted parameters."""


@dataclass(frozen=True, slots=True)
class StepOp:
    """``op`` as a part of a step. ``direction``: pass of the calibrated kernel. ``share``: of SHARES, where bytes price it instead."""

    op: Op
    direction: str = FORWARD
    share: str = ""

    def times(self, factor: Number) -> StepOp:
        """The same, ``factor`` times as often."""
        return replace(self, op=self.op.times(factor))

    @property
    def bytes(self) -> Number:
        """Bytes that one run moves."""
        return self.op.kernel.bytes(READ, WRITE)


def pointwise(
    name: str, step: Step, rows: Number, cols: Number, *, reads: int = 1, writes: int = 1, vector: int = 1, strided: bool = False
) -> StepOp:
    """A kernel that reads and writes whole tensors [rows, cols]. ``strided``: through another order of dimensions."""
    elements = rows * cols
    accesses = (activation(READ, reads * elements, step), activation(WRITE, writes * elements, step))
    kernel = Kernel(name, step.dtype, accesses, work=Work(0, vector * elements, 0))
    implementation = "torch-scale" if reads == 1 else "torch-add"
    timed = Timed("scale", Stream("scale", rows, cols, reads, writes, 0, step.dtype), (implementation,), strided=strided)
    return StepOp(Op(name, ELEMENTWISE, 1, kernel, timed))


def priced(name: str, step: Step, share: str, accesses: tuple[Access, ...], vector: Number = 0) -> StepOp:
    """A kernel whose bytes pass at ``share`` of the DRAM bandwidth."""
    return StepOp(Op(name, ELEMENTWISE, 1, Kernel(name, step.dtype, accesses, work=Work(0, vector, 0))), share=share)


def product(name: str, step: Step, w: Matmul, *, weights: str = "") -> StepOp:
    """A matmul. ``weights``: which of its matrices (A, B or C) are weights or their gradients."""
    [plain] = matmul_kernels(w, Tile(tile_rows(w.m), step.tile_columns))
    named = tuple(replace(access, tensor=WEIGHTS) if access.tensor == weights else access for access in plain.accesses)
    return StepOp(Op(name, MATMUL, 1, replace(plain, name=name, accesses=named), Timed("matmul", w, MATMULS)))


def gradients(elements: Number, size: int, kind: str = WRITE) -> Access:
    """Gradients of weights, ``size`` bytes each."""
    return stored(WEIGHTS, kind, elements, 8 * size)


def again(row: StepOp) -> StepOp:
    """``row`` run once more: executed, but not needed."""
    op = row.op
    kernel = replace(op.kernel, flops=0, needed=Work(), accesses=tuple(replace(a, compulsory=0) for a in op.kernel.accesses))
    return replace(row, op=replace(op, kernel=kernel))


def joined(rows: Iterable[StepOp]) -> list[StepOp]:
    """Equal rows as one with their counts added up, in the order of first occurrence."""
    counts: dict[StepOp, Number] = {}
    for row in rows:
        alone = replace(row, op=replace(row.op, count=1))
        counts[alone] = counts.get(alone, 0) + row.op.count
    return [row.times(count) for row, count in counts.items()]
