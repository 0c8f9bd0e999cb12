"""The calls that launch kernels on a GPU, as a profiler would record them, from the calls that PyTorch's dispatcher sees.

Many operators reach the device under another name, or as several: ``RULES`` lists them, at the end. Source: PyTorch 2.11,
aten/src/ATen/native and native/cuda, and profiles of an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from perfmodel.program.calls import SIZES, Argument, Call, Operand

Results = Sequence[Operand]
"""Results of a call, or its operands if it has no result."""
Rule = Callable[[Call, Results], list[Call]]
"""Function that gives the calls that launch the kernels of a call."""
SILENT = frozenset((
    "detach", "alias", "lift_fresh", "lift", "expand", "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute",
    "select", "slice", "split", "split_with_sizes", "unbind", "squeeze", "unsqueeze", "as_strided", "as_strided_", "diagonal", "unfold",
    "narrow", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_", "chunk", "record_stream",
    "movedim", "swapaxes", "view_as_real", "view_as_complex", "real", "imag",
))  # fmt: skip
"""Operators that launch nothing: views, and allocations without a fill."""
WRAPPED = frozenset(f"aten::{name}{end}" for name in ("mul", "div") for end in ("", "_"))
"""Operators that turn Python numbers into tensors without a dimension."""
SMALL_EMBEDDING = 3072
"""Most indices for which the gradient of an embedding is summed without sorting."""
ROW_BYTES = 16
"""Alignment in bytes of table rows that are gathered by vector loads."""


def launched(call: Call, results: Results) -> list[Call]:
    """The calls that launch the kernels of ``call``."""
    name = call.name.removeprefix("aten::")
    if name in SILENT or not any(result.elements for result in results):
        return []
    return RULES.get(name, _itself)(call, results)


def _itself(call: Call, _: Results) -> list[Call]:
    return [call]


# Copies and fills


def _copied(call: Call, results: Results) -> list[Call]:
    return [_copy(results[0], call.tensor(0))]


def _copy(target: Operand, source: Operand) -> Call:
    return Call("aten::copy_", (target, source, "False"))


def _filled(value: str = "0", place: int | None = None) -> Rule:
    """Rule: a fill with ``value``, or with the value at ``place``."""
    return lambda call, results: [_fill(results[0], value if place is None else call.value(place, value))]


def _fill(target: Operand, value: str = "0") -> Call:
    return Call("aten::fill_", (target, value))


def _filled_first(call: Call, results: Results) -> list[Call]:
    return [_fill(results[0]), call]


# Operators with another name on the device, or several


def _arange(call: Call, results: Results) -> list[Call]:
    numbers = [argument for argument in call.arguments[:3] if isinstance(argument, str) and argument.lstrip("-").replace(".", "").isdigit()]
    if len(numbers) == 1:
        numbers = ["0", *numbers]
    if len(numbers) == 2:
        numbers = [*numbers, "1"]
    start, end, step = numbers
    return [Call("aten::arange", (start, end, step, Operand((0,), results[0].dtype, (1,))))]


def _padded(call: Call, results: Results) -> list[Call]:
    x, out = call.tensor(0), results[0]
    copy = _copy(replace(x, strides=out.strides), x)
    return [copy] if x.shape == out.shape else [_fill(out, call.value(2, "0")), copy]


def _power(call: Call, results: Results) -> list[Call]:
    return _copied(call, results) if call.value(1) in ("1", "1.") else [call]


def _rectified(call: Call, _: Results) -> list[Call]:
    return [Call(call.name.replace("relu", "clamp_min"), (call.tensor(0), "0"))]


def _scanned(call: Call, results: Results) -> list[Call]:
    return [call] if call.tensor(0).dtype == results[0].dtype else [*_copied(call, results), call]


def _tested(call: Call, results: Results) -> list[Call]:
    """A test whether all or any elements are true; of a single element, a copy."""
    return [_copy(results[0], Operand((), call.tensor(0).dtype))] if call.tensor(0).elements == 1 else [call]


def _in_order(operands: int = 1) -> Rule:
    """Rule: the operator after its first ``operands`` are made contiguous."""

    def rule(call: Call, _: Results) -> list[Call]:
        tensors = [call.tensor(place) for place in range(operands)]
        return [*(_copy(Operand(operand.shape, operand.dtype), operand) for operand in tensors if not operand.contiguous), call]

    return rule


def _on_a_copy(name: str = "") -> Rule:
    """Rule: a copy of the first operand, which the operator (or the one called ``name``) then changes in place."""
    return lambda call, results: [
        _copy(results[0], call.tensor(0)),
        Call(f"aten::{name}", (results[0], *call.arguments[1:])) if name else call,
    ]


def _renamed(name: str) -> Rule:
    return lambda call, _: [Call(f"aten::{name}", call.arguments)]


def _stacked(call: Call, _: Results) -> list[Call]:
    axis = int(call.value(1, "0"))
    tensors = [replace(tensor, shape=_with_one(tensor.shape, axis), strides=_with_one(tensor.strides, axis)) for tensor in call.tensors()]
    return [Call("aten::cat", (tuple(tensors), call.value(1, "0")))]


def _with_one(sizes: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """``sizes`` with a 1 inserted at ``axis``."""
    axis = axis if axis >= 0 else len(sizes) + 1 + axis
    return (*sizes[:axis], 1, *sizes[axis:])


def _batch_norm(call: Call, _: Results) -> list[Call]:
    """Batch norm by cuDNN, except in bf16 or without spatial dimensions: aten/src/ATen/native/Normalization.cpp."""
    x, weight, mean = call.tensor(0), call.arguments[1], call.arguments[3]
    calls = []
    if isinstance(mean, Operand) and mean.dtype != "fp32" and call.value(5) == "False":
        calls.append(_copy(replace(mean, dtype="fp32"), mean))
    by_cudnn = len(x.shape) > 2 and isinstance(weight, Operand) and "bf16" not in (x.dtype, weight.dtype)
    return [*calls, Call("aten::cudnn_batch_norm", call.arguments) if by_cudnn else call]


def _slice_gradient(call: Call, results: Results) -> list[Call]:
    """The gradient of a slice: zeros, into which the slice's gradient is copied."""
    gradient, out, strides = call.tensor(0), results[0], results[0].strides
    if len(gradient.shape) < len(out.shape):
        axis = int(call.value(2)) % len(out.shape)
        strides = strides[:axis] + strides[axis + 1 :]
    return [_fill(out), _copy(replace(gradient, strides=strides), gradient)]


def _embedding(call: Call, results: Results) -> list[Call]:
    table = call.tensor(0)
    width = table.shape[-1]
    copies, index = _flattened(call.tensor(1))
    rows = Operand((index.elements, width), table.dtype, (width, 1))
    if width * SIZES[table.dtype] % ROW_BYTES:
        return [*copies, Call("aten::index_select", (table, "0", index, rows))]
    row_index = Operand(rows.shape, index.dtype, (index.strides[0], 0))
    return [*copies, Call("aten::gather", (table, "0", row_index, "False", rows))]


def _embedding_backward(call: Call, results: Results) -> list[Call]:
    copies, index = _flattened(call.tensor(1))
    if index.elements <= SMALL_EMBEDDING:
        return [*copies, _fill(results[0]), call]
    places = Call("aten::arange", ("0", str(index.elements), "1", Operand((0,), "int64", (1,))))
    return [*copies, places, call, _fill(results[0])]


def _flattened(index: Operand) -> tuple[list[Call], Operand]:
    """(copy that flattening needs if no single stride describes ``index``, ``index`` in one dimension)."""
    dimensions = [(size, stride) for size, stride in zip(index.shape, index.strides, strict=True) if size > 1]
    if all(outer_stride == size * stride for (_, outer_stride), (size, stride) in pairwise(dimensions)):
        innermost_stride = dimensions[-1][1] if dimensions else 1
        return [], Operand((index.elements,), index.dtype, (innermost_stride,))
    return [_copy(Operand(index.shape, index.dtype), index)], Operand((index.elements,), index.dtype, (1,))


def _convolution(call: Call, results: Results) -> list[Call]:
    """A convolution by cuDNN and its bias; one dimension is treated as images of one row."""
    x, weight, bias, out = call.tensor(0), call.tensor(1), call.arguments[2], results[0]
    stride, padding, dilation, _, _, groups = (call.value(place) for place in range(3, 9))
    spatial = len(weight.shape) - 2
    if spatial == 2 and x.contiguous and groups == str(x.shape[1]) and weight.shape[1] == 1:
        return [Call("aten::_conv_depthwise2d", (x, weight, str(list(weight.shape[2:])), bias, stride, padding, dilation))]
    if spatial == 1:
        x, weight, out = map(_as_picture, (x, weight, out))
        stride, padding, dilation = (
            f"[{first}, {values.strip('[]')}]" for first, values in zip("101", (stride, padding, dilation), strict=True)
        )
    product = Call("aten::cudnn_convolution", (x, weight, padding, stride, dilation, groups, "False", "False", "True"))
    if not isinstance(bias, Operand):
        return [product]
    ones = (1,) * (len(out.shape) - 2)
    return [product, Call("aten::add_", (out, Operand((1, *bias.shape, *ones), bias.dtype, (*bias.shape, 1, *ones)), "1"))]


def _convolution_backward(call: Call, _: Results) -> list[Call]:
    """The gradients of input and weight, and the sum that is the gradient of the bias."""
    has_bias = call.value(10, "[True, True, False]").strip("[]").split(",")[-1]
    if has_bias.strip() != "True":
        return [call]
    axes = str([axis for axis in range(len(call.tensor(0).shape)) if axis != 1])
    return [call, Call("aten::sum", (call.tensor(0), axes, "False", None))]


def _as_picture(operand: Operand) -> Operand:
    """``operand`` [b, c, length] as pictures [b, c, 1, length]."""
    (b, c, length), (b_stride, c_stride, stride) = operand.shape, operand.strides
    return Operand((b, c, 1, length), operand.dtype, (b_stride, c_stride, stride * length, stride))


# Fused attention


def _length_first(argument: Argument) -> Argument:
    """A tensor [b, h, n, d] as [b, n, h, d]; other arguments unchanged."""
    if not isinstance(argument, Operand):
        return argument
    (b, h, n, d), (b_stride, h_stride, n_stride, d_stride) = argument.shape, argument.strides
    return Operand((b, n, h, d), argument.dtype, (b_stride, n_stride, h_stride, d_stride))


def _cudnn(call: Call, _: Results) -> list[Call]:
    q, k, v, bias, statistics, dropout, causal, debug, scale = call.arguments
    n, m = str(call.tensor(0).shape[2]), str(call.tensor(1).shape[2])
    return [Call("aten::_cudnn_attention_forward", (q, k, v, bias, None, None, n, m, statistics, dropout, causal, debug, scale))]


def _efficient(call: Call, _: Results) -> list[Call]:
    *qkv, bias, statistics, dropout, causal, scale = call.arguments
    mask = str(int(causal == "True"))
    return [
        Call(
            "aten::_efficient_attention_forward",
            (*map(_length_first, qkv), bias, None, None, None, None, dropout, mask, statistics, scale, None, None),
        )
    ]


def _efficient_backward(call: Call, _: Results) -> list[Call]:
    """The backward pass, after row sums of dO x O in fp32 and zeros for dQ, to which blocks add."""
    gradient, q, k, v, bias, out, statistics, seed, offset, dropout, _wanted, causal, scale = call.arguments
    b, h, n, d = call.tensor(1).shape
    gradient, q, k, v, out = map(_length_first, (gradient, q, k, v, out))
    rows = Operand((b, h, n), "fp32", (h * n, n, 1))
    products = [
        Call("aten::mul", (gradient, out)),
        Call("aten::sum", (gradient, "[-1]", "False", None)),
        _copy(rows, replace(rows, strides=(h * n, 1, h))),
    ]
    operands = gradient, q, k, v, bias, out, None, None, str(h), str(h), statistics, dropout, seed, offset
    backward = Call("aten::_efficient_attention_backward", (*operands, str(int(causal == "True")), "False", scale, None, None, "False"))
    zeros = _fill(Operand((b * h * (4 * n * d + 128),), "uint8", (1,)))
    return [*(products if call.tensor(1).dtype == "fp32" else []), zeros, backward]


def _safe_softmax(call: Call, results: Results) -> list[Call]:
    """A softmax, and zeros for the rows that a mask leaves nothing of: aten/src/ATen/native/transformers/attention.cpp."""
    x, out = call.tensor(0), results[0]
    masked, rows, zero = replace(x, dtype="bool"), Operand((*x.shape[:-1], 1), "bool"), Operand((), x.dtype)
    found = [Call("aten::_softmax", (x, "-1", "False")), Call("aten::isneginf", (x,)), Call("aten::all", (masked, "-1", "True"))]
    return [*found, _fill(zero), Call("aten::where", (rows, zero, out, out))]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("_to_copy", "clone", "contiguous", "copy", "repeat"), _copied),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero_", "zero"), _filled()),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled("1")),
    **dict.fromkeys(("full", "full_like"), _filled(place=1)),
    "new_full": _filled(place=2),
    "scalar_tensor": _filled(place=0),
    "arange": _arange,
    "constant_pad_nd": _padded,
    "pow": _power,
    **dict.fromkeys(("relu", "relu_"), _rectified),
    **dict.fromkeys(("cumsum", "cumprod"), _scanned),
    **dict.fromkeys(("all", "any"), _tested),
    **dict.fromkeys(("native_layer_norm", "_softmax", "_log_softmax"), _in_order()),
    "native_layer_norm_backward": _in_order(2),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"), _on_a_copy()),
    "masked_fill": _on_a_copy("masked_fill_"),
    "index_put": _on_a_copy("_index_put_impl_"),
    "index_put_": _renamed("_index_put_impl_"),
    "stack": _stacked,
    "native_batch_norm": _batch_norm,
    **dict.fromkeys(("slice_backward", "select_backward"), _slice_gradient),
    **dict.fromkeys(("nll_loss_backward", "max_pool2d_with_indices_backward"), _filled_first),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_safe_softmax": _safe_softmax,
    "_scaled_dot_product_cudnn_attention": _cudnn,
    "_scaled_dot_product_cudnn_attention_backward": _renamed("_cudnn_attention_backward"),
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
}
"""Rules for operators that reach the device under another name or as several; all others run as they are."""
