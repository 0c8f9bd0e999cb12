"""What the profile of a device lacks, estimated from a reference device: for transferred calibrations alone; no count, bound or roof
sees it.

Estimates are scaled as hardware is: a peak is multiprocessors x operations per clock x clock, of which the reference has the second; all
else goes with what ``core/device_scaling.py`` says, and limits and capacities are the reference's own. What an estimate moves is known
from profiles that have the number: the prediction with it hidden and estimated, over that with the number known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from math import hypot

from perfmodel.core.device_scaling import CYCLES, LAUNCHES, REFERENCE, number, quantity, scale_of, scaled, with_quantity
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device, Limits
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.units import Quantity, format_si

ALIKE = 2.0  # tuned
"""How far clocks may be apart from the reference's: a peak that says more comes of another rate per clock than the reference's."""
SPREADS = {  # tuned
    **{"multiprocessors": 0.2, "clock": 0.06, "vector rate": 0.2, "exp rate": 0.04, "L2 capacity": 0.22, "L2 bandwidth": 0.3},
    **{"SRAM": 0.07, "limits of a multiprocessor": 0.22, "launch overhead": 0.02},
}
"""What an estimate moves, in logarithms of time: a number hidden and estimated from the nearest other architecture against the number
known, on records that fits may see; of each device the 90 % quantile of what it moves at all, in the mean of devices
(``tests/hidden_facts.py``)."""


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
"""Fields that a profile may lack, called as ``SPREADS`` call them, in the order of their estimates: later ones use earlier ones."""


def completed(device: Device, reference: Device) -> tuple[Device, list[str]]:
    """``device`` with estimates of what its profile lacks, quantities whose source names ``reference``; and their fields."""
    whole, found = device, []
    for field in FACTS:
        value = _estimate(whole, reference, field) if quantity(whole, field) is None else None
        if value is not None:
            whole = with_quantity(whole, field, _estimated(value, scale_of(field).unit), reference)
            found.append(field)
    return (replace(whole, sources={**device.sources, REFERENCE: f"estimated from {reference.id}"}) if found else device), found


def _estimated(value: float, unit: str) -> Quantity:
    if unit in ("", "B"):
        return Quantity(f"{round(value)} B" if unit else round(value), "estimated", REFERENCE, round(value))
    return Quantity(format_si(value, unit, 4), "estimated", REFERENCE, value)


def _estimate(device: Device, reference: Device, field: str) -> float | None:
    """The number of ``device`` at ``field``: the reference's in the ratio of what it goes with; no rate where cycles are unknown."""
    if field == "multiprocessors":
        return _multiprocessors(device, reference)
    if field in _CLOCKS.values():
        return _clock(device, reference, field)
    its, scale = number(reference, field), scale_of(field)
    unknown = scale.goes_with == CYCLES and None in [number(one, part) for one in (device, reference) for part in CYCLES]
    if its is None or unknown:
        return None
    over, under = (reference, device) if scale.resource == LAUNCHES else (device, reference)
    return scaled(its, over, under, *scale.goes_with)


_CLOCKS = {"tensor": "clocks.tensor", "vector": "clocks.vector"}


def _per_clock(device: Device, reference: Device, unit: str) -> tuple[float, float] | None:
    """A peak of ``device``, and the operations per multiprocessor and clock behind it; the reference's where its own are not known."""
    peaks = {name: peak for name, peak in device.peaks_of(unit).items() if name != "fp64"}
    for rates in (peaks, reference.peaks_of(unit)):
        for name, peak in peaks.items():
            per_clk = rates[name].per_clk if name in rates else None
            if per_clk is not None:
                return peak.number, float(per_clk)
    return None


def _clock(device: Device, reference: Device, field: str) -> float | None:
    """The clock behind a peak, if it is like the reference's; else the device's other clock in the proportion of the reference's."""
    unit, other = ("tensor", "clocks.vector") if field == "clocks.tensor" else ("vector", "clocks.tensor")
    known, sms, its = _per_clock(device, reference, unit), number(device, "multiprocessors"), number(reference, field)
    behind = known[0] / (known[1] * sms) if known and sms else None
    if behind is not None and (its is None or its / ALIKE <= behind <= its * ALIKE):
        return behind
    return None if its is None else scaled(its, device, reference, other)


def _multiprocessors(device: Device, reference: Device) -> float | None:
    """As many as a peak needs at its clock, or at the reference's; else the reference's. Vector units change less between devices."""
    for unit, field in reversed(_CLOCKS.items()):
        known, clock = _per_clock(device, reference, unit), number(device, field) or number(reference, field)
        if known and clock:
            return max(1.0, round(known[0] / (known[1] * clock)))
    return number(reference, "multiprocessors")


def needed(device: Device, reference: Device, seconds: Callable[[Device], float]) -> tuple[Device, list[str]]:
    """``device`` with the estimates that ``seconds`` of it depend on, and their fields; unchanged if it depends on none.

    UnavailableError if no estimate helps.
    """
    known = _kept(device, reference)
    facts = known.facts
    with_all = _tried(seconds, known.device(facts)) if facts else None
    if with_all is None or with_all == _tried(seconds, device):
        return device, []
    for field in facts:
        rest = [one for one in facts if one != field]
        if _tried(seconds, known.device(rest)) == with_all:
            facts = rest
    return known.device(facts), facts


def _tried(seconds: Callable[[Device], float], device: Device) -> float | None:
    try:
        return seconds(device)
    except UnavailableError:
        return None


class _Completed:
    """A device and its reference: one profile for the same estimates, as time models keep what they know of a device by its identity."""

    def __init__(self, device: Device, reference: Device) -> None:
        self.own, self.reference = device, reference
        self.whole, self.facts = completed(device, reference)
        self.known: dict[tuple[str, ...], Device] = {}

    def device(self, facts: Iterable[str]) -> Device:
        """The device with the estimates of these fields alone."""
        key = tuple(facts)
        if key not in self.known:
            made = replace(self.own, sources=self.whole.sources)
            for field in key:
                made = with_quantity(made, field, quantity(self.whole, field), self.reference)
            self.known[key] = made
        return self.known[key]


_kept = cached_by_identity(_Completed)


def in_words(facts: Iterable[str], reference: Device) -> str:
    """What is estimated, and from what."""
    return f"{', '.join(dict.fromkeys(FACTS[field] for field in facts))} estimated from {reference.id}"


def moved(facts: Iterable[str]) -> float:
    """How much estimates move a time, in logarithms: each name once, as errors that have nothing to do with each other."""
    return hypot(*(SPREADS[name] for name in {FACTS[field] for field in facts}))
