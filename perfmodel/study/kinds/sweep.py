"""A workload over one of its sizes: who is faster where, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Literal

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.report.against import PREDICTED, Side, against
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.roofline_metrics import RESOURCES, SHORT, bound, soft_bound
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.study.points import WorkloadAnswer, answers
from perfmodel.study.schema import XY, Options, Scope, SectionResult, on
from perfmodel.study.workloads import Workload

Show = Literal["time", "rate", "dram", "l2", "accesses", "memory"]
TIMED = ("time", "rate")
MOST_VALUES = 200
ROOF = "at the roof"


# Series and pairs of them


def seconds(one: WorkloadAnswer, basis: str = PREDICTED) -> float:
    """Seconds predicted, else, or with the ``basis`` ROOF, at the roof; 0 where that is unknown."""
    known = one.point.predicted if basis == PREDICTED else None
    return known.value if known else one.point.roofline_s or 0.0


@dataclass(slots=True)
class SweptSeries:
    """One series on one device: answers by value."""

    name: str
    device: Device
    found: dict[int, WorkloadAnswer]
    notes: list[str]

    @property
    def runs(self) -> list[int]:
        """Values at which it fits the memory, as far as that is known; where it never does, all of them."""
        return [value for value, one in self.found.items() if one.fits is not False] or list(self.found)

    @property
    def predicted(self) -> bool:
        """Whether every value is predicted."""
        return all(one.point.predicted for one in self.found.values())


@dataclass(frozen=True, slots=True)
class SpeedCrossover:
    """``at``: the first value at which the order has turned, ``seconds`` of the faster one there. ``rises``: the other one leads."""

    at: int
    seconds: float
    rises: bool


@dataclass(frozen=True, slots=True)
class Pairwise:
    """Two series over the values that both have. ``again``: both answers at any value, to find where the order turns."""

    first: SweptSeries
    other: SweptSeries
    over: str
    again: Callable[[int], dict[str, WorkloadAnswer]]

    @property
    def values(self) -> list[int]:
        """Values at which both can run; where there are none, those that both have."""
        known = [value for value in self.first.found if value in self.other.found]
        return [value for value in known if value in self.first.runs and value in self.other.runs] or known

    @property
    def cut(self) -> bool:
        """Whether a larger value does not fit the memory with one of the two."""
        return max(self.first.found) > self.values[-1] or max(self.other.found) > self.values[-1]

    @property
    def basis(self) -> str:
        """Predictions where both are predicted throughout, else roofs."""
        return PREDICTED if self.first.predicted and self.other.predicted else ROOF

    def turns(self) -> list[SpeedCrossover]:
        """Where the order turns, by bisection between the values."""
        found = []
        leads = {value: self._leads({one.name: one.found[value] for one in (self.first, self.other)}) for value in self.values}
        for low, high in pairwise(self.values):
            if leads[low] != leads[high]:
                at = self._first(low, high, leads[high])
                found.append(SpeedCrossover(at, min(self._times(self.again(at))), leads[high]))
        return found

    def _times(self, both: dict[str, WorkloadAnswer]) -> tuple[float, float]:
        return seconds(both[self.first.name], self.basis), seconds(both[self.other.name], self.basis)

    def _leads(self, both: dict[str, WorkloadAnswer]) -> bool:
        first, other = self._times(both)
        return other < first

    def _first(self, low: int, high: int, rises: bool) -> int:
        """The first value above ``low`` at which the order is that of ``high``; a size that has no answer ends the search."""
        while high - low > 1:
            middle = (low + high) // 2
            try:
                turned = self._leads(self.again(middle)) == rises
            except PerfmodelError:
                return high
            low, high = (low, middle) if turned else (middle, high)
        return high

    def _against(self, value: int, where: str) -> str:
        sides = ((swept.name, swept.found[value]) for swept in (self.first, self.other))
        first, other = (Side(name, float(one.point.roofline_s or 0.0), one.point.predicted, left_out=one.left_out) for name, one in sides)
        return against(first, other, f" at {self.over} {where}")

    def sentence(self, turns: Sequence[SpeedCrossover]) -> str:
        """Who is faster where, on which basis, and by how much at the ends."""
        first, last = self.values[0], self.values[-1]
        end = self._against(last, f"{last:,}" + ", the largest of them at which both fit the memory" * self.cut)
        if turns:
            words = [("faster" if turn.rises else "slower", f"from {self.over} {turn.at:,} on") for turn in turns]
            basis = "predicted to be " if self.basis == PREDICTED else ""
            then = "".join(f" and {word} {since}" for word, since in words[1:]) + ("" if basis else ", by the ratio of roofs")
            return f"{self.other.name} is {basis}{words[0][0]} than {self.first.name} {words[0][1]}{then}. {end}."
        return f"{end}." if first == last else f"{end}. {self._against(first, f'{first:,}')}."


def alone(swept: SweptSeries, over: str) -> str:
    """A series without another: from the first value to the last."""
    first, last = min(swept.runs), max(swept.runs)
    a, b = seconds(swept.found[first]), seconds(swept.found[last])
    before, after = _limit(swept.found[first]), _limit(swept.found[last])
    binds = f"bound by {before}" + (f", at the end by {after}" if after != before else " throughout")
    grown, basis = f"{text(b, 's')} ({text(b / a, 'ratio')})", PREDICTED if swept.predicted else ROOF
    return f"{swept.name} takes {text(a, 's')} at {over} {first:,} and {grown} at {last:,}, {basis}, {binds}."


def _limit(one: WorkloadAnswer) -> str:
    return RESOURCES.get(bound(one.point) or "", "nothing known") + " (a soft roof: products with clusters pass it)" * soft_bound(one.point)


def too_large(swept: SweptSeries, over: str) -> str:
    """From where on it does not fit the memory; empty if it does."""
    beyond = next((value for value, one in swept.found.items() if one.fits is False), None)
    if beyond is None:
        return ""
    return f"{swept.name} does not fit the memory from {over} {beyond:,} on: it needs {text(swept.found[beyond].memory, 'B')}."


# The section

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

    def build(self, scope: Scope) -> SectionResult:
        """Pictures, the table and where the order turns, per device."""
        if len(self.values) < 2:
            raise UsageError("values: a sweep has at least two", "such as [512, 1024, 2048]")
        if len(self.values) > MOST_VALUES:
            fix = f"give at most {MOST_VALUES}, or see perfmodel sweep"
            raise UsageError(f"values: {len(self.values):,} are more than a picture shows", fix)
        self.workload.updated(self.over, self.values[0])
        by_device = [self._swept(device, scope) for device in scope.devices(self.devices)]
        every, several = [swept for own in by_device for swept in own], len(by_device) > 1
        verdict, marks = list[str](), list[Mark]()
        for own in sorted(by_device, key=lambda own: not all(swept.predicted for swept in own)):  # what is predicted comes first
            verdict += self._compared(own, scope, several, marks)
        charts = [self._chart(show, every, marks if show == "time" else [], several) for show in self.show or ["time"]]
        notes = list(dict.fromkeys(note for swept in every for note in swept.notes))
        return SectionResult(verdict, [*charts], [self._table(every, several)], notes)

    def at(self, value: int, device: Device, scope: Scope) -> dict[str, WorkloadAnswer]:
        """Every answer at one value, by series."""
        return {one.series: one for one in answers(self.workload.updated(self.over, value), device, scope)}

    def _swept(self, device: Device, scope: Scope) -> list[SweptSeries]:
        found, failed = dict[str, SweptSeries](), list[str]()
        for value in sorted(set(self.values)):
            try:
                for name, one in self.at(value, device, scope).items():
                    found.setdefault(name, SweptSeries(name, device, {}, [])).found[value] = one
            except PerfmodelError as error:
                failed.append(f"{self.over} {value:,} on {device.name} is left out: {error.message}.")
        if not found:
            raise UsageError(failed[0], "give other values")
        for swept in found.values():
            swept.notes += failed + [missing for one in swept.found.values() for missing in one.missing][:1]
        return list(found.values())

    def _compared(self, own: Sequence[SweptSeries], scope: Scope, several: bool, marks: list[Mark]) -> list[str]:
        """Sentences on every other series of a device against the first one; where they turn is added to ``marks``."""
        first, *others = own
        device = first.device
        head, where = on(device, several, self.title), f" ({device.name})" if several else ""
        sentences = [] if others else [alone(first, self.over)]
        for other in others:
            pair = Pairwise(first, other, self.over, lambda value: self.at(value, device, scope))
            if not pair.values:
                continue
            turns = pair.turns()
            sentences.append(pair.sentence(turns))
            turned = "faster" if pair.basis == PREDICTED else "has the lower roof"
            marks += [Mark(t.at, f"{(other if t.rises else first).name} {turned} from {t.at:,}{where}", t.seconds) for t in turns]
        return [head + words for words in [*sentences, *filter(None, (too_large(swept, self.over) for swept in own))]]

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
