"""The scoreboard of predictions: per device and group, the model beside plainer ones, on records that no fit saw."""

from __future__ import annotations

from dataclasses import asdict

from perfmodel import __version__
from perfmodel.report.document import Report, Table
from perfmodel.validation.scoreboard import Line, Score


def report(lines: list[Line]) -> Report:
    """``lines`` as a Report."""
    predicted = [line for line in lines if line.predicted.median is not None]
    columns = ["device", "group", "points", "violations", "median", "p90", "worst", "in interval", "± interval", "roofline", "3 scalars"]
    rows = [
        [
            line.hardware,
            line.group,
            str(line.points),
            str(line.violations),
            *map(_percent, (line.predicted.median, line.predicted.p90, line.predicted.worst, line.covered, line.half_width)),
            _percent(line.roofline.median),
            _percent(line.scalars.median),
        ]
        for line in predicted
    ]
    better = sum(_beats(line.predicted, line.scalars) for line in predicted)
    verdict = [
        f"{sum(line.points for line in predicted)} held-out measurements in {len(predicted)} groups; "
        f"the model is nearer in the median than three fitted scalars in {better} of them."
    ]
    notes = [
        "Errors are |predicted / measured - 1| on records that no fit saw; the last two columns are the medians of plainer models.",
        "roofline: datasheet rates. 3 scalars: launch overhead, compute and bandwidth efficiency, fitted to the same records as the model.",
        "in interval: share of the points inside the 80 % interval; ±: its median half-width, relative.",
    ]
    if len(lines) > len(predicted):
        notes.append(f"{len(lines) - len(predicted)} groups that no model predicts are left out here, not in the JSON.")
    data = {"schema": "perfmodel.scoreboard/1", "version": __version__, "lines": [asdict(line) for line in lines]}
    return Report("predicted against measured, held-out records only", verdict, [Table("", columns, rows, "llrrrrrrrrr")], notes, data)


def _beats(one: Score, other: Score) -> bool:
    return one.median is not None and (other.median is None or one.median < other.median)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
