"""Number formats: width, and the unit that multiplies matrices in them."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.errors import UsageError, suggest

TENSOR, VECTOR = "tensor", "vector"


@dataclass(frozen=True, slots=True)
class Dtype:
    """``size`` in bytes of one stored element; ``matmul_unit`` is ``tensor`` or ``vector``."""

    name: str
    size: int
    matmul_unit: str


_ALL = (
    Dtype("fp32", 4, VECTOR),
    Dtype("tf32", 4, TENSOR),  # 32-bit storage, 19-bit multiplication on the tensor unit
    Dtype("fp16", 2, TENSOR),
    Dtype("bf16", 2, TENSOR),
    Dtype("fp8", 1, TENSOR),
)
DTYPES = {dtype.name: dtype for dtype in _ALL}

_NARROWER = {name: Dtype(name, 1, TENSOR) for name in ("fp4", "int8")}
"""Formats that only weights are stored in, and that products with them run in where a device has a peak for that."""


def dtype_of_products(name: str) -> Dtype:
    """The format called ``name``, of those in which products may run."""
    return _NARROWER.get(name) or DTYPES[name]


STATISTIC_SIZE = 4
"""Bytes of a softmax statistic (l, m, logsumexp, D): fp32 in every published kernel."""

BOOLEAN_SIZE = DROPOUT_MASK_SIZE = 1
"""Bytes of a PyTorch bool: an entry of masked_fill's matrix, a stored dropout decision."""


def dtype_named(name: str) -> Dtype:
    """The dtype called ``name``; UsageError with the nearest names otherwise."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UsageError(f"--dtype: unknown dtype {name!r}", suggest(name, list(DTYPES))) from None
