"""What an estimate moves: predictions with a number of the profile hidden and estimated, over those with the number known."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from perfmodel.core.architectures import distance, transferable
from perfmodel.core.arith import quantile
from perfmodel.core.device_scaling import FACTS, completed, number, quantity, with_quantity
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.timing.base import find_model, model_of
from perfmodel.timing.predict import modelled_s
from perfmodel.timing.reference_devices import nearest
from perfmodel.validation.fit_points import FitPoint
from perfmodel.validation.records import held_out

NAMES = tuple(dict.fromkeys(FACTS.values()))
CYCLES = ("clock", "multiprocessors")
LEAST = 1e-6
"""In logarithms: a smaller move is none."""


def hidden(device: Device, name: str) -> Device:
    """``device`` without the numbers that ``FACTS`` call ``name``, nor rates per clock that would give them away."""
    for field, called in FACTS.items():
        if called == name and quantity(device, field) is not None:
            device = with_quantity(device, field.removesuffix(".stream"), None, device)
    if name not in CYCLES:
        return device
    bare: dict[str, Any] = {
        unit: {key: replace(peak, per_clk=None) for key, peak in device.peaks_of(unit).items()} for unit in ("tensor", "vector")
    }
    return replace(device, peaks=replace(device.peaks, **bare))


def reference_with(device: Device, name: str, others: Iterable[Device]) -> Device | None:
    """The nearest device of another architecture whose profile has what ``device`` knows of ``name``."""
    known = [field for field, called in FACTS.items() if called == name and number(device, field) is not None]
    apart = [other for other in others if transferable(device, other) and other.architecture != device.architecture]
    full = [other for other in apart if known and all(number(other, field) is not None for field in known)]
    return min(full, key=lambda other: distance(device, other), default=None)


def moved(points: Sequence[FitPoint], others: Sequence[Device]) -> dict[str, list[float]]:
    """|log(time with estimates / time with the numbers)| by name of fact, of the points that fits may see and that it moves at all.

    Each by its device's own calibration, or by the nearest.
    """
    found: dict[str, list[float]] = defaultdict(list)
    bare: dict[tuple[str, str], Device | None] = {}
    for point in points:
        model = model_of(point.case, point.device)
        reference = nearest(point.device, [one for one in others if any(block.model == model.name for block in one.calibration)])
        if held_out(point.record) or reference is None:
            continue
        parameters = next(block.parameters for block in reference.calibration if block.model == model.name)
        with suppress(PerfmodelError):
            known = modelled_s(find_model(model.name), point.case, point.device, parameters)
            for name in NAMES:
                key = point.device.id, name
                if key not in bare:
                    reference = reference_with(point.device, name, others)
                    bare[key] = None if reference is None else completed(hidden(point.device, name), reference)[0]
                device = bare[key]
                change = 0.0 if device is None else abs(math.log(modelled_s(model, point.case, device, parameters) / known))
                found[name] += [change] if change > LEAST else []
    return found


def spreads(points: Sequence[FitPoint], others: Sequence[Device]) -> dict[str, float]:
    """By name of fact: of each device the 90 % quantile of what ``moved`` finds, in the mean of the devices that it moves."""
    by_device: dict[str, list[FitPoint]] = defaultdict(list)
    for point in points:
        by_device[point.device.id].append(point)
    found: dict[str, list[float]] = defaultdict(list)
    for own in by_device.values():
        for name, changes in moved(own, others).items():
            found[name] += [quantile(changes, 0.9)] if changes else []
    return {name: sum(listed) / len(listed) for name, listed in found.items() if listed}
