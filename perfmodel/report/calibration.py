"""The report of a calibration: what was reached, what was fitted, and how far the fits are off."""

from __future__ import annotations

from dataclasses import asdict

from perfmodel.core.hardware import Calibration
from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Report, Table
from perfmodel.report.hardware import PROBES, probe_rows
from perfmodel.report.op_common import head
from perfmodel.validation.calibration_run import Calibrated

QUICK = "Quick: fewer shapes and points, shorter runs and fits; parameters and intervals are rougher than those of a whole run."


def report(found: list[Calibrated], quick: bool = False) -> Report:
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
    notes.append("Intervals are those of points that the fit did not see, by cross-validation; held-out records were in no fit.")
    profile, records = found[0].text if len(found) == 1 else "", [raw for one in found for raw in one.records]
    summary = summary or ["Nothing was calibrated: too few records for every model."]
    data = {**head("calibration"), "devices": devices}
    return Report("calibration", summary, tables, notes + [QUICK] * quick, data, records, profile)


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
