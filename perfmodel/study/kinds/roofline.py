"""Workloads, measurements and kernels that Nsight Compute counted on the rooflines of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.arith import quantile
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.report import roofline as roofline_answer
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.format_number import text as cell
from perfmodel.report.charts.roofline_metrics import flag, share_of_roof
from perfmodel.report.charts.schema import Roofline, RooflinePoint
from perfmodel.report.document import Report
from perfmodel.report.ncu_kernels import UNCOUNTED, advice, certain, known_flops, points_of, with_flops
from perfmodel.report.roofline_chart import at_one_level, brief, point_of_row, roofline, verdict_on
from perfmodel.report.roofline_chart import with_dtypes as with_formats
from perfmodel.report.swept_series import WorkloadAnswer
from perfmodel.study.points import answers_to, different_kernels, too_large, with_dtypes
from perfmodel.study.recorded import RecordChoice, row_group, row_name, rows_of
from perfmodel.study.schema import Options, Scope, merged, on
from perfmodel.study.workloads import Workload
from perfmodel.validation.compare import RecordRow
from perfmodel.validation.ncu_points import KernelCount, read_kernels

SHOWN = 0.0005
"""Relative excess over a roof that a percentage of one digit shows."""
MANY = 6
"""From this many measured points on, a sentence sums them up."""
SEEN = 2
"""Sentences on points before those on times that are not to be compared: a screen has room for three."""
UNKNOWN_FLOP = "have no FLOP in the file"


@dataclass(frozen=True, slots=True)
class NcuFile(Options):
    """What ``ncu --csv`` wrote. ``flops``: FLOP of kernels that the file does not count, by a part of their name or by #ID.

    A count is written as ``137.4GFLOP``, with ``@fp16`` behind it for its format (fp32 by default).
    """

    file: str
    flops: dict[str, str] = field(default_factory=dict)

    def kernels(self, scope: Scope) -> list[KernelCount]:
        """The kernels of the file, with the FLOP that were given."""
        found = read_kernels(scope.file(self.file))
        for name, count in self.flops.items():
            found = with_flops(found, name, count)
        return found


@dataclass(frozen=True, slots=True)
class RooflineSection(Options):
    """``devices``: those that workloads and profiled kernels are drawn on; records name theirs. ``level``: memory level shown first."""

    devices: list[str] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    records: RecordChoice | None = None
    ncu: NcuFile | None = None
    title: str = ""
    caption: str = ""
    level: str = ""

    def build(self, scope: Scope) -> Report:
        """A roofline and a verdict per device. UsageError if no device is named, or records have none with a profile."""
        if not self.devices and (self.workloads or self.ncu or self.records is None):
            raise UsageError("devices is missing", "name at least one, such as h200")
        devices = {device.id: device for device in scope.devices(self.devices)}
        rows = [] if self.records is None else rows_of(self.records, scope)
        devices |= {row.device.id: row.device for row in rows if row.device is not None and row.device.id not in devices}
        unknown = [row for row in rows if row.device is None]
        if not devices:
            raise UsageError(f"records: {unknown[0].reason}", "none of them is of a device with a profile")
        if self.ncu is not None and len(devices) > 1:
            raise UsageError("ncu: the profile is of one device", "name that one alone")
        answered = {name: [one for w in self.workloads for one in answers_to(w, device, scope)] for name, device in devices.items()}
        whole = merged([self._of(device, answered[name], rows, scope, len(devices) > 1) for name, device in devices.items()])
        leveled = [replace(chart, level=self.level) for chart in whole.rooflines] if self.level else at_one_level(whole.rooflines)
        answers = whole.verdict or [*roofline_answer.answers(leveled), *(said for said in whole.reasons if UNKNOWN_FLOP in said)]
        said = answers if any(chart.points for chart in leveled) else whole.reasons
        different = different_kernels((one.point.name, devices[name], one.kernels) for name, own in answered.items() for one in own)
        said = [*said[:SEEN], *different, *said[SEEN:]]
        return replace(whole, charts=[*leveled], notes=[*_without_point(unknown), *whole.notes], verdict=said)

    def _of(self, device: Device, answered: Sequence[WorkloadAnswer], rows: Sequence[RecordRow], scope: Scope, several: bool) -> Report:
        found = with_dtypes(answered)
        points = [point for one in found for point in _workload_points(one, len(found) > 1)]
        measured, absent = _measured(rows, device)
        counted, lacking = self._counted(device, scope)
        every = scope.numbered([*points, *with_formats(measured), *counted])
        title = f"{self.title}: {device.name}" if self.title and several else self.title
        uncounted = UNCOUNTED * any(not known_flops(point) for point in every)
        chart = roofline(device, every, title, " ".join(filter(None, [self.caption, uncounted])))
        others = replace(chart, points=every[len(points) :])
        verdict = [_verdict_of(one, chart, device) for one in found]
        verdict += [*_summary(others), *(_sentence(point, others) for point in others.points), *([] if every else absent)]
        explained = [f for one in found if one.steps for f in scope.explain(one.series, f"{one.point.name} on {device.id}", one.steps)]
        notes = [*(missing for one in found for missing in one.missing), *absent, *lacking]
        reasons = [on(device, several) + words for words in verdict]
        made = Report("", [], [], notes, charts=[chart], formulas=explained, reasons=reasons)
        return self._in_short(made, found, chart, several) if found else made

    def _in_short(self, made: Report, found: Sequence[WorkloadAnswer], chart: Roofline, several: bool) -> Report:
        """``made`` with what a screen says of workloads: of models as a whole, and the meters of what is alone."""
        device, models = chart.device_name, any(one.parts for one in found)
        answers = [_short_of(one, device * several) for one in found] if models else []
        figures = roofline_answer.figures([replace(chart, points=[one.point for one in found])]) if models else []
        if several or len(self.workloads) > 1 or (len(found) < len(chart.points) and not models):
            return replace(made, verdict=answers, figures=figures)
        last = found[-1].point
        made = replace(made, meters=roofline_answer.meters_of(last), metered=roofline_answer.metered(last))
        return replace(made, verdict=answers, figures=figures)

    def _counted(self, device: Device, scope: Scope) -> tuple[list[RooflinePoint], list[str]]:
        """Points of profiled kernels, and what their file lacks."""
        if self.ncu is None:
            return [], []
        kernels = self.ncu.kernels(scope)
        points = points_of(kernels, device)
        if not points:
            raise UsageError(f"{self.ncu.file}: none of its {len(kernels)} kernels has a duration", advice(kernels)[0])
        return points, advice(kernels)


def _workload_points(one: WorkloadAnswer, several: bool) -> list[RooflinePoint]:
    """The points of a workload: one per kernel if these are known, else one in all. With ``several`` workloads, kernels carry its name."""
    if not one.parts:
        return [one.point]
    return [replace(point, name=f"{one.series}: {point.name}") for point in one.parts] if several else list(one.parts)


def _summary(chart: Roofline) -> list[str]:
    """Sentences over all points: the range of roof shares if many are measured, and how many lack FLOP."""
    shares = [share for point in chart.points if point.measured and (share := share_of_roof(point)) is not None]
    uncounted = [point for point in chart.points if not known_flops(point)]
    sentences = []
    if len(shares) >= MANY:
        above = [point for point in chart.points if flag(point)]
        flagged = f"; ABOVE ITS ROOF: {', '.join(brief(point.name) for point in above)}" if above else "; none is above its roof"
        sentences.append(
            f"{len(shares)} measured kernels reach {percent(min(shares))} to {percent(max(shares))} of their roofs, "
            f"{percent(quantile(shares, 0.5))} in the median{flagged}."
        )
    if uncounted:
        sentences.append(
            f"{len(uncounted)} of {len(chart.points)} kernels {UNKNOWN_FLOP}: only their memory roofs are known; --flops gives it."
        )
    return sentences


def _sentence(point: RooflinePoint, chart: Roofline) -> str:
    """The verdict on a point, which is less certain where only bytes, or the FLOP of one unit, were counted."""
    text = verdict_on(point, chart)
    counted = "not every FLOP was" if known_flops(point) else "only bytes were"
    return text if certain(point) else text.replace(" is bound by ", f", of which {counted} counted, seems to be bound by ", 1)


def _measured(rows: Sequence[RecordRow], device: Device) -> tuple[list[RooflinePoint], list[str]]:
    """Points of the records of ``device``, and sentences on the records without one."""
    own = [row for row in rows if row.device is not None and row.device.id == device.id]
    made = [(row, point_of_row(0, row, row_group(row), row_name(row))) for row in own]
    return [point for _, point in made if point], _without_point([row for row, point in made if point is None])


def _without_point(rows: Sequence[RecordRow]) -> list[str]:
    """Sentences on how many records have no point, by reason: a collective or a whole step, for one, has no FLOP and bytes by kernel."""
    counts = Counter(row.reason or f"{row.record.implementation} is estimated as a whole, not by kernels" for row in rows)
    return [f"{count} record{'s are' if count > 1 else ' is'} not shown: {reason}." for reason, count in counts.items()]


def _short_of(found: WorkloadAnswer, device: str) -> str:
    """Time, rate and roof of a workload; of a model with the kernel that takes most of it."""
    said = roofline_answer.answer_of(found.point, device)
    if most := found.longest:
        said += f"; {percent(most.share or 0)} of the time is {most.name}"
    return f"{said}."


def _verdict_of(found: WorkloadAnswer, chart: Roofline, device: Device) -> str:
    """The verdict on a workload; for a model with the kernel that takes most time, or CANNOT RUN if it does not fit the memory."""
    words, text = too_large(found, device), verdict_on(found.point, chart)
    if most := found.longest:
        spent = format_time((most.predicted.value if most.predicted else most.roofline_s) or 0)
        text = f"{text[:-1]}; {percent(most.share or 0)} of the time is in {most.name} ({spent}).{_above_roofs(found)}"
    return f"{found.point.name} CANNOT RUN: {words}. With room for it, {text}" if words else text


def _above_roofs(found: WorkloadAnswer) -> str:
    """A sentence on the kernels that are predicted above their roofs and the likely cause; empty if there is none."""
    over = [(part, share) for part in found.parts if (share := share_of_roof(part)) is not None and share > 1 + SHOWN]
    if not over:
        return ""
    named = ", ".join(f"{part.name} ({cell(share, 'share')})" for part, share in over)
    why = "the clock is above the datasheet's, or a count is wrong"
    return f" {len(over)} of its {len(found.parts)} kernels {'is' if len(over) == 1 else 'are'} predicted ABOVE THE ROOF: {named}; {why}."


SECTION = RooflineSection
