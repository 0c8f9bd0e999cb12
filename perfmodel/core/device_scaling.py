"""How a device profile scales: for each field the resource that it is a rate of, and the fields that it is proportional to.

A field is a path, memory by the name of its level: ``memory.dram.bandwidth``. A peak is multiprocessors x operations per clock x clock, so
that rates of a unit go with multiprocessors and clock. The nominal bandwidth of a cache is that of its slices, which go with the clock
alone; the measured one is what multiprocessors draw from it. Hidden and estimated from the nearest other architecture, it moves times by
0.014 in logarithms if it goes with multiprocessors and clock, by 0.040 with the clock, by 0.062 with nothing
(``tools/scores/hidden_facts.py``). Limits and capacities go with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from math import prod
from typing import Any, NamedTuple, get_args

from perfmodel.core.hardware import Device, LevelName, Limits
from perfmodel.core.units import Quantity, format_si

REFERENCE = "reference"
"""Key in ``sources`` for quantities taken or estimated from a reference device."""
TENSOR, VECTOR, EXPONENTIALS, ON_CHIP = "tensor unit", "vector unit", "exponentials", "on-chip memory"
DRAM, LINKS, CLOCKS, LAUNCHES, POWER = "DRAM", "links", "cycles", "launches and waits", "power limit"
CHIP = (TENSOR, VECTOR, EXPONENTIALS, ON_CHIP, CLOCKS)
"""Resources whose rates follow the clock of the chip."""
CLOCK, CYCLES = ("clocks.vector",), ("multiprocessors", "clocks.vector")


class Scale(NamedTuple):
    """The unit of a quantity, the resource that it is a rate of (a time for launches), and the fields that it is proportional to."""

    unit: str = ""
    resource: str = ""
    goes_with: tuple[str, ...] = ()


SCALES = {
    "peaks.tensor.*": Scale("FLOP/s", TENSOR, CYCLES),
    "peaks.tensor_int.*": Scale("OP/s", TENSOR, CYCLES),
    "peaks.vector.*": Scale("FLOP/s", VECTOR, CYCLES),
    "peaks.exp": Scale("OP/s", EXPONENTIALS, CYCLES),
    "memory.dram.*bandwidth": Scale("B/s", DRAM),
    "memory.sram.*bandwidth": Scale("B/s", ON_CHIP, CYCLES),
    "memory.*.measured_bandwidth": Scale("B/s", ON_CHIP, CYCLES),
    "memory.*bandwidth": Scale("B/s", ON_CHIP, CLOCK),
    "memory.*": Scale("B"),
    "clocks.*": Scale("Hz", CLOCKS, CLOCK),
    "interconnect.bandwidth_per_direction": Scale("B/s", LINKS),
    "interconnect.network": Scale("B/s", LINKS),
    "launch_overhead.*": Scale("s", LAUNCHES, ("clocks.max",)),
    "tdp": Scale("W", POWER),
    "*": Scale(),
}
"""Scales by field, the first that matches."""


@cache
def scale_of(field: str) -> Scale:
    """The scale of ``field``: the first entry of ``SCALES`` that matches."""
    return next(scale for pattern, scale in SCALES.items() if fnmatchcase(field, pattern))


def quantity(device: Device, field: str) -> Quantity | None:
    """The quantity at ``field`` of the profile, or the part if ``field`` leads to one; None if there is none."""
    item: Any = device
    for name in field.split("."):
        item = _item(item, name)
    stated: Quantity | None = item
    return stated


def number(device: Device, field: str) -> float | None:
    """The number of the quantity at ``field``."""
    stated = quantity(device, field)
    return None if stated is None else float(stated.number)


def with_quantity(device: Device, field: str, value: Quantity | None, reference: Device) -> Device:
    """``device`` with ``value`` at ``field``; None removes the field or part. A part that ``device`` lacks is made like the reference's."""
    updated: Device = _with_value(device, field.split("."), value, reference)
    return updated


def changed(device: Device, change: Callable[[str, Quantity], Quantity]) -> Device:
    """``device`` with each quantity replaced by ``change(field, quantity)``."""
    updated: Device = _changed(device, "", change)
    return updated


def faster(device: Device, factors: Mapping[str, float]) -> Device:
    """``device`` with each resource in ``factors`` faster by its factor; operations per clock follow from the new rates and clocks."""
    clock = factors.get(CLOCKS, 1.0)

    def change(field: str, value: Quantity) -> Quantity:
        resource = scale_of(field).resource
        factor = factors.get(resource, 1.0)
        per_clk: Any = value.per_clk and value.per_clk * (factor / clock)
        number = value.number / factor if resource == LAUNCHES else value.number * factor
        return replace(value, number=number, per_clk=per_clk)

    return changed(device, change)


def scaled(value: float, device: Device, reference: Device, *names: str) -> float:
    """``value`` times the ratio of ``device`` to ``reference`` in each field of ``names``; a field that either lacks counts as 1."""
    pairs = [(number(device, field), number(reference, field)) for field in names]
    both_known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    return value * prod(ours for ours, _ in both_known) / prod(theirs for _, theirs in both_known)


def ratio(device: Device, reference: Device, *names: str) -> float:
    """Product of the ratios of ``device`` to ``reference`` in the fields ``names``."""
    return prod(scaled(1.0, device, reference, field) for field in names)


def _item(part: Any, name: str) -> Any:
    """The part of ``part`` called ``name``, a memory level by its ``level``; None if there is none."""
    if isinstance(part, list):
        return next((level for level in part if level.level == name), None)
    return part.get(name) if isinstance(part, dict) else getattr(part, name, None)


def _with_value(part: Any, names: list[str], value: Quantity | None, like: Any) -> Any:
    """``part`` with ``value`` at the path ``names``. ``like``: the same part of the reference, which gives the types of missing parts."""
    if not names:
        return value
    name, *inner_names = names
    item = _with_value(_item(part, name), inner_names, value, _item(like, name))
    if isinstance(like, list):
        levels = {level.level: level for level in part} | {name: item}
        return [levels[level] for level in get_args(LevelName) if level in levels]
    if isinstance(like, dict):
        return {key: entry for key, entry in {**part, name: item}.items() if entry is not None}
    if part is not None:
        return replace(part, **{name: item})
    no_quantities = {entry.name: None for entry in fields(like) if isinstance(getattr(like, entry.name), Quantity)}
    return replace(like, **{**no_quantities, name: item})


PARTS = ("memory", "peaks", "multiprocessors", "matrix_edge", "clocks", "limits", "interconnect", "launch_overhead", "tdp")
"""Fields of a device that hold quantities."""


def _changed(part: Any, field: str, change: Callable[[str, Quantity], Quantity]) -> Any:
    """``part``, which is at the path ``field``, with ``change`` applied to each quantity in it."""
    if isinstance(part, Quantity):
        return change(field, part)
    if isinstance(part, list):
        return [_changed(level, f"{field}.{level.level}", change) for level in part]
    if isinstance(part, dict):
        return {name: _changed(item, f"{field}.{name}", change) for name, item in part.items()}
    if not is_dataclass(part) or isinstance(part, type):
        return part
    names = PARTS if isinstance(part, Device) else [item.name for item in fields(part)]
    return replace(part, **{name: _changed(getattr(part, name), f"{field}.{name}".lstrip("."), change) for name in names})


# What a profile lacks, estimated from a reference device: no count, bound or roof sees it

LARGEST_CLOCK_RATIO = 2.0  # tuned
"""Largest ratio of a clock to the reference's, or its inverse. A peak that implies more has another number of operations per clock."""
FACTS = {
    "multiprocessors": "multiprocessors",
    **{f"clocks.{name}": "clock" for name in ("tensor", "vector", "max")},
    "peaks.vector.fp32": "vector rate",
    "peaks.exp": "exp rate",
    "memory.l2.capacity": "L2 capacity",
    "memory.l2.measured_bandwidth": "L2 bandwidth",
    **{f"memory.sram.{name}": "SRAM" for name in ("capacity", "per_block", "bandwidth")},
    **{f"limits.{limit.name}": "limits of a multiprocessor" for limit in fields(Limits)},
    "launch_overhead.stream": "launch overhead",
}
"""Names of the fields that a profile may lack, in the order of their estimates: later ones use earlier ones."""


def completed(device: Device, reference: Device) -> tuple[Device, list[str]]:
    """``device`` with estimates for fields that its profile lacks, whose source names ``reference``; and the list of these fields."""
    estimated = []
    sources = {**device.sources, REFERENCE: f"estimated from {reference.id}"}
    for field in FACTS:
        if quantity(device, field) is not None:
            continue
        value = _estimate(device, reference, field)
        if value is not None:
            device = replace(with_quantity(device, field, _estimated(value, scale_of(field).unit), reference), sources=sources)
            estimated.append(field)
    return device, estimated


def _estimated(value: float, unit: str) -> Quantity:
    if unit == "":
        return Quantity(round(value), "estimated", REFERENCE, round(value))
    if unit == "B":
        return Quantity(f"{round(value)} B", "estimated", REFERENCE, round(value))
    return Quantity(format_si(value, unit, 4), "estimated", REFERENCE, value)


def _estimate(device: Device, reference: Device, field: str) -> float | None:
    """Estimated number at ``field``: the reference's, scaled by the fields it is proportional to; None for a rate if cycles are unknown."""
    if field == "multiprocessors":
        return _multiprocessors(device, reference)
    if field in _CLOCKS.values():
        return _clock(device, reference, field)
    reference_number, scale = number(reference, field), scale_of(field)
    if reference_number is None or (scale.goes_with == CYCLES and not (_cycles_known(device) and _cycles_known(reference))):
        return None
    if scale.resource == LAUNCHES:  # a time, which falls with the clock
        return scaled(reference_number, reference, device, *scale.goes_with)
    return scaled(reference_number, device, reference, *scale.goes_with)


def _cycles_known(device: Device) -> bool:
    return all(number(device, field) is not None for field in CYCLES)


_CLOCKS = {"tensor": "clocks.tensor", "vector": "clocks.vector"}


class _Peak(NamedTuple):
    """A peak in operations per second, and the operations per multiprocessor and clock behind it."""

    rate: float
    per_clock: float


def _peak(device: Device, reference: Device, unit: str) -> _Peak | None:
    """A peak of ``device`` on ``unit`` whose operations per clock are known: by its own profile, else by the reference's."""
    peaks = {name: peak for name, peak in device.peaks_of(unit).items() if name != "fp64"}
    for known_peaks in (peaks, reference.peaks_of(unit)):
        for name, peak in peaks.items():
            per_clk = known_peaks[name].per_clk if name in known_peaks else None
            if per_clk is not None:
                return _Peak(peak.number, float(per_clk))
    return None


def _clock(device: Device, reference: Device, field: str) -> float | None:
    """The clock that a peak implies if it is near the reference's; else the device's other clock, scaled as on the reference."""
    unit, other_clock = ("tensor", "clocks.vector") if field == "clocks.tensor" else ("vector", "clocks.tensor")
    peak, multiprocessors, reference_clock = _peak(device, reference, unit), number(device, "multiprocessors"), number(reference, field)
    implied = peak.rate / (peak.per_clock * multiprocessors) if peak and multiprocessors else None
    if reference_clock is None:
        return implied
    if implied is not None and reference_clock / LARGEST_CLOCK_RATIO <= implied <= reference_clock * LARGEST_CLOCK_RATIO:
        return implied
    return scaled(reference_clock, device, reference, other_clock)


def _multiprocessors(device: Device, reference: Device) -> float | None:
    """Multiprocessors that a peak needs at its clock or the reference's; else the reference's. Vector units differ less between devices."""
    for unit, field in reversed(_CLOCKS.items()):
        peak, clock = _peak(device, reference, unit), number(device, field) or number(reference, field)
        if peak and clock:
            return max(1.0, round(peak.rate / (peak.per_clock * clock)))
    return number(reference, "multiprocessors")
