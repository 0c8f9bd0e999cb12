"""What a report says first, the same for every command: whether it fits, time and rate, what limits it, a meter per resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_si, format_time
from perfmodel.report.against import Side, against, ends, ratio, spent, way
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Meter
from perfmodel.report.metrics import Metric

RESOURCES = {
    "tensor": ("tensor unit", "FLOP/s"),
    "vector": ("vector unit", "FLOP/s"),
    "sfu": ("exponential unit", "/s"),
    "sram": ("shared memory bandwidth", "B/s"),
    "l2": ("L2 bandwidth", "B/s"),
    "llc": ("LLC bandwidth", "B/s"),
    "dram": ("DRAM bandwidth", "B/s"),
    "interconnect": ("interconnect", "B/s"),
}
"""Names and units of what a roof counts, from the units outwards."""


def meters(terms: Mapping[str, Number], amounts: Mapping[str, Number], seconds: float) -> list[Meter]:
    """A meter per resource that is used, of ``seconds``; the fullest one limits.

    ``terms``: seconds that each resource takes at its roof. ``amounts``: FLOP, operations or bytes by resource, where they are known;
    with them the rate that ``seconds`` means stands beside the peak.
    """
    used = {name: float(terms[name]) for name in RESOURCES if terms.get(name)}
    most = max(used, key=lambda name: used[name], default=None)
    return [Meter(RESOURCES[name][0], term / seconds, _rate(name, amounts, term, seconds), name == most) for name, term in used.items()]


def _rate(name: str, amounts: Mapping[str, Number], term: float, seconds: float) -> str:
    amount, unit = float(amounts.get(name) or 0), RESOURCES[name][1]
    return f"{format_si(amount / seconds, unit, 3)} of {format_si(amount / term, unit, 3)}" if amount else ""


def meters_of(cost: Estimate, known: Interval | None) -> list[Meter]:
    """Meters of one kernel or of several in turn: of its predicted time, of its roof where none is predicted."""
    amounts = {"tensor": cost.work.tensor, "vector": cost.work.vector, "sfu": cost.work.sfu, "l2": cost.sram.total, "dram": cost.dram.total}
    return meters(cost.terms, amounts, metered_s(cost, known))


def metered_s(cost: Estimate, known: Interval | None) -> float:
    """Seconds that the meters are of."""
    return float(cost.roofline_s if known is None else known.value)


def metered(known: Interval | None) -> str:
    """What the meters are a share of, in words."""
    return "roof" if known is None else "predicted time"


def fit(needed: Number, device: Device) -> str:
    """Whether ``needed`` bytes fit the device, as the start of a sentence; empty where its profile has no capacity.

    >>> from perfmodel.catalog import find_device
    >>> fit(10**9, find_device("h200")), fit(10**12, find_device("h200"))
    ('fits: 1 GB of 150.1 GB', 'does not fit: 1 TB, of 150.1 GB')
    """
    fits, capacity = device.fits(int(needed)), device.dram.capacity
    if fits is None or capacity is None:
        return ""
    size = capacity.number
    return f"{'fits' if fits else 'does not fit'}: {format_si(needed, 'B')}{' of' if fits else ', of'} {format_si(size, 'B')}"


def limits(meters: Iterable[Meter]) -> str:
    """What limits, in words: the fullest meter, and that none is full where the most is under a half.

    >>> limits([Meter("tensor unit", 0.8, limits=True)]), limits([Meter("DRAM bandwidth", 0.1, limits=True)])
    ('the tensor unit (80%)', 'no unit or bandwidth (at most DRAM bandwidth, 10%): latency and launches')
    """
    fullest = next((meter for meter in meters if meter.limits), None)
    if fullest is None:
        return ""
    if fullest.share < 0.5:
        return f"no unit or bandwidth (at most {fullest.name}, {percent(float(fullest.share))}): latency and launches"
    return f"{'the ' * ('unit' in fullest.name)}{fullest.name} ({percent(float(fullest.share))})"


def rate_of(name: str, cost: Estimate, known: Interval | None, device: Device, dtype: Dtype) -> str:
    """Time of one kernel or of several in turn with its interval, its rate and share of the peak, without a full stop.

    The rate is of matmul FLOP on visible scores, or of bytes over DRAM where there are none; a time that nobody predicts is the roof.
    """
    time = metered_s(cost, known)
    start = f"{name}: {spent(known)}" if known else f"{name}: not predicted, {format_time(time)} at its roof"
    if not time:
        return start
    if not cost.flops:
        rate, bandwidth = float(cost.dram.total) / time, device.dram.bandwidth
        return f"{start}, {format_si(rate, 'B/s', 3)}" + (f", {percent(rate / bandwidth.number)} of DRAM bandwidth" if bandwidth else "")
    rate = float(cost.flops) / time
    unit = device.matmul_unit(dtype.name, dtype.matmul_unit)
    peak = device.matmul_peak(dtype.name, unit).number
    return f"{start}, {format_si(rate, 'FLOP/s', 3)}, {percent(rate / peak)} of the {unit} peak"


def rates(cost: Estimate, known: Interval | None, device: Device, dtype: Dtype) -> list[Metric]:
    """Rows of a predicted time: its rate in matmul FLOP/s and what share of the peak that is."""
    rate = float(cost.flops) / known.value if known and cost.flops else None
    peak = device.matmul_peak(dtype.name, dtype.matmul_unit).number if rate else None
    return [Metric("rate", rate, "rate, predicted", "FLOP/s"), Metric("of_peak", rate and peak and rate / peak, "  of the peak", "share")]


def compared(reference: Side, other: Side) -> str:
    """Which of two is faster, without a full stop and without the reasons, which ``against`` adds.

    >>> compared(Side("standard", 1e-3, Interval(2e-3, 1.8e-3, 2.2e-3)), Side("flash2", 5e-4, Interval(1e-3, 0.9e-3, 1.1e-3)))
    'flash2 is predicted 2x faster than standard (1.74x to 2.31x): 1 ms against 2 ms'
    """
    if reference.time is None or other.time is None:
        return against(reference, other)
    known = ratio(reference.time, other.time)
    kind = other.kind if other.kind == reference.kind else f"{other.kind}, against {reference.kind},"
    both = f"{format_time(other.time.value)} against {format_time(reference.time.value)}"
    return f"{other.name} is {kind} {way(known.value, reference.name)}{ends(known)}: {both}"
