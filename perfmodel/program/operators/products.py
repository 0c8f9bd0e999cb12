"""Matrix products: mm, addmm, bmm, linear, scaled and integer ones."""

from __future__ import annotations

from math import prod

from perfmodel.kernels.grouped_matmul import GroupedMatmul
from perfmodel.program.calls import Call, Operand, UnknownError, product_dtype
from perfmodel.program.operators._counts import LARGEST_TILE, product
from perfmodel.transformer.op import MATMUL, Op, Timed


def mm(call: Call, first: int = 0, extra: int = 0) -> Op:
    """The product [m, k] [k, n]; ``extra``: bytes that are added to it."""
    a, b = call.tensor(first), call.tensor(first + 1)
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise UnknownError(f"{call.name} of {a.shape} and {b.shape}")
    return product(call, a.shape[0], b.shape[1], a.shape[1], (a, b), extra=extra)


def addmm(call: Call) -> Op:
    """A bias or matrix plus the product [m, k] [k, n]."""
    return mm(call, 1, call.tensor(0).bytes)


def bmm(call: Call, first: int = 0) -> Op:
    """The batched product [b, m, k] [b, k, n]."""
    a, b = call.tensor(first), call.tensor(first + 1)
    if len(a.shape) != 3 or len(b.shape) != 3 or a.shape[2] != b.shape[1]:
        raise UnknownError(f"{call.name} of {a.shape} and {b.shape}")
    return product(call, a.shape[1], b.shape[2], a.shape[2], (a, b), a.shape[0])


def baddbmm(call: Call) -> Op:
    """A batch of matrices plus a batch of products."""
    return bmm(call, 1)


def linear(call: Call) -> Op:
    """A linear layer: x [..., k] W [n, k]^T + bias."""
    x, weight = call.tensor(0), call.tensor(1)
    bias = call.arguments[2] if len(call.arguments) > 2 else None
    rows = prod(x.shape[:-1])
    return product(call, rows, weight.shape[0], x.shape[-1], (x, weight), extra=bias.bytes if isinstance(bias, Operand) else 0)


def scaled(call: Call) -> Op:
    """A product of 8-bit operands with scales. Profiles do not record the format of the result: bf16 is assumed."""
    a, b = call.tensor(0), call.tensor(1)
    scales = sum(tensor.bytes for tensor in call.tensors()[2:])
    return product(call, a.shape[0], b.shape[1], a.shape[1], (a, b), extra=scales, written="bf16")


def grouped(call: Call) -> Op:
    """A grouped product: rows [m, k] with matrices [e, k, n], or [m, k] with [k, n], cut into e parts of k. Parts are taken as equal."""
    a, b = call.tensor(0), call.tensor(1)
    if len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0]:
        parts = call.tensor(2).elements
        return product(call, a.shape[0], b.shape[1], a.shape[1] // parts, (a, b), parts)
    if len(a.shape) != 2 or len(b.shape) != 3 or a.shape[1] != b.shape[1]:
        raise UnknownError(f"{call.name} of {a.shape} and {b.shape}")
    w = GroupedMatmul(a.shape[0], 1, b.shape[0], min(a.shape[0], b.shape[0]), b.shape[2], a.shape[1], product_dtype(a.dtype))
    [kernel] = w.kernels(LARGEST_TILE)
    return Op(call.name, MATMUL, 1, kernel, Timed("grouped-matmul", w, ("torch-grouped-mm",)))


OPERATORS = {
    "aten::_grouped_mm": grouped,
    "aten::mm": mm,
    "aten::addmm": addmm,
    "aten::_addmm_activation": addmm,
    "aten::bmm": bmm,
    "aten::baddbmm": baddbmm,
    "aten::linear": linear,
    "aten::_scaled_mm": scaled,
    "aten::_int_mm": mm,
}
