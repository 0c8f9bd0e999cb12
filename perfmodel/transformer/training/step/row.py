"""Kernels of a training step: the backward kernels of each forward kernel, and kernels that only training has.

Kernels of a library are timed by their own calibration. Kernels that are never timed alone are priced by their bytes and the share of the
DRAM bandwidth that profiled steps show. A matmul has two backward kernels, each as large as itself: the gradient of the inputs,
dX = dY W^T, and that of the weights, dW = X^T dY. The gradient of a bias is a sum. Another kernel has one backward kernel.
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
    p = training.parallel
    # kernels do not depend on how gradients are kept: layouts that differ only in that share cached kernels
    shape = replace(shape_of(training), parallel=Parallel(p.tp, p.sp, min(p.pp, 2), ep=p.ep), kept_gradient=0)
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
    elements, shared_elements = rows * cols, 0
    accesses: tuple[Access, ...] = (activation(READ, reads * elements, step), activation(WRITE, elements, step))
    if more is not None:
        accesses = (*accesses, more)
        shared_elements = ceil_div(more.elements * more.element_size, step.dtype.size)
    workload = Stream("scale", rows, cols, reads, 1, shared_elements, step.dtype)
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
    elif op.timed.kind == "norm":
        kernels = _norm(op, op.timed, batch, trained)
    else:
        kernels = _elementwise(op, op.timed, batch)
    return [kernel.times(op.count) for kernel in kernels]


def _matmul(op: Op, timed: Timed, batch: MicroBatch, trained: bool) -> list[Op]:
    """Backward kernels: gradients of the inputs, of the weights and of the biases."""
    w: Matmul = timed.workload
    step, shape = batch.forward, batch.shape
    weight_tensors = sum(access.tensor == WEIGHTS for access in op.kernel.accesses)  # the matrix and its biases; none between activations
    input_product = Matmul(w.m, w.k, w.n, w.batch, dtype=w.dtype, crossed=True)
    inputs = product(f"{op.name}, gradient of inputs", step, input_product, weights="B" if weight_tensors else "")
    if not trained:
        return [inputs]
    weight_product = Matmul(w.k, w.n, w.m, w.batch, dtype=w.dtype, crossed=True)
    ops = [inputs, product(f"{op.name}, gradient of weights", step, weight_product, weights="C", size=shape.size)]
    if weight_tensors > 1:
        # after a matrix cut by rows, biases are added once the partial sums are: to a sequence-parallel GPU's own tokens
        sharing_gpus = shape.sp if op.name.endswith(BY_ROWS) else 1
        rows = activation(READ, share(w.batch * w.m * w.n, sharing_gpus), step)
        ops.append(priced(f"{op.name}, gradient of biases", step, SUMS, (rows, gradients(w.n, shape.size)), w.m * w.n))
    return ops


def _elementwise(op: Op, timed: Timed, batch: MicroBatch) -> list[Op]:
    """Backward kernel: reads the inputs of ``op`` and the gradient of its result, and writes the gradient of the inputs."""
    step, w = batch.forward, timed.workload
    activations = [access for access in op.kernel.accesses if access.tensor != WEIGHTS]
    outputs = sum(access.elements for access in activations if access.kind == WRITE)
    inputs = sum(access.elements for access in activations if access.kind == READ)
    reads = outputs if op.name in LINEAR else outputs + inputs
    kernel = op.kernel._replace(name=f"{op.name}, gradient", accesses=(activation(READ, reads, step), activation(WRITE, inputs, step)))
    # timed as a kernel of as many bytes in rows as long as those of the forward kernel
    workload = Stream("scale", w.rows, w.cols, shared=reads + inputs - 2 * w.rows * w.cols, dtype=step.dtype)
    implementations = timed.implementations if timed.kind == "scale" else ("torch-add",)
    return [Op(kernel.name, ELEMENTWISE, 1, kernel, Timed("scale", workload, implementations, strided=timed.strided))]


def _norm(op: Op, timed: Timed, batch: MicroBatch, trained: bool) -> list[Op]:
    """Backward kernels: gradients of the inputs row by row, and gradients of the weights summed over all rows."""
    step, shape, w = batch.forward, batch.shape, timed.workload
    elements, name = w.rows * w.cols, f"{op.name}, gradient of inputs"
    read = activation(READ, 2 * elements, step)
    kernel = op.kernel._replace(name=name, accesses=(read, activation(WRITE, elements, step)))
    inputs = Op(name, ELEMENTWISE, 1, kernel, Timed("norm", replace(w, inputs=2), timed.implementations))
    if not trained:
        return [inputs]
    weights = gradients(w.cols * (2 if shape.model.norm == "layer" else 1), shape.size)
    return [inputs, priced(f"{op.name}, gradient of weights", step, SUMS, (read, weights), 2 * elements)]


DROPOUT = 0.1
"""Any probability above 0: whether elements are dropped matters, not how many."""


def attention(op: Op, batch: MicroBatch) -> tuple[list[Op], list[Op]]:
    """Forward and backward kernels of attention, the fused kernel ``op`` of inference.

    With context parallelism a GPU gets the keys of all ``cp`` GPUs in turn. The causal mask leaves half of the scores on average, as much
    work as ``cp`` times causal attention over its own part (ring attention, Liu et al. 2023; striped or zigzag orders balance it).
    """
    assert op.timed is not None
    w: Attention = op.timed.workload
    if batch.shape.flash:
        return _fused_attention(op, w, batch)
    w = replace(w, packed=False, mask=batch.eager, unfused_scale=batch.eager, dropout=DROPOUT if batch.shape.dropout else 0.0)
    forward_ops = [_unfused_kernel(kernel, w, batch.shape.cp) for kernel in standard.forward(w, Tile(1, 1))]
    backward_ops = [_unfused_kernel(kernel, w, batch.shape.cp) for kernel in standard.backward(w, Tile(1, 1))]
    copies_before, copies_after, copies_backward = _copies_by_heads(w, batch)
    return [*copies_before, *forward_ops, *copies_after], [*copies_backward, *backward_ops]


def _fused_attention(op: Op, w: Attention, batch: MicroBatch) -> tuple[list[Op], list[Op]]:
    """The fused forward kernel, and the backward kernels as one."""
    [row_sums, main] = flash2.backward(w, Tile(tile_rows(w.row_group * w.n), KEY_TILE))
    name = f"{op.name}, gradient"
    kernel = main._replace(name=name, accesses=(*row_sums.accesses, *main.accesses), work=row_sums.work + main.work)
    timed = Timed("attention", w, None, op.timed.obstacle if op.timed else "", direction=BACKWARD)
    backward_ops = [Op(name, ATTENTION, batch.shape.cp, kernel, timed)]
    if batch.eager:
        backward_ops.append(_joined_gradients(w, batch.forward, strided=False))
    return [op.times(batch.shape.cp)], backward_ops


def _unfused_kernel(kernel: Kernel, w: Attention, cp: Number) -> Op:
    """One separate kernel of standard attention. The causal mask saves no work: all scores are computed."""
    rows = w.query_heads * w.n
    mask_elements = rows * w.kv_len // 2  # dropout's mask has a byte per score, half an element
    if kernel.name in standard.PRODUCTS:
        return Op(kernel.name, MATMUL, cp, kernel, Timed("matmul", standard.product(w, kernel.name), MATMULS))
    if kernel.name == "softmax backward":
        return Op(kernel.name, ELEMENTWISE, cp, kernel, Timed(OTHERS, None, ()))
    timed_as: dict[str, tuple[str, str, Any]] = {  # kind of kernel, implementation, elements that it reads besides
        "softmax": ("softmax", "torch-softmax", 0),
        "additive mask": ("scale", "torch-mask", w.n * w.kv_len),
        "dropout": ("scale", "torch-scale", mask_elements),
        "dropout backward": ("scale", "torch-scale", mask_elements),
    }
    kind, implementation, shared = timed_as.get(kernel.name, ("scale", "torch-scale", 0))
    workload = Stream(kind, rows, w.kv_len, shared=shared, dtype=w.dtype)
    return Op(kernel.name, ELEMENTWISE, cp, kernel, Timed(kind, workload, (implementation,)))


def _copies_by_heads(w: Attention, batch: MicroBatch) -> tuple[list[Op], list[Op], list[Op]]:
    """Copies from tokens to heads before the matmuls and back after them, and copies and products of the backward pass."""
    step, tokens = batch.forward, w.batch * w.n

    def copy(name: str, features: Number) -> Op:
        return pointwise(name, step, tokens, w.heads * features, vector=0, strided=True)

    output = copy("output, heads side by side", w.dv)
    if not batch.eager:
        return [], [output], [replace(output, name="gradient of the output, by heads")]
    inputs = [copy("Q by heads", w.d), copy("K by heads", w.d), copy("V by heads", w.dv)]
    gradients_by_heads = [replace(op, name=f"gradient, {op.name}") for op in inputs]
    score_product = pointwise("scores times their gradient", step, w.query_heads * w.n, w.kv_len, reads=2)
    return inputs, [output], [*gradients_by_heads, score_product, _joined_gradients(w, step, strided=True)]


def _joined_gradients(w: Attention, step: ModelPass, *, strided: bool) -> Op:
    """Kernel that joins the gradients of Q, K and V in one matrix, as the joint projection made Q, K and V."""
    name, cols = "gradients of Q, K and V side by side", (2 * w.heads) * w.d + w.heads * w.dv
    return pointwise(name, step, w.batch * w.n, cols, vector=0, strided=strided)
