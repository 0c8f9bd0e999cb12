"""Kernels of a training step: the backward kernels of each forward kernel, and kernels that only training has.

Kernels of a library are timed by their own calibration. Kernels that are never timed alone are priced by their bytes and the share of the
DRAM bandwidth that profiled steps show. Each matmul has two backward, a bias a sum, other kernels as many bytes again: the gradient of the
inputs, dX = dY W^T, and that of the weights, dW = X^T dY, are each as large as the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, in_bits, stored
from perfmodel.core.dtypes import Dtype
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import BACKWARD, Attention, Stream
from perfmodel.kernels.attention.algorithms import flash2, standard
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.tile import product_tile, tile_rows
from perfmodel.timing.base import chosen
from perfmodel.transformer.op import ATTENTION, ELEMENTWISE, KEY_TILE, MATMUL, WEIGHTS, Op, Timed, activation
from perfmodel.transformer.step import PREFILL, ModelPass, Split, share
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.matrices import Shape, shape_of
from perfmodel.transformer.training.question import Parallel, TrainingConfig

SUMS, OTHERS = "sums", "others"
SHARES: Mapping[str, float] = chosen("training_dram_share")
"""Shares of the DRAM bandwidth by kind of kernel."""
MATMULS = ("torch-matmul", "cublas")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch. ``shape``: sizes on one GPU. ``forward``: the pass over all tokens of the micro-batch on this GPU.

    ``eager``: one kernel per operation in the Python code, as the modules of huggingface/transformers run.
    """

    shape: Shape
    forward: ModelPass
    eager: bool


def micro_batch_of(training: TrainingConfig, implementation: str, dtype: Dtype) -> MicroBatch:
    """The micro-batch of ``training``."""
    shape, p = shape_of(training), training.parallel
    # kernels do not depend on how gradients are kept: layouts that differ only in that share cached kernels
    bare_parallel = Parallel(p.tp, p.sp, min(p.pp, 2), ep=p.ep)
    shape = replace(shape, parallel=bare_parallel, kept_gradient=0)
    bits = 8 * shape.size
    length, split = shape.length, Split(p.tp, p.ep, dp=p.ep)
    step = ModelPass(PREFILL, shape.sequences * p.ep, length, length, dtype, bits, bits, cached=False, split=split)
    return MicroBatch(shape, step, implementation == HUGGINGFACE)


def pointwise(
    name: str,
    step: ModelPass,
    rows: Number,
    cols: Number,
    *,
    reads: int = 1,
    vector: int = 1,
    strided: bool = False,
    more: Access | None = None,
) -> Op:
    """A kernel over whole tensors [rows, cols]. ``strided``: in another order of dimensions. ``more``: further access, in bytes."""
    elements, beside = rows * cols, () if more is None else (more,)
    accesses = (activation(READ, reads * elements, step), activation(WRITE, elements, step), *beside)
    shared = sum(ceil_div(access.elements * access.element_size, step.dtype.size) for access in beside)
    workload = Stream("scale", rows, cols, reads, 1, shared, step.dtype)
    timed = Timed("scale", workload, ("torch-scale" if reads == 1 else "torch-add",), strided=strided)
    return Op(name, ELEMENTWISE, 1, Kernel(name, step.dtype, accesses, work=Work(0, vector * elements, 0)), timed)


def priced(name: str, step: ModelPass, share: str, accesses: tuple[Access, ...], vector: Number = 0) -> Op:
    """A kernel whose bytes pass at the share of the DRAM bandwidth that SHARES has under ``share``."""
    return Op(name, ELEMENTWISE, 1, Kernel(name, step.dtype, accesses, work=Work(0, vector, 0)), Timed(share, None, ()))


def product(name: str, step: ModelPass, w: Matmul, *, weights: str = "", size: int | None = None) -> Op:
    """A matmul. ``weights``: its matrix (A, B or C) of weights, or of their gradients with ``size`` bytes per element."""
    [plain] = w.kernels(product_tile((w.m, w.n), step.tile))
    accesses = tuple(in_bits(a, WEIGHTS, 8 * (size or int(a.element_size))) if a.tensor == weights else a for a in plain.accesses)
    return Op(name, MATMUL, 1, plain._replace(name=name, accesses=accesses), Timed("matmul", w, MATMULS))


def gradients(elements: Number, size: int, kind: str = WRITE) -> Access:
    """Gradients of weights, ``size`` bytes each."""
    return stored(WEIGHTS, kind, elements, 8 * size)


def recomputed(op: Op) -> Op:
    """``op`` as a recomputation: executed work without needed work or compulsory traffic."""
    accesses = tuple(access._replace(compulsory=0) for access in op.kernel.accesses)
    return replace(op, kernel=op.kernel._replace(flops=0, needed=Work(), accesses=accesses))


BY_ROWS = ("output projection", "down projection")
"""Matrices that tensor-parallel GPUs cut by rows: each GPU has a partial sum of every result."""
LINEAR = ("RoPE", "embedding lookup", "dropout")
"""Operations whose gradient does not depend on what they read."""


def backward(op: Op, batch: MicroBatch, *, trained: bool | None = None) -> list[Op]:
    """Backward kernels of one forward kernel other than attention and collectives.

    ``trained``: whether its weights are trained; by default they are if there are no adapters.
    """
    assert op.timed is not None
    trained = batch.shape.rank is None if trained is None else trained
    if op.group == MATMUL:
        kernels = _matmul(op, op.timed, batch, trained)
    else:
        kernels = _norm(op, op.timed, batch, trained) if op.timed.kind == "norm" else _elementwise(op, op.timed, batch)
    return [each.times(op.count) for each in kernels]


def _matmul(op: Op, timed: Timed, batch: MicroBatch, trained: bool) -> list[Op]:
    w: Matmul = timed.workload
    step, shape = batch.forward, batch.shape
    learned = sum(access.tensor == WEIGHTS for access in op.kernel.accesses)
    inputs = product(
        f"{op.name}, gradient of inputs", step, Matmul(w.m, w.k, w.n, w.batch, dtype=w.dtype, crossed=True), weights="B" if learned else ""
    )
    if not trained:
        return [inputs]
    name, transposed = f"{op.name}, gradient of weights", Matmul(w.k, w.n, w.m, w.batch, dtype=w.dtype, crossed=True)
    ops = [inputs, product(name, step, transposed, weights="C", size=shape.size)]
    if learned > 1:  # the second ones are biases
        # after a matrix cut by rows, biases are added once the partial sums are: to a sequence-parallel GPU's own tokens
        rows = activation(READ, share(w.batch * w.m * w.n, shape.sp if op.name.endswith(BY_ROWS) else 1), step)
        ops.append(priced(f"{op.name}, gradient of biases", step, SUMS, (rows, gradients(w.n, shape.size)), w.m * w.n))
    return ops


def _elementwise(op: Op, timed: Timed, batch: MicroBatch) -> list[Op]:
    """Backward kernel: reads the inputs of ``op`` and the gradient of its result, and writes the gradient of the inputs."""
    step, w = batch.forward, timed.workload
    written, read = (sum(a.elements for a in op.kernel.accesses if a.kind == kind and a.tensor != WEIGHTS) for kind in (WRITE, READ))
    keeps = 0 if op.name in LINEAR else read
    accesses = (activation(READ, written + keeps, step), activation(WRITE, read, step))
    # as many bytes as the gradient needs, in rows as long as those of the forward kernel
    moved = Stream("scale", w.rows, w.cols, shared=written + keeps + read - 2 * w.rows * w.cols, dtype=step.dtype)
    like = timed.implementations if timed.kind == "scale" else ("torch-add",)
    kernel = op.kernel._replace(name=f"{op.name}, gradient", accesses=accesses)
    return [Op(kernel.name, ELEMENTWISE, 1, kernel, Timed("scale", moved, like, strided=timed.strided))]


def _norm(op: Op, timed: Timed, batch: MicroBatch, trained: bool) -> list[Op]:
    """Backward kernels: gradients of the inputs row by row, and gradients of the weights summed over all rows."""
    step, shape, w = batch.forward, batch.shape, timed.workload
    elements, name = w.rows * w.cols, f"{op.name}, gradient of inputs"
    read = activation(READ, 2 * elements, step)
    kernel = op.kernel._replace(name=name, accesses=(read, activation(WRITE, elements, step)))
    inputs = Op(name, ELEMENTWISE, 1, kernel, Timed("norm", replace(w, inputs=2), timed.implementations))
    if not trained:
        return [inputs]
    learned = gradients(w.cols * (2 if shape.model.norm == "layer" else 1), shape.size)
    return [inputs, priced(f"{op.name}, gradient of weights", step, SUMS, (read, learned), 2 * elements)]


DROPOUT = 0.1
"""Any probability above 0: whether elements are dropped matters, not how many."""


def attention(op: Op, batch: MicroBatch) -> tuple[list[Op], list[Op]]:
    """Forward and backward kernels of attention, the fused kernel ``op`` of inference.

    With context parallelism a GPU meets the keys of all ``cp`` GPUs in turn, and the causal mask leaves it half of them on average: as much
    as ``cp`` triangles over its own part (ring attention, Liu et al. 2023; striped or zigzag orders even the halves out).
    """
    assert op.timed is not None
    w: Attention = op.timed.workload
    if batch.shape.flash:
        return _fused_attention(op, w, batch)
    w = replace(w, packed=False, mask=batch.eager, unfused_scale=batch.eager, dropout=DROPOUT if batch.shape.dropout else 0.0)
    forward, backward = (
        [_unfused_kernel(kernel, w, batch.shape.cp) for kernel in made(w, Tile(1, 1))] for made in (standard.forward, standard.backward)
    )
    before, between, after = _by_heads(w, batch)
    return [*before, *forward, *between], [*after, *backward]


def _fused_attention(op: Op, w: Attention, batch: MicroBatch) -> tuple[list[Op], list[Op]]:
    [sums, main] = flash2.backward(w, Tile(tile_rows(w.row_group * w.n), KEY_TILE))
    name = f"{op.name}, gradient"
    both = main._replace(name=name, accesses=(*sums.accesses, *main.accesses), work=sums.work + main.work)
    timed = Timed("attention", w, None, op.timed.obstacle if op.timed else "", direction=BACKWARD)
    joint = [_heads_together(w, batch.forward, strided=False)] if batch.eager else []
    return [op.times(batch.shape.cp)], [Op(name, ATTENTION, batch.shape.cp, both, timed), *joint]


def _unfused_kernel(kernel: Kernel, w: Attention, cp: Number) -> Op:
    """One separate kernel of standard attention. The causal mask saves no work: all scores are computed."""
    rows, half = w.query_heads * w.n, w.query_heads * w.n * w.kv_len // 2
    if kernel.name in standard.PRODUCTS:
        return Op(kernel.name, MATMUL, cp, kernel, Timed("matmul", standard.product(w, kernel.name), MATMULS))
    if kernel.name == "softmax backward":
        return Op(kernel.name, ELEMENTWISE, cp, kernel, Timed(OTHERS, None, ()))
    times_as: dict[str, tuple[str, str, Any]] = {
        "softmax": ("softmax", "torch-softmax", 0),
        "additive mask": ("scale", "torch-mask", w.n * w.kv_len),
        "dropout": ("scale", "torch-scale", half),  # its mask: a byte per score, half an element
        "dropout backward": ("scale", "torch-scale", half),
    }
    kind, implementation, shared = times_as.get(kernel.name, ("scale", "torch-scale", 0))
    workload = Stream(kind, rows, w.kv_len, shared=shared, dtype=w.dtype)
    return Op(kernel.name, ELEMENTWISE, cp, kernel, Timed(kind, workload, (implementation,)))


def _by_heads(w: Attention, batch: MicroBatch) -> tuple[list[Op], list[Op], list[Op]]:
    """Copies from tokens to heads before the matmuls and back after them, and copies of the backward pass."""
    step, tokens = batch.forward, w.batch * w.n

    def copied(name: str, heads: Number, features: Number) -> Op:
        return pointwise(name, step, tokens, heads * features, vector=0, strided=True)

    out = copied("output, heads side by side", w.heads, w.dv)
    if not batch.eager:
        return [], [out], [replace(out, name="gradient of the output, by heads")]
    copies = [copied(f"{name} by heads", w.heads, d) for name, d in (("Q", w.d), ("K", w.d), ("V", w.dv))]
    back = [replace(copy, name=f"gradient, {copy.name}") for copy in copies]
    product = pointwise("scores times their gradient", step, w.query_heads * w.n, w.kv_len, reads=2)
    return copies, [out], [*back, product, _heads_together(w, step, strided=True)]


def _heads_together(w: Attention, step: ModelPass, *, strided: bool) -> Op:
    """Kernel that joins the gradients of Q, K and V in one matrix, as the joint projection made Q, K and V."""
    name, cols = "gradients of Q, K and V side by side", (2 * w.heads) * w.d + w.heads * w.dv
    return pointwise(name, step, w.batch * w.n, cols, vector=0, strided=strided)
