"""Number formats: width, and the unit that multiplies matrices in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from perfmodel.core.errors import UsageError, suggest

TENSOR, VECTOR = "tensor", "vector"


class Dtype(NamedTuple):
    """``size`` in bytes of one stored element, as a whole number; ``matmul_unit`` is ``tensor`` or ``vector``.

    ``packed``: bytes of an element with its share of a scale, where several elements lie in one byte; else 0.
    """

    name: str
    size: int
    matmul_unit: str
    packed: float = 0.0

    @property
    def bytes(self) -> float:
        """Bytes of a stored element with its share of a scale: an int, except for packed formats, whose fractions are exact in binary."""
        return self.packed or self.size

    @property
    def result_size(self) -> int:
        """Bytes of an element of a product: 2 for formats that only operands have."""
        return self.size if self.name in DTYPES else max(self.size, ACTIVATION_SIZE)


_ALL = (
    Dtype("fp32", 4, VECTOR),
    Dtype("tf32", 4, TENSOR),  # 32-bit storage, 19-bit multiplication on the tensor unit
    Dtype("fp16", 2, TENSOR),
    Dtype("bf16", 2, TENSOR),
    Dtype("fp8", 1, TENSOR),
)
DTYPES = {dtype.name: dtype for dtype in _ALL}
WIDER = {**DTYPES, "fp64": Dtype("fp64", 8, TENSOR)}
"""Formats for chains of linear layers: ``DTYPES`` and fp64, NumPy's default."""
SCALED_BLOCKS = {"mxfp4": 32, "nvfp4": 16}
"""Elements of a row or column that share one scale of 8 bits. Source: OCP Microscaling Formats 1.0; NVIDIA, Introducing NVFP4, 2025, whose
second scale, 32 bits for a whole tensor, is left out."""
_FP4 = {name: Dtype(name, 1, TENSOR, 4 / 8 + 1 / block) for name, block in SCALED_BLOCKS.items()}
_NARROWER = {"int8": Dtype("int8", 1, TENSOR), **_FP4}
"""Formats that only operands of a matrix product have."""
PRODUCTS = {**DTYPES, **_NARROWER}
"""Formats in which matrix products run."""
_STORED = {**_NARROWER, "fp4": Dtype("fp4", 1, TENSOR)}
"""Formats of stored weights. Products run in them on devices that have a peak for it."""
PEAK_OF = {"mxfp4": "fp4", "nvfp4": "fp4"}
"""Name under which profiles state the peak of a format: OCP MXFP4 and NVFP4 share one."""
NEEDS = {
    "mxfp4": "MXFP4 is multiplied by NVIDIA GPUs from Blackwell on and by AMD GPUs from CDNA 4 on, such as b200 and mi355x",
    "nvfp4": "NVFP4 is multiplied by NVIDIA GPUs from Blackwell on, such as b200",
}
"""Sentence that says which devices multiply in a format, for formats that few do."""


def dtype_of_products(name: str) -> Dtype:
    """The format called ``name``, one of ``PRODUCTS``."""
    return _STORED.get(name) or DTYPES[name]


ALIASES = {
    **dict.fromkeys(("double", "float64", "f64"), "fp64"),
    **dict.fromkeys(("float", "float32", "single", "f32"), "fp32"),
    **dict.fromkeys(("half", "float16", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bfloat"), "bf16"),
    **dict.fromkeys(("tfloat32",), "tf32"),
    **dict.fromkeys(("float8", "f8", "float8_e4m3fn", "float8_e5m2", "fp8_e4m3", "fp8_e5m2", "e4m3", "e5m2"), "fp8"),
    **dict.fromkeys(("float4", "f4"), "fp4"),
    **dict.fromkeys(("i8",), "int8"),
    **dict.fromkeys(("i4",), "int4"),
}
"""Other names of formats, as frameworks and people write them."""
_PACKAGE = re.compile(r"^(?:torch|jnp|np|tl)\.")


def canonical(name: str) -> str:
    """The name that this package uses for a format; other words are returned unchanged.

    >>> [canonical(name) for name in ("FP16", "half", "torch.bfloat16", "Float32", "fp61", "mixed")]
    ['fp16', 'fp16', 'bf16', 'fp32', 'fp61', 'mixed']
    """
    low = _PACKAGE.sub("", name.strip().lower())
    return ALIASES.get(low, low if low in (*WIDER, *_STORED, "int4") else name)


ACTIVATION_SIZE = 2
"""Bytes of an activation between kernels if products run in 8 bits: it is quantized just before the product."""
STATISTIC_SIZE = 4
"""Bytes of a softmax statistic (l, m, logsumexp, D): fp32 in every published kernel."""
BOOLEAN_SIZE = DROPOUT_MASK_SIZE = 1
"""Bytes of a PyTorch bool: an entry of masked_fill's matrix, a stored dropout decision."""


def dtype_named(name: str, known: Mapping[str, Dtype] = DTYPES) -> Dtype:
    """The dtype called ``name``, one of ``known``; UsageError with the nearest names otherwise."""
    try:
        return known[canonical(name)]
    except KeyError:
        names = [*known, *(alias for alias, form in ALIASES.items() if form in known)]
        raise UsageError(f"--dtype: unknown dtype {name!r}", suggest(name, names, f"known: {', '.join(known)}")) from None
