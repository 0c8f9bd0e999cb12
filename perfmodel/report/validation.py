"""The report of a comparison with measurements: violations first, then a line per group."""

from __future__ import annotations

from collections import Counter
from typing import Any

from perfmodel import __version__
from perfmodel.report.document import Report, Table
from perfmodel.units import format_time
from perfmodel.validation.compare import Group, Row, groups

LISTED_VIOLATIONS = 20


def report(rows: list[Row]) -> Report:
    """``rows`` as a Report; its data follows the schema perfmodel.validation/1."""
    tables = [_summary(groups(rows, by_device=True))]
    violations = [row for row in rows if row.violates]
    if violations:
        tables.insert(0, _violations(violations))
    notes = [f"{count} of {len(rows)} records: {reason}." for reason, count in Counter(row.reason for row in rows if row.reason).items()]
    notes.append("Bound: cold where the L2 was flushed between runs, else bytes beyond the caches only.")
    return Report(f"{len(rows)} measurements against the model", _verdict(rows, violations), tables, notes, data(rows))


def _verdict(rows: list[Row], violations: list[Row]) -> list[str]:
    checked = sum(row.lower_s is not None for row in rows)
    if violations:
        return [
            f"VIOLATION: {len(violations)} of {checked} measurements are faster than their lower bound. A record or the bound is wrong."
        ]
    return [f"No measurement of {checked} beats its lower bound; {len(rows) - checked} could not be checked."]


def _summary(found: list[Group]) -> Table:
    columns = ["device", "group", "records", "checked", "violations", "median of bound", "closest to bound"]
    rows = [
        [
            group.hardware,
            group.name,
            str(len(group.rows)),
            str(group.evaluated),
            str(group.violations),
            _percent(group.quantile(0.5, lambda row: row.share_of_bound)),
            _percent(group.quantile(1.0, lambda row: row.share_of_bound)),
        ]
        for group in found
    ]
    return Table("bound / measured", columns, rows, "llrrrrr")


def _violations(violations: list[Row]) -> Table:
    columns = ["device", "group", "shape", "measured", "bound"]
    rows = [
        [
            row.record.hardware,
            row.record.group,
            " ".join(f"{name} {value}" for name, value in row.record.shape.items()),
            format_time(row.record.time_s.median),
            format_time(row.lower_s or 0),
        ]
        for row in violations[:LISTED_VIOLATIONS]
    ]
    return Table(f"faster than the bound (the first {len(rows)})", columns, rows, "lllrr")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def data(rows: list[Row]) -> dict[str, Any]:
    """The object of schema perfmodel.validation/1."""
    return {
        "schema": "perfmodel.validation/1",
        "version": __version__,
        "rows": [_row(row) for row in rows],
        "groups": {group.name: _group(group) for group in groups(rows, by_device=False)},
        "groups_by_device": {f"{group.hardware}/{group.name}": _group(group) for group in groups(rows, by_device=True)},
    }


def _row(row: Row) -> dict[str, Any]:
    model = {"lower_s": row.lower_s, "predicted_s": row.predicted_s, "measured_s": row.record.time_s.median, "error": row.error}
    return {**row.raw, **model, "violates": row.violates, "reason": row.reason}


def _group(group: Group) -> dict[str, Any]:
    def error(share: float) -> float | None:
        return group.quantile(share, lambda row: None if row.error is None else abs(row.error))

    return {
        "count": len(group.rows),
        "evaluated": group.evaluated,
        "median_abs_error": error(0.5),
        "p90_abs_error": error(0.9),
        "max_abs_error": error(1.0),
        "bound_violations": group.violations,
    }
