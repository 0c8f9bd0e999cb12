"""The report of a calibration: what it reached, what it fitted, and how far the fits are off."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from perfmodel.core.hardware import Calibration
from perfmodel.report.charts.format_number import percent, text
from perfmodel.report.document import SCREEN_ROWS, Figure, Report, Table
from perfmodel.report.hardware import PROBES, probe_rows
from perfmodel.report.op_common import head

if TYPE_CHECKING:
    from perfmodel.validation.calibration_run import Calibrated

QUICK = "Quick: fewer shapes and points, shorter runs and fits; parameters and intervals are rougher than those of a whole run."

CROSS_VALIDATED = "Errors and intervals are those of each record by a fit without it and its like: cross-validation, fitted anew each time."


def calibration_report(found: list[Calibrated], quick: bool = False) -> Report:
    """``found`` as a Report; a profile to write if it is one device's. ``quick``: say what that leaves out."""
    summary = [f"{one.device.name}: {len(one.blocks)} calibrations, {len(one.microbenchmarks)} measured rates." for one in found]
    tables, devices = [], {}
    for one in found:
        probes = [row[:5] for row in probe_rows(one.microbenchmarks)]
        tables += [Table(f"{one.device.id}: reached", PROBES[:5], probes)] if probes else []
        tables += [Table(f"{one.device.id}: fitted", FITS, list(map(_fit, one.blocks)), "llrrrrrrl")] if one.blocks else []
        devices[one.device.id] = {
            "microbenchmarks": [asdict(probe) for probe in one.microbenchmarks],
            "calibration": [asdict(block) for block in one.blocks],
        }
    notes = [f"not measured: {failure}" for one in found for failure in one.failures]
    kept = any(block.held_out for one in found for block in one.blocks)
    notes.append(f"{CROSS_VALIDATED} {'Held-out records were in no fit.' if kept else 'Parameters are of all records.'}")
    profile, records = found[0].text if len(found) == 1 else "", [raw for one in found for raw in one.records]
    summary = summary or ["Nothing was calibrated: too few records for every model."]
    reasons, summary = (summary if len(summary) > 3 else []), _in_short(found, summary)
    data = {**head("calibration"), "devices": devices}
    made = Report("calibration", summary, tables, notes + [QUICK] * quick, data, records, profile, reasons=reasons)
    return replace(made, brief=_worst_fits(found), figures=_fit_figures(found))


def _in_short(found: list[Calibrated], summary: list[str]) -> list[str]:
    """How much was measured and fitted, and how far the fits are off on points that they did not see."""
    blocks = [block for one in found for block in one.blocks]
    failed = sum(len(one.failures) for one in found)
    if len(summary) > 3:
        summary = [f"{len(found)} devices: {len(blocks)} calibrations, {sum(len(one.microbenchmarks) for one in found)} measured rates."]
    errors = sorted(block.median_error for block in blocks if block.median_error is not None)
    middle = f"Median errors of the fits: {percent(errors[0])} to {percent(errors[-1])}." if errors else ""
    return [*summary, *filter(None, [middle, f"Not measured: {failed}; --full says which and why." if failed else ""])][:3]


def _worst_fits(found: list[Calibrated]) -> list[Table]:
    """The fits of a screen, the farthest off first; what was reached where nothing was fitted."""
    several = len(found) > 1
    blocks = [(block, f", {one.device.id}" * several) for one in found for block in one.blocks]
    ranked = sorted(blocks, key=lambda pair: -(pair[0].median_error or 0.0))[:SCREEN_ROWS]
    if ranked:
        rows = [[f"{_fit(block)[0]}{where}", *(_fit(block)[at] for at in (3, 4, 2, 5, 6))] for block, where in ranked]
        return [Table("fitted, the farthest off first", ["kernel", *(FITS[at] for at in (3, 4, 2, 5, 6))], rows, "lrrrrr")]
    probes = [row[:5] for one in found for row in probe_rows(one.microbenchmarks)][:SCREEN_ROWS]
    return [Table("reached", PROBES[:5], probes)] if probes else []


def _fit_figures(found: list[Calibrated]) -> list[Figure]:
    blocks = [block for one in found for block in one.blocks]
    errors = sorted(block.median_error for block in blocks if block.median_error is not None)
    unseen = sorted(block.held_out_median_error for block in blocks if block.held_out_median_error is not None)
    made = [Figure("calibrations", str(len(blocks))), Figure("measured rates", str(sum(len(one.microbenchmarks) for one in found)))]
    made += [Figure("median error of the worst fit", f"{errors[-1]:.1%}")] if errors else []
    return [*made, *([Figure("held out, the worst", f"{unseen[-1]:.1%}")] if unseen else [])]


FITS = ["implementation", "model", "points", "error", "interval", "held out", "median", "p90", "parameters"]


def _fit(block: Calibration) -> list[str]:
    return [
        f"{block.workload}/{block.implementation}/{block.direction}",
        block.model,
        str(block.points),
        text(block.median_error, "share"),
        f"{block.low:.2f} to {block.high:.2f}",
        str(block.held_out),
        text(block.held_out_median_error, "share"),
        text(block.held_out_p90_error, "share"),
        " ".join(f"{name} {value:.4g}" for name, value in block.parameters.items()),
    ]
