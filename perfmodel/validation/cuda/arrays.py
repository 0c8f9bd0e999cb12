"""Random inputs, poisoned outputs, and 16-bit numbers that NumPy does not know, on their way to a GPU and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda as _cuda

cuda: Any = _cuda


def stored(values: Any, dtype: str) -> Any:
    """fp32 ``values`` as the GPU holds them; bf16 is the upper half of fp32.

    >>> [hex(x) for x in stored(np.array([1.0, -2.0], np.float32), "bf16")]
    ['0x3f80', '0xc000']
    """
    if dtype == "fp32":
        return np.ascontiguousarray(values, np.float32)
    if dtype == "fp16":
        return values.astype(np.float16)
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def values(held: Any, dtype: str) -> Any:
    """What ``stored`` numbers mean, in fp32."""
    if dtype == "bf16":
        return (held.astype(np.uint32) << 16).view(np.float32)
    return held.astype(np.float32, copy=False)


def random_inputs(rng: Any, elements: int, dtype: str) -> Any:
    """Standard normal numbers as the GPU holds them, flat."""
    return stored(rng.standard_normal(elements, np.float32), dtype)


def poisoned(elements: int, dtype: str) -> Any:
    """A flat array on the GPU that is not a number anywhere: what a kernel leaves out shows."""
    return cuda.to_device(stored(np.full(elements, np.nan, np.float32), dtype))


def unwritten(held: Any, dtype: str) -> bool:
    """Whether any number is not one; -inf is."""
    return bool(np.isnan(values(held, dtype)).any())
