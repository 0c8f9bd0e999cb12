"""Tensor.copy_ on the device: ``bytes`` read and as many written."""

from __future__ import annotations

from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import FORWARD
from perfmodel.validation.libraries.base import Library, LibraryCase, Prepared, Torch, dtype_of, relative_error

CHECKED = 1 << 16
"""Elements compared at the end of the buffer."""


def prepare(case: LibraryCase, torch: Torch) -> Prepared:
    """Two buffers of ``bytes``."""
    dtype = dtype_of(case, torch)
    count, rest = divmod(int(case.shape["bytes"]), dtype.itemsize)
    if rest or not count:
        raise UnavailableError(f"{case.shape['bytes']} B hold no whole number of {case.dtype} elements")
    source = torch.randn((count,), dtype=dtype, device="cuda")
    target = torch.full_like(source, float("nan"))

    def run() -> Any:
        return target.copy_(source)

    return Prepared(run, lambda found: relative_error(found[-CHECKED:], source[-CHECKED:].double()))


LIBRARIES = (Library("torch-copy", "copy", (FORWARD,), prepare),)
