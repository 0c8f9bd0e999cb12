"""The first part of every report: whether the work fits, its time and rate, what limits it, and a meter per resource."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_si, format_time
from perfmodel.report.charts.format_number import between, percent
from perfmodel.report.document import Meter
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.report.saved import Interval
from perfmodel.timing.predict import Prediction

_UNITS = {"tensor": "FLOP/s", "vector": "FLOP/s", "sfu": "exp/s"} | dict.fromkeys(("sram", "l2", "llc", "dram", "interconnect"), "B/s")
RESOURCES = {name: (BOUND_WORDS[name].removeprefix("the "), unit) for name, unit in _UNITS.items()}
"""Name and unit of each resource of a roof, from the compute units outwards."""
ROOFS_EVEN = 0.02
"""Relative difference up to which two roofs are called even."""
FULL, PARTLY = 0.6, 0.25
"""Shares of the time above which a resource limits, and above which it is mentioned."""
STARTING = "starting the kernel"
"""Cause of a time that is mostly a launch."""
LAUNCH_S = 10e-6
"""Seconds below which a roof is taken as mostly launch, if the profile does not state the time of a launch."""
WASTEFUL = 0.75
"""Share of busy multiprocessors, or of filled slots of waves, below which that is mentioned."""


def headline(fits: str, time: str, limit: str) -> list[str]:
    """The first sentences of a report: whether it fits, time with its rate, what limits it. Empty parts are left out.

    >>> headline("fits: 16 GB of 80 GB", "a step takes 3 ms: 340 tokens/s", ""), headline("", "predicted 3 ms", "limited by the host.")
    (['Fits: 16 GB of 80 GB.', 'A step takes 3 ms: 340 tokens/s.'], ['Predicted 3 ms.', 'Limited by the host.'])
    """
    return [sentence(words.removesuffix(".")) for words in (fits, time, limit) if words]


def fit_sentence(
    needed: Number, device: Device, where: str = "", more: str = "", unknown: str = "; the profile of {} has no capacity"
) -> str:
    """Sentence without full stop on whether ``needed`` bytes fit ``device``. ``where``: where they are; ``more``: what else fits.

    ``unknown`` replaces ``more`` if the profile has no capacity.

    >>> from perfmodel.catalog import find_device
    >>> fit_sentence(10**9, find_device("h200"), " per GPU", "; batch 8 would fit")
    'fits: 1 GB of 150.1 GB per GPU; batch 8 would fit'
    """
    fits = fit_phrase(needed, device)
    return f"{fits}{where}{more}" if fits else f"{format_si(needed, 'B')}{where}{unknown.format(device.id)}"


def meters(terms: Mapping[str, Number], amounts: Mapping[str, Number], seconds: float) -> list[Meter]:
    """A meter per resource in use over ``seconds``; the fullest one limits, unless it is far from full.

    ``terms``: seconds of each resource at its roof. ``amounts``: FLOP, operations or bytes by resource, if known; a meter then shows the
    rate beside the peak.
    """
    used = {name: float(terms[name]) for name in RESOURCES if terms.get(name)}
    largest = max(used, key=lambda name: used[name], default=None)
    return [
        Meter(RESOURCES[name][0], term / seconds, _rate(name, amounts, term, seconds), name == largest and term >= PARTLY * seconds)
        for name, term in used.items()
    ]


def _rate(name: str, amounts: Mapping[str, Number], term: float, seconds: float) -> str:
    """Phrase on the rate of the resource ``name`` over ``seconds``, and its peak, at which it takes ``term`` seconds."""
    amount = float(amounts.get(name) or 0)
    if not amount:
        return ""
    unit = RESOURCES[name][1]
    return between(format_si(amount / seconds, unit, 3), format_si(amount / term, unit, 3), "of")


def amounts_of(cost: Estimate) -> dict[str, Number]:
    """FLOP, operations and bytes of ``cost`` by resource."""
    work = cost.work
    return {"tensor": work.tensor, "vector": work.vector, "sfu": work.sfu, "l2": cost.sram.total - cost.multicast, "dram": cost.dram.total}


def fit_phrase(needed: Number, device: Device) -> str:
    """Beginning of a sentence on whether ``needed`` bytes fit the device; empty if its profile has no capacity.

    >>> from perfmodel.catalog import find_device
    >>> fit_phrase(10**9, find_device("h200")), fit_phrase(10**12, find_device("h200"))
    ('fits: 1 GB of 150.1 GB', 'does not fit: needs 1 TB of 150.1 GB')
    """
    fits, capacity = device.fits(int(needed)), device.dram.capacity
    if fits is None or capacity is None:
        return ""
    sizes = f"{format_si(needed, 'B')} of {format_si(capacity.number, 'B')}"
    return f"fits: {sizes}" if fits else f"does not fit: needs {sizes}"


def limit_sentence(meters: Iterable[Meter], causes: Sequence[str] = (), roof: bool = False, unknown: Collection[str] = ()) -> str:
    """Sentence without full stop on what limits: the fullest resource, or ``causes`` if none is full; empty if nothing is known.

    ``causes``: reasons such as too few blocks. ``roof``: shares are of the roof, as no time is predicted. ``unknown``: resources whose rate
    the profile lacks.

    >>> tensor, dram = Meter("tensor unit", 0.44), Meter("DRAM bandwidth", 1.0)
    >>> limit_sentence([tensor, Meter("exponential unit", 0.31)]), limit_sentence([tensor], ["32 blocks for 108 SMs"])
    ('The tensor unit is the ceiling but busy only 44%', 'Too small: 32 blocks for 108 SMs; the tensor unit is 44% busy')
    >>> limit_sentence([Meter("DRAM bandwidth", 0.1)]), limit_sentence([dram], roof=True)
    ('Nothing is over 10% busy', 'Limited by DRAM bandwidth, at the roof')
    """
    cause = ""
    if causes:
        too_small = causes[0][:1].isdigit()  # a number of blocks or launches
        cause = f"{'Too small: ' if too_small else 'Limited by '}{' and '.join(causes)}"
    if roof and cause:
        return f"{cause}, left out of the roof"
    fullest = min(meters, key=lambda meter: (not meter.limits, -meter.share), default=None)
    if fullest is None:
        return cause
    share = percent(float(fullest.share))
    name = fullest.name if f"the {fullest.name}" not in BOUND_WORDS.values() else f"the {fullest.name}"
    if roof:
        return f"Limited by {name}, {'at the roof' if fullest.share > 1 - ROOFS_EVEN else f'{share} of the roof'}"
    if fullest.share >= FULL:
        return f"Limited by {name}, {share} busy"
    if fullest.share >= PARTLY:
        return f"{cause}; {name} is {share} busy" if cause else upper_first(f"{name} is the ceiling but busy only {share}")
    if cause.startswith(f"Limited by {STARTING}"):
        return cause
    resources = "nothing whose rate is known" if unknown else "nothing"
    idle = f"{resources} is over {share.strip('<')} busy"
    return f"{cause}; {idle}" if cause else upper_first(idle)


def few_blocks(blocks: int, device: Device) -> list[str]:
    """List of one cause if ``blocks`` (0: unknown) are too few for all multiprocessors, else empty.

    >>> from perfmodel.catalog import find_device
    >>> few_blocks(32, find_device("h200")), few_blocks(128, find_device("h200")), few_blocks(1, find_device("mi300x"))
    (['32 blocks for 132 SMs'], [], ['1 block for 304 CUs'])
    """
    count = device.multiprocessors
    if count is None or not 0 < blocks < WASTEFUL * count.number:
        return []
    name = {"NVIDIA": "SMs", "AMD": "CUs"}.get(device.vendor, "multiprocessors")
    return [f"{blocks:,} block{'s' * (blocks > 1)} for {count.number:,.0f} {name}"]


def slow_launches(kernels: int, roof_s: float, device: Device) -> list[str]:
    """List of one cause if the launches of ``kernels`` take longer than their roof, else empty."""
    overhead = device.launch_overhead
    launches_s = kernels * float(overhead.stream.number if overhead else LAUNCH_S)
    if launches_s < roof_s:
        return []
    phrase = f"{kernels} launches" if kernels > 1 else "the launch"
    return [f"{phrase} ({format_time(launches_s, 2)})" if overhead else phrase]


def slow_start(prediction: Prediction | None) -> list[str]:
    """List of one cause if a kernel without work would take more than half of the predicted time, else empty."""
    if prediction is None:
        return []
    start_s = 1e-6 * prediction.calibration.parameters.get("launch_us", 0.0)
    if 2 * start_s < prediction.seconds:
        return []
    return [f"{STARTING} ({between(format_time(start_s, 2), format_time(prediction.seconds, 3), 'of')})"]


def time_text(interval: Interval) -> str:
    """A time to three digits with its interval.

    >>> time_text(Interval(7.907e-5, 7.2e-5, 8.43e-5)), time_text(Interval(1e-3))
    ('79.1 us (72 to 84.3 us)', '1 ms')
    """
    time = format_time(interval.value, 3)
    if interval.low is None or interval.high is None:
        return time
    return f"{time} ({between(format_time(interval.low, 3), format_time(interval.high, 3))})"


def sentence(words: str) -> str:
    """``words`` with a capital letter and a full stop.

    >>> sentence("by roofs fused is as fast")
    'By roofs fused is as fast.'
    """
    return f"{upper_first(words)}."


def upper_first(words: str) -> str:
    """``words`` with a capital letter."""
    return words[:1].upper() + words[1:]


def lower_first(words: str) -> str:
    """``words`` with a small first letter, but for an abbreviation.

    >>> lower_first("Limited by DRAM bandwidth"), lower_first("DRAM bandwidth is the ceiling")
    ('limited by DRAM bandwidth', 'DRAM bandwidth is the ceiling')
    """
    return words if words[1:2].isupper() else words[:1].lower() + words[1:]
