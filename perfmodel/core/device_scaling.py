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
    """The quantity at ``field`` of the profile; None if there is none."""
    part: Any = device
    for name in field.split("."):
        part = _item(part, name)
    found_quantity: Quantity | None = part
    return found_quantity


def number(device: Device, field: str) -> float | None:
    """The number of the quantity at ``field``."""
    found_quantity = quantity(device, field)
    return None if found_quantity is None else float(found_quantity.number)


def with_quantity(device: Device, field: str, value: Quantity | None, reference: Device) -> Device:
    """``device`` with ``value`` at ``field``; None removes the field or part. A part that ``device`` lacks is made like the reference's."""
    made: Device = _with_value(device, field.split("."), value, reference)
    return made


def changed(device: Device, change: Callable[[str, Quantity], Quantity]) -> Device:
    """``device`` with each quantity replaced by ``change(field, quantity)``."""
    made: Device = _changed(device, "", change)
    return made


def faster(device: Device, factors: Mapping[str, float]) -> Device:
    """``device`` with each resource in ``factors`` faster by its factor; operations per clock follow from the new rates and clocks."""
    clock = factors.get(CLOCKS, 1.0)

    def change(field: str, value: Quantity) -> Quantity:
        resource = scale_of(field).resource
        factor = factors.get(resource, 1.0)
        per_clk: Any = value.per_clk and value.per_clk * (factor / clock)
        return replace(value, number=value.number / factor if resource == LAUNCHES else value.number * factor, per_clk=per_clk)

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
    if isinstance(part, list):
        return next((level for level in part if level.level == name), None)
    return part.get(name) if isinstance(part, dict) else getattr(part, name, None)


def _with_value(part: Any, names: list[str], value: Quantity | None, like: Any) -> Any:
    if not names:
        return value
    item = _with_value(_item(part, names[0]), names[1:], value, _item(like, names[0]))
    if isinstance(like, list):
        levels = {level.level: level for level in part} | {names[0]: item}
        return [levels[name] for name in get_args(LevelName) if name in levels]
    if isinstance(like, dict):
        return {name: entry for name, entry in {**part, names[0]: item}.items() if entry is not None}
    empty = {entry.name: None for entry in fields(like) if part is None and isinstance(getattr(like, entry.name), Quantity)}
    return replace(like if part is None else part, **{**empty, names[0]: item})


PARTS = ("memory", "peaks", "multiprocessors", "matrix_edge", "clocks", "limits", "interconnect", "launch_overhead", "tdp")
"""Fields of a device that hold quantities."""


def _changed(part: Any, field: str, change: Callable[[str, Quantity], Quantity]) -> Any:
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

ALIKE = 2.0  # tuned
"""Largest ratio of a clock to the reference's. A peak that implies more has another number of operations per clock."""
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
    completed_device, estimated = device, []
    for field in FACTS:
        value = _estimate(completed_device, reference, field) if quantity(completed_device, field) is None else None
        if value is not None:
            completed_device = with_quantity(completed_device, field, _estimated(value, scale_of(field).unit), reference)
            estimated.append(field)
    return (
        replace(completed_device, sources={**device.sources, REFERENCE: f"estimated from {reference.id}"}) if estimated else device
    ), estimated


def _estimated(value: float, unit: str) -> Quantity:
    if unit in ("", "B"):
        return Quantity(f"{round(value)} B" if unit else round(value), "estimated", REFERENCE, round(value))
    return Quantity(format_si(value, unit, 4), "estimated", REFERENCE, value)


def _estimate(device: Device, reference: Device, field: str) -> float | None:
    """Estimated number at ``field``: the reference's, scaled by the fields it is proportional to; None for a rate if cycles are unknown."""
    if field == "multiprocessors":
        return _multiprocessors(device, reference)
    if field in _CLOCKS.values():
        return _clock(device, reference, field)
    reference_number, scale = number(reference, field), scale_of(field)
    unknown = scale.goes_with == CYCLES and None in [number(either, part) for either in (device, reference) for part in CYCLES]
    if reference_number is None or unknown:
        return None
    over, under = (reference, device) if scale.resource == LAUNCHES else (device, reference)
    return scaled(reference_number, over, under, *scale.goes_with)


_CLOCKS = {"tensor": "clocks.tensor", "vector": "clocks.vector"}


def _per_clock(device: Device, reference: Device, unit: str) -> tuple[float, float] | None:
    """A peak of ``device``, and its operations per multiprocessor and clock; the reference's if the device's own are unknown."""
    peaks = {name: peak for name, peak in device.peaks_of(unit).items() if name != "fp64"}
    for rates in (peaks, reference.peaks_of(unit)):
        for name, peak in peaks.items():
            per_clk = rates[name].per_clk if name in rates else None
            if per_clk is not None:
                return peak.number, float(per_clk)
    return None


def _clock(device: Device, reference: Device, field: str) -> float | None:
    """The clock that a peak implies if it is near the reference's; else the device's other clock, scaled as on the reference."""
    unit, other = ("tensor", "clocks.vector") if field == "clocks.tensor" else ("vector", "clocks.tensor")
    rate, sms, reference_clock = _per_clock(device, reference, unit), number(device, "multiprocessors"), number(reference, field)
    behind = rate[0] / (rate[1] * sms) if rate and sms else None
    if behind is not None and (reference_clock is None or reference_clock / ALIKE <= behind <= reference_clock * ALIKE):
        return behind
    return None if reference_clock is None else scaled(reference_clock, device, reference, other)


def _multiprocessors(device: Device, reference: Device) -> float | None:
    """Multiprocessors that a peak needs at its clock or the reference's; else the reference's. Vector units differ less between devices."""
    for unit, field in reversed(_CLOCKS.items()):
        rate, clock = _per_clock(device, reference, unit), number(device, field) or number(reference, field)
        if rate and clock:
            return max(1.0, round(rate[0] / (rate[1] * clock)))
    return number(reference, "multiprocessors")
