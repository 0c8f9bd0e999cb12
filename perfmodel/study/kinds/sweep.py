"""A workload over one of its sizes: who is faster where, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.algorithms import find
from perfmodel.report.answer import taken
from perfmodel.report.charts.format_number import between, text
from perfmodel.report.charts.roofline_metrics import SHORT, bound
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.device_names import one_of, short_names
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.report.speedup import PREDICTED, ends, way
from perfmodel.report.swept_series import ROOF, Pairwise, SweptSeries, WorkloadAnswer, alone, seconds, size, table, too_large
from perfmodel.study.points import answers, different_kernels
from perfmodel.study.schema import XY, Options, Scope, merged, on
from perfmodel.study.workloads import Workload

Show = Literal["time", "rate", "dram", "l2", "accesses", "memory"]
TIMED = ("time", "rate")
MOST_VALUES = 200
KERNELS = 3
"""Kernels of one series that a sentence names."""


Shown = Callable[[WorkloadAnswer, str], float | None]
SHOWN: dict[str, tuple[str, str, Shown]] = {
    "time": ("time", "s", lambda one, basis: seconds(one, basis) or None),
    "rate": ("FLOP per second", "FLOP/s", lambda one, basis: one.point.flops / (seconds(one, basis) or inf) or None),
    "dram": ("bytes over DRAM", "B", lambda one, _: one.point.bytes.get("dram")),
    "l2": ("bytes through the L2", "B", lambda one, _: one.point.bytes.get("l2")),
    "accesses": ("accesses without a cache", "B", lambda one, _: one.accesses),
    "memory": ("memory", "B", lambda one, _: one.memory),
}
"""Label, unit and value of what a picture shows, times on a basis: predicted, or at the roof."""
COLUMNS: list[tuple[Column, Callable[[WorkloadAnswer], Value]]] = [
    (Column("predicted_s", "predicted", "s", "low_s", "high_s"), lambda one: one.point.predicted.value if one.point.predicted else None),
    (Column("low_s", "low", "s"), lambda one: one.point.predicted.low if one.point.predicted else None),
    (Column("high_s", "high", "s"), lambda one: one.point.predicted.high if one.point.predicted else None),
    (Column("roofline_s", "roofline", "s"), lambda one: one.point.roofline_s),
    (Column("lower_s", "lower bound", "s"), lambda one: one.point.lower_s),
    (Column("bound", "bound by"), lambda one: SHORT.get(bound(one.point) or "")),
    (Column("flops", "FLOP", "FLOP"), lambda one: one.point.flops),
    (Column("dram", "DRAM bytes", "B"), lambda one: one.point.bytes.get("dram")),
    (Column("l2", "L2 traffic", "B"), lambda one: one.point.bytes.get("l2")),
    (Column("accesses", "accesses without a cache", "B"), lambda one: one.accesses),
    (Column("memory", "memory", "B"), lambda one: one.memory),
    (Column("fits", "fits the memory"), lambda one: None if one.fits is None else "yes" if one.fits else "NO"),
]


@dataclass(frozen=True, slots=True)
class SweepSection(Options):
    """``workload`` with each of ``values`` in the place of its size ``over``. ``show``: a picture each."""

    devices: list[str]
    workload: Workload
    over: str
    values: list[int]
    show: list[Show] | None = None
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """Pictures, the table and where the order turns, per device."""
        if len(self.values) < 2:
            raise UsageError("values: a sweep has at least two", "such as [512, 1024, 2048]")
        if len(self.values) > MOST_VALUES:
            fix = f"give at most {MOST_VALUES}, or see perfmodel sweep"
            raise UsageError(f"values: {len(self.values):,} are more than a picture shows", fix)
        self.workload.updated(self.over, self.values[0])
        by_device = [self._swept(device, scope) for device in scope.some_devices(self.devices)]
        every, several = [swept for own in by_device for swept in own], len(by_device) > 1
        names, parts, marks = short_names(own[0].device.name for own in by_device), list[Report](), list[Mark]()
        for own in sorted(by_device, key=lambda own: not all(swept.predicted for swept in own)):  # what is predicted comes first
            pairs = self._pairs(own, scope)
            parts.append(self._on(own, pairs, names, leads=not any(part.verdict for part in parts)))
            marks += _marks(own, pairs, f" ({names[own[0].device.name]})" if several else "")
        different = different_kernels((swept.name, swept.device, one.kernels) for swept in every for one in swept.found.values())
        whole = merged(parts, self.title)
        return replace(
            whole,
            verdict=[*whole.verdict, *different],
            reasons=[*whole.reasons, *different],
            charts=[self._chart(show, every, marks if show == "time" else [], several) for show in self.show or ["time"]],
            data_tables=[self._table(every, several)],
            notes=list(dict.fromkeys(note for swept in every for note in swept.notes)),
            brief=[table(every, self.over)],
            assumptions=[f"Work: {self.workload.in_words({}, [self.over, 'algorithm'])}.", *map(_kernels, by_device)],
        )

    def at(self, value: int, device: Device, scope: Scope) -> dict[str, WorkloadAnswer]:
        """Every answer at one value, by series."""
        return {one.series: one for one in answers(self.workload.updated(self.over, value), device, scope)}

    def _swept(self, device: Device, scope: Scope) -> list[SweptSeries]:
        found, failed = dict[str, SweptSeries](), list[str]()
        for value in sorted(set(self.values)):
            try:
                for name, one in self.at(value, device, scope).items():
                    found.setdefault(name, SweptSeries(name, device, {}, [], self.called(name))).found[value] = one
            except PerfmodelError as error:
                failed.append(f"{self.over} {value:,} on {device.name} is left out: {error.message}.")
        if not found:
            raise UsageError(failed[0], "give other values")
        for swept in found.values():
            swept.notes += failed + [missing for one in swept.found.values() for missing in one.missing][:1]
        return list(found.values())

    def _pairs(self, own: Sequence[SweptSeries], scope: Scope) -> list[Pairwise]:
        """Every other series of a device beside the first one, as far as both have values."""
        first, *others = own
        pairs = [Pairwise(first, other, self.over, lambda value: self.at(value, first.device, scope)) for other in others]
        return [pair for pair in pairs if pair.values]

    def _on(self, own: Sequence[SweptSeries], pairs: Sequence[Pairwise], names: Mapping[str, str], leads: bool) -> Report:
        """What is said of one device; ``leads``: before all other ones."""
        first, several = own[0], len(names) > 1
        name = names[first.device.name]
        lead, where = f"On {one_of(name)} ", f" ({name})" if several else ""
        if len(own) == 1:
            answers, sentences = [alone(first, self.over)], [alone(first, self.over)]
            figures, sensitivity = _ends(first, self.over, where), list[str]()
        else:
            answers, sentences = [f"{pair.answer()}." for pair in pairs], [pair.sentence() for pair in pairs]
            figures = [figure for pair in pairs for figure in _figures(pair, where)]
            leader = pairs[:1] if leads else []
            sensitivity = [said for pair in leader for said in pair.sensitivity()]
            other = "Another pair" if leader else "Another device"
            sensitivity += [f"{other}: o{lead[1:]}{said}" for said in answers[len(leader) :]]
        sentences += filter(None, (too_large(swept, self.over) for swept in own))
        reasons = [on(first.device, several, self.title) + said for said in sentences]
        return Report("", [lead + said for said in answers], [], figures=figures, reasons=reasons, sensitivity=sensitivity)

    def called(self, series: str) -> str:
        """What a sentence calls a series: an algorithm by the first words of its title."""
        return find(series.partition(" ")[0]).title.partition(",")[0] if self.workload.attention else series

    def _chart(self, show: str, every: Sequence[SweptSeries], marks: list[Mark], several: bool) -> LineChart:
        label, unit, value = SHOWN[show]
        if several and _alike(every, value):
            every, several = [swept for swept in every if swept.device is every[0].device], False
        unknown = [swept for swept in every if show in TIMED and not swept.predicted]
        mixed = 0 < len(unknown) < len(every)
        series = [line for swept in every for line in _lines(show, swept, several, roofs=mixed or not several)]
        title = f"{self.title}: {label}" if self.title else label
        names = ", ".join(f"{swept.name} on {swept.device.name}" for swept in unknown)
        only = f"No prediction is known of {names}: compare its roof (dashed) with the roofs of the others"
        caption = " ".join(filter(None, [self.caption, f"{only}, not with their predictions (solid)." if mixed else ""]))
        return LineChart(title, self.over, label, series, "count", unit, marks=marks, caption=caption)

    def _table(self, every: Sequence[SweptSeries], several: bool) -> DataTable:
        head = [Column("series", "workload"), *[Column("device", "device")] * several, Column("value", self.over, "count")]
        rows: list[list[Value]] = [
            [swept.name, *[swept.device.id] * several, value, *(cell(one) for _, cell in COLUMNS)]
            for swept in every
            for value, one in swept.found.items()
        ]
        return DataTable(self.title or f"{self.workload.kind} over {self.over}", [*head, *(column for column, _ in COLUMNS)], rows)


def _marks(own: Sequence[SweptSeries], pairs: Sequence[Pairwise], where: str) -> list[Mark]:
    """Where the order of each pair turns, and where a series does not fit the memory any more."""
    marks = []
    for pair in pairs:
        turned = "faster" if pair.basis == PREDICTED else "has the lower roof"
        marks += [
            Mark(turn.at, f"{(pair.other if turn.rises else pair.first).name} {turned} from {turn.at:,}{where}", turn.seconds)
            for turn in pair.turns
        ]
    for swept in own:
        at = next((value for value, one in swept.found.items() if one.fits is False), None)
        marks += [] if at is None else [Mark(at, f"{swept.name} does not fit from {at:,}{where}", seconds(swept.found[at]))]
    return marks


def _kernels(own: Sequence[SweptSeries]) -> str:
    """The kernels whose times are predicted on a device."""
    used = {swept.name: dict.fromkeys(kernel for one in swept.found.values() for kernel in one.kernels.values()) for swept in own}
    words = [f"{name} by {' or '.join([*kernels][:KERNELS])}" for name, kernels in used.items() if kernels]
    name = own[0].device.name
    return f"Kernels on {name}: {'; '.join(words)}." if words else f"Nothing is predicted on {name}: roofs stand for times."


def _figures(pair: Pairwise, where: str) -> list[Figure]:
    """The gain and the time at the last value, and the memory of what does not fit."""
    last, name, gain = pair.values[-1], pair.other.spoken, pair.gain(pair.values[-1])
    at = f"{size(pair.over, last)}{where}"
    known, unfit = pair.other.found[last].point.predicted, pair.unfit()
    found = [Figure(f"{name} against {pair.first.spoken}, {at}", f"{way(gain.value)}{ends(gain)}")] if gain else []
    found += [Figure(f"{name}, {at}", taken(known))] if known else []
    if unfit is not None:
        series, value = unfit
        capacity = series.device.dram.capacity
        limit = text(capacity.number, "B") if capacity else ""
        needs = between(text(float(series.found[value].memory or 0), "B"), limit, "of")
        found.append(Figure(f"memory of {series.spoken}, {size(pair.over, value)}{where}", needs))
    return found


def _ends(swept: SweptSeries, over: str, where: str) -> list[Figure]:
    """Figures of the times at the first value and the last."""
    known = [(value, swept.found[value].point.predicted) for value in (min(swept.runs), max(swept.runs))]
    return [Figure(f"{swept.name}, {over} {value:,}{where}", taken(time)) for value, time in known if time]


def _lines(show: str, swept: SweptSeries, several: bool, roofs: bool) -> list[Series]:
    """The line of a series; of a time that is predicted with its band, and with ``roofs`` its roof."""
    name, device = f"{swept.name}, {swept.device.name}" if several else swept.name, swept.device.id
    points = _points(show, swept, PREDICTED)
    if not points:
        return []
    if show in TIMED and not swept.predicted:
        return [Series(f"{name}, roof", points, "dashed", group=name, device=device)]
    roof = Series(f"{name}, roof", _points(show, swept, ROOF), "dashed", group=name, device=device)
    if show != "time":
        return [Series(name, points, group=name, device=device), *[roof] * (show in TIMED and several and roofs)]
    known = [one.point.predicted for one in swept.found.values() if one.point.predicted]
    band: XY = [(p.low or p.value, p.high or p.value) for p in known]
    return [Series(name, points, "line", band, name, device), *[roof] * roofs]


def _points(show: str, swept: SweptSeries, basis: str) -> XY:
    return [(at, float(value)) for at, one in swept.found.items() if (value := SHOWN[show][2](one, basis)) is not None]


def _alike(every: Sequence[SweptSeries], value: Shown) -> bool:
    """Whether every device has the same values, such as bytes that do not depend on it."""
    known: dict[str, list[float | None]] = {}
    rows = [(swept.name, [value(one, PREDICTED) for one in swept.found.values()]) for swept in every]
    return all(known.setdefault(name, values) == values for name, values in rows)


SECTION = SweepSection
