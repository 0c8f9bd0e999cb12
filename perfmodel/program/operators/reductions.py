"""Reductions, softmax, norms and losses over rows or columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Stream
from perfmodel.program.calls import SIZES, Call, Operand
from perfmodel.program.operators._counts import passed
from perfmodel.transformer.op import Op, Timed

ROWS, COLUMNS, PLANES, ALL, NORM = "reduce", "reduce-columns", "reduce-planes", "reduce-all", "reduce-norm"
"""Kinds of reductions: ROWS, over neighbours in memory; COLUMNS, over elements apart; PLANES, over both; ALL, to one number; NORM, a norm
over neighbours."""


def reduced(call: Call, axes: int | None = 1, width: int = 0) -> Op:
    """A sum, mean or extreme over the dimensions in argument ``axes``, or over all. ``width``: bytes of a result, 0 for the operand's."""
    x = call.tensor(0)
    reduced_axes = _reduced_axes(call, x, axes)
    results = prod(size for axis, size in enumerate(x.shape) if axis not in reduced_axes)
    written, is_arg = results * (width or SIZES[x.dtype]), "arg" in call.name
    if results == 1 and not is_arg:
        return passed(call, ALL, x.bytes, written, x.elements, flops=x.elements)
    strides = x.strides or tuple(prod(x.shape[axis + 1 :]) for axis in range(len(x.shape)))
    from_innermost = sorted((axis for axis in range(len(x.shape)) if x.shape[axis] > 1), key=lambda axis: strides[axis])
    over_neighbours = bool(from_innermost) and from_innermost[0] in reduced_axes
    count = sum(axis in reduced_axes for axis in from_innermost)
    over_planes = over_neighbours and not reduced_axes.issuperset(from_innermost[:count])
    if is_arg:
        kind = "argmax"
    elif over_planes:
        kind = PLANES
    elif not over_neighbours:
        kind = COLUMNS
    else:
        kind = NORM if "norm" in call.name else ROWS
    launch = _reduction_launch(results, x.elements // max(1, results), over_neighbours)
    return passed(call, kind, x.bytes, written, launch.elements, flops=x.elements, rows=launch.warps, parts=launch.parts)


def _reduced_axes(call: Call, x: Operand, argument: int | None) -> set[int]:
    """The dimensions of ``x`` that ``argument`` names, a list or a number; all of them if it names none."""
    rank = len(x.shape)
    axes = call.integers(argument) if argument is not None else []
    if argument is not None and not axes and call.value(argument).lstrip("-").isdigit():
        axes = [int(call.value(argument))]
    return {axis % rank for axis in axes} if rank and axes else set(range(rank))


WARP, THREADS = 32, 512
"""Threads of a warp and of a block."""
SHARED_BY_WARPS, SHARED_BY_BLOCKS = 16, 256
"""Elements of a thread from which the warps of a block share a result, and from which several blocks do."""
AT_ONCE, VECTOR = 4, 4
"""Elements that a thread reads at once along a row; neighbouring results that a thread has in a reduction over columns."""
FILLING = 132 * 2048
"""Threads that fill an H200, taken for every GPU; they tell in how many blocks a long result is cut."""


class _ReductionLaunch(NamedTuple):
    """``warps`` of a reduction; ``parts``: blocks that share a result, 0 if none do; ``elements``, with those of threads without work."""

    warps: int
    parts: int
    elements: int


def _reduction_launch(results: int, length: int, over_neighbours: bool) -> _ReductionLaunch:
    """The launch of a reduction to ``results`` of ``length`` elements each, which are neighbours in memory or not.

    Source: PyTorch, aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig.
    """
    per_thread = VECTOR if not over_neighbours and results % VECTOR == 0 and results >= VECTOR * WARP else 1
    threads = THREADS // per_thread
    inner, outer = (length, results) if over_neighbours else (results // per_thread, length)
    width = min(_power(inner), WARP)
    height = min(_power(outer), threads // width)
    width = min(_power(inner), threads // height)
    if over_neighbours:
        blocks, thread_elements = results, ceil_div(length, width)
    else:
        blocks, thread_elements = ceil_div(inner, width), length
    parts = rows_per_result = 1
    if thread_elements >= min(SHARED_BY_WARPS * height, SHARED_BY_BLOCKS):
        rows_per_result, thread_elements, filling = height, ceil_div(thread_elements, height), FILLING // threads
        if thread_elements >= SHARED_BY_BLOCKS and blocks <= filling:
            filling_parts = min(ceil_div(filling, blocks), ceil_div(thread_elements, SHARED_BY_WARPS))
            parts = max(filling_parts, ceil_div(thread_elements, SHARED_BY_BLOCKS))
    warps = max(1, blocks * width * rows_per_result * parts // WARP)
    step = AT_ONCE * width * rows_per_result
    elements = results * ceil_div(length, step) * step if over_neighbours else blocks * width * per_thread * length
    return _ReductionLaunch(warps, parts if parts > 1 else 0, elements)


def _power(size: int) -> int:
    """The largest power of two up to ``size``."""
    return 1 << max(0, size.bit_length() - 1)


def scanned(call: Call) -> Op:
    """Running sums."""
    x = call.tensor(0)
    size = 8 if x.dtype in ("bool", "int32", "int64") else SIZES[x.dtype]
    return passed(call, "scan", x.bytes, x.elements * size, x.elements, flops=x.elements, rows=_rows(x))


def sorted_(call: Call) -> Op:
    """A sort with indices, by radix sort; for the largest few, a selection."""
    x = call.tensor(0)
    return passed(call, "sort", x.bytes, x.elements * (SIZES[x.dtype] + 8), x.elements, flops=x.elements)


LONG_ROWS = 1024
"""Longest row of softmax that a warp keeps in registers: aten/src/ATen/native/cuda/SoftMax.cu."""


def softmax(call: Call) -> Op:
    """Softmax over the last dimension."""
    x = call.tensor(0)
    size = 4 if call.is_true(2) else SIZES[x.dtype]
    kind = "softmax" if x.shape and x.shape[-1] <= LONG_ROWS else "softmax-long"
    return over_rows(call, kind, "softmax", "torch-softmax", x.elements * size, exponentials=x.elements)


def over_rows(call: Call, kind: str, op: str, implementation: str, written: int, exponentials: int = 0) -> Op:
    """A kernel over rows of its first tensor, with weights of one row; it has its own time model if calibrated, else that of a pass."""
    x, rows = call.tensor(0), _rows(call.tensor(0))
    shared = [tensor for tensor in call.tensors()[1:] if tensor.elements < x.elements]
    read = x.bytes + sum(tensor.bytes for tensor in shared)
    row = passed(call, kind, read, written, x.elements, flops=4 * x.elements, exponentials=exponentials, rows=rows)
    if row.timed is None or x.dtype not in DTYPES or not rows:
        return row
    w = Stream(op, rows, x.elements // rows, shared=sum(tensor.elements for tensor in shared), dtype=DTYPES[x.dtype])
    return replace(row, timed=row.timed._replace(preferred=Timed(op, w, (implementation,))))


def _rows(x: Operand) -> int:
    return x.elements // max(1, x.shape[-1] if x.shape else 1)


def norm(call: Call, kind: str) -> Op:
    """A norm over each row, which also stores its statistics."""
    return over_rows(call, kind, "norm", f"torch-{kind}", call.tensor(0).bytes)


def norm_backward(call: Call) -> Op:
    """The gradients of a norm's input and weights."""
    gradient, x = call.tensor(0), call.tensor(1)
    return passed(call, "norm-backward", 2 * (gradient.bytes + x.bytes), x.bytes, x.elements, flops=10 * x.elements)


TRAINING = 5
"""Argument place of a batch norm's option to compute statistics."""


def statistics(call: Call, kind: str, reads: int, flops: int) -> Op:
    """A norm over channels, ``reads`` times as many bytes read as ``x`` has."""
    x = call.tensor(0)
    if call.name == "aten::native_batch_norm" and not call.is_true(TRAINING):
        return passed(call, "batch-norm-inference", x.bytes, x.bytes, x.elements, flops=4 * x.elements, rows=x.shape[0] * x.shape[1])
    rows, elements = 32 * x.shape[0], x.elements
    if "batch" in kind:
        rows = x.shape[1] if x.contiguous else 0  # a block per channel; tensors stored channels last are divided evenly
        if "native" not in call.name:
            kind += "-library"
        elif rows:
            elements = rows * _channel_elements(x)
        else:
            kind += "-last"
    return passed(call, kind, reads * x.bytes, x.bytes, elements, flops=flops * x.elements, rows=rows)


def _channel_elements(x: Operand) -> int:
    """Elements of a channel of ``x`` [b, c, ...], with those that threads without work would take.

    A block's threads lie along the places of a picture, and along pictures if these are short. Source: PyTorch,
    aten/src/ATen/native/cuda/Normalization.cuh.
    """
    places = int(prod(x.shape[2:]))
    along_places = min(THREADS, max(WARP, int(1 << (places - 1).bit_length())))
    along_pictures = THREADS // along_places
    return int(ceil_div(places, along_places) * along_places * ceil_div(x.shape[0], along_pictures) * along_pictures)


def softmax_backward(call: Call) -> Op:
    """The gradient of softmax from its result."""
    gradient, result = call.tensor(0), call.tensor(1)
    return passed(call, "softmax-backward", gradient.bytes + result.bytes, gradient.bytes, gradient.elements, flops=3 * gradient.elements)


def log_softmax(call: Call) -> Op:
    """Log softmax over the last dimension, with rows as long as a vocabulary."""
    x = call.tensor(0)
    size = 4 if call.is_true(2) else SIZES[x.dtype]
    return passed(
        call,
        "log-softmax",
        x.bytes,
        size * x.elements,
        x.elements,
        flops=3 * x.elements,
        exponentials=x.elements,
        rows=x.elements // x.shape[-1],
    )


def log_softmax_backward(call: Call) -> Op:
    """The gradient of log softmax from its result."""
    gradient, result = call.tensor(0), call.tensor(1)
    return passed(
        call,
        "log-softmax-backward",
        gradient.bytes + result.bytes,
        gradient.bytes,
        gradient.elements,
        flops=3 * gradient.elements,
        exponentials=gradient.elements,
        rows=gradient.elements // gradient.shape[-1],
    )


def loss(call: Call) -> Op:
    """A loss: one number per row is read."""
    x, target = call.tensor(0), next((tensor for tensor in call.tensors() if tensor.dtype == "int64"), call.tensor(0))
    return passed(call, "loss", target.elements * (8 + SIZES[x.dtype]), SIZES[x.dtype], target.elements)


def loss_backward(call: Call) -> Op:
    """The gradient of such a loss: one number per row, after a fill with zeros."""
    x = call.tensor(1)
    rows = x.shape[0] if x.shape else 1
    return passed(call, "loss", rows * 16, rows * SIZES[x.dtype], rows)


_FUNCTIONS: dict[str, Callable[[Call], Op]] = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "prod", "logsumexp", "std", "var"), reduced),
    **dict.fromkeys(("norm", "linalg_vector_norm"), partial(reduced, axes=2)),
    **dict.fromkeys(("all", "any"), partial(reduced, axes=None, width=1)),
    **dict.fromkeys(("max", "min"), reduced),
    **dict.fromkeys(("argmax", "argmin"), partial(reduced, width=8)),
    **dict.fromkeys(("cumsum", "cumprod"), scanned),
    **dict.fromkeys(("sort", "topk", "argsort", "nonzero", "unique"), sorted_),
    "_softmax": softmax,
    "_softmax_backward_data": softmax_backward,
    "_log_softmax": log_softmax,
    "_log_softmax_backward_data": log_softmax_backward,
    "native_layer_norm": partial(norm, kind="layer-norm"),
    "native_layer_norm_backward": norm_backward,
    "_fused_rms_norm": partial(norm, kind="rms-norm"),
    "_fused_rms_norm_backward": norm_backward,
    "native_batch_norm": partial(statistics, kind="batch-norm", reads=1, flops=6),
    "cudnn_batch_norm": partial(statistics, kind="batch-norm", reads=1, flops=6),
    "miopen_batch_norm": partial(statistics, kind="batch-norm", reads=1, flops=6),
    "native_group_norm": partial(statistics, kind="group-norm", reads=1, flops=6),
    "native_batch_norm_backward": partial(statistics, kind="batch-norm-backward", reads=2, flops=10),
    "cudnn_batch_norm_backward": partial(statistics, kind="batch-norm-backward", reads=2, flops=10),
    "native_group_norm_backward": partial(statistics, kind="group-norm-backward", reads=2, flops=10),
    "nll_loss_forward": loss,
    "nll_loss_backward": loss_backward,
    "nll_loss2d_forward": loss,
    "mse_loss": reduced,
}
OPERATORS = {f"aten::{name}": function for name, function in _FUNCTIONS.items()}
