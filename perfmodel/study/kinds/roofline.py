"""Rooflines of devices with workloads, measurements and kernels profiled by Nsight Compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from perfmodel.report.document import Formula, Report
from perfmodel.report.ncu_kernels import UNCOUNTED, advice, certain, known_flops, points_of, with_flops
from perfmodel.report.roofline_chart import at_one_level, brief, point_of_row, roofline, verdict_on
from perfmodel.report.roofline_chart import with_dtypes as with_formats
from perfmodel.report.swept_series import WorkloadAnswer
from perfmodel.study.points import answers_to, different_kernels, too_large, with_dtypes
from perfmodel.study.recorded import RecordChoice, row_group, row_name, rows_of
from perfmodel.study.schema import Options, Scope, merged, on
from perfmodel.study.workloads import Workload
from perfmodel.validation.compare import RecordRow

VISIBLE_EXCESS = 0.0005
"""Relative excess over a roof that is visible in a percentage of one decimal."""
MANY = 6
"""Number of measured points from which a sentence sums them up."""
FIRST_SENTENCES = 2
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
        rows = [] if self.records is None else rows_of(self.records, scope)
        of_unknown_devices = [row for row in rows if row.device is None]
        devices = {device.id: device for device in scope.devices(self.devices)}
        for row in rows:
            if row.device is not None:
                devices.setdefault(row.device.id, row.device)
        if not devices:
            raise UsageError(f"records: {of_unknown_devices[0].reason}", "none of them is of a device with a profile")
        if self.ncu is not None and len(devices) > 1:
            raise UsageError("ncu: the profile is of one device", "name that one alone")
        runs, parts = list[tuple[str, Device, Mapping[str, str]]](), list[Report]()
        for device in devices.values():
            answered = [answer for w in self.workloads for answer in answers_to(w, device, scope)]
            runs += [(answer.point.name, device, answer.kernels) for answer in answered]
            parts.append(self._device_report(device, answered, rows, scope, len(devices) > 1))
        whole = merged(parts)
        charts = [replace(chart, level=self.level) for chart in whole.rooflines] if self.level else at_one_level(whole.rooflines)
        if not any(chart.points for chart in charts):
            verdict = whole.reasons
        elif whole.verdict:
            verdict = whole.verdict
        else:
            without_flop = [reason for reason in whole.reasons if UNKNOWN_FLOP in reason]
            verdict = [*roofline_answer.answers(charts), *without_flop]
        verdict = [*verdict[:FIRST_SENTENCES], *different_kernels(runs), *verdict[FIRST_SENTENCES:]]
        return replace(whole, charts=[*charts], notes=[*_without_point(of_unknown_devices), *whole.notes], verdict=verdict)

    def _device_report(
        self, device: Device, answered: Sequence[WorkloadAnswer], rows: Sequence[RecordRow], scope: Scope, several: bool
    ) -> Report:
        answers = with_dtypes(answered)
        points = [point for answer in answers for point in _workload_points(answer, len(answers) > 1)]
        measured, absent = _measured(rows, device)
        counted, lacking = self._counted(device, scope)
        all_points = scope.numbered([*points, *with_formats(measured), *counted])
        captions = [self.caption] if self.caption else []
        if not all(map(known_flops, all_points)):
            captions.append(UNCOUNTED)
        title = f"{self.title}: {device.name}" if self.title and several else self.title
        chart = roofline(device, all_points, title, " ".join(captions))
        others = replace(chart, points=all_points[len(points) :])  # records and profiled kernels
        verdict = [_verdict_of(answer, chart, device) for answer in answers]
        verdict += _summary(others)
        verdict += [_sentence(point, others) for point in others.points]
        if not all_points:
            verdict += absent
        formulas, missing = list[Formula](), list[str]()
        for answer in answers:
            missing += answer.missing
            if answer.steps:
                formulas += scope.explain(answer.series, f"{answer.point.name} on {device.id}", answer.steps)
        reasons = [on(device, several) + words for words in verdict]
        report = Report("", [], [], [*missing, *absent, *lacking], charts=[chart], formulas=formulas, reasons=reasons)
        return self._in_short(report, answers, chart, several) if answers else report

    def _in_short(self, report: Report, answered: Sequence[WorkloadAnswer], chart: Roofline, several: bool) -> Report:
        """``report`` with the short part on workloads: answers on whole models, and the meters of a workload that is alone."""
        has_models = any(answer.parts for answer in answered)
        if has_models:
            device_name = chart.device_name if several else ""
            figures = roofline_answer.figures([replace(chart, points=[answer.point for answer in answered])])
            report = replace(report, verdict=[_short_of(answer, device_name) for answer in answered], figures=figures)
        is_alone = has_models or len(answered) == len(chart.points)
        if several or len(self.workloads) > 1 or not is_alone:
            return report
        last = answered[-1].point
        return replace(report, meters=roofline_answer.meters_of(last), metered=roofline_answer.metered(last))

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
    if not several:
        return list(answer.parts)
    return [replace(point, name=f"{answer.series}: {point.name}") for point in answer.parts]


def _summary(chart: Roofline) -> list[str]:
    """Sentences on all points: the range of roof shares if many are measured, and how many lack FLOP."""
    shares = [share_of_roof(point) for point in chart.points if point.measured]
    known_shares = [share for share in shares if share is not None]
    uncounted = [point for point in chart.points if not known_flops(point)]
    sentences = []
    if len(known_shares) >= MANY:
        above = ", ".join(brief(point.name) for point in chart.points if flag(point))
        flagged = f"ABOVE ITS ROOF: {above}" if above else "none is above its roof"
        sentences.append(
            f"{len(known_shares)} measured kernels reach {percent(min(known_shares))} to {percent(max(known_shares))} of their roofs, "
            f"{percent(quantile(known_shares, 0.5))} in the median; {flagged}."
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
    points, without_point = list[RooflinePoint](), list[RecordRow]()
    for row in on_device:
        point = point_of_row(0, row, row_group(row), row_name(row))
        if point is None:
            without_point.append(row)
        else:
            points.append(point)
    return points, _without_point(without_point)


def _without_point(rows: Sequence[RecordRow]) -> list[str]:
    """Sentences on how many records have no point, by reason, such as a collective without FLOP."""
    counts = Counter(row.reason or f"{row.record.implementation} is estimated as a whole, not by kernels" for row in rows)
    return [f"{count} record{'s are' if count > 1 else ' is'} not shown: {reason}." for reason, count in counts.items()]


def _short_of(answer: WorkloadAnswer, device: str) -> str:
    """Sentence on time, rate and roof of a workload, and on the longest kernel of a model."""
    sentence = roofline_answer.answer_of(answer.point, device)
    longest = answer.longest
    if longest:
        sentence += f"; {percent(longest.share or 0)} of the time is {longest.name}"
    return f"{sentence}."


def _verdict_of(answer: WorkloadAnswer, chart: Roofline, device: Device) -> str:
    """The verdict on a workload, with the longest kernel of a model; CANNOT RUN if it does not fit the memory."""
    text = verdict_on(answer.point, chart)
    longest = answer.longest
    if longest:
        seconds = longest.predicted.value if longest.predicted else longest.roofline_s or 0
        share = f"{percent(longest.share or 0)} of the time is in {longest.name} ({format_time(seconds)})"
        text = f"{text.removesuffix('.')}; {share}.{_above_roofs(answer)}"
    reason = too_large(answer, device)
    return f"{answer.point.name} CANNOT RUN: {reason}. With room for it, {text}" if reason else text


def _above_roofs(answer: WorkloadAnswer) -> str:
    """Sentence on kernels predicted above their roofs and the likely cause; empty if there are none."""
    named = []
    for part in answer.parts:
        share = share_of_roof(part)
        if share is not None and share > 1 + VISIBLE_EXCESS:
            named.append(f"{part.name} ({cell(share, 'share')})")
    if not named:
        return ""
    count = f"{len(named)} of its {len(answer.parts)} kernels {'is' if len(named) == 1 else 'are'} predicted ABOVE THE ROOF"
    return f" {count}: {', '.join(named)}; the clock is above the datasheet's, or a count is wrong."


SECTION = RooflineSection
