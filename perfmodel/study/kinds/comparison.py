"""A comparison of two devices, algorithms or implementations over the same workloads, with ratios and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace

from perfmodel.catalog import device_ids, find_device
from perfmodel.core.errors import UnavailableError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.report.charts.schema import COMPUTE, Chart, Roofline, RooflinePoint
from perfmodel.report.compare import DEFAULT_THRESHOLD, Change, Compared, MetricComparison
from perfmodel.report.device_names import short_names
from perfmodel.report.document import Report
from perfmodel.report.metrics import Metric
from perfmodel.report.roofline_chart import ceilings, roofline, with_baseline
from perfmodel.report.saved_metrics import of_point
from perfmodel.report.swept_series import WorkloadAnswer
from perfmodel.study.points import answers_to, different_kernels, kernel_notes, too_large, with_dtypes, with_one_kernel
from perfmodel.study.schema import Options, Scope
from perfmodel.study.workloads import Workload
from perfmodel.timing.base import models_of
from perfmodel.timing.implementations import algorithm_of


@dataclass(frozen=True, slots=True)
class ComparisonSection(Options):
    """A comparison ``between`` two devices, attention algorithms or implementations. ``device``: where the latter two run."""

    between: list[str]
    workloads: list[Workload] = field(default_factory=list)
    device: str | None = None
    threshold: float = DEFAULT_THRESHOLD
    title: str = ""

    def build(self, scope: Scope) -> Report:
        """The report of ``perfmodel compare`` under the title of the section."""
        report, _, warnings = self.compared(scope)
        first, *later = report.reasons
        lead = f"{self.title}: " * bool(self.title)
        charts: list[Chart] = [
            replace(chart, title=f"{lead}{chart.title[0].lower() if lead else chart.title[0]}{chart.title[1:]}") for chart in report.charts
        ]
        reasons = [f"{lead}{first}", *later, *warnings]
        return replace(report, title=self.title, verdict=report.verdict[:1], charts=charts, reasons=reasons, assumptions=warnings)

    def compared(self, scope: Scope) -> tuple[Report, list[Change], list[str]]:
        """The report of ``perfmodel compare``, its changes, and sentences on workloads that cannot run or be compared."""
        operands = self._operands(scope)
        sides = MetricComparison(operands.before, operands.after, self.threshold)
        comparison = sides.report(self.title or f"{operands.before.name} against {operands.after.name}")
        charts: Sequence[Chart] = [operands.chart] if operands.chart else comparison.charts
        return replace(comparison, charts=[*charts], notes=[*operands.notes, *comparison.notes]), sides.changes, operands.warnings

    def _operands(self, scope: Scope) -> Operands:
        """Both sides of ``between`` over the workloads. UsageError if the two are not of one kind."""
        if len(self.between) != 2:
            raise UsageError(
                f"between: a comparison is between two, not {len(self.between)}", "name two devices, algorithms or implementations"
            )
        (name, other_name), (kind, other_kind) = self.between, map(_kind_of, self.between)
        if kind is not other_kind:
            raise UsageError(f"{name!r} and {other_name!r} are of different kinds", "name two devices, algorithms or implementations")
        if kind is None:
            return _devices(self, scope)
        if kind is _as_run_by and any(w.model is not None for w in self.workloads):
            raise UsageError("implementations run attention or a matmul, and --model is neither", "give --attention or --matmul")
        return _on_one(self, scope, kind)


@dataclass(frozen=True, slots=True)
class Operands:
    """Both sides of a comparison.

    ``chart``: the roofline with arrows from before to after, if both are on one device. ``warnings``: sentences on what cannot run.
    """

    before: Compared
    after: Compared
    chart: Roofline | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Points:
    """Points of answers on one device. ``missing``: why some have no time; ``cannot``: which do not fit; ``kernels``: those predicted."""

    points: list[RooflinePoint] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)
    kernels: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, workloads: Sequence[Workload], device: Device, scope: Scope, untimed: Sequence[Collection[str]] = ()) -> _Points:
        """Points of ``workloads``. ``untimed``: for each workload, the operations whose predicted times are left out."""
        points, answers = cls(), list[WorkloadAnswer]()
        for w, left_out in zip(workloads, untimed or [()] * len(workloads), strict=True):
            try:
                answered = answers_to(w, device, scope)
            except UnavailableError as error:
                points.missing.append(f"{error.message}.")
                continue
            answers += [
                replace(answer, point=replace(answer.point, predicted=None)) if {*left_out} & {*answer.kernels} else answer
                for answer in answered
            ]
        for answer in with_dtypes(answers):
            points.points.append(answer.point)
            points.missing += answer.missing
            points.kernels[answer.point.name] = answer.kernels
            words = too_large(answer, device)
            points.cannot += [f"{answer.point.name} CANNOT RUN: {words}."] * bool(words)
        return points


_Changed = Callable[[Workload, str, Sequence[str]], Workload]


def _kind_of(name: str) -> _Changed | None:
    """The function that changes a workload to the algorithm or implementation ``name``; None for a device.

    UsageError with the nearest names for an unknown one.
    """
    if name in models_of():
        return _as_run_by
    with suppress(UsageError):
        find(name)
        return _with_algorithm
    try:
        find_device(name)
    except UsageError as error:
        if "could be any" in error.message:
            raise
        fix = suggest(name, [*device_ids(), *names(), *models_of()], "name a device, an attention algorithm or an implementation")
        raise UsageError(f"nothing is called {name!r}", f"{fix}; or give saved reports, ending in .json") from None
    return None


# Devices


def _devices(section: ComparisonSection, scope: Scope) -> Operands:
    if section.device is not None:
        raise UsageError("--hardware, when two devices are compared", "leave it out")
    devices = [scope.device(name) for name in section.between]
    chosen = [with_one_kernel(w, devices, scope) for w in section.workloads]
    untimed = [[name for name, kernel in shared.items() if not kernel] for _, shared in chosen]
    pairs = [(device, _Points.of([w for w, _ in chosen], device, scope, untimed)) for device in devices]
    sentences = [words for _, shared in chosen for words in kernel_notes(shared, devices)]
    short = short_names(device.name for device in devices)
    metrics = [_metrics(side.points, roofline(device, side.points)) if section.workloads else _rates(device) for device, side in pairs]
    before, after = (Compared(device.name, rows, f"the {short[device.name]}") for device, rows in zip(devices, metrics, strict=True))
    notes = [f"{device.name}: {missing}" for device, side in pairs for missing in side.missing]
    operations = [(name, device, kernels) for device, side in pairs for name, kernels in side.kernels.items() if len(kernels) > 1]
    cannot = [words for _, side in pairs for words in side.cannot]
    return Operands(before, after, None, notes, [*cannot, *sentences, *different_kernels(operations)])


def _metrics(points: Sequence[RooflinePoint], chart: Roofline) -> list[Metric]:
    return [metric for point in points for metric in of_point(point, chart)]


def _rates(device: Device) -> list[Metric]:
    """Metrics of a profile: peaks, bandwidths and ridge points."""
    metrics, dram = [], device.dram.bandwidth_bytes_per_s
    for roof in ceilings(device):
        compute, measured = roof.kind == COMPUTE, ", measured" * roof.measured
        quantity, unit = ("peak", "FLOP/s") if compute else ("bandwidth", "B/s")
        metrics.append(Metric(roof.name, roof.value, f"{quantity}{measured}", unit))
        if compute and dram and not measured:
            metrics.append(Metric(roof.name, roof.value / dram, "ridge point, DRAM", "FLOP/B"))
    capacity = device.dram.capacity
    return [*metrics, Metric("DRAM", capacity.number, "capacity", "B")] if capacity else metrics


# Algorithms and implementations


def _with_algorithm(w: Workload, name: str, between: Sequence[str]) -> Workload:
    if w.attention is None:
        raise UsageError("algorithms are of attention", "give the workload with --attention")
    return replace(w, attention=w.attention.of(find(name), map(find, between)))


def _as_run_by(w: Workload, name: str, between: Sequence[str]) -> Workload:
    attention = w.attention and replace(w.attention, algorithm=algorithm_of(name))
    return replace(w, attention=attention, implementation=name)


def _on_one(section: ComparisonSection, scope: Scope, changed: _Changed) -> Operands:
    """Both sides on one device. Points without a prediction on both sides get a warning in place of a verdict."""
    between = section.between
    if not section.workloads:
        raise UsageError(f"{between[0]} against {between[1]} on which workload?", "such as: --attention 'n=4096 d=64 heads=16 batch=8'")
    if section.device is None:
        raise UsageError(f"{between[0]} against {between[1]} on which device?", "such as: --hardware h200")
    device, predicted = scope.device(section.device), changed is _as_run_by
    sides = [(name, _Points.of([changed(w, name, between) for w in section.workloads], device, scope)) for name in between]
    before, after = ([_plainly(point) for point in points.points] for _, points in sides)
    notes, warnings = list[str](), list[str]()
    for name, points in sides:
        notes += [] if predicted else points.missing
        warnings += [*(f"{name}: {missing}" for missing in points.missing if predicted), *points.cannot]
    if predicted:
        both_predicted = {point.name for point in before if point.predicted} & {point.name for point in after if point.predicted}
        before, after = ([point for point in points if point.name in both_predicted] for points in (before, after))
    chart = roofline(device, scope.numbered(with_baseline(after, before, between[0])), f"{between[0]} to {between[1]} on {device.name}")
    first, other = (Compared(name, _metrics(points, chart)) for name, points in zip(between, (before, after), strict=True))
    return Operands(first, other, chart if chart.points else None, list(dict.fromkeys(notes)), list(dict.fromkeys(warnings)))


def _plainly(point: RooflinePoint) -> RooflinePoint:
    """``point`` without the algorithm in its name, so that the points of both sides have one name."""
    series, comma, following = point.name.partition(", ")
    return replace(point, name=following if comma and series == point.group else point.name)


SECTION = ComparisonSection
