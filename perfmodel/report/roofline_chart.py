"""Roofline charts and their points, from devices, estimates, predictions and measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from perfmodel.core.cache import beyond_caches
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device, Microbenchmark
from perfmodel.core.power import flops_per_joule
from perfmodel.core.roofline import Estimate, Traffic, estimate, total
from perfmodel.core.trace import FormulaStep
from perfmodel.core.units import Quantity, parse_any
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.roofline_metrics import bound, flag, sentence, time_s
from perfmodel.report.charts.schema import (
    COMPUTE,
    LEVELS,
    MEASURED,
    MEMORY,
    Before,
    Ceiling,
    Chart,
    LineChart,
    Mark,
    Roofline,
    RooflinePoint,
    Series,
)
from perfmodel.report.document import Formula
from perfmodel.report.metrics import seconds
from perfmodel.report.saved import Interval
from perfmodel.timing.case_bounds import kernels_of
from perfmodel.timing.power import energy_name

if TYPE_CHECKING:
    from perfmodel.timing.base import Case
    from perfmodel.timing.predict import Prediction
    from perfmodel.validation.compare import RecordRow

PROBES = {"sram": "shared memory read", "l2": "L2 read, plateau", "dram": "DRAM read, largest"}
"""Name of the microbenchmark for each memory level."""
FMA_PROBE = "fp32 FMA"
NO_MATMUL = "vector FLOP: it has no matmul"
MOST_LETTERS = 80
"""Longest name in a sentence in characters."""
PER_DECADE, LEAST, MOST = 8, -1, 4
"""Points per decade of the energy line, and its ends as powers of ten of FLOP/B."""
PRODUCTS = "tensor."
"""Prefix of the operations of matrix products."""
UNEQUAL = 0.005
"""Relative difference from which two counts or times are mentioned as different."""


def ceilings(device: Device) -> list[Ceiling]:
    """Every roof in the profile of ``device``: datasheet or derived ones first, then measured ones.

    Of two measurements of a level, only the one that the model uses is listed.
    """
    roofs = []
    for unit in ("tensor", "vector"):
        for dtype, peak in device.peaks_of(unit).items():
            roofs.append(_ceiling(device, peak, COMPUTE, f"{unit} {dtype}", unit=unit, dtype=dtype))
    probes = {probe.name: probe for probe in device.microbenchmarks}
    if FMA_PROBE in probes:
        roofs.append(_reached(device, probes[FMA_PROBE], COMPUTE, "vector fp32", unit="vector", dtype="fp32"))
    for level in device.memory:
        name = LEVELS[level.level]
        for rate in (level.bandwidth, level.measured_bandwidth):
            if rate is not None:
                roofs.append(_ceiling(device, rate, MEMORY, name, level=level.level))
        probe = probes.get(PROBES.get(level.level, ""))
        if level.measured_bandwidth is None and probe is not None:
            roofs.append(_reached(device, probe, MEMORY, name, level=level.level))
    return roofs


Roof = Literal["compute", "memory"]


def _ceiling(device: Device, quantity: Quantity, kind: Roof, name: str, **place: str) -> Ceiling:
    source = device.sources[quantity.source] + (f" ({quantity.note})" if quantity.note else "")
    return Ceiling(kind, name, quantity.number, quantity.kind, source=source, **place)


def _reached(device: Device, probe: Microbenchmark, kind: Roof, name: str, **place: str) -> Ceiling:
    source = f"{probe.name}, {probe.date}: {device.sources[probe.source]}"
    return Ceiling(kind, name, parse_any(probe.value), MEASURED, source=source, **place)


def roofline(device: Device, points: Sequence[RooflinePoint], title: str = "", caption: str = "") -> Roofline:
    """The roofline of ``device`` with ``points``. It opens at the level that limits most points; points above their roofs decide first."""
    heading = title or f"Roofline of {device.name}"
    return Roofline(heading, device.id, device.name, ceilings(device), list(points), level=_level(points), caption=caption)


def _level(points: Sequence[RooflinePoint]) -> str:
    """The level shown first. A point above its roof is visible as such only at the level of that roof, so these points decide first."""
    above_roofs = [point for point in points if flag(point) and bound(point) in LEVELS]
    limits = []
    for point in above_roofs or points:
        seconds_by_level = {level: spent for level, spent in point.terms.items() if level in LEVELS}
        if seconds_by_level:
            limits.append(max(seconds_by_level, key=lambda level: seconds_by_level[level]))
    if limits:
        return max(limits, key=limits.count)
    levels = [level for point in points for level in point.bytes]
    return "dram" if "dram" in levels or not levels else levels[0]


def at_one_level(charts: Sequence[Roofline]) -> list[Roofline]:
    """``charts`` opening at one common level, that of most points, so that charts of two devices have the same x axis."""
    levels_of_charts = [{roof.level for roof in chart.ceilings} for chart in charts]
    for level in (_level([point for chart in charts for point in chart.points]), "dram"):
        if level in LEVELS and all(level in levels for levels in levels_of_charts):
            return [replace(chart, level=level) for chart in charts]
    return list(charts)


def point(
    number: int,
    name: str,
    cost: Estimate,
    device: Device,
    dtype: str,
    unit: str = "tensor",
    prediction: Prediction | None = None,
    measured: Interval | None = None,
    group: str = "",
    note: str = "",
) -> RooflinePoint:
    """``cost`` as a point. ``unit``: preferred unit of its matmuls. Without matmuls the FLOP of the vector unit count."""
    has_matmul = cost.flops > 0
    runs_on = device.matmul_unit(dtype, unit) if has_matmul else "vector"
    no_matmul = NO_MATMUL if cost.work.vector and not has_matmul else ""
    notes = [note, no_matmul, _executed(cost), predicted_by(prediction)]
    traffic = {"l2": cost.sram.total - cost.multicast, "dram": cost.dram.total}
    return RooflinePoint(
        number=number,
        name=name,
        flops=cost.flops if has_matmul else cost.work.vector,
        bytes={level: moved for level, moved in traffic.items() if moved},
        dtype=dtype,
        unit=runs_on,
        group=group,
        lower_s=float(cost.lower_s),
        roofline_s=float(cost.roofline_s),
        predicted=seconds(prediction),
        measured=measured,
        terms={name: float(spent) for name, spent in cost.terms.items()},
        note="; ".join(filter(None, notes)),
    )


def predicted_by(prediction: Prediction | None) -> str:
    """Phrase on the kernel of a time and its calibration; empty without a prediction."""
    return f"predicted for {prediction.calibration.implementation}, {prediction.provenance}" if prediction else ""


def _executed(cost: Estimate) -> str:
    """Note on a point whose place counts needed FLOP while its bound counts executed ones; empty if both are equal."""
    if not cost.flops or cost.executed_flops <= cost.flops * (1 + UNEQUAL):
        return ""
    ratio = float(cost.executed_flops / cost.flops)
    return f"executes {ratio:.3g}x the FLOP counted (recomputed, masked or padding): its point shows the FLOP counted, its bound is of all"


def point_of_row(number: int, row: RecordRow, group: str = "", name: str = "") -> RooflinePoint | None:
    """A measurement as a point with the model's values; None if its kernels or its device are unknown."""
    from perfmodel.validation.compare import label

    case, device, times = row.case, row.device, row.record.time_s
    if case is None or device is None or row.lower_s is None:
        return None
    try:
        cost = _cost(case, device)
    except UnavailableError:
        return None
    dtype, measured = case.workload.dtype, Interval(times.median, times.p10, times.p90)
    name, unit = name or label(row.record), dtype.matmul_unit
    drawn = point(number, name, cost, device, dtype.name, unit, row.prediction, measured, group, row.reason)
    return replace(drawn, lower_s=row.lower_s)


def _cost(case: Case, device: Device) -> Estimate:
    """The estimate of all kernels of ``case``. In warm runs only the part beyond the caches comes from DRAM."""

    def warm(cost: Estimate) -> Estimate:
        missed = beyond_caches(cost.dram.total, device) / cost.dram.total
        terms = cost.terms | {"dram": cost.terms["dram"] * missed}
        dram = Traffic(cost.dram.read * missed, cost.dram.write * missed)
        return replace(cost, terms=terms, dram=dram, roofline_s=max(terms.values()))

    costs = [estimate(kernel, device) for kernel in kernels_of(case, device)]
    return total(cost if case.flushed or not cost.dram.total else warm(cost) for cost in costs)


def with_shares(points: Iterable[RooflinePoint]) -> list[RooflinePoint]:
    """``points`` with each one's share of the total time: measured, else predicted, else at the roof."""
    points = list(points)
    times = [time_s(point) or point.roofline_s or 0.0 for point in points]
    whole = sum(times)
    return [replace(point, share=time / whole if whole else None) for point, time in zip(points, times, strict=True)]


def with_dtypes(points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """``points``, with the number format in their names if there are several."""
    several = len({point.dtype for point in points if point.dtype}) > 1
    return [replace(point, name=f"{point.name} {point.dtype}") if several and point.dtype else point for point in points]


def with_baseline(points: Iterable[RooflinePoint], baseline: Iterable[RooflinePoint], name: str = "") -> list[RooflinePoint]:
    """``points``, each with the point of its name in ``baseline`` as ``before``, if that has a time."""
    before = {}
    for old in baseline:
        old_s = time_s(old)
        if old_s is not None:
            before[old.name] = Before(name or old.name, old.flops, old.bytes, old_s)
    return [replace(point, before=before.get(point.name)) for point in points]


def verdict_on(point: RooflinePoint, chart: Roofline) -> str:
    """The verdict on ``point``, with a note if roofs of several kernels add up to more than the named one."""
    words = sentence(replace(point, name=brief(point.name)), chart.ceilings)
    if point.roofline_s is None or point.roofline_s <= max(point.terms.values(), default=0.0) * (1 + UNEQUAL):
        return words
    for phrase in (" of its roof:", " above its roof:"):
        words = words.replace(phrase, phrase.replace("its roof", "the sum of its kernels' roofs"), 1)
    return words


def brief(name: str) -> str:
    """``name`` for a sentence: of a long one only both ends.

    >>> brief("flash #15"), len(brief("cutlass" * 40 + " #15")), brief("cutlass" * 40 + " #15")[-4:]
    ('flash #15', 80, ' #15')
    """
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 21]}…{name[-20:]}"


def energy_roofline(device: Device, dtype: Dtype, predicted: Iterable[tuple[str, Estimate, Prediction | None]]) -> list[Chart]:
    """Chart of FLOP per joule of ``dtype`` over intensity, with kernels (by name) repeated for seconds.

    Empty without a power model, or if its fit gives products no energy because records did not separate it from busy power.
    """
    fit, peak = device.power, device.peaks_of("tensor").get(dtype.name)
    bandwidth, name = device.dram.bandwidth_bytes_per_s, energy_name(dtype.name)
    if fit is None or peak is None or not bandwidth or name not in fit.picojoules:
        return []
    if not all(energy for operation, energy in fit.picojoules.items() if operation.startswith(PRODUCTS)):
        return []
    intensities = [10 ** (step / PER_DECADE) for step in range(LEAST * PER_DECADE, MOST * PER_DECADE + 1)]
    line = [(intensity, float(flops_per_joule(fit, name, float(peak.number), bandwidth, intensity))) for intensity in intensities]
    marks = []
    for label, cost, prediction in predicted:
        if prediction is not None and prediction.power is not None and cost.dram.total:
            per_joule = float(cost.flops) / prediction.power.joules
            marks.append(Mark(float(cost.flops) / float(cost.dram.total), f"{label}: {text(per_joule, 'FLOP/J')}", per_joule))
    words = f"At best: static power, {dtype.name} operations and bytes from DRAM alone; L2 and busy multiprocessors take more."
    series, axes = [Series(f"{dtype.name}, at best", line)], ("arithmetic intensity", "FLOP per joule")
    return [LineChart("Roofline of energy", *axes, series, "FLOP/B", "FLOP/J", marks=marks, caption=words)]


def formulas(group: str, steps: Iterable[FormulaStep]) -> list[Formula]:
    """The steps of an explanation as formulas of ``group``."""
    return [Formula(s.name, s.meaning, s.formula, s.numbers, s.value, s.source, group) for s in steps]
