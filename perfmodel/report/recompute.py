"""The report of storing a tensor against computing it again: both times, and the break-even."""

from __future__ import annotations

from typing import Any, NamedTuple

from perfmodel.core.units import format_si, format_time
from perfmodel.kernels import recompute
from perfmodel.kernels.recompute import Level, RecomputeResult, stored_bytes
from perfmodel.report.answer import headline
from perfmodel.report.charts.format_number import digits
from perfmodel.report.charts.schema import Bar, BarChart
from perfmodel.report.document import Figure, Meter, Report
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head, with_steps
from perfmodel.report.speedup import Side, faster_sentence

COLUMNS = {"choice": "", "recompute_s": "time", "store_s": "time", "break_even_flop_per_byte": "recompute below", "fits": "fits"}
LEVELS = {"dram": "DRAM", "l2": "L2"}
"""Names of the memories in sentences."""


def report(result: RecomputeResult, *, explained: bool = False, pictures: bool = False) -> Report:
    """``result`` as a Report with data of schema perfmodel.recompute/1."""
    w, device = result.workload, result.device
    verdict = _headline(result)
    choices = _choices(result)
    slowest = choices[-1]
    uses = f"{w.times} uses" if w.times > 1 else "one use"
    table = as_rows("", [_recomputed(result), *map(_level, result.levels)], labels=COLUMNS)
    peak = f"{format_si(result.peak, 'FLOP/s')} of {w.dtype.name}"
    notes = [f"{recompute.SOURCE}.", f"Recomputing runs on the {w.dtype.matmul_unit} unit at {peak}; its inputs are at hand."]
    if any(level.store_s is None for level in result.levels):
        notes.append(f"The profile of {device.id} has no L2 bandwidth: the L2 has no time.")
    bars = [Bar(choice.name, [("time at the roof", choice.seconds)]) for choice in choices]
    plain = Report(
        f"Store or recompute: {format_si(w.size, 'B')}, {format_si(w.flops, 'FLOP')}, {uses}, {w.dtype.name} on {device.name}",
        verdict,
        [table],
        notes,
        data(result),
        charts=[BarChart("Time to store it or to compute it again, at the roof", "s", bars, caption=verdict[0])] if pictures else [],
        meters=[
            Meter(f"{choice.resource}: {choice.name}", choice.seconds / (slowest.seconds or 1.0), format_time(choice.seconds, 3))
            for choice in choices
        ],
        metered=f"time to {slowest.name}",
        figures=_figures(result),
        brief=[table],
    )
    return with_steps(plain, [("every number", {}, recompute.explain(result))]) if explained else plain


def data(result: RecomputeResult) -> dict[str, Any]:
    """The object of schema perfmodel.recompute/1."""
    w = result.workload
    entry = {
        "verdict": "recompute" if result.recomputes else "store",
        "flop_per_byte": result.intensity,
        "stored_bytes": stored_bytes(w),
        **as_json(_recomputed(result)),
        "unit": w.dtype.matmul_unit,
        "against": result.best.name,
        "levels": {level.name: as_json(_level(level)) for level in result.levels},
    }
    inputs = {"bytes": w.size, "flops": w.flops, "times": w.times, "dtype": w.dtype.name}
    return {**head("recompute", inputs, result.device), "results": [entry]}


def _recomputed(result: RecomputeResult) -> list[Metric]:
    return [Metric("", "recompute", "choice", "text"), Metric("recompute_s", result.recompute_s, unit="s")]


def _level(level: Level) -> list[Metric]:
    return [
        Metric("", f"store in {level.name.upper()}", "choice", "text"),
        Metric("store_s", level.store_s, unit="s"),
        Metric("break_even_flop_per_byte", level.break_even, unit="FLOP/B"),
        Metric("fits", level.fits, unit="yes or no"),
    ]


class _Choice(NamedTuple):
    """A choice: to recompute, or to store in a memory. ``resource``: what limits it."""

    name: str
    resource: str
    seconds: float


def _choices(result: RecomputeResult) -> list[_Choice]:
    """The choices, the fastest first, without levels that are too small."""
    choices = [_Choice("recompute", f"{result.workload.dtype.matmul_unit} unit", result.recompute_s)]
    for level in result.levels:
        if level.fits is not False and level.store_s is not None:
            memory = level.name.upper()
            choices.append(_Choice(f"store in {memory}", f"{memory} bandwidth", level.store_s))
    return sorted(choices, key=lambda choice: choice.seconds)


def _headline(result: RecomputeResult) -> list[str]:
    """The headline: what to do, what both take, and what limits each."""
    if result.levels[0].fits is False:
        return [f"Recompute it: the tensor does not fit the DRAM; by roofs that takes {format_time(result.recompute_s, 3)}."]
    best, memory = result.best, LEVELS[result.best.name]
    storing, recomputing = Side("storing", best.store_s or 0.0), Side("recomputing", result.recompute_s)
    if result.recomputes:
        choice, relation, speed = "Recompute it", "below", faster_sentence(storing, recomputing)
    else:
        choice, relation, speed = "Store it", "not below", faster_sentence(recomputing, storing)
    if best.break_even is not None:
        choice += f": {digits(result.intensity, 4)} FLOP/B is {relation} the break-even of {digits(best.break_even, 4)} FLOP/B"
    limit = f"limited by the {result.workload.dtype.matmul_unit} unit if recomputed, by {memory} bandwidth if stored"
    return headline(f"{choice} ({memory})", speed, limit)


def _figures(result: RecomputeResult) -> list[Figure]:
    figures = [Figure(choice.name, format_time(choice.seconds, 3)) for choice in _choices(result)]
    break_even = result.best.break_even
    if break_even is not None:
        figures += [Figure("recompute below", f"{break_even:.4g} FLOP/B"), Figure("here", f"{result.intensity:.4g} FLOP/B")]
    return figures
