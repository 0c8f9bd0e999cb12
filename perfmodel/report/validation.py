"""The report of a validation: violations first, then a line per group, and what was counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from perfmodel import __version__
from perfmodel.core.units import format_time
from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Report, Table
from perfmodel.timing.predict import CALIBRATED
from perfmodel.validation.compare import Count, Group, Row, groups, label
from perfmodel.validation.records import held_out
from perfmodel.validation.run import ValidationRun

LISTED = 20
"""Violations and wrong counts listed in full."""


def report(session: ValidationRun, tolerance: float) -> Report:
    """``session`` as a Report; its data follows the schema perfmodel.validation/1. ``tolerance``: of a group's median error."""
    rows, counts = session.rows, session.counts
    violations, wrong = [row for row in rows if row.violates], [count for count in counts if not count.agrees]
    tables = []
    if violations:
        tables.append(_violations(violations))
    if session.backend and rows:
        tables.append(_runs(rows))
    if rows:
        tables.append(_summary(groups(rows, by_device=True)))
    if any(row.memory_error is not None for row in rows):
        tables.append(_memory(groups(rows, by_device=True)))
    if counts:
        tables += _counted(counts, wrong, in_full=bool(session.backend))
    notes = [f"{count} of {len(rows)} records: {reason}." for reason, count in Counter(row.reason for row in rows if row.reason).items()]
    notes += [f"not measured: {failure}" for failure in session.failures]
    if rows:
        notes.append("Bound: cold where the L2 was flushed between runs, else bytes beyond the caches only.")
        notes.append("Errors are |predicted / measured - 1|; held-out records are those that no fit saw.")
    title = f"{len(rows)} measurements against the model" if rows else f"{len(counts)} counts against the model"
    if session.device is not None:
        title += f": {session.device.name}"
    return Report(title, _verdict(session, violations, wrong, tolerance), tables, notes, data(session), [row.raw for row in rows])


def beyond(rows: list[Row], tolerance: float) -> list[Group]:
    """Groups whose predictions miss by more than ``tolerance`` in the median; borrowed ones claim less, and do not count."""
    found = []
    for group in groups(rows, by_device=True):
        median = group.quantile(0.5, lambda row: _absolute_error(row) if row.prediction and row.prediction.kind == CALIBRATED else None)
        if median is not None and median > tolerance:
            found.append(group)
    return found


def _absolute_error(row: Row) -> float | None:
    return None if row.error is None else abs(row.error)


def _held_out_error(row: Row) -> float | None:
    return _absolute_error(row) if held_out(row.record) else None


def _verdict(session: ValidationRun, violations: list[Row], wrong: list[Count], tolerance: float) -> list[str]:
    rows, lines = session.rows, []
    checked = sum(row.lower_s is not None for row in rows)
    if violations:
        lines.append(
            f"VIOLATION: {len(violations)} of {checked} measurements are faster than their lower bound. A record or the bound is wrong."
        )
    elif rows:
        lines.append(f"No measurement of {checked} beats its lower bound; {len(rows) - checked} could not be checked.")
    predicted = sorted(abs(row.error) for row in rows if row.error is not None)
    if predicted:
        outside = beyond(rows, tolerance)
        lines.append(
            f"{len(predicted)} are predicted, with a median error of {predicted[len(predicted) // 2]:.1%}"
            + (f"; OUT OF TOLERANCE ({tolerance:.0%}): {', '.join(group.name for group in outside)}." if outside else ".")
        )
    if session.counts:
        agree = len(session.counts) - len(wrong)
        exact = sum(count.predicted == count.counted for count in session.counts)
        lines.append(f"{agree} of {len(session.counts)} counts agree with the prediction, {exact} of them exactly.")
    return lines


def _summary(found: list[Group]) -> Table:
    columns = ["device", "group", "records", "violations", "of bound", "predicted", "median", "p90", "worst", "held out", "median", "p90"]
    rows = []
    for group in found:
        seen = [row for row in group.rows if row.error is not None]
        unseen = [row for row in seen if held_out(row.record)]
        errors = [text(group.quantile(share, _absolute_error), "share") for share in (0.5, 0.9, 1.0)]
        held = [text(group.quantile(share, _held_out_error), "share") for share in (0.5, 0.9)]
        share = text(group.quantile(0.5, lambda row: row.share_of_bound), "share")
        counts = (str(len(group.rows)), str(group.violations), share, str(len(seen)))
        rows.append([group.hardware, group.name, *counts, *errors, str(len(unseen)), *held])
    return Table("by group: errors of all predictions, and of those on held-out records", columns, rows, "llrrrrrrrrrr")


def _absolute_memory_error(row: Row) -> float | None:
    error = row.memory_error
    return None if error is None else abs(error)


def _held_out_memory_error(row: Row) -> float | None:
    return _absolute_memory_error(row) if held_out(row.record) else None


def _memory(found: list[Group]) -> Table:
    rows = []
    for group in found:
        known = sum(row.memory_error is not None for row in group.rows)
        if known:
            errors = [text(group.quantile(share, _absolute_memory_error), "share") for share in (0.5, 0.9, 1.0)]
            held = [text(group.quantile(share, _held_out_memory_error), "share") for share in (0.5, 0.9)]
            rows.append([group.hardware, group.name, str(known), *errors, *held])
    return Table("peak memory", ["device", "group", "records", "median", "p90", "worst", "held out: median", "p90"], rows, "llrrrrrr")


def _runs(rows: list[Row]) -> Table:
    columns = ["kernel", "lower", "predicted", "measured", "p10", "p90", "noise", "error", "of roof"]
    return Table("kernels", columns, [_run(row) for row in rows], "lrrrrrrrr")


def _run(row: Row) -> list[str]:
    times = row.record.time_s
    low, high = times.p10 or times.median, times.p90 or times.median
    return [
        label(row.record),
        "-" if row.lower_s is None else format_time(row.lower_s),
        "-" if row.prediction is None else format_time(row.prediction.seconds),
        format_time(times.median),
        format_time(low),
        format_time(high),
        f"{(high - low) / times.median:.1%}",
        "-" if row.error is None else f"{row.error:+.1%}",
        text(row.share_of_roof, "share"),
    ]


def _violations(violations: list[Row]) -> Table:
    columns = ["device", "group", "shape", "measured", "bound"]
    rows = [
        [row.record.hardware, row.record.group, label(row.record), format_time(row.record.time_s.median), format_time(row.lower_s or 0)]
        for row in violations[:LISTED]
    ]
    return Table(f"faster than the bound (the first {len(rows)})", columns, rows, "lllrr")


def _counted(counts: list[Count], wrong: list[Count], in_full: bool) -> list[Table]:
    columns = ["kernel", "quantity", "predicted", "counted", "predicted / counted", "agrees"]
    listed = counts if in_full else wrong[:LISTED]
    rows = [
        [count.kernel, count.quantity, f"{count.predicted:,.0f}", f"{count.counted:,.0f}", _ratio(count), "yes" if count.agrees else "NO"]
        for count in listed
    ]
    title = "counts" if in_full else f"counts that disagree (the first {len(rows)})"
    return [Table(title, columns, rows, "llrrrl")] if rows else []


def _ratio(count: Count) -> str:
    return f"{count.predicted / count.counted:.4f}" if count.counted else ("1.0000" if not count.predicted else "inf")


def data(session: ValidationRun) -> dict[str, Any]:
    """The object of schema perfmodel.validation/1."""
    rows = session.rows
    return {
        "schema": "perfmodel.validation/1",
        "version": __version__,
        "backend": session.backend or None,
        "rows": [_row(row) for row in rows],
        "groups": {group.name: _group(group) for group in groups(rows, by_device=False)},
        "groups_by_device": {f"{group.hardware}/{group.name}": _group(group) for group in groups(rows, by_device=True)},
        "counts": [
            {"kernel": c.kernel, "quantity": c.quantity, "predicted": c.predicted, "counted": c.counted, "agrees": c.agrees}
            for c in session.counts
        ],
        "failures": session.failures,
    }


def _row(row: Row) -> dict[str, Any]:
    known = row.prediction
    model = {
        "lower_s": row.lower_s,
        "predicted_s": known.seconds if known else None,
        "low_s": known.low if known else None,
        "high_s": known.high if known else None,
        "provenance": known.provenance if known else None,
        "measured_s": row.record.time_s.median,
        "error": row.error,
        "held_out": held_out(row.record),
    }
    if row.measured_bytes is not None:
        model |= {"predicted_bytes": row.predicted_bytes, "measured_bytes": row.measured_bytes, "memory_error": row.memory_error}
    return {**row.raw, **model, "violates": row.violates, "reason": row.reason}


def _group(group: Group) -> dict[str, Any]:
    return {
        "count": len(group.rows),
        "evaluated": group.evaluated,
        "predicted": sum(row.error is not None for row in group.rows),
        "median_abs_error": group.quantile(0.5, _absolute_error),
        "p90_abs_error": group.quantile(0.9, _absolute_error),
        "max_abs_error": group.quantile(1.0, _absolute_error),
        "held_out_median_abs_error": group.quantile(0.5, _held_out_error),
        "held_out_p90_abs_error": group.quantile(0.9, _held_out_error),
        "bound_violations": group.violations,
        "median_abs_memory_error": group.quantile(0.5, _absolute_memory_error),
        "max_abs_memory_error": group.quantile(1.0, _absolute_memory_error),
    }
