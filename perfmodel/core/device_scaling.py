"""How a device scales: the quantities of its profile by field, the resource that each is a rate of, and what each goes with.

A field is a path, memory by the name of its level: ``memory.dram.bandwidth``. A peak is multiprocessors x operations per clock x clock, so
that rates of a unit go with multiprocessors and clock. The nominal bandwidth of a cache is that of its slices, which go with the clock
alone; the measured one is what multiprocessors draw from it: in bytes per clock an H100 PCIe has 0.80 of an H200 with 0.86 of its
multiprocessors, an RTX 4090 0.82 of an L40 with 0.90.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from math import prod
from typing import Any

from perfmodel.core.hardware import Device
from perfmodel.core.sanity import LEVELS
from perfmodel.core.units import Quantity

REFERENCE = "reference"
"""Key of the source of what is taken or estimated from a reference device."""
TENSOR, VECTOR, EXPONENTIALS, ON_CHIP = "tensor unit", "vector unit", "exponentials", "on-chip memory"
DRAM, LINKS, CLOCKS, LAUNCHES, POWER = "DRAM", "links", "cycles", "launches and waits", "power limit"
CHIP = (TENSOR, VECTOR, EXPONENTIALS, ON_CHIP, CLOCKS)
"""Resources whose rates follow the clock of the chip."""
CLOCK, CYCLES = ("clocks.vector",), ("multiprocessors", "clocks.vector")


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of a quantity, the resource of which it is a rate (a time for launches), and the fields it is proportional to."""

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
"""By field, the first that matches."""


@cache
def scale_of(field: str) -> Scale:
    """The row of ``SCALES`` that ``field`` has."""
    return next(scale for pattern, scale in SCALES.items() if fnmatchcase(field, pattern))


def quantity(device: Device, field: str) -> Quantity | None:
    """The quantity at ``field`` of the profile; None where there is none."""
    part: Any = device
    for name in field.split("."):
        part = _item(part, name)
    known: Quantity | None = part
    return known


def number(device: Device, field: str) -> float | None:
    """The number of the quantity at ``field``."""
    known = quantity(device, field)
    return None if known is None else float(known.number)


def with_quantity(device: Device, field: str, value: Quantity | None, reference: Device) -> Device:
    """``device`` with ``value`` at ``field``, which may name a whole part to leave out; a part it lacks is made like the reference's."""
    made: Device = _with(device, field.split("."), value, reference)
    return made


def changed(device: Device, change: Callable[[str, Quantity], Quantity]) -> Device:
    """``device`` with each quantity as ``change`` makes it of its field and itself."""
    made: Device = _changed(device, "", change)
    return made


def faster(device: Device, factors: Mapping[str, float]) -> Device:
    """``device`` with resources so many times as fast, by name; operations per clock are those of the new rates and clocks."""
    clock = factors.get(CLOCKS, 1.0)

    def change(field: str, known: Quantity) -> Quantity:
        resource = scale_of(field).resource
        factor = factors.get(resource, 1.0)
        per_clk: Any = known.per_clk and known.per_clk * (factor / clock)
        return replace(known, number=known.number / factor if resource == LAUNCHES else known.number * factor, per_clk=per_clk)

    return changed(device, change)


def scaled(value: float, device: Device, reference: Device, *names: str) -> float:
    """``value`` of ``reference`` in the ratio of the numbers of ``device`` at these fields to its own; what either lacks is alike."""
    pairs = [(number(device, field), number(reference, field)) for field in names]
    known = [(own, its) for own, its in pairs if own is not None and its is not None]
    return value * prod(own for own, _ in known) / prod(its for _, its in known)


def ratio(device: Device, reference: Device, *names: str) -> float:
    """Product of the ratios of the numbers at these fields to those of ``reference``."""
    return prod(scaled(1.0, device, reference, field) for field in names)


def _item(part: Any, name: str) -> Any:
    if isinstance(part, list):
        return next((level for level in part if level.level == name), None)
    return part.get(name) if isinstance(part, dict) else getattr(part, name, None)


def _with(part: Any, names: list[str], value: Quantity | None, like: Any) -> Any:
    if not names:
        return value
    item = _with(_item(part, names[0]), names[1:], value, _item(like, names[0]))
    if isinstance(like, list):
        levels = {level.level: level for level in part} | {names[0]: item}
        return [levels[name] for name in LEVELS if name in levels]
    if isinstance(like, dict):
        return {name: one for name, one in {**part, names[0]: item}.items() if one is not None}
    empty = {one.name: None for one in fields(like) if part is None and isinstance(getattr(like, one.name), Quantity)}
    return replace(like if part is None else part, **{**empty, names[0]: item})


PARTS = ("memory", "peaks", "multiprocessors", "matrix_edge", "clocks", "limits", "interconnect", "launch_overhead", "tdp")
"""Fields of a device that hold quantities."""


def _changed(part: Any, field: str, change: Callable[[str, Quantity], Quantity]) -> Any:
    if isinstance(part, Quantity):
        return change(field, part)
    if isinstance(part, list):
        return [_changed(level, f"{field}.{level.level}", change) for level in part]
    if isinstance(part, dict):
        return {name: _changed(one, f"{field}.{name}", change) for name, one in part.items()}
    if not is_dataclass(part) or isinstance(part, type):
        return part
    names = PARTS if isinstance(part, Device) else [one.name for one in fields(part)]
    return replace(part, **{name: _changed(getattr(part, name), f"{field}.{name}".lstrip("."), change) for name in names})
