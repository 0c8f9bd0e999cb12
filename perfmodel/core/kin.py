"""A profile of a card that is not shipped: what its user gives, the rest from its kin, the shipped device nearest to it.

Rates go with the clock and the multiprocessors given, or with a peak that is given. What was measured on the kin is taken where it does
not depend on a value that differs; calibrations are borrowed where times are predicted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.hardware import Device, named_quantities
from perfmodel.core.sanity import CLOCK_TOLERANCE, check, validated
from perfmodel.core.units import Quantity, format_si, parse

USER, KIN = "user", "kin"
FIELDS = {
    "dram_bandwidth": ("memory.dram.bandwidth", "B/s"),
    "dram_capacity": ("memory.dram.capacity", "B"),
    "l2": ("memory.l2.capacity", "B"),
    "sms": ("multiprocessors", ""),
    "clock": ("clocks.vector", "Hz"),
    **{name: (f"peaks.tensor.{name}", "FLOP/s") for name in ("fp16", "bf16", "fp8", "tf32", "fp4")},
    "int8": ("peaks.tensor_int.int8", "OP/s"),
    "fp32": ("peaks.vector.fp32", "FLOP/s"),
    "tdp": ("tdp", "W"),
}
"""Options, the field of a profile that each gives, and its unit."""
ROUNDED = 0.005  # known
"""By which a value given may differ from the kin's and be the same: data sheets give three digits."""
CLOCK, DRAM, L2 = ("clocks.vector",), ("memory.dram.bandwidth",), ("multiprocessors", "clocks.vector", "memory.l2.capacity")
CHIP = ("multiprocessors", "clocks.vector", "peaks", "tdp")
MEASURED = {
    "launch_overhead": CLOCK,
    "clocks.base": CLOCK,
    **{f"memory.{level}.measured_bandwidth": L2 for level in ("sram", "l2", "llc")},
    "memory.dram.measured_bandwidth": DRAM,
    "memory.dram.max_bandwidth": DRAM,
}
"""What a measured quantity, or one that goes with a measured one, depends on: first letters of fields."""
PROBES = {"launch": CLOCK, "DRAM": DRAM, "L2": L2, "": CHIP}
"""The same of microbenchmarks, by the first letters of their names; the last of all others."""
MOST_TIMES = 10
"""How far from its kin a value may be: what is farther has a wrong prefix, or another kin."""
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def device_like(kin: Device, name: str, given: Mapping[str, Any]) -> Device:
    """The device called ``name`` with the values ``given`` by option, as ``FIELDS`` has them, and the others of ``kin``; checked.

    UsageError for a value without meaning or far from that of ``kin``, DataError for values that contradict each other.
    """
    if not _ID.fullmatch(name):
        raise UsageError(f"NAME is {name!r:.40}", "give small letters, digits and hyphens, such as my-card")
    known = dict(named_quantities(kin))
    own = {FIELDS[option][0]: _quantity(option, value) for option, value in given.items()}
    for option in given:
        _check_near(option, own[FIELDS[option][0]], known.get(FIELDS[option][0]), kin)
    scaled = _Scaled(known, own)
    raw = _raw(kin, name, scaled.values())
    probes = [
        probe
        for probe in kin.microbenchmarks
        if not scaled.differs(next(PROBES[first] for first in PROBES if probe.name.startswith(first)))
    ]
    raw["microbenchmarks"] = [{key: value for key, value in vars(probe).items() if value is not None} | {"source": KIN} for probe in probes]
    if kin.power is not None and not scaled.differs((*CHIP, *DRAM)):
        raw["power"] = vars(kin.power) | {"source": KIN}
    return _checked(validated(raw))


def _quantity(option: str, value: Any) -> Quantity:
    if isinstance(value, int):
        if value < 1:
            raise UsageError(f"--{option} is {value}", "give a whole number from 1")
        return Quantity(value, "datasheet", USER, value)
    label = f"--{option.replace('_', '-')}"
    try:
        number = parse(value.strip(), FIELDS[option][1])
    except DataError as error:
        raise UsageError(f"{label}: {error.message}", error.fix) from None
    if number <= 0:
        raise UsageError(f"{label} is {value}", "give more than zero, or leave it out")
    return Quantity(value.strip(), "datasheet", USER, number)


def _check_near(option: str, own: Quantity, its: Quantity | None, kin: Device) -> None:
    if its is None or 1 / MOST_TIMES <= own.number / its.number <= MOST_TIMES:
        return
    found = f"--{option.replace('_', '-')} is {own.value}, {own.number / its.number:.3g} x the {its.value} of {kin.id}"
    raise UsageError(found, "mend its prefix, or name a nearer --like")


class _Scaled:
    """Quantities of the kin (``known``) as they are with those that are given (``own``), by field."""

    def __init__(self, known: Mapping[str, Quantity], own: Mapping[str, Quantity]) -> None:
        self.known, self.own = known, own
        self.clock, count = self._ratio("clocks.vector"), self._ratio("multiprocessors")
        self.counted = "clocks.vector" in own or "multiprocessors" in own
        peaks = [field for field in own if field.startswith("peaks.tensor") and field in known]
        self.tensor = self.clock * count if self.counted or not peaks else self._ratio(peaks[0])
        self.vector = self.clock * count if self.counted else self._ratio("peaks.vector.fp32")

    def values(self) -> dict[str, Quantity]:
        """All quantities of the new device: in the kin's order, then what it has not."""
        taken = {field: self._taken(field, one) for field, one in self.known.items() if field not in self.own and not self._left_out(field)}
        every = {**self.known, **self.own}
        return {field: taken.get(field) or self._given(field) for field in every if field in taken or field in self.own}

    def _ratio(self, field: str) -> float:
        own, its = self.own.get(field), self.known.get(field)
        return 1.0 if own is None or its is None else own.number / its.number

    def _left_out(self, field: str) -> bool:
        """What was measured on the kin and depends on a value that differs."""
        return any(field.startswith(name) and self.differs(parts) for name, parts in MEASURED.items())

    def differs(self, parts: tuple[str, ...]) -> bool:
        """Whether a value given, of a field that begins with one of ``parts``, is another than the kin's."""
        return any(field.startswith(parts) and (field not in self.known or abs(self._ratio(field) - 1) > ROUNDED) for field in self.own)

    def _taken(self, field: str, its: Quantity) -> Quantity:
        factor = self._factor(field)
        if factor == 1:
            return Quantity(its.value, "derived", KIN, its.number, per_clk=its.per_clk)
        number, per_clk = its.number * factor, its.per_clk if self.counted else None
        unit = next(base for base in ("FLOP/s", "OP/s", "B/s", "Hz") if str(its.value).endswith(base))
        return Quantity(format_si(number, unit, 6), "derived", KIN, number, f"{its.value} x {factor:.4g}", per_clk)

    def _factor(self, field: str) -> float:
        """Times the kin's value: GPUs that boost beyond the clock they advertise keep that of the kin."""
        if field.startswith("peaks.tensor"):
            return self.tensor
        if field.startswith("peaks.") or field == "memory.sram.bandwidth":
            return self.vector
        if field == "clocks.max":
            advertised = self.known.get("clocks.vector")
            boosts = advertised is not None and self.known[field].number > advertised.number
            return max(1.0, self.clock) if boosts else self.clock
        return self.clock if field in ("clocks.tensor", "memory.l2.bandwidth", "memory.llc.bandwidth") else 1.0

    def _given(self, field: str) -> Quantity:
        """With the kin's rate per clock where that makes it, or clock and multiprocessors are said to."""
        own, its = self.own[field], self.known.get(field)
        per_clk = its.per_clk if its is not None else None
        factor = self._factor(field) if self.counted else 1.0
        near = its is not None and abs(own.number / (its.number * factor) - 1) <= CLOCK_TOLERANCE
        return Quantity(own.value, own.kind, USER, own.number, per_clk=per_clk if self.counted or near else None)


def _raw(kin: Device, name: str, values: Mapping[str, Quantity]) -> dict[str, Any]:
    """A profile as a file holds it."""
    sources = {USER: "given to perfmodel hardware add", KIN: f"taken from the profile of {kin.id}, {kin.name}"}
    raw: dict[str, Any] = {"schema_version": 1, "id": name, "name": f"{name}, like {kin.name}", "vendor": kin.vendor}
    raw |= {key: value for key in ("architecture", "compute_capability", "chip") if (value := getattr(kin, key)) is not None}
    raw["sources"] = {key: text for key, text in sources.items() if key in {one.source for one in values.values()}}
    levels = {level.level: {"level": level.level, "scope": level.scope, "name": level.name} for level in kin.memory}
    raw |= {"memory": levels, "peaks": {}}
    raw |= {} if kin.interconnect is None else {"interconnect": {"name": kin.interconnect.name}}
    for field, one in values.items():
        *parents, last = field.split(".")
        place = raw
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = {key: item for key in ("value", "kind", "source", "note", "per_clk") if (item := getattr(one, key)) is not None}
    raw["notes"] = [f"What is not given is that of {kin.id}; its rates go with the clock, multiprocessors or peak given."]
    return {**raw, "memory": list(levels.values())}


def _checked(device: Device) -> Device:
    problems = check(device)
    if problems:
        found = "\n  ".join([f"{device.id}: {len(problems)} value(s) contradict each other", *problems])
        raise DataError(found, "nothing was written; give --sms and --clock of the card, and dense peaks")
    return device
