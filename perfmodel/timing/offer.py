"""The prediction to show beside a bound: by the implementation that was asked for, or the best-known one of the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.evaluate import BOTH, Result
from perfmodel.kernels.attention.request import Comparison
from perfmodel.timing.base import SAME_KERNEL, Case, calibrations
from perfmodel.timing.implementations import MODELS_OF
from perfmodel.timing.predict import Lenders, Prediction, added, predict

OWN = ("numba-", "cpu-")
"""Implementations of this package: they are witnesses, not what people run."""
PUBLISHED = ("flash-published",)
"""Models of kernels known from published tables alone, a few shapes each: predicted when named."""
NAMED = (*SAME_KERNEL, "fa1", "megatron")
"""Predicted when named: further names of a kernel, and kernels that were replaced."""
ALGORITHM_OF = {
    **dict.fromkeys(("torch-eager", "torch-standard", "megatron", "numba-standard", "cpu-standard"), "standard"),
    **dict.fromkeys(("numba-flash1", "fa1"), "flash1"),
}
FUSED = "flash2"
"""IO scheme of every other attention kernel."""


def algorithm_of(implementation: str) -> str:
    """The attention algorithm that an implementation runs."""
    return ALGORITHM_OF.get(implementation, FUSED)


def check_implementation(name: str, workload: str, device: Device, lenders: Lenders) -> None:
    """UsageError if no calibration of ``workload``, here or on a device to borrow from, is called ``name``."""
    calibrated = known_implementations(workload, [device, *lenders()])
    known = sorted(calibrated | {alias for alias, kernel in SAME_KERNEL.items() if kernel in calibrated})
    if name not in known:
        raise UsageError(f"--implementation: none is called {name!r}", suggest(name, known))


def known_implementations(workload: str, devices: Iterable[Device]) -> set[str]:
    """Implementations of ``workload`` that some of ``devices`` has a calibration of."""
    return {block.implementation for device in devices for block in device.calibration if block.workload == workload}


def offer(
    name: str,
    dtype: str,
    workload: Any,
    direction: str,
    device: Device,
    lower_s: float,
    implementation: str | None,
    suits: Callable[[str], bool],
    lenders: Lenders,
) -> Prediction:
    """The prediction for a ``workload`` called ``name``, buffers cold. ``suits``: which implementations run what was asked.

    Without an ``implementation``, the fastest library kernel whose calibration here covers this; borrowed if none does.
    UnavailableError says why there is none.
    """
    if implementation is not None:
        if not suits(implementation):
            raise UnavailableError(f"{implementation} is another algorithm")
        return predict(Case(workload, implementation, direction), name, dtype, device, lower_s, lenders)
    libraries = filter(suits, _libraries(name, direction, [device]))
    own = [known for known in libraries if calibrations(device, name, dtype, Case(workload, known, direction))]
    found = _fastest(own, name, dtype, workload, direction, device, lower_s, lenders)
    if not own:
        others = list(lenders())
        names = filter(suits, _libraries(name, direction, others))
        found = _fastest(names, name, dtype, workload, direction, device, lower_s, lambda: others)
    if found is None:
        raise UnavailableError(f"no implementation of {name} in {dtype} is calibrated that covers this")
    return found


def _libraries(name: str, direction: str, devices: Iterable[Device]) -> list[str]:
    blocks = [block for device in devices for block in device.calibration]
    calibrated = {block.implementation for block in blocks if (block.workload, block.direction) == (name, direction)}
    return [
        known
        for known, own in MODELS_OF.items()
        if known in calibrated and not known.startswith(OWN) and own != PUBLISHED and known not in NAMED
    ]


def _fastest(
    names: Iterable[str],
    name: str,
    dtype: str,
    workload: Any,
    direction: str,
    device: Device,
    lower_s: float,
    lenders: Lenders,
) -> Prediction | None:
    found = []
    for known in names:
        try:
            found.append(predict(Case(workload, known, direction), name, dtype, device, lower_s, lenders))
        except PerfmodelError:
            continue
    return min(found, key=lambda one: one.seconds, default=None)


Predictions = dict[tuple[str, str], Prediction]
"""By algorithm and pass; what is not predicted is absent."""


def check_compared(implementation: str, comparison: Comparison) -> None:
    """UsageError if ``implementation`` runs none of the algorithms that are compared."""
    runs = algorithm_of(implementation)
    if implementation in MODELS_OF and all(runs != result.algorithm.name for result in comparison.results):
        raise UsageError(f"--implementation {implementation} runs {runs}, which is not compared", f"add --algorithm {runs}")


def predictions(comparison: Comparison, implementation: str | None, lenders: Lenders) -> tuple[Predictions, list[str]]:
    """Predictions of the results that have one, and why the others have none, in words.

    ``implementation`` is the kernel of its algorithm; others are predicted for the one that ``offer`` takes.
    UsageError if no calibration anywhere is of ``implementation``.
    """
    if implementation is not None:
        check_implementation(implementation, "attention", comparison.device, lenders)
    found: Predictions = {}
    missing: dict[str, None] = {}
    if implementation is not None and all(algorithm_of(implementation) != result.algorithm.name for result in comparison.results):
        runs = algorithm_of(implementation)
        missing[f"{implementation} runs {runs}, which is not compared: add --algorithm {runs}."] = None
    for result in comparison.results:
        key = (result.algorithm.name, result.direction)
        try:
            if result.direction == BOTH:
                parts = [found[result.algorithm.name, part.direction] for part in result.passes]
                found[key] = added(parts)
            else:
                found[key] = _one(comparison, result, implementation, lenders)
        except KeyError:
            continue
        except PerfmodelError as error:
            missing[f"{result.algorithm.name} {result.direction} is not predicted: {error.message}."] = None
    return found, list(missing)


def _one(comparison: Comparison, result: Result, implementation: str | None, lenders: Lenders) -> Prediction:
    w, name = comparison.workload, result.algorithm.name

    def suits(known: str) -> bool:
        return algorithm_of(known) == name

    named = implementation if implementation is not None and suits(implementation) else None
    return offer("attention", w.dtype.name, w, result.direction, comparison.device, float(result.total.lower_s), named, suits, lenders)
