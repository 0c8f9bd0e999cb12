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
        first_reason, *later_reasons = report.reasons
        charts = report.charts
        if self.title:
            first_reason = f"{self.title}: {first_reason}"
            charts = [replace(chart, title=f"{self.title}: {chart.title[0].lower()}{chart.title[1:]}") for chart in charts]
        reasons = [first_reason, *later_reasons, *warnings]
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
        fix = "name two devices, algorithms or implementations"
        if len(self.between) != 2:
            raise UsageError(f"between: a comparison is between two, not {len(self.between)}", fix)
        before, after = self.between
        change, change_after = _change_to(before), _change_to(after)
        if change is not change_after:
            raise UsageError(f"{before!r} and {after!r} are of different kinds", fix)
        if change is None:
            return _devices(self, scope)
        if change is _as_run_by and any(w.model is not None for w in self.workloads):
            raise UsageError("implementations run attention or a matmul, and --model is neither", "give --attention or --matmul")
        return _on_one_device(self, scope, change)


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
    """Points of answers on one device.

    ``missing``: sentences on why some have no time. ``cannot_run``: sentences on which do not fit the memory. ``kernels``: predicted
    kernels by name of a point and operation.
    """

    points: list[RooflinePoint] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    cannot_run: list[str] = field(default_factory=list)
    kernels: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, workloads: Sequence[Workload], device: Device, scope: Scope, untimed: Sequence[Collection[str]] = ()) -> _Points:
        """Points of ``workloads``. ``untimed``: for each workload, the operations whose predicted times are left out; empty for none."""
        points, answers = cls(), list[WorkloadAnswer]()
        for place, w in enumerate(workloads):
            try:
                answered = answers_to(w, device, scope)
            except UnavailableError as error:
                points.missing.append(f"{error.message}.")
                continue
            for answer in answered:
                if untimed and not answer.kernels.keys().isdisjoint(untimed[place]):
                    answers.append(replace(answer, point=replace(answer.point, predicted=None)))
                else:
                    answers.append(answer)
        for answer in with_dtypes(answers):
            points.points.append(answer.point)
            points.missing += answer.missing
            points.kernels[answer.point.name] = answer.kernels
            reason = too_large(answer, device)
            if reason:
                points.cannot_run.append(f"{answer.point.name} CANNOT RUN: {reason}.")
        return points


_Change = Callable[[Workload, str, Sequence[str]], Workload]
"""A function that changes a workload to an algorithm or implementation of that name; the texts are both names that are compared."""


def _change_to(name: str) -> _Change | None:
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
    """Both sides of a comparison of two devices: workloads with one kernel on both, or the rates of the devices."""
    if section.device is not None:
        raise UsageError("--hardware, when two devices are compared", "leave it out")
    devices = [scope.device(name) for name in section.between]
    workloads, untimed, kernel_sentences = list[Workload](), list[list[str]](), list[str]()
    for workload in section.workloads:
        with_kernel, shared_kernels = with_one_kernel(workload, devices, scope)
        workloads.append(with_kernel)
        untimed.append([name for name, kernel in shared_kernels.items() if not kernel])
        kernel_sentences += kernel_notes(shared_kernels, devices)
    names = short_names(device.name for device in devices)
    sides, notes, cannot_run, model_kernels = list[Compared](), list[str](), list[str](), list[tuple[str, Device, Mapping[str, str]]]()
    for device in devices:
        points = _Points.of(workloads, device, scope, untimed)
        metrics = _metrics(points.points, roofline(device, points.points)) if workloads else _rates(device)
        sides.append(Compared(device.name, metrics, f"the {names[device.name]}"))
        notes += [f"{device.name}: {missing}" for missing in points.missing]
        cannot_run += points.cannot_run
        model_kernels += [(name, device, kernels) for name, kernels in points.kernels.items() if len(kernels) > 1]
    before, after = sides
    return Operands(before, after, None, notes, [*cannot_run, *kernel_sentences, *different_kernels(model_kernels)])


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


def _on_one_device(section: ComparisonSection, scope: Scope, change: _Change) -> Operands:
    """Both sides on one device. Points without a prediction on both sides get a warning in place of a verdict."""
    name, other_name = section.between
    if not section.workloads:
        raise UsageError(f"{name} against {other_name} on which workload?", "such as: --attention 'n=4096 d=64 heads=16 batch=8'")
    if section.device is None:
        raise UsageError(f"{name} against {other_name} on which device?", "such as: --hardware h200")
    device = scope.device(section.device)
    of_implementations = change is _as_run_by
    points, notes, warnings = list[list[RooflinePoint]](), list[str](), list[str]()
    for side in section.between:
        on_side = _Points.of([change(w, side, section.between) for w in section.workloads], device, scope)
        points.append([_without_algorithm(point) for point in on_side.points])
        if of_implementations:
            warnings += [f"{side}: {missing}" for missing in on_side.missing]
        else:
            notes += on_side.missing
        warnings += on_side.cannot_run
    before, after = points
    if of_implementations:
        both_predicted = {point.name for point in before if point.predicted} & {point.name for point in after if point.predicted}
        before = [point for point in before if point.name in both_predicted]
        after = [point for point in after if point.name in both_predicted]
    chart = roofline(device, scope.numbered(with_baseline(after, before, name)), f"{name} to {other_name} on {device.name}")
    return Operands(
        Compared(name, _metrics(before, chart)),
        Compared(other_name, _metrics(after, chart)),
        chart if chart.points else None,
        list(dict.fromkeys(notes)),
        list(dict.fromkeys(warnings)),
    )


def _without_algorithm(point: RooflinePoint) -> RooflinePoint:
    """``point`` without the algorithm in its name, so that the points of both sides have one name."""
    return replace(point, name=point.name.removeprefix(f"{point.group}, "))


SECTION = ComparisonSection
