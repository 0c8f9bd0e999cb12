"""Convolutions as matrix products: a row per output position, a column per output channel, the window as depth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Convolution
from perfmodel.kernels.matmul import Matmul
from perfmodel.program.calls import SIZES, Call, Operand, UnknownError, product_dtype
from perfmodel.program.operators._counts import LARGEST_TILE, passed
from perfmodel.transformer.op import MATMUL, Op, Timed


def convolved(call: Call, padding: int, stride: int, dilation: int) -> tuple[Op, ...]:
    """The forward convolution; ``padding``, ``stride`` and ``dilation``: places of these arguments."""
    x, weight = call.tensor(0), call.tensor(1)
    spatial = len(weight.shape) - 2
    if len(x.shape) != spatial + 2:
        raise UnknownError(f"{call.name} of {x.shape} by {weight.shape}")

    def by_axis(argument: int, default: int) -> list[int]:
        values = call.integers(argument) or [default]
        return [*values, *[values[-1]] * spatial]

    pads, steps, gaps = by_axis(padding, 0), by_axis(stride, 1), by_axis(dilation, 1)
    places = 1
    for axis in range(spatial):
        reach = gaps[axis] * (weight.shape[2 + axis] - 1) + 1
        places *= (x.shape[2 + axis] + 2 * pads[axis] - reach) // steps[axis] + 1
    return _product(call, x, weight, places, 1)


def _product(call: Call, x: Operand, weight: Operand, places: int, passes: int) -> tuple[Op, ...]:
    """The product for ``places`` of the output, ``passes`` times, and the copies that bring operands to channels-last order.

    Source: NVIDIA cuDNN Developer Guide, Tensor Core kernels take NHWC; kernels nchwToNhwc and nhwcToNchw in profiles of PyTorch.
    """
    if 0 in (*x.shape, *weight.shape, places):
        raise UnknownError(f"{call.name} has an empty operand")
    channels, window, groups = weight.shape[1], prod(weight.shape[2:]), x.shape[1] // weight.shape[1]
    rows, filters = x.shape[0] * places, weight.shape[0] // groups
    touched = min(x.bytes, x.bytes * places * window // max(1, prod(x.shape[2:])))  # a stride beyond the window leaves some out
    size, out, way = SIZES[x.dtype], x.shape[0] * places * weight.shape[0], "-backward" * (call.name == BACKWARD)
    if channels == 1 and groups > 1:  # depthwise: no product
        last = "" if x.contiguous else "-last"
        read, written, flop = passes * (x.bytes + weight.bytes), passes * out * size, 2 * passes * out * window
        return (passed(call, f"depthwise{way}{last}", read, written, out * window, flops=flop),)
    dtype = DTYPES["tf32"] if x.dtype == "fp32" else product_dtype(x.dtype)
    w = Convolution(rows, filters, channels, window, touched + weight.bytes, out * size, groups, passes, dtype)
    [kernel] = w.kernels(LARGEST_TILE)
    kind = "-point" if window == 1 else "-narrow" if channels % VECTOR else ""
    obstacle = NO_MODEL if window > WIDE and channels >= VECTOR else ""
    timed = Timed("convolution", w, (f"torch-convolution{kind}{way}",), obstacle)
    in_order = window == 1 and places == prod(x.shape[2:]) and places % VECTOR == 0  # a product in either order
    if in_order and not way and size == 2:
        timed = Timed("matmul", Matmul(rows, filters, channels, groups, dtype=dtype), ("torch-matmul",))
    product = Op(call.name, MATMUL, 1, kernel, timed)
    if in_order or x.dtype == "fp64" or not (x.contiguous and len(x.shape) == 4):
        return (product,)
    moved = passes * (_whole(x.elements, x.shape[1]) + _whole(out, weight.shape[0]))
    return product, passed(call, "layout", moved * size, moved * size, moved, at_least=0.0)


BACKWARD = "aten::convolution_backward"
VECTOR, CHANNELS, WIDE = 8, 32, 25
"""16-bit elements of a vector load, channels of a tile of the transposition (fewer take as long), and places of the largest window for
which cuDNN always takes tensor-core kernels in profiles."""
NO_MODEL = "no time model of large windows over many channels: the kernels that cuDNN takes differ by a factor of 100"


def _whole(elements: int, channels: int) -> int:
    """``elements`` with channels padded to whole tiles."""
    return int(elements // channels * CHANNELS * ceil_div(channels, CHANNELS))


def backward(call: Call) -> tuple[Op, ...]:
    """The gradients of input and weight that are asked for, a product each."""
    gradient, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    input_and_weight = call.value(10, "[True, True, False]").strip("[]").split(",")[:2]
    passes = max(1, sum(flag.strip() == "True" for flag in input_and_weight))
    return _product(call, x, weight, prod(gradient.shape[2:]), passes)


OPERATORS: dict[str, Callable[[Call], tuple[Op, ...]]] = {
    "aten::cudnn_convolution": partial(convolved, padding=2, stride=3, dilation=4),
    "aten::miopen_convolution": partial(convolved, padding=3, stride=4, dilation=5),
    "aten::_conv_depthwise2d": partial(convolved, padding=5, stride=4, dilation=6),
    "aten::conv_depthwise3d": partial(convolved, padding=5, stride=4, dilation=6),
    "aten::_convolution": partial(convolved, padding=4, stride=3, dilation=5),
    "aten::convolution": partial(convolved, padding=4, stride=3, dilation=5),
    BACKWARD: backward,
}
