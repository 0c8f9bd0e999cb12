"""The two sides of a comparison: devices, attention algorithms or implementations, over the same workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.catalog import device_ids
from perfmodel.core.errors import UnavailableError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.report.charts.schema import COMPUTE, Point, Roofline
from perfmodel.report.readings import HIGH, Reading, of_point
from perfmodel.report.roofline_chart import ceilings, roofline, with_baseline
from perfmodel.study.base import Scope
from perfmodel.study.points import asked, too_large
from perfmodel.study.workloads import Workload
from perfmodel.timing.base import models_of


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    name: str
    readings: list[Reading]


@dataclass(frozen=True, slots=True)
class Sides:
    """``chart``: where both are on one device, its roofline with arrows from before to after. ``warnings``: what cannot run."""

    before: Side
    after: Side
    chart: Roofline | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def sides(between: Sequence[str], workloads: Sequence[Workload], device: str | None, scope: Scope) -> Sides:
    """What ``between`` names, over ``workloads``. UsageError if the two are not of one kind."""
    if len(between) != 2:
        raise UsageError(f"between: a comparison is between two, not {len(between)}", "name two devices, algorithms or implementations")
    kinds = [kind_of(name) for name in between]
    if kinds[0] is not kinds[1]:
        raise UsageError(f"{between[0]!r} and {between[1]!r} are of different kinds", "name two devices, algorithms or implementations")
    return kinds[0](between, workloads, device, scope)


def kind_of(name: str) -> Callable[[Sequence[str], Sequence[Workload], str | None, Scope], Sides]:
    """What ``name`` is the name of; UsageError with the nearest names if it is none."""
    if name in models_of():
        return _implementations
    try:
        find(name)
    except UsageError:
        pass
    else:
        return _algorithms
    from perfmodel.catalog import find_device

    try:
        find_device(name)
    except UsageError as error:
        if "could be any" in error.message:
            raise
        known = [*device_ids(), *names(), *models_of()]
        fix = (
            f"{suggest(name, known, 'name a device, an attention algorithm or an implementation')}; or give saved reports, ending in .json"
        )
        raise UsageError(f"nothing is called {name!r}", fix) from None
    return _devices


def _devices(between: Sequence[str], workloads: Sequence[Workload], device: str | None, scope: Scope) -> Sides:
    if device is not None:
        raise UsageError("--hardware, when two devices are compared", "leave it out")
    made, notes, warnings = [], [], list[str]()
    by_device: dict[str, dict[str, str]] = {}
    for name in between:
        found = scope.device(name)
        points, missing, cannot, kernels = _points(workloads, found, scope)
        warnings += cannot
        by_device[found.name] = kernels
        chart = roofline(found, points)
        rates = _rates(found) if not workloads else []
        made.append(Side(found.name, [*rates, *(one for point in points for one in of_point(point, chart))]))
        notes += [f"{found.name}: {told}" for told in missing]
    return Sides(made[0], made[1], None, notes, [*warnings, *_other_kernels(by_device)])


def _other_kernels(by_device: dict[str, dict[str, str]]) -> list[str]:
    """Of what different kernels are predicted on two devices, in words: part of the difference is theirs."""
    told = {}
    for what in dict.fromkeys(what for kernels in by_device.values() for what in kernels):
        kernels = {device: kernels.get(what, "") for device, kernels in by_device.items()}
        if all(kernels.values()) and len(set(kernels.values())) > 1:
            words = " and ".join(f"{kernel} on {device}" for device, kernel in kernels.items())
            told[what] = f"{what}: the times are those of {words}, so part of the difference is the kernels'."
    return list(told.values())


def _rates(device: Device) -> list[Reading]:
    """Peaks, bandwidths and ridge points of the profile."""
    found = []
    for roof in ceilings(device):
        measured = ", measured" if roof.evidence == "measured" else ""
        if roof.kind == COMPUTE:
            found.append(Reading((roof.name, f"peak{measured}"), roof.value, "FLOP/s", HIGH))
            dram = device.dram.bandwidth_bytes_per_s
            if dram and not measured:
                found.append(Reading((roof.name, "ridge point, DRAM"), roof.value / dram, "FLOP/B"))
        else:
            found.append(Reading((roof.name, f"bandwidth{measured}"), roof.value, "B/s", HIGH))
    capacity = device.dram.capacity
    return [*found, Reading(("DRAM", "capacity"), capacity.number, "B")] if capacity else found


def _algorithms(between: Sequence[str], workloads: Sequence[Workload], device: str | None, scope: Scope) -> Sides:
    def with_algorithm(w: Workload, name: str) -> Workload:
        if w.attention is None:
            raise UsageError("algorithms are of attention", "give the workload with --attention")
        return replace(w, attention=w.attention.of(find(name), map(find, between)))

    return _on_one(between, workloads, device, scope, with_algorithm)


def _implementations(between: Sequence[str], workloads: Sequence[Workload], device: str | None, scope: Scope) -> Sides:
    """Kernels differ in their time, so what is not predicted of both is no answer: it is told in place of a verdict."""
    if any(w.model is not None for w in workloads):
        raise UsageError("implementations run attention or a matmul, and --model is neither", "give --attention or --matmul")
    return _on_one(between, workloads, device, scope, _as_run_by, predicted=True)


def _as_run_by(w: Workload, name: str) -> Workload:
    from perfmodel.timing.base import algorithm_of

    if w.attention is not None:
        w = replace(w, attention=replace(w.attention, algorithm=algorithm_of(name)))
    return replace(w, implementation=name)


def _on_one(
    between: Sequence[str],
    workloads: Sequence[Workload],
    device: str | None,
    scope: Scope,
    changed: Callable[[Workload, str], Workload],
    predicted: bool = False,
) -> Sides:
    if not workloads:
        raise UsageError(f"{between[0]} against {between[1]} on which workload?", "such as: --attention 'n=4096 d=64 heads=16 batch=8'")
    if device is None:
        raise UsageError(f"{between[0]} against {between[1]} on which device?", "such as: --hardware h200")
    found = scope.device(device)
    made, notes, warnings = [], [], list[str]()
    for name in between:
        points, missing, cannot, _ = _points([changed(w, name) for w in workloads], found, scope)
        made.append([_plainly(point) for point in points])
        notes += [] if predicted else missing
        warnings += [*(f"{name}: {told}" for told in missing if predicted), *cannot]
    before, after = _both_predicted(*made) if predicted else made
    chart = roofline(found, scope.numbered(with_baseline(after, before, between[0])), f"{between[0]} to {between[1]} on {found.name}")
    readings = [[one for point in points for one in of_point(point, chart)] for points in (before, after)]
    shown = chart if chart.points else None
    first, other = (Side(name, own) for name, own in zip(between, readings, strict=True))
    return Sides(first, other, shown, list(dict.fromkeys(notes)), list(dict.fromkeys(warnings)))


def _both_predicted(before: Sequence[Point], after: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """The points of which both sides have a predicted time."""
    known = set.intersection(*({point.name for point in side if point.predicted} for side in (before, after)))
    return [point for point in before if point.name in known], [point for point in after if point.name in known]


def _plainly(point: Point) -> Point:
    """Without the algorithm in its name: the two sides' points have one name."""
    series, comma, rest = point.name.partition(", ")
    return replace(point, name=rest if comma and series == point.group else point.name)


def _points(workloads: Sequence[Workload], device: Device, scope: Scope) -> tuple[list[Point], list[str], list[str], dict[str, str]]:
    """A point per answer on ``device``, why some have no time, which of them cannot run, and the kernels of those that are predicted."""
    points, missing, cannot, kernels = [], [], list[str](), dict[str, str]()
    for w in workloads:
        try:
            found = asked(w, device, scope)
        except UnavailableError as error:
            missing.append(f"{error.message}.")
            continue
        points += [one.point for one in found]
        missing += [told for one in found for told in one.missing]
        kernels |= {one.point.name: one.kernel for one in found if one.kernel}
        cannot += [f"{one.point.name} CANNOT RUN: {words}." for one in found if (words := too_large(one, device))]
    return points, missing, cannot, kernels
