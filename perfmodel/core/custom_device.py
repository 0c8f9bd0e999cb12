"""A profile of a card that is not shipped: what its user gives, the rest from a reference device, the shipped one nearest to it.

Rates go with the clock and the multiprocessors given, or with a peak that is given. What was measured on the reference is taken where it
does not depend on a value that differs; calibrations are transferred where times are predicted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.core.device_scaling import CYCLES, REFERENCE, TENSOR, changed, quantity, ratio, scale_of, with_quantity
from perfmodel.core.errors import DataError, UsageError
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
"""The field of a profile that each option gives."""
ROUNDED = 0.005  # known
"""By which a value given may differ from the reference's and be the same: data sheets give three digits."""
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
"""How far from its reference a value may be: what is farther has a wrong prefix, or another reference."""
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def device_like(reference: Device, name: str, given: Mapping[str, Any]) -> Device:
    """The device called ``name`` with the values ``given`` by option, as ``FIELDS`` has them, and the others of ``reference``; checked.

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
    probes = []
    for probe in reference.microbenchmarks:
        if not differs(next(PROBES[first] for first in PROBES if probe.name.startswith(first))):
            probes.append(replace(probe, source=REFERENCE))
    power = None if reference.power is None or differs((*CHIP, *DRAM)) else replace(reference.power, source=REFERENCE)
    device = replace(
        changed(card, _Values(card, reference, tuple(values)).of),
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
    """The quantity that an option gives; UsageError if it is none, far from that of ``reference``, or of a memory that has none."""
    label, field = f"--{option.replace('_', '-')}", FIELDS[option]
    text = value if isinstance(value, int) else value.strip()
    try:
        stated = Quantity(text, "datasheet", USER, text if isinstance(text, int) else parse(text, scale_of(field).unit))
    except DataError as error:
        raise UsageError(f"{label}: {error.message}", error.fix) from None
    if stated.number <= 0:
        fix = "give a whole number from 1" if isinstance(value, int) else "give more than zero, or leave it out"
        raise UsageError(f"{label} is {value}", fix)
    its = quantity(reference, field)
    if its is not None and not 1 / MOST_TIMES <= stated.number / its.number <= MOST_TIMES:
        problem = f"{label} is {value}, {stated.number / its.number:.3g} x the {its.value} of {reference.id}"
        raise UsageError(problem, "mend its prefix, or name a nearer --like")
    if field.startswith("memory.") and quantity(reference, field.rpartition(".")[0]) is None:
        raise UsageError(f"{label}: {reference.id} has no such memory", "leave it out, or name a nearer --like")
    return stated


@dataclass(frozen=True)
class _Values:
    """Quantities of ``card``, which has the values of the fields ``given`` and all others as ``reference`` has them."""

    card: Device
    reference: Device
    given: tuple[str, ...]

    @property
    def counted(self) -> bool:
        """Whether the clock or the multiprocessors are given, with which peaks go before they go with each other."""
        return not set(CYCLES).isdisjoint(self.given)

    def of(self, field: str, value: Quantity) -> Quantity:
        """``value``, with the reference's rate per clock where that makes it, or clock and multiprocessors are said to."""
        if field in self.given:
            its = quantity(self.reference, field)
            near = self.counted or abs(ratio(self.card, self.reference, field) - 1) <= CLOCK_TOLERANCE
            return replace(value, per_clk=its.per_clk if its is not None and near else None)
        factor = self._factor(field)
        if factor == 1:
            return Quantity(value.value, "derived", REFERENCE, value.number, per_clk=value.per_clk)
        text = format_si(value.number * factor, scale_of(field).unit, 6)
        per_clk = value.per_clk if self.counted else None
        return Quantity(text, "derived", REFERENCE, parse_any(text), f"{value.value} x {factor:.4g}", per_clk)

    def _factor(self, field: str) -> float:
        """Factor on the reference's value: GPUs that boost beyond the clock they advertise keep that of the reference."""
        scale = scale_of(field)
        if field.startswith(tuple(MEASURED)):
            return 1.0
        if scale.goes_with == CYCLES and not self.counted:
            peaks = [one for one in self.given if scale_of(one).resource == TENSOR] if scale.resource == TENSOR else ["peaks.vector.fp32"]
            return ratio(self.card, self.reference, *[one for one in peaks if quantity(self.reference, one)][:1])
        factor = ratio(self.card, self.reference, *scale.goes_with)
        most, advertised = quantity(self.reference, field), quantity(self.reference, "clocks.vector")
        boosts = field == "clocks.max" and most and advertised and most.number > advertised.number
        return max(1.0, factor) if boosts else factor
