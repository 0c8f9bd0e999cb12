"""Reports of ``validate``: measurements against the model by group, the scoreboard of held-out records, and counted kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from perfmodel.core.arith import quantile
from perfmodel.core.units import format_time
from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head
from perfmodel.report.validation_answer import brief, figures, reasons, short_name, verdict
from perfmodel.report.validation_answer import pictures as pictures_of
from perfmodel.validation.compare import Count, RecordGroup, RecordRow, groups, label
from perfmodel.validation.cuda.ncu_csv import CountedKernel, counters, seconds
from perfmodel.validation.run import GroupScore, ValidationRun

LISTED = 20
"""Violations and wrong counts listed in full."""
NAME_WIDTH = 60


def report(session: ValidationRun, tolerance: float, pictures: bool = False) -> Report:
    """``session`` as a Report; its data follows the schema perfmodel.validation/1. ``tolerance``: of a group's median error."""
    rows = session.rows
    notes = [f"{count} of {len(rows)} records: {reason}." for reason, count in Counter(row.reason for row in rows if row.reason).items()]
    notes += [f"not measured: {failure}" for failure in session.failures]
    if rows:
        notes.append("Bound: cold where the L2 was flushed between runs, else bytes beyond the caches only.")
        notes.append("Errors are |predicted / measured - 1|; held-out records are those that no fit saw.")
    title = f"{len(rows)} measurements against the model" if rows else f"{len(session.counts)} counts against the model"
    title += "" if session.device is None else f": {session.device.name}"
    made = Report(title, verdict(session, tolerance), _tables(session), notes, data(session), [row.raw for row in rows])
    made = replace(made, reasons=reasons(session, tolerance), brief=brief(session, tolerance), figures=figures(session, tolerance))
    return replace(made, charts=pictures_of(rows)) if pictures else made


def data(session: ValidationRun) -> dict[str, Any]:
    """The object of schema perfmodel.validation/1."""
    rows = session.rows
    return {
        **head("validation"),
        "backend": session.backend or None,
        "devices": sorted({row.device.id for row in rows if row.device is not None}),
        "rows": [{**row.raw, **as_json(_row(row))} for row in rows],
        "groups": {group.name: as_json(_group(group)) for group in groups(rows, by_device=False)},
        "groups_by_device": {f"{group.hardware}/{group.name}": as_json(_group(group)) for group in groups(rows, by_device=True)},
        "counts": [
            {"kernel": c.kernel, "quantity": c.quantity, "predicted": c.predicted, "counted": c.counted, "agrees": c.agrees}
            for c in session.counts
        ],
        "failures": session.failures,
    }


VIOLATIONS = {"device": "device", "group": "group", "kernel": "shape", "measured_s": "measured", "lower_s": "bound"}
GROUPS = (
    *("device", "group", "count", "bound_violations", "of bound", "predicted", "median_abs_error", "p90_abs_error", "max_abs_error"),
    *("held out", "held_out_median_abs_error", "held_out_p90_abs_error"),
)
MEMORY = {
    "device": "device",
    "group": "group",
    "with memory": "records",
    "median_abs_memory_error": "median",
    "p90 of memory": "p90",
    "max_abs_memory_error": "worst",
    "held-out median of memory": "held out: median",
    "held-out p90 of memory": "p90",
}


def _row(row: RecordRow) -> list[Metric]:
    known, times = row.prediction, row.record.time_s
    seconds, at_least, at_most = (known.seconds, known.low, known.high) if known else row.served.tpot if row.served else (None, None, None)
    low, high = times.p10 or times.median, times.p90 or times.median
    names = ("predicted_bytes", "measured_bytes", "memory_error") if row.measured_bytes is not None else ()
    return [
        Metric("", label(row.record), "kernel", "text"),
        Metric("lower_s", row.lower_s, "lower", "s"),
        Metric("predicted_s", seconds, "predicted", "s"),
        Metric("low_s", at_least),
        Metric("high_s", at_most),
        Metric("provenance", known and known.provenance),
        Metric("measured_s", times.median, "measured", "s"),
        Metric("", low, "p10", "s"),
        Metric("", high, "p90", "s"),
        Metric("", (high - low) / times.median, "noise", "share"),
        Metric("error", row.error, "error", "error"),
        *_served(row),
        Metric("held_out", row.held_out),
        *(Metric(name, getattr(row, name)) for name in names),
        Metric("violates", row.violates),
        Metric("reason", row.reason),
    ]


SERVED = {
    "device": "device",
    "group": "group",
    "served": "runs",
    "median_abs_tpot_error": "TPOT: median",
    "p90_abs_tpot_error": "p90",
    "tpot_intervals_hold": "holds",
    "median_abs_ttft_error": "TTFT: median",
    "p90_abs_ttft_error": "p90",
    "ttft_intervals_hold": "holds",
}


def _served(row: RecordRow) -> list[Metric]:
    """Of a serving run: both times, their errors and whether their intervals hold."""
    if row.served is None:
        return []
    return [
        Metric("predicted_tpot_s", row.served.tpot[0]),
        Metric("predicted_ttft_s", row.served.ttft[0]),
        Metric("tpot_error", row.error),
        Metric("ttft_error", row.ttft_error),
        Metric("tpot_interval_s", list(row.served.tpot[1:])),
        Metric("ttft_interval_s", list(row.served.ttft[1:])),
        Metric("tpot_interval_holds", row.covered),
        Metric("ttft_interval_holds", row.ttft_covered),
    ]


def _serving(group: RecordGroup) -> list[Metric]:
    """Of a group of serving runs: errors per token and to the first, and the shares of intervals that hold."""
    runs = [row for row in group.rows if row.served is not None]
    if not runs:
        return []
    tpot, ttft = (
        [(False, abs(error)) for error in errors if error is not None]
        for errors in zip(*((r.error, r.ttft_error) for r in runs), strict=True)
    )
    return [
        Metric("", len(runs), "served"),
        _quantile("median_abs_tpot_error", tpot, 0.5),
        _quantile("p90_abs_tpot_error", tpot, 0.9),
        _share("tpot_intervals_hold", [row.covered for row in runs]),
        _quantile("median_abs_ttft_error", ttft, 0.5),
        _quantile("p90_abs_ttft_error", ttft, 0.9),
        _share("ttft_intervals_hold", [row.ttft_covered for row in runs]),
    ]


def _share(key: str, held: list[bool | None]) -> Metric:
    known = [one for one in held if one is not None]
    return Metric(key, sum(known) / len(known) if known else None, key, "share")


def _group(group: RecordGroup) -> list[Metric]:
    errors = [(row.held_out, abs(row.error)) for row in group.rows if row.error is not None]
    memory = [(row.held_out, abs(error)) for row in group.rows if (error := row.memory_error) is not None]
    return [
        Metric("", group.hardware, "device", "text"),
        Metric("", group.name, "group", "text"),
        Metric("count", len(group.rows), "records"),
        Metric("evaluated", group.evaluated),
        Metric("", group.quantile(0.5, lambda row: row.share_of_bound), "of bound", "share"),
        Metric("predicted", len(errors), "predicted"),
        _quantile("median_abs_error", errors, 0.5, "median"),
        _quantile("p90_abs_error", errors, 0.9, "p90"),
        _quantile("max_abs_error", errors, 1.0, "worst"),
        Metric("", sum(unseen for unseen, _ in errors), "held out"),
        _quantile("held_out_median_abs_error", errors, 0.5, "median", unseen=True),
        _quantile("held_out_p90_abs_error", errors, 0.9, "p90", unseen=True),
        Metric("bound_violations", group.violations, "violations"),
        *_serving(group),
        Metric("", len(memory) or None, "with memory"),
        _quantile("median_abs_memory_error", memory, 0.5),
        _quantile("", memory, 0.9, "p90 of memory"),
        _quantile("max_abs_memory_error", memory, 1.0),
        _quantile("", memory, 0.5, "held-out median of memory", unseen=True),
        _quantile("", memory, 0.9, "held-out p90 of memory", unseen=True),
    ]


def _quantile(key: str, errors: list[tuple[bool, float]], share: float, label: str = "", *, unseen: bool = False) -> Metric:
    """Quantile of ``errors``, pairs (held out, error); ``unseen``: of held-out records only."""
    values = [error for held, error in errors if held or not unseen]
    return Metric(key, quantile(values, share) if values else None, label, "share")


def _tables(session: ValidationRun) -> list[Table]:
    rows, tables = session.rows, []
    violations = [
        [Metric("", row.record.hardware, "device", "text"), Metric("", row.record.group, "group", "text"), *_row(row)]
        for row in rows
        if row.violates
    ][:LISTED]
    if violations:
        tables.append(as_rows(f"faster than the bound (the first {len(violations)})", violations, labels=VIOLATIONS))
    if session.backend and rows:
        runs = [[*_row(row), Metric("", row.share_of_roof, "of roof", "share")] for row in rows]
        tables.append(as_rows("kernels", runs))
    found = list(map(_group, groups(rows, by_device=True)))
    if found:
        tables.append(as_rows("by group: errors of all predictions, and of those on held-out records", found, labels=GROUPS))
    measured = [group for group in found if any(one.label == "with memory" and one.value for one in group)]
    if measured:
        tables.append(as_rows("peak memory", measured, labels=MEMORY))
    runs = [group for group in found if any(one.label == "served" for one in group)]
    if runs:
        tables.append(as_rows("serving runs: |predicted / measured - 1| of both times, and intervals that hold", runs, labels=SERVED))
    return [*tables, *_counted(session)]


def _counted(session: ValidationRun) -> list[Table]:
    listed = session.counts if session.backend else [count for count in session.counts if not count.agrees][:LISTED]
    rows = [
        [count.kernel, count.quantity, f"{count.predicted:,.0f}", f"{count.counted:,.0f}", _ratio(count), "yes" if count.agrees else "NO"]
        for count in listed
    ]
    title = "counts" if session.backend else f"counts that disagree (the first {len(rows)})"
    columns = ["kernel", "quantity", "predicted", "counted", "predicted / counted", "agrees"]
    return [Table(title, columns, rows, "llrrrl")] if rows else []


def _ratio(count: Count) -> str:
    return f"{count.predicted / count.counted:.4f}" if count.counted else ("1.0000" if not count.predicted else "inf")


# Held-out records, and kernels that a profiler counted


def scoreboard_report(lines: list[GroupScore]) -> Report:
    """Per device and group the model beside plainer ones, on records that no fit saw, as a Report."""
    predicted = [line for line in lines if line.predicted.median is not None]
    columns = ["device", "group", "points", "violations", "median", "p90", "worst", "in interval", "± interval", "roofline", "3 scalars"]
    rows = []
    for line in predicted:
        shares = (line.predicted.median, line.predicted.p90, line.predicted.worst, line.covered, line.half_width)
        shown = [text(share, "share") for share in (*shares, line.roofline.median, line.scalars.median)]
        rows.append([line.hardware, line.group, str(line.points), str(line.violations), *shown])
    rivals = [(line.predicted.median or 0.0, line.scalars.median) for line in predicted if line.scalars.median is not None]
    verdict = [
        f"{sum(line.points for line in predicted)} held-out measurements in {len(predicted)} groups. Three fitted scalars predict "
        f"{len(rivals)} of the groups as well; the model is nearer in the median in {sum(ours < other for ours, other in rivals)} of those."
    ]
    notes = [
        "Errors are |predicted / measured - 1| on records that no fit saw; the last two columns are the medians of plainer models.",
        "roofline: datasheet rates. 3 scalars: launch overhead, compute and bandwidth efficiency, fitted to the same records as the model.",
        "in interval: share of the points inside the 80 % interval; ±: its median half-width, relative.",
    ]
    tables = [Table("", columns, rows, "llrrrrrrrrr")]
    worst = sorted(zip((line.predicted.median or 0.0 for line in predicted), rows, strict=True), key=lambda one: -one[0])
    order = [columns.index(name) for name in ("median", "p90", "points", "in interval", "roofline", "3 scalars")]
    cells = [[short_name(row[1], row[0]), *(row[at] for at in order)] for _, row in worst]
    screen = Table("the groups that are farthest off", ["group", *(columns[at] for at in order)], cells, "lrrrrrr")
    missing = [[line.hardware, line.group, str(count), reason] for line in lines for reason, count in line.unpredicted.items()]
    if missing:
        left = sum(sum(line.unpredicted.values()) for line in lines)
        verdict.append(f"{left} held-out measurements more have no prediction; the second table says why.")
        tables.append(Table("not predicted", ["device", "group", "records", "reason"], missing, "llrl"))
    data = {**head("scoreboard"), "lines": [asdict(line) for line in lines]}
    return Report("predicted against measured, held-out records only", verdict, tables, notes, data, brief=[screen])


def counters_report(kernels: list[CountedKernel]) -> Report:
    """Kernels of a profiler's file as a Report: bytes by level, and their rate where the file has durations."""
    names = sorted({name for kernel in kernels for name in counters([kernel])})
    rows = []
    for kernel in kernels:
        found, time = counters([kernel]), seconds([kernel])
        cells = [f"{found[name]:,}" if name in found else "-" for name in names]
        rows.append([kernel.name[:NAME_WIDTH], "-" if time is None else format_time(time), *cells])
    verdict = [f"{len(kernels)} kernels; counters found: {', '.join(names) or 'none that this package reads'}."]
    data = {**head("counters"), "kernels": [asdict(kernel) for kernel in kernels]}
    return Report("kernels counted by Nsight Compute", verdict, [Table("", ["kernel", "time", *names], rows)], [], data)
