"""A profile for a card that is not shipped, made of the values that a user gives and of a reference device, the nearest shipped one.

Rates go with the clock and the multiprocessors given, or with a peak that is given. What was measured on the reference is taken where it
does not depend on a value that differs; calibrations are transferred where times are predicted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfmodel.core.device_scaling import CYCLES, REFERENCE, TENSOR, changed, quantity, ratio, scale_of, with_quantity
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.sanity import CLOCK_TOLERANCE, check
from perfmodel.core.units import Quantity, format_si, parse, parse_any

USER = "user"
FIELDS = {
    "dram_bandwidth": "memory.dram.bandwidth",
    "dram_capacity": "memory.dram.capacity",
    "l2": "memory.l2.capacity",
    "sms": "multiprocessors",
    "clock": "clocks.vector",
    **{name: f"peaks.tensor.{name}" for name in ("fp16", "bf16", "fp8", "tf32", "fp4")},
    "int8": "peaks.tensor_int.int8",
    "fp32": "peaks.vector.fp32",
    "tdp": "tdp",
}
"""Field of the profile that each option sets."""
ROUNDED = 0.005  # known
"""Relative difference up to which a value counts as equal to the reference's: data sheets give three digits."""
CLOCK, DRAM, L2 = ("clocks.vector",), ("memory.dram.bandwidth",), ("multiprocessors", "clocks.vector", "memory.l2.capacity")
CHIP = ("multiprocessors", "clocks.vector", "peaks", "tdp")
MEASURED = {
    "launch_overhead": CLOCK,
    "clocks.base": CLOCK,
    **{f"memory.{level}.measured_bandwidth": L2 for level in ("sram", "l2", "llc")},
    "memory.dram.measured_bandwidth": DRAM,
    "memory.dram.max_bandwidth": DRAM,
}
"""Prefixes of the fields on which a measured quantity depends: if one differs from the reference, the measurement is left out."""
PROBES = {"launch": CLOCK, "DRAM": DRAM, "L2": L2}
"""The same for microbenchmarks by the prefix of their name; all others depend on ``CHIP``."""
MOST_TIMES = 10
"""Largest ratio of a value to the reference's: beyond it, the prefix or the reference is wrong."""
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def device_like(reference: Device, name: str, given: Mapping[str, Any]) -> Device:
    """A checked device called ``name``: ``given`` holds values by option (see ``FIELDS``), everything else comes from ``reference``.

    UsageError for a value without meaning or far from that of ``reference``, DataError for values that contradict each other.
    """
    if not _ID.fullmatch(name):
        raise UsageError(f"NAME is {name!r:.40}", "give small letters, digits and hyphens, such as my-card")
    values = {FIELDS[option]: _quantity(option, value, reference) for option, value in given.items()}
    card = reference
    for field, value in values.items():
        card = with_quantity(card, field, value, reference)
    different = tuple(field for field in values if quantity(reference, field) is None or abs(ratio(card, reference, field) - 1) > ROUNDED)

    def differs(parts: tuple[str, ...]) -> bool:
        return any(field.startswith(parts) for field in different)

    for field, parts in MEASURED.items():
        if differs(parts) and quantity(card, field) is not None:
            card = with_quantity(card, field, None, reference)
    probes = [
        replace(probe, source=REFERENCE)
        for probe in reference.microbenchmarks
        if not differs(next((fields for prefix, fields in PROBES.items() if probe.name.startswith(prefix)), CHIP))
    ]
    power = None if reference.power is None or differs((*CHIP, *DRAM)) else replace(reference.power, source=REFERENCE)
    device = replace(
        changed(card, _Derivation(card, reference, tuple(values)).quantity),
        id=name,
        name=f"{name}, like {reference.name}",
        sources={USER: "given to perfmodel hardware add", REFERENCE: f"taken from the profile of {reference.id}, {reference.name}"},
        notes=[f"What is not given is that of {reference.id}; its rates go with the clock, multiprocessors or peak given."],
        power=power,
        microbenchmarks=probes,
        calibration=[],
    )
    problems = check(device)
    if problems:
        problem = "\n  ".join([f"{name}: {len(problems)} value(s) contradict each other", *problems])
        raise DataError(problem, "nothing was written; give --sms and --clock of the card, and dense peaks")
    return device


def _quantity(option: str, value: Any, reference: Device) -> Quantity:
    """The quantity that an option states; UsageError if it is unreadable, far from the reference's, or of a memory that has none."""
    label, field = f"--{option.replace('_', '-')}", FIELDS[option]
    text = value if isinstance(value, int) else value.strip()
    try:
        stated = Quantity(text, "datasheet", USER, text if isinstance(text, int) else parse(text, scale_of(field).unit))
    except DataError as error:
        raise UsageError(f"{label}: {error.message}", error.fix) from None
    if stated.number <= 0:
        fix = "give a whole number from 1" if isinstance(value, int) else "give more than zero, or leave it out"
        raise UsageError(f"{label} is {value}", fix)
    reference_value = quantity(reference, field)
    if reference_value is not None and not 1 / MOST_TIMES <= stated.number / reference_value.number <= MOST_TIMES:
        problem = f"{label} is {value}, {stated.number / reference_value.number:.3g} x the {reference_value.value} of {reference.id}"
        raise UsageError(problem, "mend its prefix, or name a nearer --like")
    if field.startswith("memory.") and reference.level(field.split(".")[1]) is None:
        raise UsageError(f"{label}: {reference.id} has no such memory", "leave it out, or name a nearer --like")
    return stated


@dataclass(frozen=True)
class _Derivation:
    """Derives the quantities of ``card`` from ``reference``, except in the fields ``given`` by the user."""

    card: Device
    reference: Device
    given: tuple[str, ...]

    @property
    def cycles_given(self) -> bool:
        """Whether clock or multiprocessors are given: then peaks scale with these, otherwise with a peak that is given."""
        return not set(CYCLES).isdisjoint(self.given)

    def quantity(self, field: str, value: Quantity) -> Quantity:
        """``value`` scaled to the card, with the reference's operations per clock where they still explain it."""
        if field in self.given:
            reference_value = quantity(self.reference, field)
            explained = self.cycles_given or abs(ratio(self.card, self.reference, field) - 1) <= CLOCK_TOLERANCE
            return replace(value, per_clk=reference_value.per_clk if reference_value is not None and explained else None)
        factor = self._factor(field)
        if factor == 1:
            return Quantity(value.value, "derived", REFERENCE, value.number, per_clk=value.per_clk)
        text = format_si(value.number * factor, scale_of(field).unit, 6)
        per_clk = value.per_clk if self.cycles_given else None
        return Quantity(text, "derived", REFERENCE, parse_any(text), f"{value.value} x {factor:.4g}", per_clk)

    def _factor(self, field: str) -> float:
        """Factor on the reference's value. A GPU that boosts beyond its advertised clock keeps at least the reference's highest clock."""
        scale = scale_of(field)
        if field.startswith(tuple(MEASURED)):
            return 1.0
        if scale.goes_with == CYCLES and not self.cycles_given:
            return self._peak_ratio(scale.resource)
        factor = ratio(self.card, self.reference, *scale.goes_with)
        highest, advertised = quantity(self.reference, field), quantity(self.reference, "clocks.vector")
        boosts = field == "clocks.max" and highest and advertised and highest.number > advertised.number
        return max(1.0, factor) if boosts else factor

    def _peak_ratio(self, resource: str) -> float:
        """Ratio to the reference in the first given tensor peak that it has, for the tensor unit; else in the fp32 peak; 1 without one."""
        peaks: tuple[str, ...] = ("peaks.vector.fp32",)
        if resource == TENSOR:
            peaks = tuple(peak for peak in self.given if scale_of(peak).resource == TENSOR)
        for peak in peaks:
            if quantity(self.reference, peak):
                return ratio(self.card, self.reference, peak)
        return 1.0
