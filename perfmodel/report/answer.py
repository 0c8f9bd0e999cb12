"""What a report says first, the same for every command: whether it fits, time and rate, what limits it, a meter per resource."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, Traffic
from perfmodel.core.units import format_si, format_time
from perfmodel.report.charts.format_number import between, percent
from perfmodel.report.charts.schema import Bar, BarChart, Interval
from perfmodel.report.document import Meter
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.timing.predict import Prediction

_UNITS = {"tensor": "FLOP/s", "vector": "FLOP/s", "sfu": "exp/s"} | dict.fromkeys(("sram", "l2", "llc", "dram", "interconnect"), "B/s")
RESOURCES = {name: (BOUND_WORDS[name].removeprefix("the "), unit) for name, unit in _UNITS.items()}
"""Names and units of what a roof counts, from the units outwards."""


ROOFS_EVEN = 0.02
"""Roofs this close are called even."""
FULL, PARTLY = 0.6, 0.25
"""Shares of its time from which on a resource limits, and from which on it is worth a word."""
STARTING = "starting the kernel"
LAUNCH_S = 10e-6
"""A roof below this is mostly launch, where a profile does not say how long a launch takes."""
WASTEFUL = 0.75
"""Share of the multiprocessors, or of the slots of its waves, that work, below which that is worth a word."""


def headline(fits: str, time: str, limit: str) -> list[str]:
    """First sentences of every report: whether it fits, time with its rate, what limits; an empty part has none.

    >>> headline("fits: 16 GB of 80 GB", "a step takes 3 ms: 340 tokens/s", ""), headline("", "predicted 3 ms", "limited by the host.")
    (['Fits: 16 GB of 80 GB.', 'A step takes 3 ms: 340 tokens/s.'], ['Predicted 3 ms.', 'Limited by the host.'])
    """
    return [sentence(words.removesuffix(".")) for words in (fits, time, limit) if words]


def held(needed: Number, device: Device, where: str = "", more: str = "", unknown: str = "; the profile of {} has no capacity") -> str:
    """Whether ``needed`` bytes fit ``device``, without a full stop: ``where`` they are, and what else fits (``more``).

    ``unknown``: said in place of ``more`` where the profile has no capacity.

    >>> from perfmodel.catalog import find_device
    >>> held(10**9, find_device("h200"), " per GPU", "; batch 8 would fit")
    'fits: 1 GB of 150.1 GB per GPU; batch 8 would fit'
    """
    fits = fit(needed, device)
    return f"{fits}{where}{more}" if fits else f"{format_si(needed, 'B')}{where}{unknown.format(device.id)}"


def meters(terms: Mapping[str, Number], amounts: Mapping[str, Number], seconds: float) -> list[Meter]:
    """A meter per resource that is used, of ``seconds``; the fullest one limits, if it is worth a word.

    ``terms``: seconds that each resource takes at its roof. ``amounts``: FLOP, operations or bytes by resource, where they are known;
    with them the rate that ``seconds`` means stands beside the peak.
    """
    used = {name: float(terms[name]) for name in RESOURCES if terms.get(name)}
    largest = max(used, key=lambda name: used[name], default=None)
    return [
        Meter(RESOURCES[name][0], term / seconds, _rate(name, amounts, term, seconds), name == largest and term >= PARTLY * seconds)
        for name, term in used.items()
    ]


def _rate(name: str, amounts: Mapping[str, Number], term: float, seconds: float) -> str:
    amount, unit = float(amounts.get(name) or 0), RESOURCES[name][1]
    rate, peak = (format_si(amount / time, unit, 3) for time in (seconds, term))
    return between(rate, peak, "of") if amount else ""


def amounts_of(cost: Estimate) -> dict[str, Number]:
    """FLOP, operations and bytes of ``cost`` by the resource that takes them."""
    work = cost.work
    return {"tensor": work.tensor, "vector": work.vector, "sfu": work.sfu, "l2": cost.sram.total - cost.multicast, "dram": cost.dram.total}


def fit(needed: Number, device: Device) -> str:
    """Whether ``needed`` bytes fit the device, as the start of a sentence; empty where its profile has no capacity.

    >>> from perfmodel.catalog import find_device
    >>> fit(10**9, find_device("h200")), fit(10**12, find_device("h200"))
    ('fits: 1 GB of 150.1 GB', 'does not fit: needs 1 TB of 150.1 GB')
    """
    fits, capacity = device.fits(int(needed)), device.dram.capacity
    if fits is None or capacity is None:
        return ""
    return f"{'fits: ' if fits else 'does not fit: needs '}{format_si(needed, 'B')} of {format_si(capacity.number, 'B')}"


def limits(meters: Iterable[Meter], causes: Sequence[str] = (), roof: bool = False, unknown: Collection[str] = ()) -> str:
    """What limits, as a sentence without its full stop: the fullest resource, or where none is full the ``causes`` that counts or the time
    model know; empty where nothing is known.

    ``causes``: such as too few blocks. ``roof``: the shares are of the roof, as no time is predicted, and the causes are left out of it.
    ``unknown``: resources whose rate the profile lacks.

    >>> tensor, dram = Meter("tensor unit", 0.44), Meter("DRAM bandwidth", 1.0)
    >>> limits([tensor, Meter("exponential unit", 0.31)]), limits([tensor], ["32 blocks for 108 SMs"])
    ('The tensor unit is the ceiling but busy only 44%', 'Too small: 32 blocks for 108 SMs; the tensor unit is 44% busy')
    >>> limits([Meter("DRAM bandwidth", 0.1)]), limits([dram], roof=True)
    ('Nothing is over 10% busy', 'Limited by DRAM bandwidth, at the roof')
    """
    ordered = sorted(meters, key=lambda meter: (not meter.limits, -meter.share))
    small = bool(causes) and causes[0][:1].isdigit()
    cause = f"{'Too small: ' if small else 'Limited by '}{' and '.join(causes)}" if causes else ""
    if not ordered or (roof and cause):
        return f"{cause}, left out of the roof" if roof and cause else cause
    first = ordered[0]
    share = percent(float(first.share))
    name = next((words for words in BOUND_WORDS.values() if words.removeprefix("the ") == first.name), first.name)
    if roof:
        return f"Limited by {name}, {'at the roof' if first.share > 1 - ROOFS_EVEN else f'{share} of the roof'}"
    if first.share < PARTLY:
        idle = f"nothing{' whose rate is known' * bool(unknown)} is over {share.strip('<')} busy"
        return cause if cause.startswith(f"Limited by {STARTING}") else capital(f"{cause}; {idle}" if cause else idle)
    if first.share >= FULL:
        return f"Limited by {name}, {share} busy"
    if cause:
        return f"{cause}; {name} is {share} busy"
    return capital(f"{name} is the ceiling but busy only {share}")


def too_few(blocks: int, device: Device) -> list[str]:
    """Cause: so few ``blocks`` (0: unknown) that many multiprocessors have no work; none if they have.

    >>> from perfmodel.catalog import find_device
    >>> too_few(32, find_device("h200")), too_few(128, find_device("h200")), too_few(1, find_device("mi300x"))
    (['32 blocks for 132 SMs'], [], ['1 block for 304 CUs'])
    """
    count = device.multiprocessors
    if count is None or not 0 < blocks < WASTEFUL * count.number:
        return []
    name = {"NVIDIA": "SMs", "AMD": "CUs"}.get(device.vendor, "multiprocessors")
    return [f"{blocks:,} block{'s' * (blocks > 1)} for {count.number:,.0f} {name}"]


def launching(kernels: int, roof_s: float, device: Device) -> list[str]:
    """Cause: launches of ``kernels`` one after another take longer than their roof; none if they do not."""
    overhead = device.launch_overhead
    launches = kernels * float(overhead.stream.number if overhead else LAUNCH_S)
    phrase = f"{kernels} launches" if kernels > 1 else "the launch"
    return [phrase + (f" ({format_time(launches, 2)})" if overhead else "")] * (launches >= roof_s)


def starting(prediction: Prediction | None) -> list[str]:
    """Cause: a kernel without work, from launch to end, takes more than half of a predicted time; none if it does not."""
    start = 1e-6 * prediction.calibration.parameters.get("launch_us", 0.0) if prediction else 0.0
    if prediction is None or 2 * start < prediction.seconds:
        return []
    return [f"{STARTING} ({between(format_time(start, 2), format_time(prediction.seconds, 3), 'of')})"]


def taken(interval: Interval) -> str:
    """A time to three digits, with its interval.

    >>> taken(Interval(7.907e-5, 7.2e-5, 8.43e-5)), taken(Interval(1e-3))
    ('79.1 us (72 to 84.3 us)', '1 ms')
    """
    time, low, high = format_time(interval.value, 3), interval.low, interval.high
    return time if low is None or high is None else f"{time} ({between(format_time(low, 3), format_time(high, 3))})"


def sentence(words: str) -> str:
    """``words`` with a capital letter and a full stop.

    >>> sentence("by roofs fused is as fast")
    'By roofs fused is as fast.'
    """
    return f"{capital(words)}."


def capital(words: str) -> str:
    """``words`` with a capital letter."""
    return words[:1].upper() + words[1:]


def small(words: str) -> str:
    """``words`` with a small first letter, but for an abbreviation.

    >>> small("Limited by DRAM bandwidth"), small("DRAM bandwidth is the ceiling")
    ('limited by DRAM bandwidth', 'DRAM bandwidth is the ceiling')
    """
    return words if words[1:2].isupper() else words[:1].lower() + words[1:]


def traffic_chart(moved: Iterable[tuple[str, Traffic, Traffic]], caption: str, inside: str = "L2") -> BarChart:
    """Bytes that each way moves, given with its traffic to the multiprocessors and to DRAM. ``inside``: where the former comes from."""
    bars = [
        Bar(f"{name}, {level}", [("read", traffic.read), ("written", traffic.write)])
        for name, sram, dram in moved
        for level, traffic in ((inside, sram), ("DRAM", dram))
    ]
    return BarChart(f"Bytes between {inside} and multiprocessors, and to DRAM", "B", bars, caption=caption)
