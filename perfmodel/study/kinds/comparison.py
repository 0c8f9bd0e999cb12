"""Two devices, algorithms or implementations over the same workloads: before and after, with ratio and verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from perfmodel.catalog import device_ids, find_device
from perfmodel.core.errors import UnavailableError, UsageError, suggest
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
    """``between``: two names, of devices, of attention algorithms or of implementations. ``device``: where algorithms run."""

    between: list[str]
    workloads: list[Workload] = field(default_factory=list)
    device: str | None = None
    threshold: float = DEFAULT_THRESHOLD
    title: str = ""

    def build(self, scope: Scope) -> Report:
        """The report of ``perfmodel compare``; its charts, tables and sentences under the title of the section."""
        made, _, warnings = self.compared(scope)
        first, *others = made.reasons
        lead = f"{self.title}: " * bool(self.title)
        charts: list[Chart] = [
            replace(one, title=f"{lead}{one.title[0].lower() if lead else one.title[0]}{one.title[1:]}") for one in made.charts
        ]
        reasons = [f"{lead}{first}", *others, *warnings]
        return replace(made, title=self.title, verdict=made.verdict[:1], charts=charts, reasons=reasons, assumptions=warnings)

    def compared(self, scope: Scope) -> tuple[Report, list[Change], list[str]]:
        """The report of ``perfmodel compare``, its changes, and sentences on what cannot run or be compared."""
        made = self._operands(scope)
        sides = MetricComparison(made.before, made.after, self.threshold)
        found = sides.report(self.title or f"{made.before.name} against {made.after.name}")
        charts: Sequence[Chart] = [made.chart] if made.chart else found.charts
        return replace(found, charts=[*charts], notes=[*made.notes, *found.notes]), sides.changes, made.warnings

    def _operands(self, scope: Scope) -> Operands:
        """What ``between`` names, over the workloads. UsageError if the two are not of one kind."""
        if len(self.between) != 2:
            raise UsageError(
                f"between: a comparison is between two, not {len(self.between)}", "name two devices, algorithms or implementations"
            )
        (one, two), (first, other) = self.between, map(_kind_of, self.between)
        if first is not other:
            raise UsageError(f"{one!r} and {two!r} are of different kinds", "name two devices, algorithms or implementations")
        if first is None:
            return _devices(self, scope)
        if first is _as_run_by and any(w.model is not None for w in self.workloads):
            raise UsageError("implementations run attention or a matmul, and --model is neither", "give --attention or --matmul")
        return _on_one(self, scope, first)


@dataclass(frozen=True, slots=True)
class Operands:
    """Both sides of a comparison.

    ``chart``: where both are on one device, its roofline with arrows from before to after. ``warnings``: what cannot run.
    """

    before: Compared
    after: Compared
    chart: Roofline | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Points:
    """A point per answer on one device; why some have no time, which cannot run, and the kernels of those that are predicted."""

    points: list[RooflinePoint] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)
    kernels: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, workloads: Sequence[Workload], device: Device, scope: Scope, untimed: Sequence[Collection[str]] = ()) -> _Points:
        """Points of ``workloads``. ``untimed``: for each of them the operations whose predicted times are left out."""
        made, answers = cls(), list[WorkloadAnswer]()
        for w, left_out in zip(workloads, untimed or [()] * len(workloads), strict=True):
            try:
                found = answers_to(w, device, scope)
            except UnavailableError as error:
                made.missing.append(f"{error.message}.")
                continue
            answers += [replace(one, point=replace(one.point, predicted=None)) if {*left_out} & {*one.kernels} else one for one in found]
        for one in with_dtypes(answers):
            made.points.append(one.point)
            made.missing += one.missing
            made.kernels[one.point.name] = one.kernels
            words = too_large(one, device)
            made.cannot += [f"{one.point.name} CANNOT RUN: {words}."] * bool(words)
        return made


_Changed = Callable[[Workload, str, Sequence[str]], Workload]


def _kind_of(name: str) -> _Changed | None:
    """How a workload becomes that of the algorithm or implementation ``name``; None for a device.

    UsageError with the nearest names if nothing is called so.
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


def _devices(asked: ComparisonSection, scope: Scope) -> Operands:
    if asked.device is not None:
        raise UsageError("--hardware, when two devices are compared", "leave it out")
    devices = [scope.device(name) for name in asked.between]
    alike = [with_one_kernel(w, devices, scope) for w in asked.workloads]
    untimed = [[name for name, kernel in shared.items() if not kernel] for _, shared in alike]
    pairs = [(found, _Points.of([w for w, _ in alike], found, scope, untimed)) for found in devices]
    said = [words for _, shared in alike for words in kernel_notes(shared, devices)]
    short = short_names(found.name for found in devices)
    metrics = [_metrics(own.points, roofline(found, own.points)) if asked.workloads else _rates(found) for found, own in pairs]
    before, after = (Compared(found.name, own, f"the {short[found.name]}") for found, own in zip(devices, metrics, strict=True))
    notes = [f"{found.name}: {missing}" for found, own in pairs for missing in own.missing]
    operations = [(what, found, kernels) for found, own in pairs for what, kernels in own.kernels.items() if len(kernels) > 1]
    cannot = [words for _, own in pairs for words in own.cannot]
    return Operands(before, after, None, notes, [*cannot, *said, *different_kernels(operations)])


def _metrics(points: Sequence[RooflinePoint], chart: Roofline) -> list[Metric]:
    return [one for point in points for one in of_point(point, chart)]


def _rates(device: Device) -> list[Metric]:
    """Peaks, bandwidths and ridge points of the profile."""
    found, dram = [], device.dram.bandwidth_bytes_per_s
    for roof in ceilings(device):
        compute, measured = roof.kind == COMPUTE, ", measured" * roof.measured
        quantity, unit = ("peak", "FLOP/s") if compute else ("bandwidth", "B/s")
        found.append(Metric(roof.name, roof.value, f"{quantity}{measured}", unit))
        if compute and dram and not measured:
            found.append(Metric(roof.name, roof.value / dram, "ridge point, DRAM", "FLOP/B"))
    capacity = device.dram.capacity
    return [*found, Metric("DRAM", capacity.number, "capacity", "B")] if capacity else found


# Algorithms and implementations


def _with_algorithm(w: Workload, name: str, between: Sequence[str]) -> Workload:
    if w.attention is None:
        raise UsageError("algorithms are of attention", "give the workload with --attention")
    return replace(w, attention=w.attention.of(find(name), map(find, between)))


def _as_run_by(w: Workload, name: str, between: Sequence[str]) -> Workload:
    attention = w.attention and replace(w.attention, algorithm=algorithm_of(name))
    return replace(w, attention=attention, implementation=name)


def _on_one(asked: ComparisonSection, scope: Scope, changed: _Changed) -> Operands:
    """Both on one device. Kernels differ in their time: what is not predicted of both has a warning in place of a verdict."""
    between = asked.between
    if not asked.workloads:
        raise UsageError(f"{between[0]} against {between[1]} on which workload?", "such as: --attention 'n=4096 d=64 heads=16 batch=8'")
    if asked.device is None:
        raise UsageError(f"{between[0]} against {between[1]} on which device?", "such as: --hardware h200")
    found, predicted = scope.device(asked.device), changed is _as_run_by
    made = [(name, _Points.of([changed(w, name, between) for w in asked.workloads], found, scope)) for name in between]
    before, after = ([_plainly(point) for point in own.points] for _, own in made)
    notes, warnings = list[str](), list[str]()
    for name, own in made:
        notes += [] if predicted else own.missing
        warnings += [*(f"{name}: {missing}" for missing in own.missing if predicted), *own.cannot]
    if predicted:
        known = {point.name for point in before if point.predicted} & {point.name for point in after if point.predicted}
        before, after = ([point for point in points if point.name in known] for points in (before, after))
    chart = roofline(found, scope.numbered(with_baseline(after, before, between[0])), f"{between[0]} to {between[1]} on {found.name}")
    first, other = (Compared(name, _metrics(points, chart)) for name, points in zip(between, (before, after), strict=True))
    return Operands(first, other, chart if chart.points else None, list(dict.fromkeys(notes)), list(dict.fromkeys(warnings)))


def _plainly(point: RooflinePoint) -> RooflinePoint:
    """Without the algorithm in its name: the two operands' points have one name."""
    series, comma, rest = point.name.partition(", ")
    return replace(point, name=rest if comma and series == point.group else point.name)


SECTION = ComparisonSection
