"""Fused kernels of ``torch.compile`` and of serving engines, as passes over their tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from perfmodel.program.calls import SIZES, Call, UnknownError
from perfmodel.program.operators._counts import passed
from perfmodel.transformer.op import Op

POINTWISE = "triton_poi"
"""Prefix of Inductor's kernels without reductions; ``triton_red`` and ``triton_per`` reduce, the latter with rows in registers."""


def inductor(call: Call) -> Op:
    """A kernel of ``torch.compile``: it writes its last tensor and reads the others; a single tensor it changes in place.

    The numbers after the tensors are its grid: rows and their length, or elements. Of larger tensors it reads only that many elements.
    """
    tensors = call.tensors()
    if not tensors:
        raise UnknownError(f"{call.name} takes no tensor")
    sizes = [int(argument) for argument in call.arguments if isinstance(argument, str) and argument.isdigit()]
    elements = prod(sizes) or max(tensor.elements for tensor in tensors)
    moved = [min(tensor.elements, elements) * SIZES[tensor.dtype] for tensor in tensors]
    read = moved[0] if len(tensors) == 1 else sum(moved[:-1])
    reduces = not call.name.startswith(POINTWISE)
    kind, rows = "triton-rows" if reduces else "triton-elements", sizes[0] if reduces and sizes else 0
    return passed(call, kind, read, moved[-1], elements, flops=4 * elements, rows=rows, at_least=1.0 if len(tensors) > 1 else 0.5)


def engine(call: Call, kind: str = "triton-elements", flops: int = 4) -> Op:
    """A fused kernel of an engine. It writes its first tensor and reads the others; of a table, at most four times the result's bytes."""
    tensors = call.tensors()
    if not tensors:
        raise UnknownError(f"{call.name} takes no tensor")
    first, table_limit = tensors[0], 4 * tensors[0].bytes
    rows = first.elements // max(1, first.shape[-1] if first.shape else 1) if kind == "triton-rows" else 0
    read = sum(min(tensor.bytes, table_limit) for tensor in tensors[1:])
    return passed(call, kind, read, first.bytes, first.elements, flops=flops * first.elements, rows=rows)


def rotated(call: Call) -> Op:
    """Rotary embedding of queries and keys in place."""
    queries, keys = call.tensor(1), call.tensor(2)
    size, elements = queries.bytes + keys.bytes, queries.elements + keys.elements
    return passed(call, "triton-elements", 2 * size, size, elements, flops=3 * elements)


_ELEMENTS = """sgl_kernel::silu_and_mul sgl_kernel::gelu_and_mul aiter::silu_and_mul _C::silu_and_mul _C::gelu_and_mul sglang::store_cache
_C_cache_ops::reshape_and_cache_flash"""
_ROWS = """sgl_kernel::rmsnorm sgl_kernel::fused_add_rmsnorm aiter::rmsnorm aiter::add_rmsnorm aiter::rms_norm _C::rms_norm
_C::fused_add_rms_norm vllm::rms_norm"""
OPERATORS: dict[str, Callable[[Call], Op]] = {
    **dict.fromkeys(_ELEMENTS.split(), engine),
    **dict.fromkeys(_ROWS.split(), partial(engine, kind="triton-rows")),
    "sgl_kernel::rotary_embedding": rotated,
    "_C::rotary_embedding": rotated,
}
