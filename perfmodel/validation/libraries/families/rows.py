"""Kernels that pass over a matrix of ``rows`` x ``cols``: softmax, norms and element-wise steps.

Element-wise steps are the workload ``scale``, told apart by their implementation: torch-scale reads one matrix and writes one,
torch-add and torch-silu-mul (two kernels) read two, torch-rope (three kernels, heads of ROPE_HEAD_DIM) also reads a cosine and a
sine per position, torch-mask adds a mask of ``mask_rows`` rows to each group of as many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from perfmodel.core.workload import FORWARD
from perfmodel.validation.libraries.base import Library, LibraryCase, Prepared, Torch, dtype_of, relative_error
from perfmodel.validation.steps.llama import rotated

CHECKED_ROWS = 64
EPSILON = 1e-5
ROPE_HEAD_DIM = 128
FACTOR = 0.125

Step = Callable[[Torch, Any, Any, Any], Any]
"""(torch, x [rows, cols], y [rows, cols], weight [cols]) -> [rows, cols]"""


def _softmax(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    return torch.softmax(x, -1)


def _layer_norm(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, None, EPSILON)


def _rms_norm(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, EPSILON)


def _scale(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    return x * FACTOR


def _add(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    return x + y


def _silu_mul(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    return torch.nn.functional.silu(x) * y


def _rope(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    shape = (-1, x.shape[1] // ROPE_HEAD_DIM, ROPE_HEAD_DIM)
    angles = y[:, None, :ROPE_HEAD_DIM]
    return rotated(torch, x.view(shape), (angles, angles)).view(x.shape)


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


STEPS: dict[str, tuple[str, Step]] = {
    "torch-softmax": ("softmax", _softmax),
    "torch-layer-norm": ("norm", _layer_norm),
    "torch-rms-norm": ("norm", _rms_norm),
    "torch-scale": ("scale", _scale),
    "torch-add": ("scale", _add),
    "torch-silu-mul": ("scale", _silu_mul),
    "torch-rope": ("scale", _rope),
}
LIBRARIES = tuple(Library(name, workload, (FORWARD,), partial(_prepare, step)) for name, (workload, step) in STEPS.items())
LIBRARIES += (Library("torch-mask", "scale", (FORWARD,), _prepare_mask),)
