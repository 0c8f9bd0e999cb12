"""A workload over one of its sizes: who is faster where, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.report.against import PREDICTED
from perfmodel.report.charts.roofline_metrics import SHORT, bound
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.study.base import XY, Part, Scope, on
from perfmodel.study.kinds._pairwise import Pairwise, SweptSeries, alike, alone, plain, seconds, too_large
from perfmodel.study.points import Found, answers
from perfmodel.study.schema import Options
from perfmodel.study.workloads import Workload

Show = Literal["time", "rate", "dram", "l2", "accesses", "memory"]
TIMED = ("time", "rate")
MOST_VALUES = 200


def _rate(one: Found) -> float | None:
    spent = seconds(one)
    return one.point.flops / spent if spent and one.point.flops else None


SHOWN: dict[str, tuple[str, str, Callable[[Found], float | None]]] = {
    "time": ("time", "s", seconds),
    "rate": ("FLOP per second", "FLOP/s", _rate),
    "dram": ("bytes over DRAM", "B", lambda one: one.point.bytes.get("dram")),
    "l2": ("bytes through the L2", "B", lambda one: one.point.bytes.get("l2")),
    "accesses": ("HBM accesses, two-level model", "B", lambda one: one.accesses),
    "memory": ("memory", "B", lambda one: one.memory),
}
"""Label, unit and value of what a picture shows."""


@dataclass(frozen=True, slots=True)
class Section(Options):
    """``workload`` with each of ``values`` in the place of its size ``over``. ``show``: a picture each."""

    devices: list[str]
    workload: Workload
    over: str
    values: list[int]
    show: list[Show] | None = None
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Part:
        """Pictures, the table and where the order turns, per device."""
        if len(self.values) < 2:
            raise UsageError("values: a sweep has at least two", "such as [512, 1024, 2048]")
        if len(self.values) > MOST_VALUES:
            raise UsageError(
                f"values: {len(self.values):,} are more than a picture shows", f"give at most {MOST_VALUES}, or see perfmodel sweep"
            )
        if self.values:
            self.workload.updated(self.over, self.values[0])
        devices = scope.devices(self.devices)
        swept_series = [swept for device in devices for swept in self._swept(device, scope)]
        several = len(devices) > 1
        own = {device.id: [swept for swept in swept_series if swept.device.id == device.id] for device in devices}
        predicted = {device: all(swept.predicted for swept in those) for device, those in own.items()}
        found = [self._compared(device, own[device.id], scope, several) for device in sorted(devices, key=lambda d: not predicted[d.id])]
        verdict = [said for sentences, _ in found for said in sentences]
        marks = [mark for _, those in found for mark in those]
        charts = [self._chart(show, swept_series, marks if show == "time" else [], several) for show in self.show or ["time"]]
        notes = list(dict.fromkeys(note for swept in swept_series for note in swept.notes))
        return Part(verdict, list(charts), [self._table(swept_series, several)], notes)

    def at(self, value: int, device: Device, scope: Scope) -> dict[str, Found]:
        """Every answer at one value, by series."""
        return {one.series: one for one in answers(self.workload.updated(self.over, value), device, scope)}

    def _swept(self, device: Device, scope: Scope) -> list[SweptSeries]:
        swept_series: dict[str, SweptSeries] = {}
        failed = []
        for value in sorted(set(self.values)):
            try:
                found = self.at(value, device, scope)
            except PerfmodelError as error:
                failed.append(f"{self.over} {value:,} on {device.name} is left out: {error.message}.")
                continue
            for name, one in found.items():
                swept_series.setdefault(name, SweptSeries(name, device, {}, [])).found[value] = one
        if not swept_series:
            raise UsageError(failed[0], "give other values")
        for swept in swept_series.values():
            swept.notes += failed + list(dict.fromkeys(told for one in swept.found.values() for told in one.missing))[:1]
        return list(swept_series.values())

    def _compared(self, device: Device, swept_series: Sequence[SweptSeries], scope: Scope, several: bool) -> tuple[list[str], list[Mark]]:
        """Sentences on every other series against the first one, and where they turn as marks."""
        head, where = on(device, several, self.title), f" ({device.name})" if several else ""
        first, *others = swept_series
        said, marks = [] if others else [head + alone(first, self.over)], []
        for other in others:
            pair = Pairwise(first, other, self.over, lambda value: self.at(value, device, scope))
            if not pair.values:
                continue
            turns = pair.turns()
            said.append(head + pair.sentence(turns))
            turned = "faster" if pair.basis == PREDICTED else "has the lower roof"
            marks += [Mark(t.at, f"{(other if t.rises else first).name} {turned} from {t.at:,}{where}", t.seconds) for t in turns]
        return said + [head + told for swept in swept_series if (told := too_large(swept, self.over))], marks

    def _chart(self, show: str, swept_series: Sequence[SweptSeries], marks: list[Mark], several: bool) -> LineChart:
        label, unit, value = SHOWN[show]
        if several and alike(swept_series, value):
            swept_series, several = [swept for swept in swept_series if swept.device is swept_series[0].device], False
        unknown = [swept for swept in swept_series if show in TIMED and not swept.predicted]
        mixed = 0 < len(unknown) < len(swept_series)
        series = [line for swept in swept_series for line in self._series(show, swept, value, several, roofs=mixed or not several)]
        title = f"{self.title}: {label}" if self.title else label
        caption = " ".join(filter(None, [self.caption, _only_roofs(unknown) if mixed else ""]))
        return LineChart(title, self.over, label, series, "count", unit, marks=marks, caption=caption)

    def _series(self, show: str, swept: SweptSeries, value: Callable[[Found], float | None], several: bool, roofs: bool) -> list[Series]:
        """The line of a series; of a time that is predicted with its band, and with ``roofs`` its roof."""
        name = f"{swept.name}, {swept.device.name}" if several else swept.name
        points: XY = [(at, float(y)) for at, one in swept.found.items() if (y := value(one)) is not None]
        if not points:
            return []
        if show in TIMED and not swept.predicted:
            return [Series(f"{name}, roof", points, "dashed", group=name, device=swept.device.id)]
        roof = Series(f"{name}, roof", _roof(show, swept), "dashed", group=name, device=swept.device.id)
        if show != "time":
            return [Series(name, points, group=name, device=swept.device.id), *([roof] if show in TIMED and several and roofs else [])]
        known = [one.point.predicted for one in swept.found.values() if one.point.predicted]
        band: XY = [(p.low or p.value, p.high or p.value) for p in known]
        line = Series(name, points, "line", band, name, swept.device.id)
        return [line, roof] if roofs else [line]

    def _table(self, swept_series: Sequence[SweptSeries], several: bool) -> DataTable:
        columns = [
            Column("series", "workload"),
            *([Column("device", "device")] if several else []),
            Column("value", self.over, "count"),
            *COLUMNS,
        ]
        rows: list[list[Value]] = []
        for swept in swept_series:
            head: list[Value] = [swept.name, *([swept.device.id] if several else [])]
            rows += [[*head, value, *_cells(one)] for value, one in swept.found.items()]
        return DataTable(self.title or f"{self.workload.kind} over {self.over}", columns, rows)


COLUMNS = (
    Column("predicted_s", "predicted", "s", "low_s", "high_s"),
    Column("low_s", "low", "s"),
    Column("high_s", "high", "s"),
    Column("roofline_s", "roofline", "s"),
    Column("lower_s", "lower bound", "s"),
    Column("bound", "bound by"),
    Column("flops", "FLOP", "FLOP"),
    Column("dram", "DRAM bytes", "B"),
    Column("l2", "L2 bytes", "B"),
    Column("accesses", "HBM accesses", "B"),
    Column("memory", "memory", "B"),
    Column("fits", "fits the memory"),
)


def _cells(one: Found) -> list[Value]:
    known, point = one.point.predicted, one.point
    times: list[Value] = [known.value, known.low, known.high] if known else [None, None, None]
    moved: list[Value] = [point.bytes.get("dram"), point.bytes.get("l2"), plain(one.accesses), plain(one.memory)]
    fits = None if one.fits is None else "yes" if one.fits else "NO"
    return [*times, point.roofline_s, point.lower_s, SHORT.get(bound(point) or ""), point.flops, *moved, fits]


def _roof(show: str, swept: SweptSeries) -> XY:
    """Its time, or rate, at the roof."""
    found = [(at, one.point.roofline_s or 0.0, one.point.flops) for at, one in swept.found.items()]
    return [(at, seconds if show == "time" else flops / seconds) for at, seconds, flops in found if show == "time" or seconds]


def _only_roofs(unknown: Sequence[SweptSeries]) -> str:
    names = ", ".join(f"{swept.name} on {swept.device.name}" for swept in unknown)
    return f"No prediction is known of {names}: compare its roof (dashed) with the roofs of the others, not with their predictions (solid)."
