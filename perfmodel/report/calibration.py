"""The report of a calibration: what it reached, what it fitted, and how far the fits are off."""

from __future__ import annotations

from dataclasses import asdict
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
FITS = ["implementation", "model", "points", "error", "interval", "held out", "median", "p90", "parameters"]
SCREEN = (3, 4, 2, 5, 6)
"""Columns of ``FITS`` that a screen shows after the name."""


def calibration_report(found: list[Calibrated], quick: bool = False) -> Report:
    """``found`` as a Report; a profile to write if it is one device's. ``quick``: say what that leaves out."""
    tables, devices = [], {}
    for one in found:
        probes = [row[:5] for row in probe_rows(one.microbenchmarks)]
        tables += [Table(f"{one.device.id}: reached", PROBES[:5], probes)] if probes else []
        tables += [Table(f"{one.device.id}: fitted", FITS, list(map(_fit, one.blocks)), "llrrrrrrl")] if one.blocks else []
        devices[one.device.id] = {
            "microbenchmarks": [asdict(probe) for probe in one.microbenchmarks],
            "calibration": [asdict(block) for block in one.blocks],
        }
    blocks = [block for one in found for block in one.blocks]
    errors = [block.median_error for block in blocks if block.median_error is not None]
    notes = [f"not measured: {failure}" for one in found for failure in one.failures]
    kept = any(block.held_out for block in blocks)
    notes.append(f"{CROSS_VALIDATED} {'Held-out records were in no fit.' if kept else 'Parameters are of all records.'}")
    each = [f"{one.device.name}: {len(one.blocks)} calibrations, {len(one.microbenchmarks)} measured rates." for one in found]
    return Report(
        "calibration",
        _headline(found, each, errors),
        tables,
        notes + [QUICK] * quick,
        {**head("calibration"), "devices": devices},
        [raw for one in found for raw in one.records],
        found[0].text if len(found) == 1 else "",
        figures=_figures(found, blocks, errors),
        brief=_brief(found),
        reasons=each if len(each) > 3 else [],
    )


def _headline(found: list[Calibrated], each: list[str], errors: list[float]) -> list[str]:
    """How much was measured and fitted, ``each`` device alone if they are few, and how far the fits are off."""
    failed = sum(len(one.failures) for one in found)
    words = each or ["Nothing was calibrated: too few records for every model."]
    if len(words) > 3:
        rates = sum(len(one.microbenchmarks) for one in found)
        words = [f"{len(found)} devices: {sum(len(one.blocks) for one in found)} calibrations, {rates} measured rates."]
    middle = [f"Median errors of the fits: {percent(min(errors))} to {percent(max(errors))}."] if errors else []
    return [*words, *middle, *[f"Not measured: {failed}; --full says which and why."] * bool(failed)][:3]


def _figures(found: list[Calibrated], blocks: list[Calibration], errors: list[float]) -> list[Figure]:
    unseen = [block.held_out_median_error for block in blocks if block.held_out_median_error is not None]
    return [
        Figure("calibrations", str(len(blocks))),
        Figure("measured rates", str(sum(len(one.microbenchmarks) for one in found))),
        *([Figure("median error of the worst fit", f"{max(errors):.1%}")] if errors else []),
        *([Figure("held out, the worst", f"{max(unseen):.1%}")] if unseen else []),
    ]


def _brief(found: list[Calibrated]) -> list[Table]:
    """The fits of a screen, the farthest off first; what was reached where nothing was fitted."""
    blocks = [(block, f", {one.device.id}" * (len(found) > 1)) for one in found for block in one.blocks]
    if blocks:
        ranked = sorted(blocks, key=lambda pair: -(pair[0].median_error or 0.0))[:SCREEN_ROWS]
        rows = [[f"{cells[0]}{where}", *(cells[at] for at in SCREEN)] for block, where in ranked for cells in [_fit(block)]]
        return [Table("fitted, the farthest off first", ["kernel", *(FITS[at] for at in SCREEN)], rows)]
    probes = [row[:5] for one in found for row in probe_rows(one.microbenchmarks)][:SCREEN_ROWS]
    return [Table("reached", PROBES[:5], probes)] if probes else []


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
