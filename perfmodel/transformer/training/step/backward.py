"""What a forward row means for the backward pass: two matmuls for one, a sum for a bias, as many bytes again for the rest.

The gradient of the inputs, dX = dY W^T, and that of the weights, dW = X^T dY, are each as large as the forward product: matrix
multiplications cost twice as much backward as forward.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, in_bits
from perfmodel.core.workload import Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.op import ELEMENTWISE, MATMUL, WEIGHTS, Op, Timed, activation
from perfmodel.transformer.step import share
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.row import SUMS, StepOp, gradients, pointwise, priced, product

BY_ROWS = ("output projection", "down projection")
"""Matrices that tensor-parallel GPUs cut by rows: each has a part of every sum."""
LINEAR = ("RoPE", "embedding lookup", "dropout")
"""Operations whose gradient does not depend on what they read."""


def backward(row: StepOp, frame: MicroBatch) -> list[StepOp]:
    """Backward rows of one forward row other than attention and collectives."""
    op = row.op
    found = _matmul(op, frame) if op.group == MATMUL else _elementwise(op, frame)
    return [each.times(op.count) for each in found]


def _matmul(op: Op, frame: MicroBatch) -> list[StepOp]:
    assert op.timed is not None
    w: Matmul = op.timed.workload
    step, frozen = frame.forward, frame.shape.rank is not None
    learned = any(access.tensor == WEIGHTS for access in op.kernel.accesses)
    inputs = product(f"{op.name}, gradient of inputs", step, Matmul(w.m, w.k, w.n, w.batch, dtype=w.dtype), weights="B" if learned else "")
    if frozen:
        return [inputs]
    weights = product(f"{op.name}, gradient of weights", step, Matmul(w.k, w.n, w.m, w.batch, dtype=w.dtype))
    found = [inputs, _in_format(weights, frame)]
    if sum(access.tensor == WEIGHTS for access in op.kernel.accesses) > 1:  # the second ones are biases
        # after a matrix cut by rows, biases are added once the partial sums are: to a sequence-parallel GPU's own tokens
        rows = activation(READ, share(w.batch * w.m * w.n, frame.shape.sp if op.name.endswith(BY_ROWS) else 1), step)
        found.append(priced(f"{op.name}, gradient of biases", step, SUMS, (rows, gradients(w.n, frame.shape.gradient_size)), w.m * w.n))
    return found


def _in_format(row: StepOp, frame: MicroBatch) -> StepOp:
    """``row``, whose product C is the gradient of weights."""
    kernel = row.op.kernel
    size = 8 * frame.shape.gradient_size
    accesses = tuple(in_bits(access, WEIGHTS, size) if access.tensor == "C" else access for access in kernel.accesses)
    return replace(row, op=replace(row.op, kernel=replace(kernel, accesses=accesses)))


def _elementwise(op: Op, frame: MicroBatch) -> list[StepOp]:
    """Reads the gradient of what it wrote and what it read, writes the gradient of what it read."""
    assert op.timed is not None
    step, w = frame.forward, op.timed.workload
    if op.timed.kind == "norm":
        return _norm(op, w, frame)
    made = sum(a.elements for a in op.kernel.accesses if a.kind == WRITE and a.tensor != WEIGHTS)
    read = sum(a.elements for a in op.kernel.accesses if a.kind == READ and a.tensor != WEIGHTS)
    keeps = 0 if op.name in LINEAR else read
    accesses = (activation(READ, made + keeps, step), activation(WRITE, read, step))
    # as many bytes as the gradient needs, in rows as long as those of the forward kernel
    moved = Stream("scale", w.rows, w.cols, shared=made + keeps + read - 2 * w.rows * w.cols, dtype=step.dtype)
    like = op.timed.implementations if op.timed.kind == "scale" else ("torch-add",)
    timed = Timed("scale", moved, like, strided=op.timed.strided)
    kernel = replace(op.kernel, name=f"{op.name}, gradient", accesses=accesses)
    return [StepOp(Op(kernel.name, ELEMENTWISE, 1, kernel, timed))]


def _norm(op: Op, w: Stream, frame: MicroBatch) -> list[StepOp]:
    """The gradient of the inputs, row by row; those of the weights, summed over all rows."""
    step, elements = frame.forward, w.rows * w.cols
    kernel = replace(
        op.kernel,
        name=f"{op.name}, gradient of inputs",
        accesses=(activation(READ, 2 * elements, step), activation(WRITE, elements, step)),
    )
    timed = Timed("norm", replace(w, inputs=2), op.timed.implementations if op.timed else None)
    inputs = StepOp(Op(kernel.name, ELEMENTWISE, 1, kernel, timed))
    if frame.shape.rank is not None:
        return [inputs]
    learned = w.cols * (2 if frame.shape.norm == "layer" else 1)
    accesses = (activation(READ, 2 * elements, step), gradients(learned, frame.shape.gradient_size))
    return [inputs, priced(f"{op.name}, gradient of weights", step, SUMS, accesses, 2 * elements)]


def added_up(name: str, frame: MicroBatch, rows: Number) -> StepOp:
    """Two gradients of one tensor [rows, hidden], added."""
    return pointwise(name, frame.forward, rows, frame.hidden, reads=2)
