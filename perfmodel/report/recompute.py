"""The report of a store-or-recompute question."""

from __future__ import annotations

from typing import Any

from perfmodel.core.units import format_si, format_time
from perfmodel.kernels.recompute import SOURCE, Level, Result, explain, stored_bytes
from perfmodel.report.against import Side, against
from perfmodel.report.document import Report
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head, with_steps


def report(result: Result, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.recompute/1. ``explained``: with every formula."""
    w = result.workload
    uses = f"{w.times} uses" if w.times > 1 else "one use"
    title = f"Store or recompute: {format_si(w.size, 'B')}, {format_si(w.flops, 'FLOP')}, {uses}, {w.dtype.name} on {result.device.name}"
    table = as_rows("", [_recomputed(result), *map(_level, result.levels)], labels=TABLE)
    plain = Report(title, [_verdict(result)], [table], _notes(result), data(result))
    return with_steps(plain, [("every number", {}, explain(result))]) if explained else plain


def data(result: Result) -> dict[str, Any]:
    """The object of schema perfmodel.recompute/1."""
    w = result.workload
    inputs = {"bytes": w.size, "flops": w.flops, "times": w.times, "dtype": w.dtype.name}
    entry = {
        "verdict": "recompute" if result.recomputes else "store",
        "flop_per_byte": result.intensity,
        "stored_bytes": stored_bytes(w),
        **as_json(_recomputed(result)),
        "unit": w.dtype.matmul_unit,
        "against": result.best.name,
        "levels": {level.name: as_json(_level(level)) for level in result.levels},
    }
    return {**head("recompute", inputs, result.device), "results": [entry]}


TABLE = {
    "choice": "",
    "recompute_s": "time",
    "store_s": "time",
    "break_even_flop_per_byte": "recompute below",
    "fits": "fits",
}


def _recomputed(result: Result) -> list[Metric]:
    return [Metric("", "recompute", "choice", "text"), Metric("recompute_s", result.recompute_s, unit="s")]


def _level(level: Level) -> list[Metric]:
    return [
        Metric("", f"store in {level.name.upper()}", "choice", "text"),
        Metric("store_s", level.store_s, unit="s"),
        Metric("break_even_flop_per_byte", level.break_even, unit="FLOP/B"),
        Metric("fits", level.fits, unit="yes or no"),
    ]


def _verdict(result: Result) -> str:
    if result.levels[0].fits is False:
        return f"Recompute it, {format_time(result.recompute_s)}: the tensor does not fit the DRAM."
    best = result.best
    stored, computed = Side("storing", best.store_s or 0.0), Side("recomputing", result.recompute_s)
    where = {"dram": "DRAM", "l2": "the L2"}[best.name]
    side = "below" if result.recomputes else "not below"
    even = (
        "" if best.break_even is None else f": {result.intensity:.4g} FLOP/B is {side} the break-even of {best.break_even:.4g} in {where}"
    )
    told = against(stored, computed) if result.recomputes else against(computed, stored)
    return f"{'Recompute' if result.recomputes else 'Store'} it{even}. {told}."


def _notes(result: Result) -> list[str]:
    w = result.workload
    rate = f"{format_si(result.peak, 'FLOP/s')} of {w.dtype.name}"
    unit = f"Recomputing runs on the {w.dtype.matmul_unit} unit at {rate}; its inputs are at hand."
    notes = [f"{SOURCE}.", unit]
    if any(level.store_s is None for level in result.levels):
        notes.append(f"The profile of {result.device.id} has no L2 bandwidth: the L2 has no time.")
    return notes
