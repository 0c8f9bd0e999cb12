"""Parts of the reports on a step of a model, in inference and training: its time, what limits it, its rows by share, its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_time
from perfmodel.report import answer
from perfmodel.report.answer import RESOURCES, amounts_of, meters
from perfmodel.report.charts.format_number import between, digits, percent
from perfmodel.report.charts.schema import Bar, BarChart, Chart
from perfmodel.report.document import SCREEN_ROWS, KernelSpan, Meter, Table
from perfmodel.report.metrics import BOUND_WORDS, Metric, Metrics, as_rows
from perfmodel.report.saved import Interval
from perfmodel.transformer.op import COLLECTIVE, Op

if TYPE_CHECKING:
    from perfmodel.core.dtypes import Dtype
    from perfmodel.core.hardware import Device
    from perfmodel.report.charts.schema import RooflinePoint

Shares = Mapping[str, float]
NONE: Shares = MappingProxyType({})
Times = tuple[float, float, float]
"""Predicted seconds with the ends of their interval."""
LATENT = 0.5
"""A kernel is limited by latency if its roof is below this share of its time."""
LATENCY = "latency"
MOST_BARS = 8
"""Most bars of a chart."""
LEAST_METER = 0.005
"""Least share of a step for which a resource has a meter."""


class StepPart(NamedTuple):
    """All runs of one kernel called ``name``. ``seconds``: predicted ones (``times``), else the roof.

    With multicast, the L2 traffic of a product counts loads that several SMs share once.
    """

    name: str
    op: Op
    cost: Estimate
    times: Times | None
    seconds: float

    @property
    def limit(self) -> str:
        """The resource with the largest term of the roof, if it is busy for ``LATENT`` of the time; else latency."""
        name, term = max(self.cost.terms.items(), key=lambda pair: pair[1], default=(LATENCY, 0))
        return name if term >= LATENT * self.seconds else LATENCY


KERNELS, EXCHANGES = "kernels", "exchanges"
"""Lanes of a timeline."""


def timeline(*phases: Sequence[StepPart]) -> list[KernelSpan]:
    """The kernels of a step in turn, by phase (forward, backward, optimizer) and within it by layer."""
    spans, now = [], 0.0
    for parts in phases:
        runs = [max(1, round(float(part.op.count))) for part in parts]
        for place in _order(runs):
            part, seconds = parts[place], parts[place].seconds / runs[place]
            lane = EXCHANGES if part.op.group == COLLECTIVE else KERNELS
            spans.append(KernelSpan(part.name, lane, now, seconds, _details(part, runs[place])))
            now += seconds
    return spans


def _order(runs: Sequence[int]) -> list[int]:
    """Places of kernels in the order of their runs: kernels of layers in turns, kernels that run once before or after them.

    >>> _order([1, 2, 4, 2, 1])
    [0, 1, 2, 2, 3, 1, 2, 2, 3, 4]
    """
    repeated = [place for place, count in enumerate(runs) if count > 1]
    if not repeated:
        return list(range(len(runs)))
    counts = [runs[place] for place in repeated]
    layers = max(counts, key=counts.count)
    first, last = repeated[0], repeated[-1]
    turns = []
    for layer in range(layers):
        for place in range(first, last + 1):
            so_far, with_this_layer = runs[place] * layer // layers, runs[place] * (layer + 1) // layers
            turns += [place] * (with_this_layer - so_far)
    return [*range(first), *turns, *range(last + 1, len(runs))]


def _details(part: StepPart, runs: int) -> dict[str, str]:
    """Details of a kernel: what limits it, and the ends of its interval."""
    if part.times is None:
        return {"limited by": part.limit, "time": "its roof"}
    _, low, high = part.times
    return {"limited by": part.limit, "80 % interval": between(format_time(low / runs, 3), format_time(high / runs, 3))}


def as_time(seconds: float, interval: Times | None, prefix: str = "") -> str:
    """A time to three digits with its interval; ``prefix`` goes before it if there is none.

    >>> as_time(0.0137, (0.0137, 0.012, 0.0157)), as_time(0.003, None, "at least ")
    ('13.7 ms (12 to 15.7 ms)', 'at least 3 ms')
    """
    return f"{prefix}{answer.time_text(Interval(seconds) if interval is None else Interval(*interval))}"


def tokens(per_s: float) -> str:
    """A rate to three digits.

    >>> tokens(584.12), tokens(46953)
    ('584 tokens/s', '47,000 tokens/s')
    """
    return f"{digits(per_s, 3)} tokens/s"


def limit_shares(parts: Sequence[StepPart], seconds: float, others: Shares = NONE) -> dict[str, float]:
    """Shares of ``seconds``, the largest first: kernels by what limits them, and ``others``."""
    shares = dict(others)
    for part in parts:
        shares[part.limit] = shares.get(part.limit, 0.0) + part.seconds / seconds
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def limit_text(parts: Sequence[StepPart], seconds: float, others: Shares = NONE) -> str:
    """Sentence on what limits a step: the resource, wait or exchange with the largest share of its time.

    It states the share of their roofs that kernels reach if the step takes longer than kernels without any overlap would.
    """
    shares = limit_shares(parts, seconds, others)
    if not shares:
        return "What limits it is unknown."
    name, share = next(iter(shares.items()))
    if name == LATENCY:
        return f"Limited by latency: kernels far from every roof take {percent(share)} of the time."
    if name not in BOUND_WORDS:
        return f"Limited by {name}: it takes {percent(share)} of the time."
    if seconds <= sum(part.cost.no_overlap_s for part in parts):
        return f"Limited by {BOUND_WORDS[name]}: kernels bound by it take {percent(share)} of the time."
    roofs_s, busy_s = sum(float(part.cost.roofline_s) for part in parts), sum(part.seconds for part in parts)
    return f"Limited by {BOUND_WORDS[name]} {percent(share)} of the time; kernels reach {percent(roofs_s / busy_s)} of their roofs."


def longest(parts: Sequence[StepPart], seconds: float) -> str:
    """Sentence on the kernel that takes most."""
    longest = max(parts, key=lambda part: part.seconds)
    return f"Most time goes to {longest.name}: {percent(longest.seconds / seconds)}."


def moved_bytes(op: Op, cost: Estimate, count: Number) -> Number:
    """Bytes that ``count`` runs of a row move over DRAM; for a collective, the buffers that it sends."""
    return op.kernel.bytes(READ) * count if op.group == COLLECTIVE else cost.dram.total


def step_meters(cost: Estimate, parts: Sequence[StepPart], seconds: float, others: Shares = NONE) -> list[Meter]:
    """Meters of the resources in a step of ``seconds`` and of ``others``; the one with the largest share limits."""
    first = next(iter(limit_shares(parts, seconds, others)), "")
    name = RESOURCES[first][0] if first in RESOURCES else first
    meter_list = [*meters(cost.terms, amounts_of(cost), seconds), *(Meter(name, share, "of the time") for name, share in others.items())]
    return [replace(meter, limits=meter.name == name) for meter in meter_list if meter.share >= LEAST_METER]


# Rows by share


def by_share(entries: Sequence[Metrics], columns: Sequence[str]) -> Table:
    """Table of the rows that take most, with the sum of all others in one row; as many as a screen shows."""
    listed = sorted(entries, key=lambda entry: -_value(entry, "share"))
    if len(listed) > SCREEN_ROWS:
        listed = [*listed[: SCREEN_ROWS - 1], _summed(listed[SCREEN_ROWS - 1 :])]
    return as_rows("", listed, labels=columns)


def _value(entry: Metrics, name: str) -> Any:
    return next((metric.value for metric in entry if (metric.key or metric.label) == name), None) or 0


def _summed(entries: Sequence[Metrics]) -> Metrics:
    """A row with the sums over ``entries``."""

    def total(name: str) -> Any:
        return sum(_value(entry, name) for entry in entries)

    return [
        Metric("name", f"{len(entries)} others", entries[0][0].label, "text"),
        *(Metric("", total(name) or None, name, unit) for name, unit in (("count", "count"), ("FLOP", "FLOP"), ("FLOP, run", "FLOP"))),
        Metric("bytes", total("bytes"), "bytes", "B"),
        Metric("", total("time"), "time", "s"),
        Metric("", total("time_s.lower") / total("time"), "of bound", "share"),
        Metric("share", total("share"), "share", "share"),
    ]


# Charts


def time_bars(parts: Sequence[StepPart], title: str = "Time by op") -> BarChart:
    """Chart with a bar per part, the longest first: its lower bound, and the time beyond."""
    longest_first = sorted(parts, key=lambda part: -part.seconds)
    others: list[StepPart] = []
    if len(longest_first) > MOST_BARS:
        longest_first, others = longest_first[: MOST_BARS - 1], longest_first[MOST_BARS - 1 :]
    bars = [_time_bar(part.name, float(part.cost.lower_s), part.seconds) for part in longest_first]
    if others:
        lower_s = sum(float(part.cost.lower_s) for part in others)
        bars.append(_time_bar(f"{len(others)} others", lower_s, sum(part.seconds for part in others)))
    return BarChart(title, "s", bars)


def _time_bar(name: str, lower_s: float, seconds: float) -> Bar:
    return Bar(name, [("lower bound", min(lower_s, seconds)), ("beyond it", max(seconds - lower_s, 0.0))])


def op_point(number: int, part: StepPart, count: Number, device: Device, dtype: Dtype, group: str = "", kernel: str = "") -> RooflinePoint:
    """All ``count`` runs of ``part`` as a point. ``kernel``: the kernel of the time, or why there is none."""
    from perfmodel.report.roofline_chart import point

    drawn = point(number, part.name, part.cost, device, dtype.name, dtype.matmul_unit, group=group)
    runs = f"{int(count)} runs" if count != 1 else ""
    predicted = None if part.times is None else Interval(*map(float, part.times))
    return replace(drawn, predicted=predicted, note="; ".join(filter(None, [runs, drawn.note, kernel])))


def op_roofline(parts: Sequence[StepPart], device: Device, dtype: Dtype) -> list[Chart]:
    """The roofline of the parts with bytes that take most."""
    from perfmodel.report.roofline_chart import roofline, with_shares

    listed = sorted((part for part in parts if part.cost.dram.total), key=lambda part: -part.seconds)[:SCREEN_ROWS]
    points = [op_point(at, part, part.op.count, device, dtype) for at, part in enumerate(listed, 1)]
    return [roofline(device, with_shares(points), f"Roofline of its ops on {device.name}")] if points else []
