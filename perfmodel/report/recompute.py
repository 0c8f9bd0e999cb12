"""The report of a store-or-recompute question."""

from __future__ import annotations

from perfmodel.core.units import format_si, format_time
from perfmodel.kernels.recompute import SOURCE, Level, RecomputeResult, explain, stored_bytes
from perfmodel.report.against import Side, against
from perfmodel.report.document import Report
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head, with_steps

COLUMNS = {"choice": "", "recompute_s": "time", "store_s": "time", "break_even_flop_per_byte": "recompute below", "fits": "fits"}


def report(result: RecomputeResult, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.recompute/1. ``explained``: with every formula."""
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
    notes = [f"{SOURCE}.", f"{unit}; its inputs are at hand."]
    if any(level.store_s is None for level in result.levels):
        notes.append(f"The profile of {device.id} has no L2 bandwidth: the L2 has no time.")
    plain = Report(title, [_summary(result)], [as_rows("", [recomputed, *levels.values()], labels=COLUMNS)], notes, data)
    return with_steps(plain, [("every number", {}, explain(result))]) if explained else plain


def _level(level: Level) -> list[Metric]:
    return [
        Metric("", f"store in {level.name.upper()}", "choice", "text"),
        Metric("store_s", level.store_s, unit="s"),
        Metric("break_even_flop_per_byte", level.break_even, unit="FLOP/B"),
        Metric("fits", level.fits, unit="yes or no"),
    ]


def _summary(result: RecomputeResult) -> str:
    if result.levels[0].fits is False:
        return f"Recompute it, {format_time(result.recompute_s)}: the tensor does not fit the DRAM."
    best = result.best
    even = ""
    if best.break_even is not None:
        side, where = "below" if result.recomputes else "not below", {"dram": "DRAM", "l2": "the L2"}[best.name]
        even = f": {result.intensity:.4g} FLOP/B is {side} the break-even of {best.break_even:.4g} in {where}"
    sides = [Side("storing", best.store_s or 0.0), Side("recomputing", result.recompute_s)]
    one, other = sides if result.recomputes else sides[::-1]
    return f"{'Recompute' if result.recomputes else 'Store'} it{even}. {against(one, other)}."
