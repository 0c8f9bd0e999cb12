"""torch.matmul, which calls cuBLAS: C [m, n] = A [m, k] B, ``batch`` of them where the shape says so.

Named apart from ``cublas``, whose published times were taken in CUDA graphs and lack the events' overhead.
"""

from __future__ import annotations

from typing import Any

from perfmodel.core.workload import FORWARD
from perfmodel.validation.libraries.base import Library, LibraryCase, Prepared, Torch, dtype_of, relative_error

CHECKED_ROWS = 32


def prepare(case: LibraryCase, torch: Torch) -> Prepared:
    """B stored [n, k] and used transposed, or [k, n] if ``row_major``."""
    s, dtype = case.shape, dtype_of(case, torch)
    batch = (s["batch"],) if "batch" in s else ()
    a = torch.randn((*batch, s["m"], s["k"]), dtype=dtype, device="cuda")
    stored = (s["k"], s["n"]) if case.row_major else (s["n"], s["k"])
    b = torch.randn((*batch, *stored), dtype=dtype, device="cuda")
    b = b if case.row_major else b.transpose(-2, -1)

    def error(found: Any) -> float:
        first, second, c = (a[-1], b[-1], found[-1]) if batch else (a, b, found)
        return relative_error(c[-CHECKED_ROWS:], first[-CHECKED_ROWS:].double() @ second.double())

    return Prepared(lambda: torch.matmul(a, b), error)


LIBRARIES = (Library("torch-matmul", "matmul", (FORWARD,), prepare),)
