"""Element-wise operators: arithmetic, activations and their gradients, copies, fills."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from perfmodel.program.calls import SIZES, Call, Operand, UnknownError, broadcast, promoted
from perfmodel.program.operators._counts import ELEMENTS, STRIDED, iterated, passed
from perfmodel.transformer.op import Op


def elementwise(
    call: Call, flops: int = 1, exponentials: int = 0, result: str = "", outputs: int = 1, kind: str = ELEMENTS, read: int | None = None
) -> Op:
    """An operator on operands broadcast to one shape. ``result``: format of the result, if not the promoted one.

    ``read``: number of arguments that are read; a tensor after them is the result's.
    """
    inputs = [argument for argument in call.arguments[:read] if isinstance(argument, Operand)]
    if not inputs:
        raise UnknownError(f"{call.name} has no tensor")
    shape = broadcast(*(operand.shape for operand in inputs))
    dimensioned = [operand for operand in inputs if operand.shape] or inputs  # a number in a tensor of no dimension does not promote
    out = Operand(shape, result or promoted(*(operand.dtype for operand in dimensioned)), _strides_like(shape, inputs))
    if call.name.endswith("_"):
        out = inputs[0]
    return iterated(call, inputs, out, outputs=outputs, flops=flops, exponentials=exponentials, kind=kind)


def _strides_like(shape: tuple[int, ...], inputs: list[Operand]) -> tuple[int, ...]:
    """Strides of a result: those of the first dense input of its shape."""
    return next((operand.strides for operand in inputs if operand.shape == shape and operand.dense), ())


def copied(call: Call) -> Op:
    """A copy, by vector loads if source and destination have one order and format."""
    return iterated(call, [call.tensor(1)], call.tensor(0))


def filled(call: Call) -> Op:
    """A fill of a tensor with one value."""
    target = call.tensor(0)
    return passed(call, "fill" if target.dense else STRIDED, 0, target.stored * SIZES[target.dtype], target.elements)


def dropout(call: Call) -> Op:
    """Dropout: the scaled tensor and a boolean per element."""
    x = call.tensor(0)
    return passed(call, "random", x.bytes, x.bytes + x.elements, x.elements, flops=2 * x.elements)


def random(call: Call) -> Op:
    """A fill of a tensor with random numbers."""
    x = call.tensor(0)
    return passed(call, "random", 0, x.bytes, x.elements, flops=2 * x.elements)


def where(call: Call) -> Op:
    """A choice between two operands per element by a boolean."""
    chosen = [argument for argument in call.arguments[1:] if isinstance(argument, Operand)]
    return elementwise(call, 1, result=promoted(*(operand.dtype for operand in chosen)))


def pow_(call: Call) -> Op:
    """A power; with exponent 2, a multiplication."""
    return elementwise(call, 1) if call.value(1) in ("2", "2.") else elementwise(call, 2, 2)


_SIMPLE = """add sub rsub mul neg abs relu clamp clamp_min clamp_max maximum minimum reciprocal square sign floor ceil round
bitwise_and bitwise_or bitwise_xor threshold_backward hardtanh masked_fill triu tril fmod remainder lerp"""
_TWO_STEPS = "div floor_divide sqrt rsqrt addcmul addcdiv"
_EXPONENTIAL = "exp log log1p log2 exp2 sin cos sigmoid logit expm1 atan2"
_ACTIVATIONS = "silu silu_backward mish softplus elu leaky_relu hardswish"
_FUNCTIONS_OF_MANY_STEPS = "gelu gelu_backward erf tanh tanh_backward sigmoid_backward"
_COMPARISONS = "eq ne lt le gt ge logical_and logical_or logical_not isnan isinf isneginf isposinf isfinite bitwise_not isin"
_BY_NAME: dict[str, Callable[[Call], Op]] = {
    **dict.fromkeys(_SIMPLE.split(), elementwise),
    "clamp": partial(elementwise, read=3),
    **dict.fromkeys(_TWO_STEPS.split(), partial(elementwise, flops=2)),
    **dict.fromkeys(_EXPONENTIAL.split(), partial(elementwise, flops=2, exponentials=1)),
    **dict.fromkeys(_ACTIVATIONS.split(), partial(elementwise, flops=4, exponentials=1)),
    **dict.fromkeys(_FUNCTIONS_OF_MANY_STEPS.split(), partial(elementwise, flops=8, exponentials=1, kind="functions")),
    **dict.fromkeys(_COMPARISONS.split(), partial(elementwise, result="bool")),
    "pow": pow_,
    "where": where,
    "zero": filled,
    "fill": filled,
    "native_dropout": dropout,
    "native_dropout_backward": partial(elementwise, flops=2),
    **dict.fromkeys(["bernoulli", "uniform", "normal", "random", "exponential"], random),
}
OPERATORS = {f"aten::{name}{end}": function for name, function in _BY_NAME.items() for end in ("", "_")}
OPERATORS |= {"aten::copy_": copied}
