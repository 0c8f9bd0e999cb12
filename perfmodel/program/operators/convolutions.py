"""Convolutions as matrix products: a row per output position, a column per output channel, the window as depth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from perfmodel.core.arith import ceil_div
from perfmodel.core.cost import READ, WRITE, Kernel, matmul_work, once
from perfmodel.kernels.matmul import Matmul, flops
from perfmodel.program.calls import SIZES, Call, Operand, UnknownError, product_dtype
from perfmodel.program.operators._counts import passed
from perfmodel.transformer.op import MATMUL, Op, Timed


def convolved(call: Call, padding: int, stride: int, dilation: int, groups: int) -> tuple[Op, ...]:
    """The forward convolution; the parameters are the places of these arguments."""
    x, weight = call.tensor(0), call.tensor(1)
    spatial = len(weight.shape) - 2
    steps, pads, gaps = ((call.integers(place) or [default]) for place, default in ((stride, 1), (padding, 0), (dilation, 1)))
    if len(x.shape) != spatial + 2:
        raise UnknownError(f"{call.name} of {x.shape} by {weight.shape}")
    places = [
        (x.shape[2 + axis] + 2 * _of(pads, axis) - _of(gaps, axis) * (weight.shape[2 + axis] - 1) - 1) // _of(steps, axis) + 1
        for axis in range(spatial)
    ]
    return _product(call, x, weight, prod(places), int(call.value(groups, "1") or 1), 1)


def _of(values: list[int], place: int) -> int:
    return values[place] if place < len(values) else values[-1]


def _product(call: Call, x: Operand, weight: Operand, places: int, groups: int, passes: int) -> tuple[Op, ...]:
    """The product, ``passes`` times, and the passes that change operands to channels-last order if they are not.

    Source: NVIDIA cuDNN Developer Guide, Tensor Core kernels take NHWC; kernels nchwToNhwc and nhwcToNchw in profiles of PyTorch.
    """
    rows, columns, depth = x.shape[0] * places, weight.shape[0] // groups, prod(weight.shape[1:])
    size, out = SIZES[x.dtype], x.shape[0] * places * weight.shape[0]
    if depth == prod(weight.shape[2:]) and groups > 1:  # depthwise: no product
        return (
            passed(
                call,
                "depthwise" if call.name != BACKWARD else "depthwise-backward",
                passes * (x.bytes + weight.bytes),
                passes * out * size,
                out * depth,
                flops=2 * passes * out * depth,
            ),
        )
    if min(rows, columns, depth) < 1:
        raise UnknownError(f"{call.name} has an empty operand")
    dtype = product_dtype(x.dtype)
    w = Matmul(rows, columns, passes * depth, groups, dtype=dtype)
    work = matmul_work(dtype, flops(w))
    accesses = (once("inputs", READ, passes * (x.bytes + weight.bytes), 1), once("outputs", WRITE, passes * out * size, 1))
    kernel = Kernel(call.name, dtype, accesses, flops(w), flops(w), work, work)
    product = Op(
        call.name, MATMUL, 1, kernel, Timed("matmul", w, ("torch-matmul",), similar="products: a convolution is one, gathered on the way")
    )
    in_order = prod(weight.shape[2:]) == 1 and places == prod(x.shape[2:]) and places % VECTOR == 0  # a product in either order
    if in_order or not (x.contiguous and size == 2 and len(x.shape) == 4):
        return (product,)
    moved = passes * (_whole(x.elements, x.shape[1]) + _whole(out, weight.shape[0]))
    return product, passed(call, "layout", moved * size, moved * size, moved, at_least=0.0)


BACKWARD = "aten::convolution_backward"
VECTOR, CHANNELS = 8, 32
"""16-bit elements of a vector load, and channels of a tile of the transposition; fewer channels take as long."""


def _whole(elements: int, channels: int) -> int:
    """``elements`` with channels padded to whole tiles."""
    return int(elements // channels * CHANNELS * ceil_div(channels, CHANNELS))


def backward(call: Call) -> tuple[Op, ...]:
    """The gradients of input and weight that are asked for, a product each."""
    gradient, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    wanted = call.value(10, "[True, True, False]")
    passes = max(1, sum(flag.strip() == "True" for flag in wanted.strip("[]").split(",")[:2]))
    return _product(call, x, weight, prod(gradient.shape[2:]), int(call.value(9, "1") or 1), passes)


OPERATORS: dict[str, Callable[[Call], tuple[Op, ...]]] = {
    "aten::cudnn_convolution": partial(convolved, padding=2, stride=3, dilation=4, groups=5),
    "aten::miopen_convolution": partial(convolved, padding=3, stride=4, dilation=5, groups=6),
    "aten::_conv_depthwise2d": partial(convolved, padding=5, stride=4, dilation=6, groups=9),
    "aten::conv_depthwise3d": partial(convolved, padding=5, stride=4, dilation=6, groups=9),
    "aten::_convolution": partial(convolved, padding=4, stride=3, dilation=5, groups=8),
    "aten::convolution": partial(convolved, padding=4, stride=3, dilation=5, groups=8),
    BACKWARD: backward,
}
