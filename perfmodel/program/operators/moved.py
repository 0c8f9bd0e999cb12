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
INDEX_BYTES = 8
"""Bytes of an index, in int64."""
SURE_OF_LISTS = 0.5
"""Share of the elements that certainly exist in a list whose sizes are known only from the blocks of its kernels."""


def concatenated(call: Call) -> Op:
    """A concatenation of tensors."""
    tensors, axis = call.tensors(), int(call.value(1, "0"))
    read = sum(tensor.bytes for tensor in tensors)
    written = sum(tensor.elements * SIZES[tensor.dtype] for tensor in tensors)
    by_vectors = all(tensor.contiguous and prod(tensor.shape[axis:]) * SIZES[tensor.dtype] % VECTOR_BYTES == 0 for tensor in tensors)
    return passed(call, "cat" if by_vectors else "cat-strided", read, written, sum(tensor.elements for tensor in tensors))


def lookup(call: Call) -> Op:
    """A lookup of table rows by index; index_select and embedding differ in the place of the index."""
    table, places = call.tensor(0), call.tensor(1 if call.name.endswith("embedding") else 2)
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
    row_elements = table.elements
    for length in table.shape[: len(places)]:
        row_elements //= max(1, length)
    elements = max(place.elements for place in places) * row_elements
    size = elements * SIZES[table.dtype]
    return passed(call, "gather", size + sum(place.bytes for place in places), size, elements)


def scattered(call: Call) -> Op:
    """A scatter: values stored or added at places of a tensor."""
    values = max(call.tensors()[1:], key=lambda tensor: tensor.elements * (tensor.dtype not in ("int64", "int32", "bool")), default=None)
    if values is None:
        raise UnknownError(f"{call.name} has no values")
    index_bytes = INDEX_BYTES * (values.shape[0] if values.shape else 1)
    return passed(call, "scatter", 2 * values.bytes + index_bytes, values.bytes, values.elements)


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
    written_each = SIZES[x.dtype] + (INDEX_BYTES if "indices" in call.name else 0)
    return passed(call, "pool" if forward else "pool-backward", x.bytes, out * written_each, x.elements)


def upsampled(call: Call) -> Op:
    """Images made larger or smaller."""
    x = call.tensor(0)
    planes = x.shape[0] * x.shape[1]
    out = planes * prod(call.integers(1) or (x.shape[2] * 2, x.shape[3] * 2))
    bilinear = "bilinear" in call.name and x.contiguous
    rule = "bicubic" if "bicubic" in call.name else "bilinear" if bilinear else "nearest"
    blocks = 0 if rule == "nearest" else ceil_div(out // planes, PLACES)
    work = planes * PLACES * blocks or out
    lines_apart = rule == "bicubic" and not x.contiguous  # neighbours load from lines of their own
    return passed(call, f"upsample-{rule}", x.bytes, out * SIZES[x.dtype], work, divisions=int(lines_apart), rows=blocks)


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
    tensor_lists = _tensor_lists(call)
    first, elements = tensor_lists[0], sum(tensor.elements for tensor in tensor_lists[0])
    read_from = 1 if call.name.rstrip("_").endswith(("copy", "zero")) else 0
    read_to = 2 if "addcmul" in call.name else None
    read = _bytes_of(tensor_lists[read_from:read_to])
    written = 4 * _chunks(first) if call.name.endswith("norm") else _bytes_of([first])
    from_blocks = any(len(tensors) == 1 and tensors[0].elements % LIST_CHUNK == 0 for tensors in tensor_lists)
    certain = SURE_OF_LISTS if from_blocks else 1.0
    return passed(call, "lists", read, written, elements, flops=flops * elements, at_least=certain, rows=_chunks(first))


def _tensor_lists(call: Call) -> list[tuple[Operand, ...]]:
    """The lists of tensors among the arguments; UnknownError if there is none."""
    tensor_lists = [argument for argument in call.arguments if isinstance(argument, tuple) and argument]
    if not tensor_lists:
        raise UnknownError(f"{call.name} has no list of tensors")
    return tensor_lists


def _bytes_of(tensor_lists: list[tuple[Operand, ...]]) -> float:
    return sum(tensor.bytes for tensors in tensor_lists for tensor in tensors)


def _chunks(tensors: tuple[Operand, ...]) -> int:
    """Blocks of a kernel over a list; each takes up to ``LIST_CHUNK`` elements of one tensor."""
    return sum(ceil_div(tensor.elements, LIST_CHUNK) for tensor in tensors)


def optimizer(call: Call) -> Op:
    """A fused step of Adam: it reads parameters, gradients and both moments, and writes all but the gradients."""
    tensor_lists = _tensor_lists(call)[:4]
    size = _bytes_of(tensor_lists)
    elements = sum(tensor.elements for tensor in tensor_lists[0])
    return passed(call, "lists", size, size * 3 / 4, elements, flops=12 * elements, rows=_chunks(tensor_lists[0]))


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
