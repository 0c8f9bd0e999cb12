"""The report of a calibration: what was reached, what was fitted, and how far the fits are off."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfmodel import __version__
from perfmodel.core.hardware import Calibration
from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Report, Table
from perfmodel.validation.calibration_run import Calibrated

QUICK = "Quick: fewer shapes and points, shorter runs and fits; parameters and intervals are rougher than those of a whole run."


def report(found: list[Calibrated], quick: bool = False) -> Report:
    """``found`` as a Report; a profile to write if it is one device's. ``quick``: say what that leaves out."""
    verdict = [_verdict(one) for one in found] or ["Nothing was calibrated: too few records for every model."]
    tables = [table for one in found for table in (_probes(one), _fits(one)) if table.rows]
    notes = [f"not measured: {failure}" for one in found for failure in one.failures]
    notes.append("Intervals are those of points that the fit did not see, by cross-validation; held-out records were in no fit.")
    notes += [QUICK] if quick else []
    data: dict[str, Any] = {
        "schema": "perfmodel.calibration/1",
        "version": __version__,
        "devices": {
            one.device.id: {
                "microbenchmarks": [asdict(probe) for probe in one.microbenchmarks],
                "calibration": [asdict(block) for block in one.blocks],
            }
            for one in found
        },
    }
    profile = found[0].text if len(found) == 1 else ""
    return Report("calibration", verdict, tables, notes, data, [raw for one in found for raw in one.records], profile)


def _verdict(one: Calibrated) -> str:
    return f"{one.device.name}: {len(one.blocks)} calibrations, {len(one.microbenchmarks)} measured rates."


def _probes(one: Calibrated) -> Table:
    rows = [[p.name, "" if p.size is None else f"{p.size:,}", p.value, f"{p.spread:.1%}", str(p.runs)] for p in one.microbenchmarks]
    return Table(f"{one.device.id}: reached", ["what", "bytes", "value", "noise", "runs"], rows)


def _fits(one: Calibrated) -> Table:
    columns = ["implementation", "model", "points", "error", "interval", "held out", "median", "p90", "parameters"]
    return Table(f"{one.device.id}: fitted", columns, [_fit(block) for block in one.blocks], "llrrrrrrl")


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
