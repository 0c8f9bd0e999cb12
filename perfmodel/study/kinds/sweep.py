"""A workload over one of its sizes: which series is faster where, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.algorithms import find
from perfmodel.report.answer import time_text
from perfmodel.report.charts.format_number import between, text
from perfmodel.report.charts.roofline_metrics import SHORT, bound
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.device_names import one_of, short_names
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.report.speedup import PREDICTED, gain_text, interval_text
from perfmodel.report.swept_series import ROOF, Pairwise, SweptSeries, WorkloadAnswer, seconds, single_sentence, size, table, too_large
from perfmodel.study.points import answers, different_kernels
from perfmodel.study.schema import XY, Options, Scope, merged, on
from perfmodel.study.workloads import Workload

Show = Literal["time", "rate", "dram", "l2", "accesses", "memory"]
TIMED = ("time", "rate")
MOST_VALUES = 200
KERNELS = 3
"""Most kernels of one series that a sentence names."""


Shown = Callable[[WorkloadAnswer, str], float | None]
SHOWN: dict[str, tuple[str, str, Shown]] = {
    "time": ("time", "s", lambda answer, basis: seconds(answer, basis) or None),
    "rate": ("FLOP per second", "FLOP/s", lambda answer, basis: answer.point.flops / (seconds(answer, basis) or inf) or None),
    "dram": ("bytes over DRAM", "B", lambda answer, _: answer.point.bytes.get("dram")),
    "l2": ("bytes through the L2", "B", lambda answer, _: answer.point.bytes.get("l2")),
    "accesses": ("accesses without a cache", "B", lambda answer, _: answer.accesses),
    "memory": ("memory", "B", lambda answer, _: answer.memory),
}
"""Quantities that a picture can show: label, unit, and value of an answer. The basis of a time is the prediction or the roof."""
COLUMNS: list[tuple[Column, Callable[[WorkloadAnswer], Value]]] = [
    (
        Column("predicted_s", "predicted", "s", "low_s", "high_s"),
        lambda answer: answer.point.predicted.value if answer.point.predicted else None,
    ),
    (Column("low_s", "low", "s"), lambda answer: answer.point.predicted.low if answer.point.predicted else None),
    (Column("high_s", "high", "s"), lambda answer: answer.point.predicted.high if answer.point.predicted else None),
    (Column("roofline_s", "roofline", "s"), lambda answer: answer.point.roofline_s),
    (Column("lower_s", "lower bound", "s"), lambda answer: answer.point.lower_s),
    (Column("bound", "bound by"), lambda answer: SHORT.get(bound(answer.point) or "")),
    (Column("flops", "FLOP", "FLOP"), lambda answer: answer.point.flops),
    (Column("dram", "DRAM bytes", "B"), lambda answer: answer.point.bytes.get("dram")),
    (Column("l2", "L2 traffic", "B"), lambda answer: answer.point.bytes.get("l2")),
    (Column("accesses", "accesses without a cache", "B"), lambda answer: answer.accesses),
    (Column("memory", "memory", "B"), lambda answer: answer.memory),
    (Column("fits", "fits the memory"), lambda answer: None if answer.fits is None else "yes" if answer.fits else "NO"),
]


@dataclass(frozen=True, slots=True)
class SweepSection(Options):
    """``workload`` with each of ``values`` for its size ``over``. ``show``: quantities, each in a picture of its own."""

    devices: list[str]
    workload: Workload
    over: str
    values: list[int]
    show: list[Show] | None = None
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: pictures, a table and where the order turns, per device."""
        if len(self.values) < 2:
            raise UsageError("values: a sweep has at least two", "such as [512, 1024, 2048]")
        if len(self.values) > MOST_VALUES:
            fix = f"give at most {MOST_VALUES}, or see perfmodel sweep"
            raise UsageError(f"values: {len(self.values):,} are more than a picture shows", fix)
        self.workload.updated(self.over, self.values[0])
        by_device = [self._swept(device, scope) for device in scope.some_devices(self.devices)]
        all_series, several = [swept for series in by_device for swept in series], len(by_device) > 1
        names, parts, marks = short_names(series[0].device.name for series in by_device), list[Report](), list[Mark]()
        for series in sorted(by_device, key=lambda series: not all(swept.predicted for swept in series)):  # what is predicted comes first
            pairs = self._pairs(series, scope)
            parts.append(self._on(series, pairs, names, leads=not any(part.verdict for part in parts)))
            marks += _marks(series, pairs, f" ({names[series[0].device.name]})" if several else "")
        different = different_kernels(
            (swept.name, swept.device, answer.kernels) for swept in all_series for answer in swept.answers.values()
        )
        whole = merged(parts, self.title)
        return replace(
            whole,
            verdict=[*whole.verdict, *different],
            reasons=[*whole.reasons, *different],
            charts=[self._chart(show, all_series, marks if show == "time" else [], several) for show in self.show or ["time"]],
            data_tables=[self._table(all_series, several)],
            notes=list(dict.fromkeys(note for swept in all_series for note in swept.notes)),
            brief=[table(all_series, self.over)],
            assumptions=[f"Work: {self.workload.in_words({}, [self.over, 'algorithm'])}.", *map(_kernels, by_device)],
        )

    def at(self, value: int, device: Device, scope: Scope) -> dict[str, WorkloadAnswer]:
        """The answers at one value, by series."""
        return {answer.series: answer for answer in answers(self.workload.updated(self.over, value), device, scope)}

    def _swept(self, device: Device, scope: Scope) -> list[SweptSeries]:
        by_name, failed = dict[str, SweptSeries](), list[str]()
        for value in sorted(set(self.values)):
            try:
                for name, answer in self.at(value, device, scope).items():
                    by_name.setdefault(name, SweptSeries(name, device, {}, [], self.called(name))).answers[value] = answer
            except PerfmodelError as error:
                failed.append(f"{self.over} {value:,} on {device.name} is left out: {error.message}.")
        if not by_name:
            raise UsageError(failed[0], "give other values")
        for swept in by_name.values():
            swept.notes += failed + [missing for answer in swept.answers.values() for missing in answer.missing][:1]
        return list(by_name.values())

    def _pairs(self, series: Sequence[SweptSeries], scope: Scope) -> list[Pairwise]:
        """Pairs of the first series of a device and each other one with common values."""
        first, *later = series
        pairs = [Pairwise(first, other, self.over, lambda value: self.at(value, first.device, scope)) for other in later]
        return [pair for pair in pairs if pair.values]

    def _on(self, series: Sequence[SweptSeries], pairs: Sequence[Pairwise], names: Mapping[str, str], leads: bool) -> Report:
        """The report on one device; ``leads``: it comes before all others."""
        first, several = series[0], len(names) > 1
        name = names[first.device.name]
        lead, where = f"On {one_of(name)} ", f" ({name})" if several else ""
        if len(series) == 1:
            answers, sentences = [single_sentence(first, self.over)], [single_sentence(first, self.over)]
            figures, sensitivity = _ends(first, self.over, where), list[str]()
        else:
            answers, sentences = [f"{pair.answer()}." for pair in pairs], [pair.sentence() for pair in pairs]
            figures = [figure for pair in pairs for figure in _figures(pair, where)]
            leader = pairs[:1] if leads else []
            sensitivity = [sentence for pair in leader for sentence in pair.sensitivity()]
            other = "Another pair" if leader else "Another device"
            sensitivity += [f"{other}: o{lead[1:]}{answer}" for answer in answers[len(leader) :]]
        sentences += filter(None, (too_large(swept, self.over) for swept in series))
        reasons = [on(first.device, several, self.title) + sentence for sentence in sentences]
        return Report("", [lead + answer for answer in answers], [], figures=figures, reasons=reasons, sensitivity=sensitivity)

    def called(self, series: str) -> str:
        """Name of a series in sentences; an algorithm goes by the first words of its title."""
        return find(series.partition(" ")[0]).title.partition(",")[0] if self.workload.attention else series

    def _chart(self, show: str, all_series: Sequence[SweptSeries], marks: list[Mark], several: bool) -> LineChart:
        label, unit, value = SHOWN[show]
        if several and _alike(all_series, value):
            all_series, several = [swept for swept in all_series if swept.device is all_series[0].device], False
        unknown = [swept for swept in all_series if show in TIMED and not swept.predicted]
        mixed = 0 < len(unknown) < len(all_series)
        series = [line for swept in all_series for line in _lines(show, swept, several, roofs=mixed or not several)]
        title = f"{self.title}: {label}" if self.title else label
        names = ", ".join(f"{swept.name} on {swept.device.name}" for swept in unknown)
        only = f"No prediction is known of {names}: compare its roof (dashed) with the roofs of the others"
        caption = " ".join(filter(None, [self.caption, f"{only}, not with their predictions (solid)." if mixed else ""]))
        return LineChart(title, self.over, label, series, "count", unit, marks=marks, caption=caption)

    def _table(self, all_series: Sequence[SweptSeries], several: bool) -> DataTable:
        head = [Column("series", "workload"), *[Column("device", "device")] * several, Column("value", self.over, "count")]
        rows: list[list[Value]] = [
            [swept.name, *[swept.device.id] * several, value, *(cell(answer) for _, cell in COLUMNS)]
            for swept in all_series
            for value, answer in swept.answers.items()
        ]
        return DataTable(self.title or f"{self.workload.kind} over {self.over}", [*head, *(column for column, _ in COLUMNS)], rows)


def _marks(series: Sequence[SweptSeries], pairs: Sequence[Pairwise], where: str) -> list[Mark]:
    """Marks where the order of each pair turns, and where a series stops fitting the memory."""
    marks = []
    for pair in pairs:
        turned = "faster" if pair.basis == PREDICTED else "has the lower roof"
        marks += [
            Mark(turn.at, f"{(pair.other if turn.rises else pair.first).name} {turned} from {turn.at:,}{where}", turn.seconds)
            for turn in pair.turns
        ]
    for swept in series:
        at = next((value for value, answer in swept.answers.items() if answer.fits is False), None)
        marks += [] if at is None else [Mark(at, f"{swept.name} does not fit from {at:,}{where}", seconds(swept.answers[at]))]
    return marks


def _kernels(series: Sequence[SweptSeries]) -> str:
    """Sentence on the kernels whose times are predicted on a device."""
    used = {
        swept.name: dict.fromkeys(kernel for answer in swept.answers.values() for kernel in answer.kernels.values()) for swept in series
    }
    words = [f"{name} by {' or '.join([*kernels][:KERNELS])}" for name, kernels in used.items() if kernels]
    name = series[0].device.name
    return f"Kernels on {name}: {'; '.join(words)}." if words else f"Nothing is predicted on {name}: roofs stand for times."


def _figures(pair: Pairwise, where: str) -> list[Figure]:
    """Figures: gain and time at the last value, and the memory of a series that does not fit."""
    last, name, gain = pair.values[-1], pair.other.spoken, pair.gain(pair.values[-1])
    at = f"{size(pair.over, last)}{where}"
    prediction, unfit = pair.other.answers[last].point.predicted, pair.unfit()
    figures = [Figure(f"{name} against {pair.first.spoken}, {at}", f"{gain_text(gain.value)}{interval_text(gain)}")] if gain else []
    figures += [Figure(f"{name}, {at}", time_text(prediction))] if prediction else []
    if unfit is not None:
        series, value = unfit
        capacity = series.device.dram.capacity
        limit = text(capacity.number, "B") if capacity else ""
        needs = between(text(float(series.answers[value].memory or 0), "B"), limit, "of")
        figures.append(Figure(f"memory of {series.spoken}, {size(pair.over, value)}{where}", needs))
    return figures


def _ends(swept: SweptSeries, over: str, where: str) -> list[Figure]:
    """Figures of the times at the first value and the last."""
    timed = [(value, swept.answers[value].point.predicted) for value in (min(swept.runs), max(swept.runs))]
    return [Figure(f"{swept.name}, {over} {value:,}{where}", time_text(time)) for value, time in timed if time]


def _lines(show: str, swept: SweptSeries, several: bool, roofs: bool) -> list[Series]:
    """The lines of a series: a predicted time has its band and, with ``roofs``, its roof."""
    name, device = f"{swept.name}, {swept.device.name}" if several else swept.name, swept.device.id
    points = _points(show, swept, PREDICTED)
    if not points:
        return []
    if show in TIMED and not swept.predicted:
        return [Series(f"{name}, roof", points, "dashed", group=name, device=device)]
    roof = Series(f"{name}, roof", _points(show, swept, ROOF), "dashed", group=name, device=device)
    if show != "time":
        return [Series(name, points, group=name, device=device), *[roof] * (show in TIMED and several and roofs)]
    predictions = [answer.point.predicted for answer in swept.answers.values() if answer.point.predicted]
    band: XY = [(p.low or p.value, p.high or p.value) for p in predictions]
    return [Series(name, points, "line", band, name, device), *[roof] * roofs]


def _points(show: str, swept: SweptSeries, basis: str) -> XY:
    return [(at, float(value)) for at, answer in swept.answers.items() if (value := SHOWN[show][2](answer, basis)) is not None]


def _alike(all_series: Sequence[SweptSeries], value: Shown) -> bool:
    """Whether all devices have the same values, as with bytes that do not depend on the device."""
    by_name: dict[str, list[float | None]] = {}
    rows = [(swept.name, [value(answer, PREDICTED) for answer in swept.answers.values()]) for swept in all_series]
    return all(by_name.setdefault(name, values) == values for name, values in rows)


SECTION = SweepSection
