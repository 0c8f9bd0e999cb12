"""Counts that several families of operators share: passes over memory and products, as ``Op`` rows that can be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import gcd

from perfmodel.core.cost import READ, WRITE, Kernel, Tile, Work, once
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.workload import Pass
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.tile import product_tile
from perfmodel.program.calls import SIZES, Call, Operand, UnknownError, product_dtype
from perfmodel.transformer.op import ELEMENTWISE, MATMUL, Op, Timed

LARGEST_TILE = Tile(256, 128)
ELEMENTS, CAST, STRIDED, STRIDED_CAST, TRANSPOSED = "elements", "cast", "strided", "strided-cast", "transposed"
"""Kinds of passes of PyTorch's TensorIterator: ELEMENTS, operands are contiguous and of one format; CAST, of several formats; STRIDED,
broadcast or with gaps; STRIDED_CAST, both; TRANSPOSED, an operand has another order in memory than the result."""
PYTHON_NUMBERS = ("fp64", "int64")
"""Formats of Python numbers, which are passed as tensors without a dimension; such tensors of other formats are on the device."""


def passed(
    call: Call,
    kind: str,
    read: float,
    written: float,
    elements: int,
    *,
    flops: int = 0,
    exponentials: int = 0,
    divisions: int = 0,
    rows: int = 0,
    parts: int = 0,
    at_least: float = 1.0,
) -> Op:
    """One pass of ``kind`` over memory: bytes ``read`` and ``written`` once, on ``elements``, with ``flops`` of the vector unit.

    ``at_least``: share of the bytes that any kernel must move. The other arguments are those of ``Pass``.
    """
    workload = Pass(kind, elements, int(written), int(read), _vector_dtype(call), divisions, rows, parts)
    [moved] = workload.kernels(LARGEST_TILE)
    accesses = tuple(access._replace(compulsory=int(access.compulsory * at_least)) for access in moved.accesses)
    kernel = Kernel(call.name, workload.dtype, accesses, work=Work(0, flops, exponentials))
    return Op(call.name, ELEMENTWISE, 1, kernel, Timed("pass", workload, (f"torch-{kind}",)))


def _vector_dtype(call: Call) -> Dtype:
    """The format of the vector work of ``call``: its first floating-point format, or fp32."""
    return next((DTYPES[tensor.dtype] for tensor in call.tensors() if tensor.dtype in DTYPES), DTYPES["fp32"])


def product(
    call: Call, m: int, n: int, k: int, operands: tuple[Operand, Operand], batch: int = 1, *, extra: float = 0.0, written: str = ""
) -> Op:
    """The product C [m, n] = A [m, k] B [k, n] of ``operands``, ``batch`` times. ``extra``: other bytes read; ``written``: format of C."""
    if min(m, n, k, batch) < 1:
        raise UnknownError(f"{call.name} has an empty operand")
    a = operands[0].dtype
    dtype = product_dtype(a)
    aligned = 1 if 1 in (n, k) else gcd(n, *map(_row_step, operands))
    w = Matmul(m, n, k, batch, dtype=dtype, aligned=aligned, crossed=not call.name.endswith("linear") and _crossed(*operands))
    [kernel] = w.kernels(product_tile((m, n), LARGEST_TILE))
    accesses = kernel.accesses
    if written and SIZES[written] != dtype.result_size:
        accesses = (*accesses[:2], once("C", WRITE, batch * m * n, SIZES[written]))
    if extra:
        accesses = (*accesses, once("bias", READ, int(extra), 1))
    library = "torch-scaled-mm" if a == "fp8" else "torch-matmul"
    kernel = Kernel(call.name, dtype, accesses, kernel.flops, kernel.executed_flops, kernel.work, kernel.needed, kernel.launch)
    return Op(call.name, MATMUL, 1, kernel, Timed("matmul", w, (library,)))


def _row_step(matrix: Operand) -> int:
    """Elements between the rows of ``matrix`` in memory, along whichever dimension they lie; for one row its length."""
    steps = _steps(matrix, matrix.shape[-2:])
    return max(steps) if len(steps) > 1 else max(matrix.shape[-2:])


def _crossed(a: Operand, b: Operand) -> bool:
    """Whether A [m, k] or B [k, n] does not lie along k in memory."""

    def lies_across(matrix: Operand, k_axis: int) -> bool:
        return len(matrix.strides) > 1 and matrix.shape[k_axis] > 1 and matrix.strides[k_axis] != 1

    return lies_across(a, -1) or lies_across(b, -2)


def iterated(
    call: Call, inputs: Sequence[Operand], out: Operand, *, outputs: int = 1, flops: int = 0, exponentials: int = 0, kind: str = ELEMENTS
) -> Op:
    """A kernel of PyTorch's TensorIterator that reads ``inputs`` and writes ``outputs`` tensors like ``out``.

    It loads vectors if all tensors are contiguous and of one format, or if it rounds fp32 to 16 bits. Otherwise it loads single elements
    and finds each by divisions: one per dimension that cannot be merged with its neighbour, except the first. Source: PyTorch,
    aten/src/ATen/native/cuda: CUDALoops.cuh, Copy.cu; aten/src/ATen/TensorIterator.cpp (coalesce_dimensions).
    """
    operands = [operand for operand in (*inputs, out) if operand.shape or operand.dtype not in PYTHON_NUMBERS]
    steps = [_steps(operand, out.shape) for operand in operands]
    casts = _casts(inputs, out)
    dimensions = _merged_dimensions(out.shape, steps)
    divisions = 0
    if dimensions <= 1 and all(step and step[-1] for step in steps):
        kind = CAST if casts else kind
    else:
        kind = STRIDED_CAST if casts else STRIDED
        divisions = max(0, dimensions - 1)
        if any(_innermost(step) != _innermost(steps[-1]) for step in steps if 0 not in step):
            kind = TRANSPOSED
    read = sum(operand.bytes for operand in (dict.fromkeys(inputs) if len(inputs) > 2 else inputs))
    elements = out.elements * (len(inputs) + outputs) if kind in (CAST, STRIDED_CAST) else out.elements
    op = passed(call, kind, read, outputs * out.elements * SIZES[out.dtype], elements, divisions=divisions)
    kernel = op.kernel._replace(work=Work(0, flops * out.elements, exponentials * out.elements))
    return replace(op, kernel=kernel)


def _casts(inputs: Sequence[Operand], out: Operand) -> bool:
    """Whether the kernel converts formats element by element; it rounds fp32 to 16 bits by vectors."""
    dtypes = [operand.dtype for operand in inputs if operand.shape and operand.dtype != "bool"] or [operand.dtype for operand in inputs]
    if len(inputs) == 1:
        rounds = inputs[0].dtype == "fp32" and out.dtype in ("bf16", "fp16")
        return not rounds and out.dtype not in (dtypes[0], "bool")
    return len(set(dtypes)) > 1


def _steps(tensor: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of ``tensor`` broadcast to ``shape``, for dimensions of more than one element."""
    strides = tensor.strides if len(tensor.strides) == len(tensor.shape) else _contiguous_strides(tensor.shape)
    missing = len(shape) - len(tensor.shape)
    broadcast = [0] * missing + [0 if size == 1 else stride for size, stride in zip(tensor.shape, strides, strict=True)]
    broadcast = broadcast[max(0, -missing) :]
    return tuple(stride for size, stride in zip(shape, broadcast, strict=False) if size > 1)


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _merged_dimensions(shape: tuple[int, ...], steps: Sequence[tuple[int, ...]]) -> int:
    """Number of dimensions of ``shape`` after merging neighbours that are contiguous in all operands, in the result's order."""
    sizes = [size for size in shape if size > 1]
    order = sorted(range(len(sizes)), key=lambda axis: steps[-1][axis]) if steps else []
    unmerged = 0
    for inner, outer in pairwise(order):
        unmerged += any(step[inner] * sizes[inner] != step[outer] for step in steps)
    return unmerged + 1


def _innermost(steps: tuple[int, ...]) -> int:
    """The dimension with the smallest stride."""
    return min(range(len(steps)), key=lambda axis: steps[axis], default=0)
