"""Predicted time of a case: by a calibration of its own device, or borrowed from another one, with an interval.

The interval covers 80 % of measurements as far as the calibration's own residuals tell. A borrowed prediction takes the
parameters of the nearest calibrated architecture and the interval that those have shown on devices they were not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.plugins import docstring
from perfmodel.timing.base import VARIANTS, Case, calibrations, find_model

CALIBRATED, BORROWED = "calibrated", "borrowed"
SAME_ARCHITECTURE = math.sqrt(1 + 1 / 1)
"""Width of an interval on another device of the architecture over that on its own, in logarithms: of one device to judge by."""
PARTS = dict.fromkeys(("eager-attention", "eager-published"), ("matmul", "scale", "softmax"))
"""Models of sequences, and the workloads of their parts, which may be calibrated on other devices alone."""

FallbackDevices = Callable[[], Iterable[Device]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds with an 80 % interval. ``kind`` is calibrated or borrowed; ``provenance`` says from what, in words."""

    seconds: float
    low: float
    high: float
    kind: str
    provenance: str
    calibration: Calibration


def predict(case: Case, workload: str, dtype: str, device: Device, lower_s: float, fallbacks: FallbackDevices = tuple) -> Prediction:
    """The predicted time of ``case`` on ``device``, never below ``lower_s``.

    ``fallbacks`` gives other devices whose calibrations may be borrowed. UnavailableError says why there is no prediction.
    """
    own = calibrations(device, workload, dtype, case)
    if own and case.implementation not in VARIANTS:
        block = own[0]
        words = f"calibrated here: {block.points} points, {block.date}"
        return _prediction(case, with_parts(device, block.model, fallbacks), block, (block.low, block.high), lower_s, CALIBRATED, words)
    others = [device] if own else [one for one in fallbacks() if one.id != device.id and calibrations(one, workload, dtype, case)]
    lender = nearest(device, others)
    if lender is None:
        raise UnavailableError(_missing(case, workload, dtype, device))
    block = calibrations(lender, workload, dtype, case)[0]
    if block.borrowed_low is None or block.borrowed_high is None:
        raise UnavailableError(f"the calibration of {case.implementation} on {lender.id} was never tried on another device")
    lacks = "this kernel" if own else device.id
    words, interval = f"borrowed from {lender.id}: no calibration of {lacks}", (block.borrowed_low, block.borrowed_high)
    if case.implementation in VARIANTS:
        interval = min(interval[0], block.low), max(interval[1], block.high)
    elif lender.architecture == device.architecture:  # one device of it tells this much of another
        interval = max(interval[0], block.low**SAME_ARCHITECTURE), min(interval[1], block.high**SAME_ARCHITECTURE)
    return _prediction(case, with_parts(device, block.model, fallbacks), block, interval, lower_s, BORROWED, words)


def with_parts(device: Device, model: str, fallbacks: FallbackDevices) -> Device:
    """``device`` with the calibrations of the nearest others for parts of ``model`` that it has none of."""
    missing = set(PARTS.get(model, ())) - {block.workload for block in device.calibration}
    if not missing:
        return device
    related = sorted((other for other in fallbacks() if other.vendor == device.vendor), key=lambda other: _distance(device, other))
    lent = [block for other in related for block in other.calibration if block.workload in missing]
    return replace(device, calibration=[*device.calibration, *lent])


def _missing(case: Case, workload: str, dtype: str, device: Device) -> str:
    """Why nothing predicts ``case``: what a calibration of its kernel covers instead, or that there is none."""
    what = f"{workload}/{case.implementation}/{case.direction}"
    same = [
        one
        for one in device.calibration
        if (one.workload, one.implementation, one.direction) == (workload, case.implementation, case.direction)
    ]
    models = [find_model(one.model) for one in same]
    if models and not any(model.covers(case) for model in models):
        covered = "; ".join(f"{model.name}: {' '.join(docstring(model.covers).split())}" for model in models)
        return f"the calibration of {what} covers other cases. {covered.rstrip('.')}"
    return f"no calibration of {what} in {dtype}, neither of {device.id} nor of another device"


def _prediction(
    case: Case, device: Device, block: Calibration, interval: tuple[float, float], lower_s: float, kind: str, words: str
) -> Prediction:
    modelled = find_model(block.model).seconds(case, device, block.parameters)
    if block.implementation != case.implementation:
        block, words = replace(block, implementation=case.implementation), f"the kernel of {block.implementation}, {words}"
    seconds = max(modelled, lower_s)
    if modelled < lower_s:
        words += "; the model fell below the bound, which is shown instead"
    low, high = (seconds * end for end in interval)
    return Prediction(seconds, max(lower_s, min(seconds, low)), max(seconds, high), kind, words, block)


def nearest(device: Device, others: list[Device]) -> Device | None:
    """The one of ``others`` whose architecture is nearest: the same, else the nearest compute capability, the newer one first.

    None where there are none, or none of the same vendor.
    """
    related = [other for other in others if other.vendor == device.vendor]
    return min(related, key=lambda other: _distance(device, other), default=None)


def model_calibration(model: str, device: Device, fallbacks: FallbackDevices) -> tuple[Calibration | None, bool]:
    """The calibration of ``model`` of ``device``, or else of the nearest architecture; and whether it is the device's own."""

    def block_of(one: Device) -> Calibration | None:
        return next((block for block in one.calibration if block.model == model), None)

    own = block_of(device)
    if own is not None:
        return own, True
    lender = nearest(device, [other for other in fallbacks() if block_of(other) is not None])
    return (None if lender is None else block_of(lender)), False


def _distance(device: Device, other: Device) -> tuple[bool, float, bool, str]:
    own, its = device.capability, other.capability
    return other.architecture != device.architecture, abs(its - own), its < own, other.id


def added(parts: list[Prediction]) -> Prediction:
    """Kernels one after another, by all their names: their errors are taken to go together, borrowed if one of them is."""
    words = "; ".join(dict.fromkeys(part.provenance for part in parts))
    names = " + ".join(dict.fromkeys(part.calibration.implementation for part in parts))
    kind = BORROWED if BORROWED in {part.kind for part in parts} else CALIBRATED
    seconds, low, high = (sum(getattr(part, name) for part in parts) for name in ("seconds", "low", "high"))
    return Prediction(seconds, low, high, kind, words, replace(parts[0].calibration, implementation=names))
