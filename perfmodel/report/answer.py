"""What a report says first, the same for every command: whether it fits, time and rate, what limits it, a meter per resource."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import Work
from perfmodel.core.dtypes import Dtype
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, Traffic, clock_at_work
from perfmodel.core.units import format_si, format_time
from perfmodel.report.against import EITHER, EVEN, ROOFS_EVEN, Side, ends, ratio, roof_gain, way
from perfmodel.report.charts.format_number import between, percent
from perfmodel.report.charts.schema import Bar, Interval
from perfmodel.report.document import Figure, Meter
from perfmodel.report.metrics import BOUND_WORDS, Metric
from perfmodel.timing.predict import Prediction

_UNITS = {"tensor": "FLOP/s", "vector": "FLOP/s", "sfu": "exp/s"} | dict.fromkeys(("sram", "l2", "llc", "dram", "interconnect"), "B/s")
RESOURCES = {name: (BOUND_WORDS[name].removeprefix("the "), unit) for name, unit in _UNITS.items()}
"""Names and units of what a roof counts, from the units outwards."""


FULL, PARTLY = 0.6, 0.25
"""Shares of its time from which on a resource limits, and from which on it is worth a word."""
STARTING = "starting the kernel"
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
    most = max(used, key=lambda name: used[name], default=None)
    return [
        Meter(RESOURCES[name][0], term / seconds, _rate(name, amounts, term, seconds), name == most and term >= PARTLY * seconds)
        for name, term in used.items()
    ]


def _rate(name: str, amounts: Mapping[str, Number], term: float, seconds: float) -> str:
    amount, unit = float(amounts.get(name) or 0), RESOURCES[name][1]
    rate, peak = (format_si(amount / time, unit, 3) for time in (seconds, term))
    return between(rate, peak, "of") if amount else ""


def meters_of(cost: Estimate, known: Interval | None) -> list[Meter]:
    """Meters of one kernel or of several in turn: of its predicted time, of its roof where none is predicted."""
    counted = needed(cost) if is_below_roof(cost, known) else cost
    return meters(counted.terms, amounts_of(counted), metered_s(cost, known))


def is_below_roof(cost: Estimate, known: Interval | None) -> bool:
    """Whether a time is shorter than the roof of these tiles: its kernel has others, or runs at a higher clock."""
    return known is not None and known.value < (1 - EVEN) * float(cost.roofline_s)


def needed(cost: Estimate) -> Estimate:
    """``cost`` with what every kernel needs in place of what its tiles take, at the highest clocks; no time is shorter."""
    needs, unit = cost.needs, "tensor" if cost.work.tensor else "vector"
    terms = {unit: needs.work_s} if needs.work_s else {}
    terms |= {"dram": needs.dram_bytes / needs.bandwidth} if needs.bandwidth else {}
    return replace(cost, terms=terms, work=Work(), sram=Traffic(), dram=Traffic(needs.dram_bytes), multicast=0)


def below_roof(name: str, cost: Estimate, known: Interval | None) -> list[str]:
    """Note on a time that is shorter than its roof."""
    if known is None or not is_below_roof(cost, known):
        return []
    times = f"{format_time(known.value)} is below its roof of {format_time(float(cost.roofline_s))}"
    why = "the kernel that is predicted computes or moves less than these tiles do, or runs at a higher clock than that of the roof"
    return [f"{name}: {times}: {why}. Meters and shares of a peak are of what any kernel needs, at the highest clocks."]


def amounts_of(cost: Estimate) -> dict[str, Number]:
    """FLOP, operations and bytes of ``cost`` by the resource that takes them."""
    work = cost.work
    return {"tensor": work.tensor, "vector": work.vector, "sfu": work.sfu, "l2": cost.sram.total - cost.multicast, "dram": cost.dram.total}


def metered_s(cost: Estimate, known: Interval | None) -> float:
    """Seconds that the meters are of."""
    return float(cost.roofline_s if known is None else known.value)


def metered(known: Interval | None, cost: Estimate, name: str = "", flop: str = "FLOP") -> str:
    """What the meters are a share of, in words: of ``name``, if it has one, and why its tensor unit does more than the rates say.

    ``flop``: what the rates count.
    """
    if is_below_roof(cost, known):
        return f"predicted time{f' of {name}' * bool(name)}, below its roof: what any kernel needs"
    words = ("roof" if known is None else "predicted time") + (f" of {name}" if name else "")
    over = float(cost.work.tensor / cost.flops) if cost.work.tensor and cost.flops else 1.0
    more = f"{', which executes' if name else '; tiles execute'} {over:.3g}x the {flop}" * (over > 1 + ROOFS_EVEN)
    return f"{words}{more}"


def unmarked(meters: Iterable[Meter], causes: Sequence[str]) -> list[Meter]:
    """``meters`` of a roof; none limits where ``causes`` that the roof leaves out do."""
    return [replace(one, limits=one.limits and not causes) for one in meters]


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


def fitting(needed: Number, device: Device) -> str:
    """The same at the start of a sentence."""
    return capital(fit(needed, device))


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
    known = sorted(meters, key=lambda meter: (not meter.limits, -meter.share))
    small = bool(causes) and causes[0][:1].isdigit()
    found = f"{'Too small: ' if small else 'Limited by '}{' and '.join(causes)}" if causes else ""
    if not known or (roof and found):
        return f"{found}, not in the roof" if roof and found else found
    first = known[0]
    share = percent(float(first.share))
    name = next((words for words in BOUND_WORDS.values() if words.removeprefix("the ") == first.name), first.name)
    if roof:
        return f"Limited by {name}, {'at the roof' if first.share > 1 - ROOFS_EVEN else f'{share} of the roof'}"
    if first.share < PARTLY:
        idle = f"nothing{' of known rate' * bool(unknown)} is over {share.strip('<')} busy"
        return found if found.startswith(f"Limited by {STARTING}") else capital(f"{found}; {idle}" if found else idle)
    if first.share >= FULL:
        return f"Limited by {name}, {share} busy"
    if found:
        return f"{found}; {name} is {share} busy"
    return capital(f"{name} is the ceiling but busy only {share}")


def too_few(blocks: int, device: Device) -> list[str]:
    """That ``blocks`` (0: unknown) leave many multiprocessors without work.

    >>> from perfmodel.catalog import find_device
    >>> too_few(32, find_device("h200")), too_few(128, find_device("h200")), too_few(1, find_device("mi300x"))
    (['32 blocks for 132 SMs'], [], ['1 block for 304 CUs'])
    """
    count = device.multiprocessors
    if count is None or not 0 < blocks < WASTEFUL * count.number:
        return []
    name = {"NVIDIA": "SMs", "AMD": "CUs"}.get(device.vendor, "multiprocessors")
    return [f"{blocks:,} block{'s' * (blocks > 1)} for {count.number:,.0f} {name}"]


def starting(prediction: Prediction | None) -> list[str]:
    """That more than half of a predicted time is what its model takes for a kernel without work, from launch to end."""
    start = 1e-6 * prediction.calibration.parameters.get("launch_us", 0.0) if prediction else 0.0
    if prediction is None or 2 * start < prediction.seconds:
        return []
    return [f"{STARTING} ({between(format_time(start, 2), format_time(prediction.seconds, 3), 'of')})"]


def taken(known: Interval) -> str:
    """A time to three digits, with its interval.

    >>> taken(Interval(7.907e-5, 7.2e-5, 8.43e-5)), taken(Interval(1e-3))
    ('79.1 us (72 to 84.3 us)', '1 ms')
    """
    time = format_time(known.value, 3)
    return time if known.low is None or known.high is None else f"{time} ({between(format_time(known.low, 3), format_time(known.high, 3))})"


def rate_of(cost: Estimate, known: Interval | None, device: Device, dtype: Dtype, memory: Number) -> str:
    """Time of one kernel or of several in turn with its interval, its rate and share of the peak, without a full stop.

    ``memory``: bytes that must fit the device; of what does not, the time is as if it fitted.
    """
    start = f"Predicted {taken(known)}" if known else f"Not predicted; roof {format_time(metered_s(cost, known), 3)}"
    rate = rate_and_share(cost, known, device, dtype)
    start = f"If it fitted: {start[0].lower()}{start[1:]}" if device.fits(int(memory)) is False else start
    return f"{start}, {rate}" if rate else start


def rate_and_share(cost: Estimate, known: Interval | None, device: Device, dtype: Dtype) -> str:
    """Rate of its predicted time, or of its roof, and share of the peak: of bytes where DRAM bounds it, else of visible matmul FLOP."""
    time, below = metered_s(cost, known), is_below_roof(cost, known)
    if not time:
        return ""
    cost = needed(cost) if below else cost
    term = float(cost.terms.get("dram", 0))
    if not cost.flops or (cost.bound == "dram" and term >= PARTLY * time):
        share = f", {percent(term / time)} of the DRAM peak" if known or term < (1 - ROOFS_EVEN) * time else ""
        return format_si(float(cost.dram.total) / time, "B/s", 3) + share
    rate = float(cost.flops) / time
    unit = device.matmul_unit(dtype.name, dtype.matmul_unit)
    reached, clock = _of_peak(rate, device, dtype, unit, below)
    return f"{format_si(rate, 'FLOP/s', 3)}, {percent(reached)} of the {unit} peak{clock}"


def _of_peak(rate: float, device: Device, dtype: Dtype, unit: str, below: bool) -> tuple[float, str]:
    """Share of the peak of ``unit`` at the clock at work; of a time ``below`` its roof of that at the highest clock; which, in words."""
    if below:
        return rate / device.best_matmul_rate(dtype.name), " at the highest clock"
    return rate / (device.matmul_peak(dtype.name, unit).number * clock_at_work(device)), ""


def figures(
    cost: Estimate, known: Interval | None, device: Device, dtype: Dtype, memory: Number | None = None, least: Interval | None = None
) -> list[Figure]:
    """The numbers that decide about a kernel, or several in turn: time, rate, roof, memory. ``least``: time of an unpredicted one."""
    found = [Figure("predicted time" if known else "least time", taken(time)) for time in (known or least,) if time]
    rate = "rate" if known else "rate at most" if least else "rate at the roof"
    found += [Figure(rate, rate_and_share(cost, known or least, device, dtype))]
    bound = f", {RESOURCES[cost.bound][0]}" if cost.bound else ""
    found += [Figure("roof", f"{format_time(float(cost.roofline_s), 3)}{bound}")]
    if memory is not None:
        capacity = device.dram.capacity
        found.append(Figure("memory", format_si(memory, "B", 3) + (f" of {format_si(capacity.number, 'B', 3)}" if capacity else "")))
    return [one for one in found if one.value]


def sentence(words: str) -> str:
    """``words`` with a capital letter and a full stop.

    >>> sentence("by roofs fused is as fast")
    'By roofs fused is as fast.'
    """
    return f"{capital(words)}."


def capital(words: str) -> str:
    """``words`` with a capital letter."""
    return words[:1].upper() + words[1:]


def time_bar(name: str, roof_s: float, known: Interval | None) -> Bar:
    """A time as a bar: what its roof explains, and what lies beyond it; the roof alone where no time is predicted."""
    if known is None:
        return Bar(f"{name} (not predicted)", [("roof", roof_s)])
    return Bar(name, [("roof", min(roof_s, known.value)), ("beyond its roof", max(known.value - roof_s, 0.0))], known.low, known.high)


def rates(cost: Estimate, known: Interval | None, device: Device, dtype: Dtype) -> list[Metric]:
    """Rows of a predicted time: its rate in matmul FLOP/s and what share of the peak that is."""
    rate = float(cost.flops) / known.value if known and cost.flops else None
    share = _of_peak(rate, device, dtype, dtype.matmul_unit, is_below_roof(cost, known))[0] if rate else None
    return [Metric("rate", rate, "rate, predicted", "FLOP/s"), Metric("of_peak", share, "  of the peak", "share")]


def compared(reference: Side, other: Side) -> str:
    """Which of two is faster, without a full stop and without the reasons, which ``against`` adds.

    >>> compared(Side("standard", 1e-3, Interval(2e-3, 1.8e-3, 2.2e-3)), Side("flash2", 5e-4, Interval(1e-3, 0.9e-3, 1.1e-3)))
    'flash2 is predicted 2x faster than standard (1.74x to 2.31x)'
    >>> compared(Side("standard", 1e-3, Interval(2e-3, 1e-3, 4e-3)), Side("flash2", 5e-4, Interval(1e-3, 5e-4, 2e-3)))
    'either may be faster: flash2 is predicted 2x faster (0.75x to 5.33x)'
    >>> compared(Side("standard", 1e-3), Side("flash2", 5e-4))
    'by the ratio of roofs flash2 is 2x faster than standard; not predicted'
    >>> compared(Side("standard", 1e-3), Side("flash2", 5e-4, Interval(8e-4)))
    'flash2 is at least 1.25x faster than standard; standard is not predicted: its roof counts'
    """
    if reference.time is None or other.time is None:
        gain_at, most = roof_gain(reference, other)
        words = f"{other.name} is {way(gain_at, reference.name, most)}"
        unpredicted = next(one.name for one in (reference, other) if one.time is None)
        return f"{words}; {unpredicted} is not predicted: its roof counts" if most else f"by the ratio of roofs {words}; not predicted"
    gain = ratio(reference.time, other.time)
    kind = other.kind if other.kind == reference.kind else f"{other.kind}, against {reference.kind},"
    within = ends(gain)
    if EITHER in within:  # first, and short: a sentence is a line
        return f"either may be faster: {other.name} is {kind} {way(gain.value)}{within.replace(EITHER, '')}"
    return f"{other.name} is {kind} {way(gain.value, reference.name)}{within}"
