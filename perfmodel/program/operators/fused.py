"""Kernels that ``torch.compile`` makes, and fused ones of serving engines: passes over the tensors that they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from perfmodel.program.calls import SIZES, Call, UnknownError
from perfmodel.program.operators._counts import passed
from perfmodel.transformer.op import Op

POINTWISE = "triton_poi"
"""Names of Inductor's kernels without reductions begin so; others are ``triton_red`` and ``triton_per``, which keeps rows in registers."""


def inductor(call: Call) -> Op:
    """A kernel of ``torch.compile``: the tensors that it takes, of which the last is written, a single one in place.

    The numbers behind them are its grid: rows and their length, or elements. Of a larger tensor no more is read than it has elements.
    """
    tensors = call.tensors()
    if not tensors:
        raise UnknownError(f"{call.name} takes no tensor")
    sizes = [int(one) for one in call.arguments if isinstance(one, str) and one.isdigit()]
    elements = prod(sizes) or max(one.elements for one in tensors)
    moved = [min(one.elements, elements) * SIZES[one.dtype] for one in tensors]
    read = moved[0] if len(tensors) == 1 else sum(moved[:-1])
    kind, rows = ("triton-elements", 0) if call.name.startswith(POINTWISE) else ("triton-rows", sizes[0] if sizes else 0)
    return passed(call, kind, read, moved[-1], elements, flops=4 * elements, rows=rows, at_least=1.0 if len(tensors) > 1 else 0.5)


def engine(call: Call, kind: str = "triton-elements", flops: int = 4) -> Op:
    """A fused kernel of an engine, whose first tensor is its result: every tensor is read or written once, of tables as much as that."""
    tensors = call.tensors()
    if not tensors:
        raise UnknownError(f"{call.name} takes no tensor")
    first, most = tensors[0], 4 * tensors[0].bytes
    rows = first.elements // max(1, first.shape[-1] if first.shape else 1) if kind == "triton-rows" else 0
    read = sum(min(one.bytes, most) for one in tensors[1:])
    return passed(call, kind, read, first.bytes, first.elements, flops=flops * first.elements, rows=rows)


def rotated(call: Call) -> Op:
    """Queries and keys turned in place, by the place of each token."""
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
