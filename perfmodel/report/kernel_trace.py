"""The report of kernels without operators: busy time, time by kernel and kind, and what counters say beside the roofs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from perfmodel.core.units import format_time
from perfmodel.program.answer import ProgramAnswer
from perfmodel.program.kernel_files import COMMANDS, NCU, FileKernel, kind_of
from perfmodel.program.ncu_points import KernelCount, added
from perfmodel.program.price import OperatorGroup
from perfmodel.report.answer import headline
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Bar, BarChart, Chart, RooflinePoint
from perfmodel.report.document import Figure, KernelSpan, Report
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.ncu_kernels import UNCOUNTED, advice, points_of
from perfmodel.report.op_common import head
from perfmodel.report.trace import DRAWN, LISTED, ON_SCREEN, changes_of, changes_table, compared, operator_metrics, step_metrics

KNOWN = frozenset(("steps", "span_s", "busy_s", "idle_share", "kernels", "measured_s"))
"""Metrics of a step that kernels alone tell; those of ``STARTED`` need their start times."""
STARTED = frozenset(("span_s", "busy_s", "idle_share"))
PAUSES = 10
"""Most pauses that are listed."""
LONGEST_NAME = 64
OPERATORS = "operators are not known, so nothing is predicted: torch.profiler with record_shapes=True records them"


def report(answer: ProgramAnswer, name: str, other: ProgramAnswer | None = None, other_name: str = "", *, pictures: bool = False) -> Report:
    """``answer`` of a file of kernels as a Report with data of schema perfmodel.trace/1; what is not known is null.

    ``other``: another such file to compare with, called ``other_name``.
    """
    started = answer.profile.tool != NCU
    by_name = defaultdict[str, list[FileKernel]](list)
    for kernel in answer.profile.kernels:
        assert isinstance(kernel, FileKernel)
        by_name[kernel.name].append(kernel)
    counts = {name: _counted(name, runs) for name, runs in by_name.items()}
    points = {point.name: point for point in points_of(list(counts.values()), answer.device) if point.roofline_s}
    rows = [_kernel(group, by_name[group.kernels[0]], counts[group.kernels[0]], points, answer.measured_s) for group in answer.groups]
    kinds = _kinds(answer)
    pauses = sorted(((seconds, kernel.name) for kernel, seconds, _ in answer.profile.gaps()), reverse=True)[:PAUSES] if started else []
    told = [
        metric if metric.key in KNOWN and (started or metric.key not in STARTED) else metric._replace(value=None)
        for metric in step_metrics(answer)
    ]
    kind_rows = [[Metric("kind", kind, "kind", "text"), *_time(seconds, answer.measured_s)] for kind, seconds in kinds.items()]
    pause_rows = [[Metric("before", _short(name), "before", "text"), Metric("seconds", seconds, "idle", "s")] for seconds, name in pauses]
    changes = changes_of(answer, other) if other is not None else []
    tables = [
        *([changes_table(changes, other_name)] if changes else []),
        as_rows("kinds of kernels, by their names", kind_rows),
        as_rows("kernels", rows[:LISTED]),
        *([as_rows("longest pauses", pause_rows)] if pause_rows else []),
    ]
    data = {
        **head("trace", {"file": name}, answer.device),
        "tool": answer.profile.tool,
        **as_json(told),
        "kinds": list(map(as_json, kind_rows)),
        "operators": list(map(as_json, rows)),
        "pauses": list(map(as_json, pause_rows)),
        "gains": [],
        "devices": [],
    }
    if changes:
        data["changes"] = [as_json(change.metrics) for change in changes]
    drawn = sorted(points.values(), key=lambda point: -float(point.share or 0))[:DRAWN]
    return Report(
        f"Kernels of {PurePath(name).name} on {answer.device.name}",
        headline(_busy(answer, started), _largest(answer, kinds, points), compared(answer, other, other_name) if other else OPERATORS),
        tables,
        _notes(answer, points, other is not None),
        data,
        charts=_charts(answer, kinds, drawn) if pictures else [],
        figures=[Figure("kernels", format_time(answer.measured_s, 3))]
        + ([Figure("busy", percent(answer.profile.busy_s / answer.profile.span_s))] if started and answer.profile.span_s else []),
        brief=[replace(table, rows=table.rows[:ON_SCREEN]) for table in tables[:2]],
        timeline=[KernelSpan(run.name, "measured", run.start_s, run.seconds) for run in answer.profile.kernels] if started else [],
    )


# Numbers


def _counted(name: str, runs: Sequence[FileKernel]) -> KernelCount:
    """Counts of all ``runs`` as one."""
    together = added(name, [run.counts if run.counts.time_s else replace(run.counts, time_s=run.seconds) for run in runs])
    return replace(together, name=name)


def _kernel(
    group: OperatorGroup, runs: Sequence[FileKernel], counts: KernelCount, points: Mapping[str, RooflinePoint], measured_s: float
) -> list[Metric]:
    """Metrics of all runs of one kernel; those of an operator first, null but for its time and FLOP."""
    flops = sum(counts.flops.values()) if counts.flops else None
    moved = counts.bytes.get("dram")
    known_values = {"name": group.kernels[0], "flops": flops, "unknown": OPERATORS}
    metrics = [metric._replace(label="", value=known_values.get(metric.key, metric.value)) for metric in operator_metrics(group, None)]
    roof_s = float(points[counts.name].roofline_s or 0.0) if counts.name in points else None
    shapes = {(run.grid, run.block) for run in runs}
    several_shapes = len(shapes) > 1
    grid, block = ((), ()) if several_shapes else shapes.pop()
    return [
        *(metric for metric in metrics if metric.key),
        Metric("", _short(group.kernels[0]), "kernel", "text"),
        Metric("kind", kind_of(group.kernels[0]), "kind", "text"),
        Metric("", group.count, "runs", ""),
        Metric("", group.measured_s, "measured", "s"),
        Metric("share", group.measured_s / measured_s, "share", "share"),
        Metric("grid", list(grid) or None),
        Metric("block", list(block) or None),
        Metric("", "several" if several_shapes else _sizes(grid, block), "grid, block", "text"),
        Metric("dram_bytes", moved, unit="B"),
        Metric("bytes_per_s", moved and _rate(moved, group.measured_s), "DRAM", "B/s"),
        Metric("flops_per_s", flops and _rate(flops, group.measured_s), "arithmetic", "FLOP/s"),
        Metric("roof_s", roof_s, unit="s"),
        Metric("roof_share", roof_s and _rate(roof_s, group.measured_s), "of its roof", "share"),
    ]


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds else None


def _sizes(grid: Sequence[int], block: Sequence[int]) -> str | None:
    """Grid and block as text; None if the file does not tell them."""
    return f"{'x'.join(map(str, grid))}, {'x'.join(map(str, block))}" if grid else None


def _time(seconds: float, of_s: float) -> list[Metric]:
    return [Metric("measured_s", seconds, "measured", "s"), Metric("share", seconds / of_s, "share", "share")]


def _kinds(answer: ProgramAnswer) -> dict[str, float]:
    """Seconds of kernels by kind, the largest first."""
    kinds = defaultdict[str, float](float)
    for group in answer.groups:
        kinds[kind_of(group.kernels[0])] += group.measured_s
    return dict(sorted(kinds.items(), key=lambda pair: -pair[1]))


# Words


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def _busy(answer: ProgramAnswer, started: bool) -> str:
    """Clause on the number of kernels and their time, with the busy and idle time of the GPU if start times are known."""
    profile = answer.profile
    count, take, run = "one kernel", "takes", "runs"
    if len(profile.kernels) > 1:
        count, take, run = f"{len(profile.kernels):,} kernels", "take", "run"
    if not started:
        return f"{count} {take} {format_time(answer.measured_s, 3)}, each measured alone: {profile.tool} has no start times"
    share = percent(profile.busy_s / profile.span_s) if profile.span_s else "0%"
    idle = format_time(profile.span_s - profile.busy_s, 3)
    return f"{count} {run} in {format_time(profile.span_s, 3)}, of which the GPU is busy {share} and idle {idle}"


def _largest(answer: ProgramAnswer, kinds: dict[str, float], points: dict[str, RooflinePoint]) -> str:
    """Clause on the kinds that take most, and on how near to their roofs kernels with counters come."""
    shares = [f"{kind} {percent(seconds / answer.measured_s)}" for kind, seconds in kinds.items()]
    clause = f"of the kernels' {format_time(answer.measured_s, 3)} by their names: {', '.join(shares[:4])}"
    roofs_s = measured_s = 0.0
    for point in points.values():
        if point.roofline_s and point.measured:
            roofs_s += float(point.roofline_s)
            measured_s += float(point.measured.value)
    if not measured_s:
        return clause
    counted = percent(measured_s / answer.measured_s)
    return f"{clause}; those with counters ({counted}) reach {percent(roofs_s / measured_s)} of their roofs"


def _notes(answer: ProgramAnswer, points: dict[str, RooflinePoint], comparing: bool) -> list[str]:
    """Notes on what is not known and what records it."""
    tool = answer.profile.tool
    counts = [kernel.counts for kernel in answer.profile.kernels if isinstance(kernel, FileKernel)]
    notes = [f"{OPERATORS[0].upper()}{OPERATORS[1:]}."] if comparing else []
    if tool == NCU:
        notes += [words for words in advice(counts) if "--flops" not in words]
        notes.append(f"Busy and idle time: {COMMANDS['nsys stats']}")
    elif not points:
        fix = COMMANDS[NCU] if tool == "nsys stats" else "rocprofv3 --pmc FETCH_SIZE WRITE_SIZE --output-format csv -- PROGRAM"
        notes.append(f"DRAM bytes are not in the file. Collect them with: {fix}")
    else:
        notes.append("FETCH_SIZE and WRITE_SIZE are what the L2 exchanges with memory, an Infinity Cache between them included.")
    if answer.profile.gpus > 1:
        notes.append(f"The file has kernels of {answer.profile.gpus} GPUs; only the busiest is shown.")
    above = [name for name, point in points.items() if point.measured and float(point.roofline_s or 0.0) > float(point.measured.value)]
    notes += [f"Above its roof: {name}. Its clock was above that of the peak, or a counter counts more than it moved." for name in above]
    notes += dict.fromkeys(f"{point.name}: {point.note}." for point in points.values() if "no " in point.note and "peak" in point.note)
    return [*notes, "A roof is the largest time of what counters say was moved and computed, at the device's rates."] if points else notes


# Pictures


def _charts(answer: ProgramAnswer, kinds: dict[str, float], points: Sequence[RooflinePoint]) -> list[Chart]:
    """Bars of time by kind; the roofline if kernels have counters of FLOP."""
    from perfmodel.report.roofline_chart import roofline, with_shares

    bars: list[Chart] = [BarChart("Where the time of the kernels goes", "s", [Bar("measured", list(kinds.items()))])]
    counted = with_shares([point for point in points if point.flops and point.bytes])
    return [*bars, roofline(answer.device, counted, "Roofline of the kernels", UNCOUNTED)] if counted else bars
