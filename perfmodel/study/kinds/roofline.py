"""Workloads, measurements and profiled kernels on the rooflines of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar

from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.report.charts.kinds import Point, Roofline
from perfmodel.report.charts.points import flag, sentence, share_of_roof
from perfmodel.report.roofline_chart import point_of_row, roofline
from perfmodel.study.base import Part, Scope, on
from perfmodel.study.fields import Fields
from perfmodel.study.kernels import GROUP as COUNTED
from perfmodel.study.kernels import NcuFile, advice, kernels_of, points_of
from perfmodel.study.points import Found, answers
from perfmodel.study.recorded import RecordChoice, row_name, rows_of
from perfmodel.study.workloads import Workload
from perfmodel.units import format_time
from perfmodel.validation.compare import Row
from perfmodel.validation.statistics import quantile

MANY = 6
"""Measured points from which on a sentence sums them up."""


@dataclass(frozen=True, slots=True)
class Section:
    """``devices``: of workloads and profiled kernels; records name their own. ``level``: the memory level shown first."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    devices: list[str] = field(default_factory=list)
    workloads: list[Annotated[Workload, Fields(Workload)]] = field(default_factory=list)
    records: Annotated[RecordChoice, Fields(RecordChoice)] | None = None
    ncu: Annotated[NcuFile, Fields(NcuFile)] | None = None
    title: str = ""
    caption: str = ""
    level: str = ""

    def build(self, scope: Scope) -> Part:
        """A roofline per device."""
        if not self.devices and (self.workloads or self.ncu or self.records is None):
            raise UsageError("devices is missing", "name at least one, such as h200")
        devices = {device.id: device for device in scope.devices(self.devices)}
        rows = [] if self.records is None else rows_of(self.records, scope)
        devices |= {row.device.id: row.device for row in rows if row.device is not None and row.device.id not in devices}
        if self.ncu is not None and len(devices) > 1:
            raise UsageError("ncu: the profile is of one device", "name that one alone")
        parts = [self._of(device, rows, scope, len(devices) > 1) for device in devices.values()]
        return Part(
            [said for part in parts for said in part.verdict],
            [chart for part in parts for chart in part.charts],
            notes=[note for part in parts for note in part.notes],
            formulas=[formula for part in parts for formula in part.formulas],
        )

    def _of(self, device: Device, rows: Sequence[Row], scope: Scope, several: bool) -> Part:
        found = [(w, answer) for w in self.workloads for answer in answers(w, device, scope)]
        points, notes, verdict = [], [told for _, one in found for told in one.missing], []
        for w, one in found:
            points += _shown(w, one, len(found) > 1)
        measured, absent = _measured(rows, device)
        counted, told = self._counted(device, scope)
        chart = self._chart(device, scope.numbered([*points, *measured, *counted]), several)
        for _, one in found:
            verdict.append(on(device, several) + _said(one, chart))
        others = replace(chart, points=chart.points[len(points) :])
        verdict += [on(device, several) + said for said in [*_summary(others), *map(partial(_sentence, chart=others), others.points)]]
        explained = [f for _, one in found if one.steps for f in scope.explain(one.series, f"{one.point.name} on {device.id}", one.steps)]
        return Part(verdict, [chart], notes=[*notes, *absent, *told], formulas=explained)

    def _chart(self, device: Device, points: list[Point], several: bool) -> Roofline:
        title = f"{self.title}: {device.name}" if self.title and several else self.title
        chart = roofline(device, points, title, self.caption)
        return replace(chart, level=self.level) if self.level else chart

    def _counted(self, device: Device, scope: Scope) -> tuple[list[Point], list[str]]:
        if self.ncu is None:
            return [], []
        kernels = kernels_of(self.ncu, scope)
        points = points_of(kernels, device)
        if not points:
            raise UsageError(f"{self.ncu.file}: none of its {len(kernels)} kernels has a duration", advice(kernels)[0])
        return points, advice(kernels)


def _shown(w: Workload, one: Found, several: bool) -> list[Point]:
    """Its kernels where they are known one by one, named after it where there are others; else it as a whole."""
    if not one.parts:
        return [one.point]
    return [replace(point, name=f"{w.name or one.series}: {point.name}") for point in one.parts] if several else list(one.parts)


def _summary(chart: Roofline) -> list[str]:
    """Of many measured points, before the sentence on each."""
    shares = [share for point in chart.points if point.measured and (share := share_of_roof(point)) is not None]
    uncounted = [point for point in chart.points if point.group == COUNTED and not point.flops]
    said = []
    if len(shares) >= MANY:
        above = [point for point in chart.points if flag(point)]
        flagged = f"; ABOVE ITS ROOF: {', '.join(point.name for point in above)}" if above else "; none is above its roof"
        said.append(
            f"{len(shares)} measured kernels reach {min(shares):.0%} to {max(shares):.0%} of their roofs, "
            f"{quantile(shares, 0.5):.0%} in the median{flagged}."
        )
    if uncounted:
        said.append(f"{len(uncounted)} of {len(chart.points)} kernels have no FLOP in the file: only memory roofs are known of them.")
    return said


def _sentence(point: Point, chart: Roofline) -> str:
    """The verdict on a point; bytes alone do not tell what bounds a kernel."""
    said = sentence(point, chart.ceilings)
    return (
        said.replace(" is bound by ", " is, as far as its bytes tell, bound by ", 1) if point.group == COUNTED and not point.flops else said
    )


def _measured(rows: Sequence[Row], device: Device) -> tuple[list[Point], list[str]]:
    points: list[Point] = []
    absent: dict[str, int] = {}
    for row in rows:
        if row.device is None or row.device.id != device.id:
            continue
        made = point_of_row(0, row, f"{row.record.implementation} {row.record.direction}".removesuffix(" forward"), row_name(row))
        if made is None:
            absent[row.reason] = absent.get(row.reason, 0) + 1
        else:
            points.append(made)
    return points, [f"{count} records are not shown: {reason}." for reason, count in absent.items()]


def _said(found: Found, chart: Roofline) -> str:
    """The sentence of the whole; of a model also what takes most of its time."""
    text = sentence(found.point, chart.ceilings)
    if not found.parts:
        return text
    most = max(found.parts, key=lambda part: part.share or 0)
    spent = most.predicted.value if most.predicted else most.roofline_s
    return f"{text[:-1]}; {most.share or 0:.0%} of the time is in {most.name} ({format_time(spent or 0)})."
