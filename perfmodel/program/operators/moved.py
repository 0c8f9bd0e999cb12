"""Operators that move data: concatenation, lookups by index, scatters, pooling, upsampling, and lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from perfmodel.core.arith import ceil_div
from perfmodel.program.calls import LIST_CHUNK, SIZES, Call, Operand, UnknownError
from perfmodel.program.operators._counts import passed
from perfmodel.transformer.op import Op

VECTOR_BYTES = 16
"""Bytes that a thread copies at once where tensors are joined: aten/src/ATen/native/cuda/Shape.cu."""

SURE_OF_LISTS = 0.5
"""Share of the elements that surely exist, of a list whose sizes a profile tells by the blocks of its kernels alone."""


def concatenated(call: Call) -> Op:
    """Tensors one behind the other."""
    tensors = call.tensors()
    size = sum(one.elements * SIZES[one.dtype] for one in tensors)
    axis = int(call.value(1, "0"))
    inner = [prod(one.shape[axis:]) for one in tensors]
    vectors = all(one.contiguous and width * SIZES[one.dtype] % VECTOR_BYTES == 0 for one, width in zip(tensors, inner, strict=True))
    return passed(
        call,
        "cat" if vectors else "cat-strided",
        sum(one.bytes for one in call.tensors()),
        size,
        sum(one.elements for one in call.tensors()),
    )


def looked_up(call: Call, index: int) -> Op:
    """Rows of a table by index."""
    table, places = call.tensor(0), call.tensor(index)
    width = table.shape[-1] if len(table.shape) > 1 else 1
    size = places.elements * width * SIZES[table.dtype]
    return passed(call, "gather", size + places.bytes, size, places.elements * width)


def gathered(call: Call) -> Op:
    """An element for each index; an index that is repeated along rows looks up whole rows."""
    table, places = call.tensor(0), call.tensor(2)
    size = places.elements * SIZES[table.dtype]
    return passed(call, "gather", size + places.bytes, size, places.elements)


def indexed(call: Call) -> Op:
    """Elements or rows by tensors of places."""
    table, places = call.tensor(0), call.tensors()[1:]
    if not places:
        raise UnknownError(f"{call.name}: the profile does not say how many places are looked up")
    count = max(one.elements for one in places)
    rest = table.elements
    for size in table.shape[: len(places)]:
        rest //= max(1, size)
    size = count * rest * SIZES[table.dtype]
    return passed(call, "gather", size + sum(one.bytes for one in places), size, count * rest)


def scattered(call: Call) -> Op:
    """Values put or added to places of a tensor."""
    values = max(call.tensors()[1:], key=lambda one: one.elements * (one.dtype not in ("int64", "int32", "bool")), default=None)
    if values is None:
        raise UnknownError(f"{call.name} has no values")
    return passed(call, "scatter", 2 * values.bytes + 8 * (values.shape[0] if values.shape else 1), values.bytes, values.elements)


def embedding_backward(call: Call) -> Op:
    """Gradients of rows added up by the row that was looked up: indices sorted, a table of zeros filled."""
    gradient, places = call.tensor(0), call.tensor(1)
    size = places.elements * gradient.shape[-1] * SIZES[gradient.dtype]
    return passed(call, "embedding-backward", size + 4 * places.bytes, size, places.elements * gradient.shape[-1])


def pooled(call: Call, forward: bool = True) -> Op:
    """A window's extreme or mean; strides as they are written."""
    x = call.tensor(0)
    step = (call.integers(2) or call.integers(1) or [2])[0] if forward else 1
    out = x.elements // max(1, step * step)
    return passed(call, "pool" if forward else "pool-backward", x.bytes, out * (SIZES[x.dtype] + 8 * ("indices" in call.name)), x.elements)


def upsampled(call: Call) -> Op:
    """Pictures made larger or smaller."""
    x = call.tensor(0)
    sizes = call.integers(1)
    out = x.shape[0] * x.shape[1]
    for size in sizes or (x.shape[2] * 2, x.shape[3] * 2):
        out *= size
    return passed(call, "upsample", x.bytes, out * SIZES[x.dtype], out)


def rolled(call: Call) -> Op:
    """Elements moved along dimensions, each found by divisions."""
    x = call.tensor(0)
    return passed(call, "strided", x.bytes, x.elements * SIZES[x.dtype], x.elements, divisions=len(x.shape))


def lists(call: Call, reads: int = 1, writes: int = 1, flops: int = 1) -> Op:
    """All tensors of a list by few kernels: each operand list is read, the first is written."""
    found = [one for one in call.arguments if isinstance(one, tuple) and one]
    if not found:
        raise UnknownError(f"{call.name} has no list of tensors")
    first = found[0]
    elements, size = sum(one.elements for one in first), sum(one.bytes for one in first)
    read = sum(sum(one.bytes for one in operands) for operands in found)
    certain = SURE_OF_LISTS if any(len(one) == 1 and one[0].elements % LIST_CHUNK == 0 for one in found) else 1.0
    return passed(call, "lists", read, writes * size, elements, flops=flops * elements, at_least=certain, rows=_chunks(first))


def _chunks(tensors: tuple[Operand, ...]) -> int:
    """Blocks of a kernel over a list: each takes so many elements of one tensor."""
    return sum(ceil_div(one.elements, LIST_CHUNK) for one in tensors)


def optimizer(call: Call) -> Op:
    """A fused step of Adam: parameters, gradients and both moments read; all but gradients written."""
    found = [one for one in call.arguments if isinstance(one, tuple) and one][:4]
    size = sum(sum(one.bytes for one in operands) for operands in found)
    if not found:
        raise UnknownError(f"{call.name} has no list of tensors")
    elements = sum(one.elements for one in found[0])
    return passed(call, "lists", size, size * 3 / 4, elements, flops=12 * elements, rows=_chunks(found[0]))


def lookup(call: Call) -> Op:
    """Rows of a table by index: index_select and embedding differ in where the index stands."""
    return looked_up(call, 1 if call.name.endswith("embedding") else 2)


_FUNCTIONS: dict[str, Callable[[Call], Op]] = {
    "cat": concatenated,
    "_cat": concatenated,
    "stack": concatenated,
    "embedding": lookup,
    "index_select": lookup,
    "gather": gathered,
    "index": indexed,
    "_index_put_impl_": scattered,
    "index_put_": scattered,
    "scatter": scattered,
    "scatter_": scattered,
    "scatter_add_": scattered,
    "index_add_": scattered,
    "embedding_dense_backward": embedding_backward,
    "max_pool2d_with_indices": pooled,
    "avg_pool2d": pooled,
    "_adaptive_avg_pool2d": pooled,
    "max_pool2d_with_indices_backward": partial(pooled, forward=False),
    "avg_pool2d_backward": partial(pooled, forward=False),
    "upsample_nearest2d": upsampled,
    "upsample_bilinear2d": upsampled,
    "upsample_bicubic2d": upsampled,
    "upsample_nearest2d_backward": upsampled,
    "roll": rolled,
    "_fused_adam_": optimizer,
    "_fused_adamw_": optimizer,
}
OPERATORS = {f"aten::{name}": function for name, function in _FUNCTIONS.items()}
OPERATORS |= {
    f"aten::_foreach_{name}": partial(lists, flops=flops)
    for name, flops in {
        **dict.fromkeys(("add", "sub", "mul", "neg", "copy", "zero", "maximum", "abs"), 1),
        **dict.fromkeys(("div", "sqrt", "addcmul", "addcdiv", "lerp", "norm", "pow", "reciprocal", "rsqrt"), 2),
    }.items()
}
OPERATORS |= {f"{name}_": function for name, function in OPERATORS.items() if name.startswith("aten::_foreach_")}
