"""The prediction to show beside a bound: by the implementation that was asked for, or the best-known one of the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.timing.base import SAME_KERNEL, Case, calibrations
from perfmodel.timing.predict import Lenders, Prediction, predict

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


def is_fused(implementation: str) -> bool:
    """Whether it runs attention in one kernel, scores never stored."""
    return algorithm_of(implementation) == FUSED


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

    Without an ``implementation``, on every device: library kernels that are calibrated here come before borrowed ones; of the
    first the fastest is taken, of borrowed ones the most certain, whose interval is the narrowest. UnavailableError says why there
    is none.
    """
    if implementation is not None:
        if not suits(implementation):
            raise UnavailableError(f"{implementation} is another algorithm")
        return predict(Case(workload, implementation, direction), name, dtype, device, lower_s, lenders)
    libraries = filter(suits, _libraries(name, direction, [device]))
    own = [known for known in libraries if calibrations(device, name, dtype, Case(workload, known, direction))]
    known = _predicted(own, name, dtype, workload, direction, device, lower_s, lenders)
    if not own:
        others = list(lenders())
        names = filter(suits, _libraries(name, direction, others))
        known = _predicted(names, name, dtype, workload, direction, device, lower_s, lambda: others)
    if not known:
        raise UnavailableError(f"no implementation of {name} in {dtype} is calibrated that covers this")
    return min(known, key=lambda one: (0.0 if own else _uncertainty(one), one.seconds))


def _uncertainty(one: Prediction) -> float:
    """How far above its time the interval ends; equal for kernels that one calibration lends."""
    return round(one.high / one.seconds, 6)


def _libraries(name: str, direction: str, devices: Iterable[Device]) -> list[str]:
    blocks = [block for device in devices for block in device.calibration if (block.workload, block.direction) == (name, direction)]
    known = sorted({block.implementation for block in blocks if block.model not in PUBLISHED})
    return [implementation for implementation in known if not implementation.startswith(OWN) and implementation not in NAMED]


def _predicted(
    names: Iterable[str],
    name: str,
    dtype: str,
    workload: Any,
    direction: str,
    device: Device,
    lower_s: float,
    lenders: Lenders,
) -> list[Prediction]:
    found = []
    for known in names:
        try:
            found.append(predict(Case(workload, known, direction), name, dtype, device, lower_s, lenders))
        except PerfmodelError:
            continue
    return found
