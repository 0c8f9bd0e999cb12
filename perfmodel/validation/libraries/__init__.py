"""Kernels of libraries, run through PyTorch (extra ``perfmodel[torch]``); importing this package loads no torch.

``kernels`` prepares a case on a GPU. ``shapes.json`` lists the shapes to measure, in two sets without a common shape: one to fit models,
one held out to judge them. ``measure`` makes cases of them and times these.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import FORWARD
from perfmodel.validation.cases import KernelCase

Torch = Any
"""The torch module: loaded when something runs, and not typed, so that checks need no torch either."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """``run()`` enqueues the kernels and returns their results; ``error(results)`` compares these with a float64 reference."""

    run: Callable[[], Any]
    error: Callable[[Any], float]


Prepare = Callable[[KernelCase, Torch], Prepared]
"""Function that prepares a case with random operands, untimed."""


def load_torch() -> Torch:
    """The module torch, with a CUDA device; UnavailableError says which of the two is missing."""
    try:
        torch: Torch = import_module("torch")
    except ImportError as error:
        raise UnavailableError(f"library kernels need PyTorch: {error}", "pip install 'perfmodel[torch]'") from None
    if not torch.cuda.is_available():
        raise UnavailableError(f"PyTorch {torch.__version__} sees no CUDA device", "run this on a machine with one, with a CUDA build")
    return torch


def dtype_of(case: KernelCase, torch: Torch) -> Any:
    """torch's dtype of the case; UnavailableError for formats that these kernels do not run in.

    tf32 is fp32 in memory. It also switches torch to tf32 products, which a case in another format switches off again.
    """
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
    if case.dtype not in formats:
        raise UnavailableError(f"{case.implementation} in {case.dtype}", f"give one of {', '.join(formats)}")
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
    return formats[case.dtype]


def version_of(torch: Torch) -> str:
    """PyTorch's version without the build, as in sources of records."""
    return f"torch {str(torch.__version__).split('+', 1)[0]}"


def gradients_of(case: KernelCase, torch: Torch) -> Any:
    """Context in which ``case`` runs: with gradients only for a backward pass."""
    return torch.no_grad() if case.direction == FORWARD else torch.enable_grad()


def relative_error(result: Any, expected: Any) -> float:
    """‖result - expected‖ / ‖expected‖ in float64; nan stays nan."""
    difference = (result.double() - expected).norm() / expected.norm()
    return float(difference.item())
