"""Number formats: width, and the unit that multiplies matrices in them."""

from __future__ import annotations

import re
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


ALIASES = {
    **dict.fromkeys(("float", "float32", "single", "f32"), "fp32"),
    **dict.fromkeys(("half", "float16", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bfloat"), "bf16"),
    **dict.fromkeys(("tfloat32",), "tf32"),
    **dict.fromkeys(("float8", "f8", "float8_e4m3fn", "float8_e5m2", "fp8_e4m3", "fp8_e5m2", "e4m3", "e5m2"), "fp8"),
    **dict.fromkeys(("float4", "f4"), "fp4"),
    **dict.fromkeys(("i8",), "int8"),
    **dict.fromkeys(("i4",), "int4"),
}
"""Other names of formats, as frameworks and people write them; the one table of them."""
_PACKAGE = re.compile(r"^(?:torch|jnp|np|tl)\.")


def canonical(name: str) -> str:
    """The name that is used here for a format; a word that is none as it is.

    >>> [canonical(name) for name in ("FP16", "half", "torch.bfloat16", "Float32", "fp61", "mixed")]
    ['fp16', 'fp16', 'bf16', 'fp32', 'fp61', 'mixed']
    """
    low = _PACKAGE.sub("", name.strip().lower())
    return ALIASES.get(low, low if low in (*DTYPES, *_NARROWER, "int4") else name)


ACTIVATION_SIZE = 2
"""Bytes of an activation between kernels, where products run in 8 bits: they are quantized on the way."""

STATISTIC_SIZE = 4
"""Bytes of a softmax statistic (l, m, logsumexp, D): fp32 in every published kernel."""

BOOLEAN_SIZE = DROPOUT_MASK_SIZE = 1
"""Bytes of a PyTorch bool: an entry of masked_fill's matrix, a stored dropout decision."""


def dtype_named(name: str) -> Dtype:
    """The dtype called ``name``; UsageError with the nearest names otherwise."""
    try:
        return DTYPES[canonical(name)]
    except KeyError:
        raise UsageError(f"--dtype: unknown dtype {name!r}", suggest(name, [*DTYPES, *ALIASES], f"known: {', '.join(DTYPES)}")) from None
