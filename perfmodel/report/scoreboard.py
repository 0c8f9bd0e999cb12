"""The scoreboard of predictions: per device and group, the model beside plainer ones, on records that no fit saw."""

from __future__ import annotations

from dataclasses import asdict

from perfmodel import __version__
from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Report, Table
from perfmodel.validation.scoreboard import GroupScore


def report(lines: list[GroupScore]) -> Report:
    """``lines`` as a Report."""
    predicted = [line for line in lines if line.predicted.median is not None]
    columns = ["device", "group", "points", "violations", "median", "p90", "worst", "in interval", "± interval", "roofline", "3 scalars"]
    rows = [
        [
            line.hardware,
            line.group,
            str(line.points),
            str(line.violations),
            *(text(share, "share") for share in (line.predicted.median, line.predicted.p90, line.predicted.worst)),
            *(text(share, "share") for share in (line.covered, line.half_width, line.roofline.median, line.scalars.median)),
        ]
        for line in predicted
    ]
    rivals = [line for line in predicted if line.scalars.median is not None]
    verdict = [
        f"{sum(line.points for line in predicted)} held-out measurements in {len(predicted)} groups. Three fitted scalars predict "
        f"{len(rivals)} of the groups as well; the model is nearer in the median in {sum(map(_nearer, rivals))} of those."
    ]
    notes = [
        "Errors are |predicted / measured - 1| on records that no fit saw; the last two columns are the medians of plainer models.",
        "roofline: datasheet rates. 3 scalars: launch overhead, compute and bandwidth efficiency, fitted to the same records as the model.",
        "in interval: share of the points inside the 80 % interval; ±: its median half-width, relative.",
    ]
    missing = [[line.hardware, line.group, str(count), reason] for line in lines for reason, count in line.unpredicted.items()]
    if missing:
        left = sum(sum(line.unpredicted.values()) for line in lines)
        verdict.append(f"{left} held-out measurements more have no prediction; the second table says why.")
    tables = [
        Table("", columns, rows, "llrrrrrrrrr"),
        *([Table("not predicted", ["device", "group", "records", "reason"], missing, "llrl")] if missing else []),
    ]
    data = {"schema": "perfmodel.scoreboard/1", "version": __version__, "lines": [asdict(line) for line in lines]}
    return Report("predicted against measured, held-out records only", verdict, tables, notes, data)


def _nearer(line: GroupScore) -> bool:
    """Whether the model's median error is below that of the three scalars."""
    return line.predicted.median is not None and line.scalars.median is not None and line.predicted.median < line.scalars.median
