"""Reports of ``validate``: measurements against the model by group, the scoreboard of held-out records, and counted kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from perfmodel.core.arith import quantile
from perfmodel.core.units import format_time
from perfmodel.program.ncu_csv import CountedKernel, counters, seconds
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Chart, Pair, ScatterChart
from perfmodel.report.document import SCREEN_ROWS, Figure, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head
from perfmodel.timing.predict import CALIBRATED
from perfmodel.validation.compare import RecordGroup, RecordRow, groups, label
from perfmodel.validation.run import GroupScore, ValidationRun

LISTED = 20
"""Most violations and wrong counts that are listed."""
NAME_WIDTH = 60
"""Most characters of a kernel's name."""
NAMED = 2
"""Most groups that a sentence of the headline names."""
SHOWN = 600
"""Most pairs of a scatter chart."""
KINDS = 6
"""Most colours for kinds of workloads; the rest share one."""
VIOLATIONS = {"device": "device", "group": "group", "kernel": "shape", "measured_s": "measured", "lower_s": "bound"}
GROUPS = (
    *("device", "group", "count", "bound_violations", "of bound", "predicted", "median_abs_error", "p90_abs_error", "max_abs_error"),
    *("held out", "held_out_median_abs_error", "held_out_p90_abs_error"),
)
MEMORY = {"device": "device", "group": "group", "with memory": "records"}
MEMORY |= {"median_abs_memory_error": "median", "p90 of memory": "p90", "max_abs_memory_error": "worst"}
MEMORY |= {"held-out median of memory": "held out: median", "held-out p90 of memory": "p90"}
SERVED = {"device": "device", "group": "group", "served": "runs"}
SERVED |= {"median_abs_tpot_error": "TPOT: median", "p90_abs_tpot_error": "p90", "tpot_intervals_hold": "holds"}
SERVED |= {"median_abs_ttft_error": "TTFT: median", "p90_abs_ttft_error": "p90", "ttft_intervals_hold": "holds"}


def report(session: ValidationRun, tolerance: float, pictures: bool = False) -> Report:
    """``session`` as a Report with data of schema perfmodel.validation/1. ``tolerance``: of a group's median error."""
    rows = session.rows
    notes = [f"{count} of {len(rows)} records: {reason}." for reason, count in Counter(row.reason for row in rows if row.reason).items()]
    notes += [f"not measured: {failure}" for failure in session.failures]
    if rows:
        notes.append("Bound: cold where the L2 was flushed between runs, else bytes beyond the caches only.")
        notes.append("Errors are |predicted / measured - 1|; held-out records are those that no fit saw.")
    title = f"{len(rows)} measurements against the model" if rows else f"{len(session.counts)} counts against the model"
    wrong = beyond(rows, tolerance)
    headline = _sentences(session, tolerance, wrong, NAMED)[:3] or ["Nothing was measured."]
    return Report(
        title + ("" if session.device is None else f": {session.device.name}"),
        headline,
        _tables(session),
        notes,
        data(session),
        [row.raw for row in rows],
        charts=_charts(rows) if pictures else [],
        figures=_figures(session, wrong),
        brief=_brief(session, wrong),
        reasons=[words for words in _sentences(session, tolerance, wrong, len(wrong)) if words not in headline],
    )


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


# Metrics


def time_error(row: RecordRow) -> float | None:
    """Relative error of the predicted time; per token for a serving run."""
    return None if row.error is None else abs(row.error)


def memory_error(row: RecordRow) -> float | None:
    """Relative error of the predicted peak of memory."""
    return None if row.memory_error is None else abs(row.memory_error)


def _errors(rows: Sequence[RecordRow], of: Callable[[RecordRow], float | None] = time_error) -> list[float]:
    return [error for error in map(of, rows) if error is not None]


def _row(row: RecordRow) -> list[Metric]:
    prediction, times = row.prediction, row.record.time_s
    seconds, at_least, at_most = row.times or (None, None, None)
    low, high = times.p10 or times.median, times.p90 or times.median
    names = ("predicted_bytes", "measured_bytes", "memory_error") if row.measured_bytes is not None else ()
    return [
        Metric("", label(row.record), "kernel", "text"),
        Metric("lower_s", row.lower_s, "lower", "s"),
        Metric("predicted_s", seconds, "predicted", "s"),
        Metric("low_s", at_least),
        Metric("high_s", at_most),
        Metric("provenance", prediction and prediction.provenance),
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


def _served(row: RecordRow) -> list[Metric]:
    """Metrics of a serving run: both times, their errors, and whether the intervals hold."""
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
    """Metrics of a group of serving runs: errors per token and to the first, and the shares of intervals that hold."""
    runs = [row for row in group.rows if row.served is not None]
    first = [abs(row.ttft_error) for row in runs if row.ttft_error is not None]
    if not runs:
        return []
    return [
        Metric("", len(runs), "served"),
        *_quantiles({"median_abs_tpot_error": 0.5, "p90_abs_tpot_error": 0.9}, _errors(runs)),
        _share("tpot_intervals_hold", [row.covered for row in runs]),
        *_quantiles({"median_abs_ttft_error": 0.5, "p90_abs_ttft_error": 0.9}, first),
        _share("ttft_intervals_hold", [row.ttft_covered for row in runs]),
    ]


def _share(key: str, checks: list[bool | None]) -> Metric:
    checked = [check for check in checks if check is not None]
    return Metric(key, sum(checked) / len(checked) if checked else None, key, "share")


def _group(group: RecordGroup) -> list[Metric]:
    unseen = [row for row in group.rows if row.held_out]
    errors, memory, unseen_memory = _errors(group.rows), _errors(group.rows, memory_error), _errors(unseen, memory_error)
    return [
        Metric("", group.hardware, "device", "text"),
        Metric("", group.name, "group", "text"),
        Metric("count", len(group.rows), "records"),
        Metric("evaluated", group.evaluated),
        Metric("", group.quantile(0.5, lambda row: row.share_of_bound), "of bound", "share"),
        Metric("predicted", len(errors), "predicted"),
        *_quantiles({"median_abs_error": 0.5, "p90_abs_error": 0.9, "max_abs_error": 1.0}, errors, ("median", "p90", "worst")),
        Metric("", len(_errors(unseen)), "held out"),
        *_quantiles({"held_out_median_abs_error": 0.5, "held_out_p90_abs_error": 0.9}, _errors(unseen), ("median", "p90")),
        Metric("bound_violations", group.violations, "violations"),
        *_serving(group),
        Metric("", len(memory) or None, "with memory"),
        *_quantiles({"median_abs_memory_error": 0.5, "max_abs_memory_error": 1.0}, memory),
        Metric("", quantile(memory, 0.9) if memory else None, "p90 of memory", "share"),
        Metric("", quantile(unseen_memory, 0.5) if unseen_memory else None, "held-out median of memory", "share"),
        Metric("", quantile(unseen_memory, 0.9) if unseen_memory else None, "held-out p90 of memory", "share"),
    ]


def _quantiles(shares: Mapping[str, float], errors: Sequence[float], labels: Sequence[str] = ("", "", "")) -> list[Metric]:
    """Metrics of quantiles of ``errors`` by key; None without errors."""
    return [
        Metric(key, quantile(errors, share) if errors else None, label, "share")
        for (key, share), label in zip(shares.items(), labels, strict=False)
    ]


# Headline


def beyond(rows: list[RecordRow], tolerance: float) -> list[RecordGroup]:
    """Groups with a median error above ``tolerance``; borrowed calibrations do not count."""
    tables = []
    for group in groups(rows, by_device=True):
        errors = _errors([row for row in group.rows if row.prediction and row.prediction.kind == CALIBRATED])
        if errors and quantile(errors, 0.5) > tolerance:
            tables.append(group)
    return tables


def _sentences(session: ValidationRun, tolerance: float, wrong: list[RecordGroup], named: int) -> list[str]:
    """Sentences on beaten bounds, on errors with at most ``named`` groups out of tolerance, and on counts."""
    rows, counts, lines = session.rows, session.counts, []
    checked, violations = sum(row.lower_s is not None for row in rows), sum(row.violates for row in rows)
    if violations:
        lines.append(
            f"VIOLATION: {violations} of {checked} measurements are faster than their lower bound. A record or the bound is wrong."
        )
    elif rows and not checked:
        lines.append(f"None of {len(rows)} measurements has a lower bound to check.")
    elif rows:
        lines.append(f"No measurement of {checked} beats its lower bound; {len(rows) - checked} could not be checked.")
    if errors := _errors(rows):
        names = ", ".join(group.name for group in wrong[:named]) + (f" and {len(wrong) - named} more" if len(wrong) > named else "")
        outside = f"OUT OF TOLERANCE ({tolerance:.0%}): {names}" if wrong else f"no calibrated group is off by more than {tolerance:.0%}"
        off = f"{quantile(errors, 0.5):.1%} off in the median, 9 in 10 within {quantile(errors, 0.9):.1%}"
        lines.append(f"{len(errors)} are predicted, {off}; {outside}.")
    if peaks := _errors(rows, memory_error):
        middle, p90 = (text(quantile(peaks, share), "share") for share in (0.5, 0.9))
        lines.append(f"{len(peaks):,} peaks of memory are predicted, {middle} off in the median, 9 in 10 within {p90}.")
    if counts:
        agree, exact = sum(count.agrees for count in counts), sum(count.predicted == count.counted for count in counts)
        lines.append(f"{agree} of {len(counts)} counts agree with the prediction, {exact} of them exactly.")
    return lines


def _figures(session: ValidationRun, wrong: list[RecordGroup]) -> list[Figure]:
    """Figures: beaten bounds, errors of all and of held-out records, groups out of tolerance, counts."""
    rows, counts, figures = session.rows, session.counts, list[Figure]()
    if rows:
        checked = sum(row.lower_s is not None for row in rows)
        figures.append(Figure("faster than their bound", f"{sum(row.violates for row in rows):,} of {checked:,}"))
    if errors := _errors(rows):
        figures.append(Figure("median error", f"{quantile(errors, 0.5):.1%}"))
        figures.append(Figure("9 in 10 within", f"{quantile(errors, 0.9):.1%}"))
    if unseen := _errors([row for row in rows if row.held_out]):
        figures.append(Figure("median error, held out", f"{quantile(unseen, 0.5):.1%}"))
    if errors:
        figures.append(Figure("groups out of tolerance", f"{len(wrong)} of {len(groups(rows, by_device=True))}"))
    if counts:
        figures.append(Figure("counts that agree", f"{sum(count.agrees for count in counts)} of {len(counts)}"))
    return figures[:5]


# Tables


def _brief(session: ValidationRun, wrong: list[RecordGroup]) -> list[Table]:
    """Short table of groups: with violations first, then by falling median error, with marks if out of tolerance; then peaks of memory."""
    all_groups = groups(session.rows, by_device=True)
    peaks = [group for group in all_groups if _errors(group.rows, memory_error)]
    listed = [group for group in all_groups if _errors(group.rows) or group.violations or group not in peaks]
    peaks = sorted(peaks, key=lambda group: -(group.quantile(0.5, memory_error) or 0))[: SCREEN_ROWS - min(len(listed), SCREEN_ROWS // 2)]
    off = {(group.hardware, group.name) for group in wrong}

    def cells(group: RecordGroup, of: Callable[[RecordRow], float | None], several: bool, marked: bool = False) -> list[str]:
        median, *errors = (text(group.quantile(share, of), "share") for share in (0.5, 0.9, 1.0))
        return [short_name(group.name, group.hardware * several), median + " !" * marked, *errors]

    first = sorted(listed, key=lambda group: (-group.violations, -(group.quantile(0.5, time_error) or -1.0)))[: SCREEN_ROWS - len(peaks)]
    beaten, several = any(group.violations for group in listed), len({group.hardware for group in listed}) > 1
    times = [
        [*cells(group, time_error, several, (group.hardware, group.name) in off), f"{len(group.rows):,}", *[str(group.violations)] * beaten]
        for group in first
    ]
    heads, title = ["group", "median", "p90", "worst", "records"], "|predicted / measured - 1|"
    tables = [Table(f"the groups that are farthest off: {title}", [*heads, *["violations"] * beaten], times)] if times else []
    several = len({group.hardware for group in peaks}) > 1
    memory = [[*cells(group, memory_error, several), f"{len(_errors(group.rows, memory_error)):,}"] for group in peaks]
    return [*tables, *([Table(f"peak memory: {title}", heads, memory)] if memory else [])]


def short_name(group: str, device: str = "") -> str:
    """Name of a group for a narrow column.

    >>> short_name("attention/fa1-triton/both", "nvidia-a100-sxm-80gb"), short_name("matmul/cublas/forward")
    ('fa1-triton both, a100-sxm-80gb', 'cublas')
    """
    _, implementation, *direction = group.split("/")
    name = " ".join([implementation, *(word for word in direction if word != "forward")])
    return f"{name}, {device.removeprefix('nvidia-')}" if device else name


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
    entries = list(map(_group, groups(rows, by_device=True)))
    if entries:
        tables.append(as_rows("by group: errors of all predictions, and of those on held-out records", entries, labels=GROUPS))
    measured = [group for group in entries if any(metric.label == "with memory" and metric.value for metric in group)]
    if measured:
        tables.append(as_rows("peak memory", measured, labels=MEMORY))
    runs = [group for group in entries if any(metric.label == "served" for metric in group)]
    if runs:
        tables.append(as_rows("serving runs: |predicted / measured - 1| of both times, and intervals that hold", runs, labels=SERVED))
    return [*tables, *_counted(session)]


def _counted(session: ValidationRun) -> list[Table]:
    listed = session.counts if session.backend else [count for count in session.counts if not count.agrees][:LISTED]
    rows = []
    for count in listed:
        ratio = f"{count.predicted / count.counted:.4f}" if count.counted else "inf" if count.predicted else "1.0000"
        sizes = [f"{count.predicted:,.0f}", f"{count.counted:,.0f}"]
        rows.append([count.kernel, count.quantity, *sizes, ratio, "yes" if count.agrees else "NO"])
    title = "counts" if session.backend else f"counts that disagree (the first {len(rows)})"
    columns = ["kernel", "quantity", "predicted", "counted", "predicted / counted", "agrees"]
    return [Table(title, columns, rows, "llrrrl")] if rows else []


# Charts


def _charts(rows: Sequence[RecordRow]) -> list[Chart]:
    """Chart of predicted against measured times by kind of workload, thinned evenly; the band holds 80 % of all."""
    predicted = [(row, row.prediction) for row in rows if row.prediction is not None]
    if not predicted:
        return []
    kinds = list(dict.fromkeys(row.record.workload for row, _ in predicted))
    series = kinds if len(kinds) <= KINDS else kinds[: KINDS - 1]
    drawn = predicted[:: max(1, -(-len(predicted) // SHOWN))]
    pairs = [
        Pair(
            label(row.record), row.record.time_s.median, float(time.seconds), kind if (kind := row.record.workload) in series else "others"
        )
        for row, time in drawn
    ]
    ratios = [row.record.time_s.median / float(prediction.seconds) for row, prediction in predicted]
    caption = f"{len(drawn):,} of {len(predicted):,} measurements, evenly chosen." if len(drawn) < len(predicted) else ""
    return [ScatterChart("Predicted against measured", pairs, "s", quantile(ratios, 0.1), quantile(ratios, 0.9), caption)]


# Held-out records, and kernels that a profiler counted


def scoreboard_report(lines: list[GroupScore]) -> Report:
    """A report with the model beside simpler ones per device and group, on records that no fit saw."""
    predicted = [line for line in lines if line.predicted.median is not None]
    columns = ["device", "group", "points", "violations", "median", "p90", "worst", "in interval", "± interval", "roofline", "3 scalars"]
    rows = []
    for line in predicted:
        shares = (line.predicted.median, line.predicted.p90, line.predicted.worst, line.covered, line.half_width)
        shown = [text(share, "share") for share in (*shares, line.roofline.median, line.scalars.median)]
        rows.append([line.hardware, line.group, str(line.points), str(line.violations), *shown])
    rivals = [(line.predicted.median or 0.0, line.scalars.median) for line in predicted if line.scalars.median is not None]
    verdict = [
        f"{sum(line.points for line in predicted):,} held-out measurements in {len(predicted)} groups. Three fitted scalars predict "
        f"{len(rivals)} of these groups too; the model is nearer in the median in {sum(ours < other for ours, other in rivals)} of those."
    ]
    notes = [
        "Errors are |predicted / measured - 1| on records that no fit saw; the last two columns are the medians of plainer models.",
        "roofline: datasheet rates. 3 scalars: launch overhead, compute and bandwidth efficiency, fitted to the same records as the model.",
        "in interval: share of the points inside the 80 % interval; ±: its median half-width, relative.",
    ]
    tables = [Table("", columns, rows, "llrrrrrrrrr")]
    worst = sorted(zip((line.predicted.median or 0.0 for line in predicted), rows, strict=True), key=lambda pair: -pair[0])
    order = [columns.index(name) for name in ("median", "p90", "points", "in interval", "roofline", "3 scalars")]
    cells = [[short_name(row[1], row[0]), *(row[at] for at in order)] for _, row in worst]
    screen = Table("the groups that are farthest off", ["group", *(columns[at] for at in order)], cells, "lrrrrrr")
    missing = [[line.hardware, line.group, str(count), reason] for line in lines for reason, count in line.unpredicted.items()]
    if missing:
        unpredicted = sum(sum(line.unpredicted.values()) for line in lines)
        verdict.append(f"{unpredicted} more held-out measurements have no prediction; the second table says why.")
        tables.append(Table("not predicted", ["device", "group", "records", "reason"], missing, "llrl"))
    data = {**head("scoreboard"), "lines": [asdict(line) for line in lines]}
    return Report("predicted against measured, held-out records only", verdict, tables, notes, data, brief=[screen])


def counters_report(kernels: list[CountedKernel]) -> Report:
    """A report on kernels of a profiler's file: bytes by level, and rates if the file has durations."""
    names = sorted({name for kernel in kernels for name in counters([kernel])})
    rows = []
    for kernel in kernels:
        counts, time = counters([kernel]), seconds([kernel])
        cells = [f"{counts[name]:,}" if name in counts else "-" for name in names]
        rows.append([kernel.name[:NAME_WIDTH], "-" if time is None else format_time(time), *cells])
    verdict = [f"{len(kernels)} kernels; counters found: {', '.join(names) or 'none that this package reads'}."]
    data = {**head("counters"), "kernels": [asdict(kernel) for kernel in kernels]}
    return Report("kernels counted by Nsight Compute", verdict, [Table("", ["kernel", "time", *names], rows)], [], data)
