"""One row of a training step: a kernel, by what its time is known, and what a forward row means for the backward pass.

Rows that a library runs are priced by the calibration of that kernel alone. Those that nobody times alone are priced by their bytes
and the share of the DRAM bandwidth that profiled steps show. Backward there are two matmuls for one, a sum for a bias, as many bytes
again for the rest: the gradient of the inputs, dX = dY W^T, and that of the weights, dW = X^T dY, are each as large as the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, in_bits, stored
from perfmodel.core.workload import BACKWARD, FORWARD, Attention, Stream
from perfmodel.kernels.attention.algorithms import flash2, standard
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.op import ATTENTION, ELEMENTWISE, MATMUL, WEIGHTS, Op, Timed, activation, tile_rows
from perfmodel.transformer.ops import KEY_TILE
from perfmodel.transformer.step import ModelPass, share
from perfmodel.transformer.training.step.micro_batch import MicroBatch

SUMS, OTHERS = "sums", "others"
SHARES = {SUMS: 0.26, OTHERS: 0.58}  # tuned
"""Shares of the DRAM bandwidth: sums over all tokens (biases, weights of norms); softmax's gradient, fp32 logits, optimizer.

Bytes over time of those kernels in profiled steps of GPT-2 medium on an H200, PyTorch 2.11, batch 8, 1,024 tokens, which fits see.
"""
MATMULS = ("torch-matmul", "cublas")


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
    name: str, step: ModelPass, rows: Number, cols: Number, *, reads: int = 1, writes: int = 1, vector: int = 1, strided: bool = False
) -> StepOp:
    """A kernel that reads and writes whole tensors [rows, cols]. ``strided``: through another order of dimensions."""
    elements = rows * cols
    accesses = (activation(READ, reads * elements, step), activation(WRITE, writes * elements, step))
    kernel = Kernel(name, step.dtype, accesses, work=Work(0, vector * elements, 0))
    implementation = "torch-scale" if reads == 1 else "torch-add"
    timed = Timed("scale", Stream("scale", rows, cols, reads, writes, 0, step.dtype), (implementation,), strided=strided)
    return StepOp(Op(name, ELEMENTWISE, 1, kernel, timed))


def priced(name: str, step: ModelPass, share: str, accesses: tuple[Access, ...], vector: Number = 0) -> StepOp:
    """A kernel whose bytes pass at ``share`` of the DRAM bandwidth."""
    return StepOp(Op(name, ELEMENTWISE, 1, Kernel(name, step.dtype, accesses, work=Work(0, vector, 0))), share=share)


def product(name: str, step: ModelPass, w: Matmul, *, weights: str = "") -> StepOp:
    """A matmul. ``weights``: which of its matrices (A, B or C) are weights or their gradients."""
    [plain] = w.kernels(Tile(tile_rows(w.m), step.tile_columns))
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
    kernel, size = weights.op.kernel, 8 * frame.shape.gradient_size
    accesses = tuple(in_bits(access, WEIGHTS, size) if access.tensor == "C" else access for access in kernel.accesses)
    found = [inputs, replace(weights, op=replace(weights.op, kernel=replace(kernel, accesses=accesses)))]
    if sum(access.tensor == WEIGHTS for access in op.kernel.accesses) > 1:  # the second ones are biases
        # after a matrix cut by rows, biases are added once the partial sums are: to a sequence-parallel GPU's own tokens
        rows = activation(READ, share(w.batch * w.m * w.n, frame.shape.sp if op.name.endswith(BY_ROWS) else 1), step)
        found.append(priced(f"{op.name}, gradient of biases", step, SUMS, (rows, gradients(w.n, frame.shape.gradient_size)), w.m * w.n))
    return found


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
    name, moved = f"{op.name}, gradient of inputs", (activation(READ, 2 * elements, step), activation(WRITE, elements, step))
    timed = Timed("norm", replace(w, inputs=2), op.timed.implementations if op.timed else None)
    inputs = StepOp(Op(name, ELEMENTWISE, 1, replace(op.kernel, name=name, accesses=moved), timed))
    if frame.shape.rank is not None:
        return [inputs]
    learned = w.cols * (2 if frame.shape.norm == "layer" else 1)
    accesses = (activation(READ, 2 * elements, step), gradients(learned, frame.shape.gradient_size))
    return [inputs, priced(f"{op.name}, gradient of weights", step, SUMS, accesses, 2 * elements)]


DROPOUT = 0.1
"""Any probability above 0: whether elements are dropped matters, not how many."""


def attention(op: Op, frame: MicroBatch) -> tuple[list[StepOp], list[StepOp]]:
    """Forward and backward rows of the fused row ``op`` of inference.

    With context parallelism a GPU meets the keys of all ``cp`` in turn, of which the causal mask leaves it half on average: as often
    the triangle over its own part (Liu et al. 2023, ring attention; striped or zigzag, which even the halves out).
    """
    assert op.timed is not None
    w: Attention = op.timed.workload
    if frame.shape.flash:
        return _fused(op, w, frame)
    w = replace(w, packed=False, mask=frame.eager, unfused_scale=frame.eager, dropout=DROPOUT if frame.shape.dropout else 0.0)
    forward = [_apart(kernel, w, frame) for kernel in standard.forward(w, Tile(1, 1))]
    backward = [_apart(kernel, w, frame) for kernel in standard.backward(w, Tile(1, 1))]
    before, between, after = _by_heads(w, frame)
    return [*before, *forward, *between], [*after, *backward]


def _fused(op: Op, w: Attention, frame: MicroBatch) -> tuple[list[StepOp], list[StepOp]]:
    [sums, main] = flash2.backward(w, Tile(tile_rows(w.row_group * w.n), KEY_TILE))
    both = replace(main, name=f"{op.name}, gradient", accesses=(*sums.accesses, *main.accesses), work=sums.work + main.work)
    timed = Timed("attention", w, None, op.timed.obstacle if op.timed else "")
    back = StepOp(Op(both.name, ATTENTION, 1, both, timed), BACKWARD)
    joint = [_heads_together(w, frame, strided=False)] if frame.eager else []
    return [StepOp(op).times(frame.cp)], [back.times(frame.cp), *joint]


MADE: dict[str, Callable[[Attention], Matmul]] = {
    "S = Q K^T": lambda w: Matmul(w.n, w.kv_len, w.d, w.query_heads, dtype=w.dtype),
    "O = P V": lambda w: Matmul(w.n, w.dv, w.kv_len, w.query_heads, dtype=w.dtype),
    "dV = P^T dO": lambda w: Matmul(w.kv_len, w.dv, w.n, w.query_heads, dtype=w.dtype),
    "dP = dO V^T": lambda w: Matmul(w.n, w.kv_len, w.dv, w.query_heads, dtype=w.dtype),
    "dQ = dS K": lambda w: Matmul(w.n, w.d, w.kv_len, w.query_heads, dtype=w.dtype),
    "dK = dS^T Q": lambda w: Matmul(w.kv_len, w.d, w.n, w.query_heads, dtype=w.dtype),
}
"""The matmuls of standard attention by the names of their kernels."""


def _apart(kernel: Kernel, w: Attention, frame: MicroBatch) -> StepOp:
    """One kernel of standard attention. The causal mask saves it nothing: all scores are computed."""
    rows, half = w.query_heads * w.n, w.query_heads * w.n * w.kv_len // 2
    if kernel.name in MADE:
        return StepOp(Op(kernel.name, MATMUL, frame.cp, kernel, Timed("matmul", MADE[kernel.name](w), MATMULS)))
    if kernel.name == "softmax backward":
        return StepOp(Op(kernel.name, ELEMENTWISE, frame.cp, kernel), share=OTHERS)
    made: dict[str, tuple[str, str, Any]] = {
        "softmax": ("softmax", "torch-softmax", 0),
        "additive mask": ("scale", "torch-mask", w.n * w.kv_len),
        "dropout": ("scale", "torch-scale", half),  # its mask: a byte per score, half an element
        "dropout backward": ("scale", "torch-scale", half),
    }
    kind, implementation, shared = made.get(kernel.name, ("scale", "torch-scale", 0))
    timed = Timed(kind, Stream(kind, rows, w.kv_len, shared=shared, dtype=w.dtype), (implementation,))
    return StepOp(Op(kernel.name, ELEMENTWISE, frame.cp, kernel, timed))


def _by_heads(w: Attention, frame: MicroBatch) -> tuple[list[StepOp], list[StepOp], list[StepOp]]:
    """Copies from tokens to heads before the matmuls, back after them, and what backward copies beside its matmuls."""
    step, tokens = frame.forward, w.batch * w.n
    out = pointwise("output, heads side by side", step, tokens, w.heads * w.dv, vector=0, strided=True)
    if not frame.eager:
        return [], [out], [replace(out, op=replace(out.op, name="gradient of the output, by heads"))]
    copies = [
        pointwise(f"{name} by heads", step, tokens, heads * d, vector=0, strided=True)
        for name, heads, d in (("Q", w.heads, w.d), ("K", w.heads, w.d), ("V", w.heads, w.dv))
    ]
    back = [replace(one, op=replace(one.op, name=f"gradient, {one.op.name}")) for one in copies]
    product = pointwise("scores times their gradient", step, w.query_heads * w.n, w.kv_len, reads=2)
    return copies, [out], [*back, product, _heads_together(w, frame, strided=True)]


def _heads_together(w: Attention, frame: MicroBatch, *, strided: bool) -> StepOp:
    """The gradients of Q, K and V in one matrix, as the joint projection made them."""
    name, cols = "gradients of Q, K and V side by side", (2 * w.heads) * w.d + w.heads * w.dv
    return pointwise(name, frame.forward, w.batch * w.n, cols, vector=0, strided=strided)
