"""Rooflines of devices with workloads, measurements and kernels profiled by Nsight Compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace

from perfmodel.core.arith import quantile
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.program.ncu_points import KernelCount, read_kernels
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

SHOWN = 0.0005
"""Relative excess over a roof that is visible in a percentage of one decimal."""
MANY = 6
"""Number of measured points from which a sentence sums them up."""
SEEN = 2
"""Sentences on points that come before those on times that must not be compared; a screen has room for three."""
UNKNOWN_FLOP = "have no FLOP in the file"


@dataclass(frozen=True, slots=True)
class NcuFile(Options):
    """A file of ``ncu --csv``. ``flops``: FLOP of kernels without a count in the file, by a part of the name or by #ID.

    A count is written as ``137.4GFLOP``, perhaps with its format as in ``137.4GFLOP@fp16`` (fp32 by default).
    """

    file: str
    flops: dict[str, str] = field(default_factory=dict)

    def kernels(self, scope: Scope) -> list[KernelCount]:
        """The kernels of the file, with the FLOP of ``flops``."""
        kernels = read_kernels(scope.file(self.file))
        for name, count in self.flops.items():
            kernels = with_flops(kernels, name, count)
        return kernels


@dataclass(frozen=True, slots=True)
class RooflineSection(Options):
    """Rooflines of ``devices`` with workloads and profiled kernels; records name their own devices. ``level``: memory level shown first."""

    devices: list[str] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    records: RecordChoice | None = None
    ncu: NcuFile | None = None
    title: str = ""
    caption: str = ""
    level: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: a roofline and a verdict per device. UsageError if no device is named, or records have none with a profile."""
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
        answered = {name: [answer for w in self.workloads for answer in answers_to(w, device, scope)] for name, device in devices.items()}
        whole = merged([self._device_report(device, answered[name], rows, scope, len(devices) > 1) for name, device in devices.items()])
        leveled = [replace(chart, level=self.level) for chart in whole.rooflines] if self.level else at_one_level(whole.rooflines)
        answers = whole.verdict or [*roofline_answer.answers(leveled), *(reason for reason in whole.reasons if UNKNOWN_FLOP in reason)]
        verdict = answers if any(chart.points for chart in leveled) else whole.reasons
        different = different_kernels(
            (answer.point.name, devices[name], answer.kernels) for name, group in answered.items() for answer in group
        )
        verdict = [*verdict[:SEEN], *different, *verdict[SEEN:]]
        return replace(whole, charts=[*leveled], notes=[*_without_point(unknown), *whole.notes], verdict=verdict)

    def _device_report(
        self, device: Device, answered: Sequence[WorkloadAnswer], rows: Sequence[RecordRow], scope: Scope, several: bool
    ) -> Report:
        named = with_dtypes(answered)
        points = [point for answer in named for point in _workload_points(answer, len(named) > 1)]
        measured, absent = _measured(rows, device)
        counted, lacking = self._counted(device, scope)
        all_points = scope.numbered([*points, *with_formats(measured), *counted])
        title = f"{self.title}: {device.name}" if self.title and several else self.title
        uncounted = UNCOUNTED * any(not known_flops(point) for point in all_points)
        chart = roofline(device, all_points, title, " ".join(filter(None, [self.caption, uncounted])))
        others = replace(chart, points=all_points[len(points) :])
        verdict = [_verdict_of(answer, chart, device) for answer in named]
        verdict += [*_summary(others), *(_sentence(point, others) for point in others.points), *([] if all_points else absent)]
        explained = [
            f for answer in named if answer.steps for f in scope.explain(answer.series, f"{answer.point.name} on {device.id}", answer.steps)
        ]
        notes = [*(missing for answer in named for missing in answer.missing), *absent, *lacking]
        reasons = [on(device, several) + words for words in verdict]
        report = Report("", [], [], notes, charts=[chart], formulas=explained, reasons=reasons)
        return self._in_short(report, named, chart, several) if named else report

    def _in_short(self, report: Report, answered: Sequence[WorkloadAnswer], chart: Roofline, several: bool) -> Report:
        """``report`` with the short part on workloads: answers on whole models, and the meters of a workload that is alone."""
        device, models = chart.device_name, any(answer.parts for answer in answered)
        answers = [_short_of(answer, device * several) for answer in answered] if models else []
        figures = roofline_answer.figures([replace(chart, points=[answer.point for answer in answered])]) if models else []
        if several or len(self.workloads) > 1 or (len(answered) < len(chart.points) and not models):
            return replace(report, verdict=answers, figures=figures)
        last = answered[-1].point
        report = replace(report, meters=roofline_answer.meters_of(last), metered=roofline_answer.metered(last))
        return replace(report, verdict=answers, figures=figures)

    def _counted(self, device: Device, scope: Scope) -> tuple[list[RooflinePoint], list[str]]:
        """Points of profiled kernels, and sentences on what their file lacks."""
        if self.ncu is None:
            return [], []
        kernels = self.ncu.kernels(scope)
        points = points_of(kernels, device)
        if not points:
            raise UsageError(f"{self.ncu.file}: none of its {len(kernels)} kernels has a duration", advice(kernels)[0])
        return points, advice(kernels)


def _workload_points(answer: WorkloadAnswer, several: bool) -> list[RooflinePoint]:
    """The points of a workload: one per kernel if these are known, else one. ``several``: names of kernels begin with the workload's."""
    if not answer.parts:
        return [answer.point]
    return [replace(point, name=f"{answer.series}: {point.name}") for point in answer.parts] if several else list(answer.parts)


def _summary(chart: Roofline) -> list[str]:
    """Sentences on all points: the range of roof shares if many are measured, and how many lack FLOP."""
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
    """The verdict on a point; less certain if only bytes, or the FLOP of one unit, were counted."""
    text = verdict_on(point, chart)
    counted = "not every FLOP was" if known_flops(point) else "only bytes were"
    return text if certain(point) else text.replace(" is bound by ", f", of which {counted} counted, seems to be bound by ", 1)


def _measured(rows: Sequence[RecordRow], device: Device) -> tuple[list[RooflinePoint], list[str]]:
    """Points of the records of ``device``, and sentences on the records without one."""
    on_device = [row for row in rows if row.device is not None and row.device.id == device.id]
    record_points = [(row, point_of_row(0, row, row_group(row), row_name(row))) for row in on_device]
    return [point for _, point in record_points if point], _without_point([row for row, point in record_points if point is None])


def _without_point(rows: Sequence[RecordRow]) -> list[str]:
    """Sentences on how many records have no point, by reason, such as a collective without FLOP."""
    counts = Counter(row.reason or f"{row.record.implementation} is estimated as a whole, not by kernels" for row in rows)
    return [f"{count} record{'s are' if count > 1 else ' is'} not shown: {reason}." for reason, count in counts.items()]


def _short_of(answer: WorkloadAnswer, device: str) -> str:
    """Sentence on time, rate and roof of a workload, and on the longest kernel of a model."""
    sentence = roofline_answer.answer_of(answer.point, device)
    if longest := answer.longest:
        sentence += f"; {percent(longest.share or 0)} of the time is {longest.name}"
    return f"{sentence}."


def _verdict_of(answer: WorkloadAnswer, chart: Roofline, device: Device) -> str:
    """The verdict on a workload, with the longest kernel of a model; CANNOT RUN if it does not fit the memory."""
    words, text = too_large(answer, device), verdict_on(answer.point, chart)
    if longest := answer.longest:
        spent = format_time((longest.predicted.value if longest.predicted else longest.roofline_s) or 0)
        text = f"{text[:-1]}; {percent(longest.share or 0)} of the time is in {longest.name} ({spent}).{_above_roofs(answer)}"
    return f"{answer.point.name} CANNOT RUN: {words}. With room for it, {text}" if words else text


def _above_roofs(answer: WorkloadAnswer) -> str:
    """Sentence on kernels predicted above their roofs and the likely cause; empty if there are none."""
    over = [(part, share) for part in answer.parts if (share := share_of_roof(part)) is not None and share > 1 + SHOWN]
    if not over:
        return ""
    named = ", ".join(f"{part.name} ({cell(share, 'share')})" for part, share in over)
    why = "the clock is above the datasheet's, or a count is wrong"
    return f" {len(over)} of its {len(answer.parts)} kernels {'is' if len(over) == 1 else 'are'} predicted ABOVE THE ROOF: {named}; {why}."


SECTION = RooflineSection
