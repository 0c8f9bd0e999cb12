"""Operators that move data: concatenation, lookups by index, scatters, pooling, upsampling, and lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from perfmodel.core.arith import ceil_div
from perfmodel.core.cost import READ, Kernel, once
from perfmodel.core.dtypes import DTYPES
from perfmodel.program.calls import LIST_CHUNK, SIZES, Call, Operand, UnknownError
from perfmodel.program.operators._counts import passed
from perfmodel.transformer.op import ELEMENTWISE, Op, Timed

VECTOR_BYTES = 16
"""Bytes that a thread copies at once in a concatenation: aten/src/ATen/native/cuda/Shape.cu."""
SURE_OF_LISTS = 0.5
"""Share of the elements that certainly exist in a list whose sizes are known only from the blocks of its kernels."""


def concatenated(call: Call) -> Op:
    """A concatenation of tensors."""
    tensors = call.tensors()
    size = sum(tensor.elements * SIZES[tensor.dtype] for tensor in tensors)
    axis = int(call.value(1, "0"))
    inner = [prod(tensor.shape[axis:]) for tensor in tensors]
    vectors = all(
        tensor.contiguous and width * SIZES[tensor.dtype] % VECTOR_BYTES == 0 for tensor, width in zip(tensors, inner, strict=True)
    )
    return passed(
        call,
        "cat" if vectors else "cat-strided",
        sum(tensor.bytes for tensor in call.tensors()),
        size,
        sum(tensor.elements for tensor in call.tensors()),
    )


def looked_up(call: Call, index: int) -> Op:
    """A lookup of table rows by index."""
    table, places = call.tensor(0), call.tensor(index)
    width = table.shape[-1] if len(table.shape) > 1 else 1
    size = places.elements * width * SIZES[table.dtype]
    return passed(call, "gather", size + places.bytes, size, places.elements * width)


def gathered(call: Call) -> Op:
    """A gather of one element per index; an index broadcast along rows gathers whole rows."""
    table, places = call.tensor(0), call.tensor(2)
    size = places.elements * SIZES[table.dtype]
    return passed(call, "gather", size + places.bytes, size, places.elements)


def indexed(call: Call) -> Op:
    """Indexing with tensors: single elements or rows."""
    table, places = call.tensor(0), call.tensors()[1:]
    if not places:
        raise UnknownError(f"{call.name}: the profile does not say how many places are looked up")
    count = max(place.elements for place in places)
    row_elements = table.elements
    for size in table.shape[: len(places)]:
        row_elements //= max(1, size)
    size = count * row_elements * SIZES[table.dtype]
    return passed(call, "gather", size + sum(place.bytes for place in places), size, count * row_elements)


def scattered(call: Call) -> Op:
    """A scatter: values stored or added at places of a tensor."""
    values = max(call.tensors()[1:], key=lambda tensor: tensor.elements * (tensor.dtype not in ("int64", "int32", "bool")), default=None)
    if values is None:
        raise UnknownError(f"{call.name} has no values")
    return passed(call, "scatter", 2 * values.bytes + 8 * (values.shape[0] if values.shape else 1), values.bytes, values.elements)


def embedding_backward(call: Call) -> Op:
    """The gradient of a lookup: many indices are sorted, a table of zeros is filled, and gradients are added to its rows."""
    gradient, places = call.tensor(0), call.tensor(1)
    size = places.elements * gradient.shape[-1] * SIZES[gradient.dtype]
    kind = "embedding-backward" if places.elements > UNSORTED else "embedding-backward-few"
    return passed(call, kind, size + 4 * places.bytes, size, places.elements * gradient.shape[-1])


UNSORTED = 3072
"""Places up to which they are not sorted. Source: PyTorch, aten/src/ATen/native/cuda/Embedding.cu."""


def pooled(call: Call, forward: bool = True) -> Op:
    """Pooling over windows."""
    x = call.tensor(0)
    step = (call.integers(2) or call.integers(1) or [2])[0] if forward else 1
    out = x.elements // max(1, step * step)
    return passed(call, "pool" if forward else "pool-backward", x.bytes, out * (SIZES[x.dtype] + 8 * ("indices" in call.name)), x.elements)


def upsampled(call: Call) -> Op:
    """Images made larger or smaller."""
    x = call.tensor(0)
    sizes = call.integers(1)
    out = x.shape[0] * x.shape[1]
    for size in sizes or (x.shape[2] * 2, x.shape[3] * 2):
        out *= size
    planes, scattered = x.shape[0] * x.shape[1], not x.contiguous
    rule = "bicubic" if "bicubic" in call.name else "bilinear" if "bilinear" in call.name and not scattered else "nearest"
    blocks = ceil_div(out // planes, PLACES) if rule != "nearest" else 0
    work, apart = planes * PLACES * blocks or out, scattered and rule == "bicubic"  # neighbours load from lines of their own
    return passed(call, f"upsample-{rule}", x.bytes, out * SIZES[x.dtype], work, divisions=int(apart), rows=blocks)


PLACES = 1024
"""Places of the result in a block, whose threads go through all channels one after the other, unless these lie side by side and the rule
is not bicubic. Source: PyTorch, aten/src/ATen/native/cuda/UpSampleBicubic2d.cu."""


def rolled(call: Call) -> Op:
    """A roll along dimensions; each element is found by divisions."""
    x = call.tensor(0)
    return passed(call, "strided", x.bytes, x.elements * SIZES[x.dtype], x.elements, divisions=len(x.shape))


def lists(call: Call, flops: int = 1) -> Op:
    """An operator over lists of tensors in few kernels: it reads each list and writes the first.

    Copies and fills do not read what they write, and norms write one number per block. Products that are added (addcmul) are taken as
    squares, as in optimizers: a profile does not tell whether both factors are one list.
    """
    tensor_lists = [argument for argument in call.arguments if isinstance(argument, tuple) and argument]
    if not tensor_lists:
        raise UnknownError(f"{call.name} has no list of tensors")
    first, overwrites = tensor_lists[0], call.name.rstrip("_").endswith(("copy", "zero"))
    elements = sum(tensor.elements for tensor in first)
    read = sum(sum(tensor.bytes for tensor in operands) for operands in tensor_lists[overwrites : 2 if "addcmul" in call.name else None])
    written = 4 * _chunks(first) if call.name.endswith("norm") else sum(tensor.bytes for tensor in first)
    certain = SURE_OF_LISTS if any(len(tensors) == 1 and tensors[0].elements % LIST_CHUNK == 0 for tensors in tensor_lists) else 1.0
    return passed(call, "lists", read, written, elements, flops=flops * elements, at_least=certain, rows=_chunks(first))


def _chunks(tensors: tuple[Operand, ...]) -> int:
    """Blocks of a kernel over a list; each takes up to ``LIST_CHUNK`` elements of one tensor."""
    return sum(ceil_div(tensor.elements, LIST_CHUNK) for tensor in tensors)


def optimizer(call: Call) -> Op:
    """A fused step of Adam: it reads parameters, gradients and both moments, and writes all but the gradients."""
    tensor_lists = [argument for argument in call.arguments if isinstance(argument, tuple) and argument][:4]
    size = sum(sum(tensor.bytes for tensor in operands) for operands in tensor_lists)
    if not tensor_lists:
        raise UnknownError(f"{call.name} has no list of tensors")
    elements = sum(tensor.elements for tensor in tensor_lists[0])
    return passed(call, "lists", size, size * 3 / 4, elements, flops=12 * elements, rows=_chunks(tensor_lists[0]))


def lookup(call: Call) -> Op:
    """A lookup of table rows; index_select and embedding differ in the place of the index."""
    return looked_up(call, 1 if call.name.endswith("embedding") else 2)


def host_copy(call: Call) -> Op:
    """A copy between host and device: its bytes on the device are known, its time is the link's."""
    if not call.tensors():
        raise UnknownError("copies between host and device are not predicted")
    copied = Kernel(call.name, DTYPES["fp32"], (once("copied", READ, call.tensors()[0].bytes, 1),))
    return Op(call.name, ELEMENTWISE, 1, copied, Timed("copy", None, (), "copies between host and device are not predicted"))


_FUNCTIONS: dict[str, Callable[[Call], Op]] = {
    "_local_scalar_dense": host_copy,
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
