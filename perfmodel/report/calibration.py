"""The report of a calibration: rates reached, fits, and their errors."""

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
"""Columns of ``FITS`` in the short table, after the name."""


def calibration_report(fits: list[Calibrated], quick: bool = False) -> Report:
    """``fits`` as a Report, with a profile to write if they are of one device. ``quick``: adds a note on what a quick run leaves out."""
    tables, devices = [], {}
    for fit in fits:
        probes = [row[:5] for row in probe_rows(fit.microbenchmarks)]
        tables += [Table(f"{fit.device.id}: reached", PROBES[:5], probes)] if probes else []
        tables += [Table(f"{fit.device.id}: fitted", FITS, list(map(_fit, fit.blocks)), "llrrrrrrl")] if fit.blocks else []
        devices[fit.device.id] = {
            "microbenchmarks": [asdict(probe) for probe in fit.microbenchmarks],
            "calibration": [asdict(block) for block in fit.blocks],
        }
    blocks = [block for fit in fits for block in fit.blocks]
    errors = [block.median_error for block in blocks if block.median_error is not None]
    notes = [f"not measured: {failure}" for fit in fits for failure in fit.failures]
    any_held_out = any(block.held_out for block in blocks)
    notes.append(f"{CROSS_VALIDATED} {'Held-out records were in no fit.' if any_held_out else 'Parameters are of all records.'}")
    summaries = [f"{fit.device.name}: {len(fit.blocks)} calibrations, {len(fit.microbenchmarks)} measured rates." for fit in fits]
    return Report(
        "calibration",
        _headline(fits, summaries, errors),
        tables,
        notes + [QUICK] * quick,
        {**head("calibration"), "devices": devices},
        [raw for fit in fits for raw in fit.records],
        fits[0].text if len(fits) == 1 else "",
        figures=_figures(fits, blocks, errors),
        brief=_brief(fits),
        reasons=summaries if len(summaries) > 3 else [],
    )


def _headline(fits: list[Calibrated], summaries: list[str], errors: list[float]) -> list[str]:
    """The headline: how much was measured and fitted (``summaries`` per device if they are few), and the errors of the fits."""
    failed = sum(len(fit.failures) for fit in fits)
    words = summaries or ["Nothing was calibrated: too few records for every model."]
    if len(words) > 3:
        rates = sum(len(fit.microbenchmarks) for fit in fits)
        words = [f"{len(fits)} devices: {sum(len(fit.blocks) for fit in fits)} calibrations, {rates} measured rates."]
    middle = [f"Median errors of the fits: {percent(min(errors))} to {percent(max(errors))}."] if errors else []
    return [*words, *middle, *[f"Not measured: {failed}; --full says which and why."] * bool(failed)][:3]


def _figures(fits: list[Calibrated], blocks: list[Calibration], errors: list[float]) -> list[Figure]:
    unseen = [block.held_out_median_error for block in blocks if block.held_out_median_error is not None]
    return [
        Figure("calibrations", str(len(blocks))),
        Figure("measured rates", str(sum(len(fit.microbenchmarks) for fit in fits))),
        *([Figure("median error of the worst fit", f"{max(errors):.1%}")] if errors else []),
        *([Figure("held out, the worst", f"{max(unseen):.1%}")] if unseen else []),
    ]


def _brief(fits: list[Calibrated]) -> list[Table]:
    """The short table: fits by falling error, or the rates reached if nothing was fitted."""
    blocks = [(block, f", {fit.device.id}" * (len(fits) > 1)) for fit in fits for block in fit.blocks]
    if blocks:
        ranked = sorted(blocks, key=lambda pair: -(pair[0].median_error or 0.0))[:SCREEN_ROWS]
        rows = [[f"{cells[0]}{where}", *(cells[at] for at in SCREEN)] for block, where in ranked for cells in [_fit(block)]]
        return [Table("fitted, the farthest off first", ["kernel", *(FITS[at] for at in SCREEN)], rows)]
    probes = [row[:5] for fit in fits for row in probe_rows(fit.microbenchmarks)][:SCREEN_ROWS]
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
