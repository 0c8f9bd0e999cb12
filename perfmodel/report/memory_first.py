"""What the report of training memory says first: whether it fits, the peak and its parts, bytes over the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.units import format_si
from perfmodel.report.answer import fitting
from perfmodel.report.charts.bars import FAR
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Bar, BarChart, Chart, Limit, LineChart, Mark, Series
from perfmodel.report.document import Figure, Meter, Report
from perfmodel.transformer.training.implementations import BACKWARD, FORWARD, OPTIMIZER, StepMoment
from perfmodel.transformer.training.memory import MemoryResult

STEPS = {FORWARD: "forward pass", BACKWARD: "backward pass", OPTIMIZER: "optimizer's step"}


def answered(plain: Report, result: MemoryResult, pictures: bool) -> Report:
    """``plain`` with what it says first, and its ``pictures``."""
    parts = _at_peak(result)
    most = max(parts, key=lambda name: parts[name])
    capacity = result.capacity
    limit = most if result.fits is False else ""
    meters = [Meter(name, float(size / capacity), _size(size), name == limit) for name, size in parts.items()] if capacity else []
    return replace(
        plain,
        verdict=_verdict(result, parts, most),
        meters=meters,
        metered=f"memory of {'each ' * (result.training.parallel.gpus > 1)}{result.device.name}",
        figures=_figures(result, parts, most),
        charts=_charts(result) if pictures else [],
    )


def _size(number: Number) -> str:
    return format_si(float(number), "B", 3)


def parts_of(result: MemoryResult, moment: StepMoment) -> dict[str, Number]:
    """What is there at the most of ``moment``; parts that are nothing are left out."""
    state = result.peak.state
    known = {"weights": state.weights, "optimizer state": state.optimizer, "gradients": moment.gradients}
    rest = moment.high - sum(known.values())
    return {name: size for name, size in {**known, "activations": rest}.items() if size > 0}


def _at_peak(result: MemoryResult) -> dict[str, Number]:
    return parts_of(result, result.peak.moment)


def _verdict(result: MemoryResult, parts: dict[str, Number], most: str) -> list[str]:
    """Whether it fits, when the peak is, and what most of it is."""
    moment, peak = result.peak.moment, result.peak.bytes
    phase = f"{STEPS[moment.phase]} ({_at(moment)})" if moment.at else STEPS[moment.phase]
    largest = f"Most of it is {most}: {_size(parts[most])}, {percent(float(parts[most] / peak))}."
    return [_fitting(result), f"The peak is in the {phase}.", largest]


def _at(moment: StepMoment) -> str:
    """Place and operation of the peak, each word once."""
    return ", ".join(dict.fromkeys(moment.at.split(", ")))


def _fitting(result: MemoryResult) -> str:
    held, training = fitting(result.peak.bytes, result.device), result.training
    gpu = f" on the fullest of {training.parallel.gpus:,} GPUs" if training.parallel.gpus > 1 else ""
    if not held or result.largest is None:
        return f"{_size(result.peak.bytes)} at the peak{gpu}; the profile of {result.device.id} has no capacity."
    if result.largest == 0:
        return f"{held}{gpu}{'; nor does one sequence' * (training.sequences > 1)}."
    many = f"--micro-batch {result.largest:,}"
    return f"{held}{gpu}; {f'up to {many}' if result.fits else f'{many} would fit'}."


def _figures(result: MemoryResult, parts: dict[str, Number], most: str) -> list[Figure]:
    capacity, largest = result.capacity, result.largest
    return [
        Figure("peak of the fullest GPU", _size(result.peak.bytes)),
        Figure("capacity", "unknown" if capacity is None else _size(capacity)),
        Figure("when", ", ".join(filter(None, (result.peak.moment.phase, _at(result.peak.moment) or result.peak.moment.where)))),
        Figure(f"most of it: {most}", _size(parts[most])),
        Figure("sequences at a time that fit", "unknown" if largest is None else f"{largest:,}"),
    ]


# Charts


def _charts(result: MemoryResult) -> list[Chart]:
    near = result.capacity and result.capacity <= FAR * result.peak.bytes  # a line far above would leave no room for what is below
    limits = [Limit("capacity", result.capacity)] if near and result.capacity else []
    names = list(dict.fromkeys(name for moment in result.peak.moments for name in parts_of(result, moment)))
    bars = [
        Bar(_where(moment), [(name, parts.get(name, 0)) for name in names])
        for moment in result.peak.moments
        for parts in [parts_of(result, moment)]
    ]
    return [over_step(result, limits), BarChart("At most in each part of the step", "B", bars, limits)]


def _where(moment: StepMoment) -> str:
    return " ".join(filter(None, (moment.phase, moment.where)))


def over_step(result: MemoryResult, limits: Sequence[Limit] = ()) -> LineChart:
    """The most in every block of the step, one after the other, with the peak at its own block."""
    points: list[tuple[Number, Number]] = []
    begins: dict[str, int] = {}
    for moment in result.peak.moments:
        begins.setdefault(moment.phase, len(points) + 1)
        points += [(place, float(high)) for place, high in enumerate(moment.highs(), len(points) + 1)]
    place, peak = max(points, key=lambda point: (point[1], -point[0]))
    marks = [Mark(place, f"peak {_size(peak)}", peak)]
    marks += [Mark(begin, f"{phase} begins") for phase, begin in begins.items() if phase == BACKWARD]
    series = [Series("allocated at most", points)]
    title, x = "Memory over the step", "block of the step: layers forward, then back"
    caption = "" if limits or result.capacity is None else f"{result.device.name} has {_size(result.capacity)}, far above."
    return LineChart(title, x, "memory", series, "count", "B", "linear", "linear", marks, list(limits), caption)
