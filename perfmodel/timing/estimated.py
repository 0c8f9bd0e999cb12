"""What the profile of a device lacks, estimated from its kin: for borrowed predictions alone; no count, bound or roof sees it.

Estimates are scaled as hardware is: a peak is multiprocessors x operations per clock x clock, of which the kin has the second; what a
multiprocessor does per clock is the kin's; a launch takes the kin's clocks; the rest is the kin's own value. What an estimate moves is
known from profiles that have the number: the prediction with it hidden and estimated, over that with the number known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import hypot
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device, LaunchOverhead, MemoryLevel
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.units import Quantity, format_si

KIN = "kin"
"""Key of the source of an estimate."""
Path = tuple[str, ...]
Value = float | None


def quantity(device: Device, path: Path) -> Quantity | None:
    """The quantity at ``path`` in the profile, memory by the name of its level; None where there is none."""
    found: Any = device
    for name in path:
        if isinstance(found, list):
            found = next((level for level in found if level.level == name), None)
        else:
            found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
    known: Quantity | None = found
    return known


def number(device: Device, *path: str) -> Value:
    """The number of the quantity at ``path``."""
    found = quantity(device, path)
    return None if found is None else float(found.number)


def _put(device: Device, kin: Device, path: Path, value: Quantity | None) -> Device:
    """``device`` with ``value`` at ``path``."""
    if path[0] == "memory":
        levels: dict[str, Any] = {level.level: level for level in device.memory}
        like = next(level for level in kin.memory if level.level == path[1])
        levels[path[1]] = replace(levels.get(path[1]) or MemoryLevel(like.level, like.scope, like.name), **{path[2]: value})
        return replace(device, memory=[levels[name] for name in ("sram", "l2", "llc", "dram") if name in levels])
    if path == ("multiprocessors",):
        return replace(device, multiprocessors=value)
    part: Any = getattr(device, path[0])
    if path[0] == "launch_overhead":
        return device if value is None else replace(device, launch_overhead=LaunchOverhead(value))
    if len(path) == 3:
        return replace(device, peaks=replace(part, **{path[1]: {**getattr(part, path[1]), path[2]: value}}))
    changed: dict[str, Any] = {path[0]: replace(part, **{path[1]: value})}
    return replace(device, **changed)


# Each from the device as far as it is known by then, and its kin

ALIKE = 2.0  # tuned
"""How far clocks of kin may be apart: a peak that says more comes of another rate per clock than the kin's."""
_CLOCKS = {"tensor": ("clocks", "tensor"), "vector": ("clocks", "vector")}


def _per_clock(device: Device, kin: Device, unit: str) -> tuple[float, float] | None:
    """A peak of ``device``, and the operations per multiprocessor and clock behind it; the kin's where its own are not known."""
    peaks = {name: peak for name, peak in device.peaks_of(unit).items() if name != "fp64"}
    for rates in (peaks, kin.peaks_of(unit)):
        for name, peak in peaks.items():
            if name in rates and rates[name].per_clk is not None:
                return peak.number, float(rates[name].per_clk or 0)
    return None


def _clock(device: Device, kin: Device, unit: str) -> Value:
    """The clock behind a peak, if it is like the kin's; else the device's other clock in the proportion of the kin's; else the kin's."""
    known, sms, wanted = _per_clock(device, kin, unit), number(device, "multiprocessors"), number(kin, *_CLOCKS[unit])
    behind = known[0] / (known[1] * sms) if known and sms else None
    if behind is not None and (wanted is None or wanted / ALIKE <= behind <= wanted * ALIKE):
        return behind
    other = _CLOCKS["vector" if unit == "tensor" else "tensor"]
    own, its = number(device, *other), number(kin, *other)
    return wanted if wanted is None or own is None or its is None else wanted * own / its


def _multiprocessors(device: Device, kin: Device) -> Value:
    """As many as its peak needs at its clock, or at the kin's; else the kin's. Vector units change less from one to the next."""
    for unit, path in reversed(_CLOCKS.items()):
        known, clock = _per_clock(device, kin, unit), number(device, *path) or number(kin, *path)
        if known and clock:
            return max(1.0, round(known[0] / (known[1] * clock)))
    return number(kin, "multiprocessors")


def _cycles(device: Device, clock: str) -> Value:
    """Clocks of all multiprocessors in a second."""
    sms, rate = number(device, "multiprocessors"), number(device, "clocks", clock)
    return None if sms is None or rate is None else sms * rate


def _with_cycles(path: Path, clock: str = "vector") -> Callable[[Device, Device], Value]:
    """The kin's rate at ``path``, for each clock of a multiprocessor."""

    def rate_of(device: Device, kin: Device) -> Value:
        rate, own, its = number(kin, *path), _cycles(device, clock), _cycles(kin, clock)
        return None if rate is None or own is None or its is None else rate * own / its

    return rate_of


def _same(path: Path) -> Callable[[Device, Device], Value]:
    """The kin's own value."""
    return lambda device, kin: number(kin, *path)


def _highest(device: Device, kin: Device) -> Value:
    """The vector clock, as far beyond it as the kin's highest is."""
    own, its, most = (number(*at) for at in ((device, "clocks", "vector"), (kin, "clocks", "vector"), (kin, "clocks", "max")))
    return most if most is None or own is None or its is None else most * own / its


def _launch(device: Device, kin: Device) -> Value:
    """As many clocks as the kin's."""
    its, slow, fast = number(kin, "launch_overhead", "stream"), number(kin, "clocks", "max"), number(device, "clocks", "max")
    return its if its is None or slow is None or fast is None else its * slow / fast


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that a profile may lack, called as ``SPREADS`` call it."""

    name: str
    path: Path
    unit: str
    estimate: Callable[[Device, Device], Value]


def _limit(name: str) -> Fact:
    path = ("limits", name)
    return Fact("limits of a multiprocessor", path, "", _same(path))


def _of_level(name: str, level: str, part: str) -> Fact:
    path = ("memory", level, part)
    rate = part.endswith("bandwidth")
    return Fact(name, path, "B/s" if rate else "B", _with_cycles(path) if rate else _same(path))


SPREADS = {  # tuned
    **{"multiprocessors": 0.2, "clock": 0.06, "vector rate": 0.2, "exp rate": 0.04, "L2 capacity": 0.22, "L2 bandwidth": 0.3},
    **{"SRAM": 0.07, "limits of a multiprocessor": 0.22, "launch overhead": 0.02},
}
"""What an estimate moves, in logarithms of time: a number hidden and estimated from the nearest other architecture against the number
known, on records that fits may see; of each device the 90 % quantile of what it moves at all, in the mean of devices
(``tests/hidden_facts.py``)."""
LIMITS = ("max_threads_per_multiprocessor", "max_blocks_per_multiprocessor", "max_threads_per_block", "registers_per_multiprocessor")
FACTS = (
    Fact("multiprocessors", ("multiprocessors",), "", _multiprocessors),
    Fact("clock", ("clocks", "tensor"), "Hz", lambda device, kin: _clock(device, kin, "tensor")),
    Fact("clock", ("clocks", "vector"), "Hz", lambda device, kin: _clock(device, kin, "vector")),
    Fact("clock", ("clocks", "max"), "Hz", _highest),
    Fact("vector rate", ("peaks", "vector", "fp32"), "FLOP/s", _with_cycles(("peaks", "vector", "fp32"))),
    Fact("exp rate", ("peaks", "exp"), "OP/s", _with_cycles(("peaks", "exp"))),
    _of_level("L2 capacity", "l2", "capacity"),
    _of_level("L2 bandwidth", "l2", "measured_bandwidth"),
    *(_of_level("SRAM", "sram", part) for part in ("capacity", "per_block", "bandwidth")),
    *map(_limit, (*LIMITS, "max_registers_per_thread", "warp_size")),
    Fact("launch overhead", ("launch_overhead", "stream"), "s", _launch),
)
"""In the order in which they are estimated: later ones use earlier ones."""


def completed(device: Device, kin: Device) -> tuple[Device, list[Fact]]:
    """``device`` with estimates from ``kin`` of what its profile lacks, quantities whose source names the kin; and what they are of."""
    whole, found = device, []
    for fact in FACTS:
        value = fact.estimate(whole, kin) if number(whole, *fact.path) is None else None
        if value is not None:
            whole = _put(whole, kin, fact.path, _estimate(value, fact.unit))
            found.append(fact)
    return (replace(whole, sources={**device.sources, KIN: f"estimated from {kin.id}"}) if found else device), found


def _estimate(value: float, unit: str) -> Quantity:
    if unit in ("", "B"):
        return Quantity(f"{round(value)} B" if unit else round(value), "estimated", KIN, round(value))
    return Quantity(format_si(value, unit, 4), "estimated", KIN, value)


def needed(device: Device, kin: Device, seconds: Callable[[Device], float]) -> tuple[Device, list[Fact]]:
    """``device`` with the estimates that ``seconds`` of it depend on, and what they are of; unchanged if it depends on none.

    UnavailableError if no estimate helps.
    """
    facts = _kept(device, kin).facts
    with_all = _tried(seconds, _kept(device, kin).device(facts)) if facts else None
    if with_all is None or with_all == _tried(seconds, device):
        return device, []
    for fact in facts:
        rest = [one for one in facts if one is not fact]
        if _tried(seconds, _kept(device, kin).device(rest)) == with_all:
            facts = rest
    return _kept(device, kin).device(facts), facts


def _tried(seconds: Callable[[Device], float], device: Device) -> Value:
    try:
        return seconds(device)
    except UnavailableError:
        return None


class _Completed:
    """A device and its kin: the same profile for the same estimates, as time models keep what they know of a device by its identity."""

    def __init__(self, device: Device, kin: Device) -> None:
        self.own, self.kin = device, kin
        self.whole, self.facts = completed(device, kin)
        self.known: dict[Path, Device] = {}

    def device(self, facts: Iterable[Fact]) -> Device:
        """The device with the estimates of ``facts`` alone."""
        paths = [fact.path for fact in facts]
        key = tuple(".".join(path) for path in paths)
        if key not in self.known:
            made = replace(self.own, sources=self.whole.sources)
            for path in paths:
                made = _put(made, self.kin, path, quantity(self.whole, path))
            self.known[key] = made
        return self.known[key]


_kept = cached_by_identity(_Completed)


def in_words(facts: Iterable[Fact], kin: Device) -> str:
    """What is estimated, and from what."""
    return f"{', '.join(dict.fromkeys(fact.name for fact in facts))} estimated from {kin.id}"


def moved(facts: Iterable[Fact]) -> float:
    """How much estimates move a time, in logarithms: each name once, as errors that have nothing to do with each other."""
    return hypot(*(SPREADS[name] for name in {fact.name for fact in facts}))
