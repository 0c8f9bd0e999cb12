"""Kernels of PyTorch other than attention: matmul (cuBLAS), copy, softmax, norms and element-wise steps; and the table of all.

``torch-matmul`` is named apart from ``cublas``, whose published times were taken in CUDA graphs and lack the events' overhead.
Element-wise steps are the workload ``scale``, told apart by their implementation: torch-scale reads one matrix and writes one,
torch-add and torch-silu-mul (two kernels) read two, torch-rope (three kernels, heads of ROPE_HEAD_DIM) also reads a cosine and a
sine per position, torch-mask adds a mask of ``mask_rows`` rows to each group of as many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from perfmodel.core.errors import DataError, UnavailableError, suggest
from perfmodel.core.workload import FORWARD
from perfmodel.validation.libraries import Library, LibraryCase, Prepared, Torch, attention, dtype_of, relative_error

CHECKED_ROWS, CHECKED_MATMUL_ROWS, CHECKED_COPY = 64, 32, 1 << 16
"""Of the end of the result: rows, and elements of a copy."""
EPSILON = 1e-5
ROPE_HEAD_DIM = 128
FACTOR = 0.125

Step = Callable[[Torch, Any, Any, Any], Any]
"""(torch, x [rows, cols], y [rows, cols], weight [cols]) -> [rows, cols]"""


def _rope(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    shape = (-1, x.shape[1] // ROPE_HEAD_DIM, ROPE_HEAD_DIM)
    angles = y[:, None, :ROPE_HEAD_DIM]
    return rotated(torch, x.view(shape), (angles, angles)).view(x.shape)


def rotated(torch: Torch, x: Any, angles: tuple[Any, Any]) -> Any:
    """RoPE in three kernels: halves exchanged, product with the cosine, that plus the product with the signed sine."""
    cosine, sine = angles
    half = x.shape[-1] // 2
    return torch.addcmul(x * cosine, torch.cat((x[..., half:], x[..., :half]), -1), sine)


STEPS: dict[str, tuple[str, Step]] = {
    "torch-softmax": ("softmax", lambda torch, x, y, weight: torch.softmax(x, -1)),
    "torch-layer-norm": ("norm", lambda torch, x, y, w: torch.nn.functional.layer_norm(x, w.shape, w, None, EPSILON)),
    "torch-rms-norm": ("norm", lambda torch, x, y, w: torch.nn.functional.rms_norm(x, w.shape, w, EPSILON)),
    "torch-scale": ("scale", lambda torch, x, y, weight: x * FACTOR),
    "torch-add": ("scale", lambda torch, x, y, weight: x + y),
    "torch-silu-mul": ("scale", lambda torch, x, y, weight: torch.nn.functional.silu(x) * y),
    "torch-rope": ("scale", _rope),
}


def _prepare(step: Step, case: LibraryCase, torch: Torch) -> Prepared:
    dtype, cols = dtype_of(case, torch), case.shape["cols"]
    x, y = (torch.randn((case.shape["rows"], cols), dtype=dtype, device="cuda") for _ in range(2))
    weight = torch.randn((cols,), dtype=dtype, device="cuda")

    def error(found: Any) -> float:
        last = slice(-CHECKED_ROWS, None)
        return relative_error(found[last], step(torch, x[last].double(), y[last].double(), weight.double()))

    return Prepared(lambda: step(torch, x, y, weight), error)


def _prepare_mask(case: LibraryCase, torch: Torch) -> Prepared:
    s, dtype = case.shape, dtype_of(case, torch)
    shape = (int(s["rows"]) // int(s["mask_rows"]), s["mask_rows"], s["cols"])
    x, mask = (torch.randn(size, dtype=dtype, device="cuda") for size in (shape, shape[1:]))
    return Prepared(lambda: x + mask, lambda found: relative_error(found[-1], x[-1].double() + mask.double()))


def _copy(case: LibraryCase, torch: Torch) -> Prepared:
    """Two buffers of ``bytes``."""
    dtype = dtype_of(case, torch)
    count, rest = divmod(int(case.shape["bytes"]), dtype.itemsize)
    if rest or not count:
        raise UnavailableError(f"{case.shape['bytes']} B hold no whole number of {case.dtype} elements")
    source = torch.randn((count,), dtype=dtype, device="cuda")
    target = torch.full_like(source, float("nan"))
    return Prepared(lambda: target.copy_(source), lambda found: relative_error(found[-CHECKED_COPY:], source[-CHECKED_COPY:].double()))


def _matmul(case: LibraryCase, torch: Torch) -> Prepared:
    """B stored [n, k] and used transposed, or [k, n] if ``row_major``."""
    s, dtype = case.shape, dtype_of(case, torch)
    batch = (s["batch"],) if "batch" in s else ()
    a = torch.randn((*batch, s["m"], s["k"]), dtype=dtype, device="cuda")
    stored = (s["k"], s["n"]) if case.row_major else (s["n"], s["k"])
    b = torch.randn((*batch, *stored), dtype=dtype, device="cuda")
    b = b if case.row_major else b.transpose(-2, -1)

    def error(found: Any) -> float:
        first, second, c = (a[-1], b[-1], found[-1]) if batch else (a, b, found)
        return relative_error(c[-CHECKED_MATMUL_ROWS:], first[-CHECKED_MATMUL_ROWS:].double() @ second.double())

    return Prepared(lambda: torch.matmul(a, b), error)


_ROWS = (Library(name, workload, (FORWARD,), partial(_prepare, step)) for name, (workload, step) in STEPS.items())
_OTHERS = (
    Library("torch-mask", "scale", (FORWARD,), _prepare_mask),
    Library("torch-copy", "copy", (FORWARD,), _copy),
    Library("torch-matmul", "matmul", (FORWARD,), _matmul),
)
LIBRARIES = {(library.workload, library.name): library for library in (*attention.LIBRARIES, *_ROWS, *_OTHERS)}
"""Every library kernel by workload and name."""


def find(case: LibraryCase) -> Library:
    """What runs ``case``; DataError if nothing does."""
    found = LIBRARIES.get((case.workload, case.implementation))
    if found is None:
        names = sorted(name for workload, name in LIBRARIES if workload == case.workload)
        raise DataError(f"no library kernel {case.implementation!r} for {case.workload!r}", suggest(case.implementation, names))
    if case.direction not in found.directions:
        raise DataError(f"{found.name} has no {case.direction} pass here", f"give one of {', '.join(found.directions)}")
    return found
