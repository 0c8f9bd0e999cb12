"""The report of storing a tensor against computing it again: both times, and where they are even."""

from __future__ import annotations

from perfmodel.core.units import format_si, format_time
from perfmodel.kernels import recompute
from perfmodel.kernels.recompute import Level, RecomputeResult, stored_bytes
from perfmodel.report.against import Side, against, compared
from perfmodel.report.answer import sentence
from perfmodel.report.charts.schema import Bar, BarChart, Chart
from perfmodel.report.document import Figure, Meter, Report
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head, with_steps

COLUMNS = {"choice": "", "recompute_s": "time", "store_s": "time", "break_even_flop_per_byte": "recompute below", "fits": "fits"}


def report(result: RecomputeResult, *, explained: bool = False, pictures: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.recompute/1.

    ``explained``: with every formula. ``pictures``: with the time of each choice.
    """
    w, device = result.workload, result.device
    uses = f"{w.times} uses" if w.times > 1 else "one use"
    title = f"Store or recompute: {format_si(w.size, 'B')}, {format_si(w.flops, 'FLOP')}, {uses}, {w.dtype.name} on {device.name}"
    recomputed = [Metric("", "recompute", "choice", "text"), Metric("recompute_s", result.recompute_s, unit="s")]
    levels = {level.name: _level(level) for level in result.levels}
    entry = {
        "verdict": "recompute" if result.recomputes else "store",
        "flop_per_byte": result.intensity,
        "stored_bytes": stored_bytes(w),
        **as_json(recomputed),
        "unit": w.dtype.matmul_unit,
        "against": result.best.name,
        "levels": {name: as_json(level) for name, level in levels.items()},
    }
    inputs = {"bytes": w.size, "flops": w.flops, "times": w.times, "dtype": w.dtype.name}
    data = {**head("recompute", inputs, device), "results": [entry]}
    unit = f"Recomputing runs on the {w.dtype.matmul_unit} unit at {format_si(result.peak, 'FLOP/s')} of {w.dtype.name}"
    notes = [f"{recompute.SOURCE}.", f"{unit}; its inputs are at hand."]
    if any(level.store_s is None for level in result.levels):
        notes.append(f"The profile of {device.id} has no L2 bandwidth: the L2 has no time.")
    table, (longest, _), found = as_rows("", [recomputed, *levels.values()], labels=COLUMNS), _ways(result)[-1], _ways(result)
    plain = Report(
        title,
        _verdict(result),
        [table],
        notes,
        data,
        charts=[_picture(result)] if pictures else [],
        meters=_meters(result),
        metered=f"time to {longest}",
        figures=[*(Figure(way, format_time(time, 3)) for way, time in found), *_break_even(result)],
        brief=[table],
        reasons=[_recompute_summary(result)],
    )
    return with_steps(plain, [("every number", {}, recompute.explain(result))]) if explained else plain


def _ways(result: RecomputeResult) -> list[tuple[str, float]]:
    """What can be done, and its seconds, the fastest first; without levels that are too small."""
    stored = [(f"store in {one.name.upper()}", one.store_s) for one in result.levels if one.store_s is not None and one.fits is not False]
    return sorted([("recompute", result.recompute_s), *stored], key=lambda way: way[1])


def _meters(result: RecomputeResult) -> list[Meter]:
    """The resource that each choice takes, as a share of the longest one."""
    found, names = _ways(result), {"recompute": f"{result.workload.dtype.matmul_unit} unit: recompute"}
    longest = found[-1][1] or 1.0
    used = [(names.get(way, f"{way.rpartition(' ')[2]} bandwidth: {way}"), time) for way, time in found]
    return [Meter(name, time / longest, format_time(time, 3)) for name, time in used]


def _break_even(result: RecomputeResult) -> list[Figure]:
    even = result.best.break_even
    return [] if even is None else [Figure("recompute below", f"{even:.4g} FLOP/B"), Figure("here", f"{result.intensity:.4g} FLOP/B")]


def _verdict(result: RecomputeResult) -> list[str]:
    """What to do; what both take; what limits each."""
    if result.levels[0].fits is False:
        return [f"Recompute it: the tensor does not fit the DRAM; by roofs that takes {format_time(result.recompute_s, 3)}."]
    best, unit = result.best, f"the {result.workload.dtype.matmul_unit} unit"
    where = {"dram": "DRAM", "l2": "L2"}[best.name]
    sides = [Side("storing", best.store_s or 0.0), Side("recomputing", result.recompute_s)]
    one, other = sides if result.recomputes else sides[::-1]
    way, side = ("Recompute", "below") if result.recomputes else ("Store", "not below")
    even = (
        f": {result.intensity:,.4g} FLOP/B is {side} the break-even of {best.break_even:.4g} FLOP/B" if best.break_even is not None else ""
    )
    return [
        f"{way} it{even} ({where}).",
        sentence(compared(one, other)),
        f"Limited by {unit} if recomputed, by {where} bandwidth if stored.",
    ]


def _picture(result: RecomputeResult) -> Chart:
    bars = [Bar(way, [("time at the roof", time)]) for way, time in _ways(result)]
    return BarChart("Time to store it or to compute it again, at the roof", "s", bars, caption=_verdict(result)[0])


def _level(level: Level) -> list[Metric]:
    return [
        Metric("", f"store in {level.name.upper()}", "choice", "text"),
        Metric("store_s", level.store_s, unit="s"),
        Metric("break_even_flop_per_byte", level.break_even, unit="FLOP/B"),
        Metric("fits", level.fits, unit="yes or no"),
    ]


def _recompute_summary(result: RecomputeResult) -> str:
    if result.levels[0].fits is False:
        return f"Recompute it, {format_time(result.recompute_s)}: the tensor does not fit the DRAM."
    best = result.best
    even = ""
    if best.break_even is not None:
        side, where = "below" if result.recomputes else "not below", {"dram": "DRAM", "l2": "the L2"}[best.name]
        even = f": {result.intensity:,.4g} FLOP/B is {side} the break-even of {best.break_even:.4g} in {where}"
    sides = [Side("storing", best.store_s or 0.0), Side("recomputing", result.recompute_s)]
    one, other = sides if result.recomputes else sides[::-1]
    return f"{'Recompute' if result.recomputes else 'Store'} it{even}. {against(one, other)}."
