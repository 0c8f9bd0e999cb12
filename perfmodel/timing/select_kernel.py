"""The prediction to show beside a bound: by the implementation that was asked for, or the best-known one of the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.timing.base import SAME_KERNEL, Case, algorithm_of, calibrations, models_of
from perfmodel.timing.predict import FallbackDevices, Prediction, added, predict

if TYPE_CHECKING:
    from perfmodel.kernels.attention.evaluate import AttentionResult
    from perfmodel.kernels.attention.request import Comparison

OWN = ("numba-", "cpu-")
"""Implementations of this package: they are witnesses, not what people run."""
PUBLISHED = ("flash-published",)
"""Models of kernels known from published tables alone, a few shapes each: predicted when named."""
NAMED = (*SAME_KERNEL, "fa1", "megatron")
"""Predicted when named: further names of a kernel, and kernels that were replaced."""


def check_implementation(name: str, workload: str, device: Device, fallbacks: FallbackDevices) -> None:
    """UsageError if no calibration of ``workload``, here or on a device to borrow from, is called ``name``."""
    calibrated = known_implementations(workload, [device, *fallbacks()])
    known = sorted(calibrated | {alias for alias, kernel in SAME_KERNEL.items() if kernel in calibrated})
    if name not in known:
        raise UsageError(f"--implementation: none is called {name!r}", suggest(name, known))


def known_implementations(workload: str, devices: Iterable[Device]) -> set[str]:
    """Implementations of ``workload`` that some of ``devices`` has a calibration of."""
    return {block.implementation for device in devices for block in device.calibration if block.workload == workload}


def select_kernel(
    name: str,
    dtype: str,
    workload: Any,
    direction: str,
    device: Device,
    lower_s: float,
    implementation: str | None,
    suits: Callable[[str], bool],
    fallbacks: FallbackDevices,
) -> Prediction:
    """The prediction for a ``workload`` called ``name``, buffers cold. ``suits``: which implementations run what was asked.

    Without an ``implementation``, on every device: library kernels that are calibrated here come before borrowed ones; of the
    first the fastest is taken, of borrowed ones the most certain, whose interval is the narrowest. UnavailableError says why there
    is none.
    """

    def predicted(names: Iterable[str], source: FallbackDevices) -> list[Prediction]:
        found = []
        for known in names:
            try:
                found.append(predict(Case(workload, known, direction), name, dtype, device, lower_s, source))
            except PerfmodelError:
                continue
        return found

    if implementation is not None:
        if not suits(implementation):
            raise UnavailableError(f"{implementation} is another algorithm")
        return predict(Case(workload, implementation, direction), name, dtype, device, lower_s, fallbacks)
    libraries = filter(suits, _libraries(name, direction, [device]))
    own = [known for known in libraries if calibrations(device, name, dtype, Case(workload, known, direction))]
    others = [] if own else list(fallbacks())
    found = predicted(own, fallbacks) if own else predicted(filter(suits, _libraries(name, direction, others)), lambda: others)
    if not found:
        raise UnavailableError(f"no implementation of {name} in {dtype} is calibrated that covers this")
    return min(found, key=lambda one: (0.0 if own else _uncertainty(one), one.seconds))


def _uncertainty(one: Prediction) -> float:
    """How far above its time the interval ends; equal for kernels that one calibration lends."""
    return round(one.high / one.seconds, 6)


def _libraries(name: str, direction: str, devices: Iterable[Device]) -> list[str]:
    blocks = [block for device in devices for block in device.calibration if (block.workload, block.direction) == (name, direction)]
    known = sorted({block.implementation for block in blocks if block.model not in PUBLISHED})
    return [implementation for implementation in known if not implementation.startswith(OWN) and implementation not in NAMED]


# Every result of an attention comparison

Predictions = dict[tuple[str, str], Prediction]
"""By algorithm and pass; what is not predicted is absent."""


def check_compared(implementation: str, algorithms: Iterable[str]) -> None:
    """UsageError if ``implementation`` runs none of the ``algorithms`` that are compared."""
    runs = algorithm_of(implementation)
    if implementation in models_of() and runs not in algorithms:
        raise UsageError(f"--implementation {implementation} runs {runs}, which is not compared", f"add --algorithm {runs}")


def predictions(comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices) -> tuple[Predictions, list[str]]:
    """Predictions of the results that have one, and why the others have none, in words.

    ``implementation`` is the kernel of its algorithm; others are predicted for the one that ``select_kernel`` takes.
    UsageError if no calibration anywhere is of ``implementation``.
    """
    found: Predictions = {}
    missing: dict[str, None] = {}
    if implementation is not None:
        check_implementation(implementation, "attention", comparison.device, fallbacks)
        runs = algorithm_of(implementation)
        if all(runs != result.algorithm.name for result in comparison.results):
            missing[f"{implementation} runs {runs}, which is not compared: add --algorithm {runs}."] = None
    for result in comparison.results:
        name = result.algorithm.name
        try:
            if result.passes:
                found[name, result.direction] = added([found[name, part.direction] for part in result.passes])
            else:
                found[name, result.direction] = _one(comparison, result, implementation, fallbacks)
        except KeyError:
            continue
        except PerfmodelError as error:
            missing[f"{name} {result.direction} is not predicted: {error.message}."] = None
    return found, list(missing)


def answered(comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices) -> tuple[Comparison, Predictions, list[str]]:
    """``comparison`` as ``implementation`` runs its algorithm, the predictions, and what the reader should know of both.

    UsageError if no calibration is of ``implementation``, or it runs none of the algorithms.
    """
    if implementation is None:
        return comparison, *predictions(comparison, None, fallbacks)
    from perfmodel.timing.launched import as_launched

    check_compared(implementation, [result.algorithm.name for result in comparison.results])
    known, missing = predictions(comparison, implementation, fallbacks)
    launched, notes = as_launched(comparison, implementation, fallbacks)
    return launched, known, [*missing, *notes]


def _one(comparison: Comparison, result: AttentionResult, implementation: str | None, fallbacks: FallbackDevices) -> Prediction:
    w, name = comparison.workload, result.algorithm.name

    def suits(known: str) -> bool:
        return algorithm_of(known) == name

    named = implementation if implementation is not None and suits(implementation) else None
    lower_s = float(result.total.lower_s)
    return select_kernel("attention", w.dtype.name, w, result.direction, comparison.device, lower_s, named, suits, fallbacks)
