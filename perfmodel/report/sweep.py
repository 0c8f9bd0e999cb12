"""The report of a sweep: number of rows, best row of each group, where one algorithm beats another, and results of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head
from perfmodel.report.sweep_answer import ROOF, cell, figures, on_screen, rows_table, shortly, spread
from perfmodel.report.sweep_pictures import PREDICTED
from perfmodel.report.sweep_pictures import pictures as pictures_of
from perfmodel.sweep.base import FITS
from perfmodel.sweep.run_sweep import SweepResult
from perfmodel.sweep.summary import WinShares
from perfmodel.sweep.table import fields_of

SHOWN_ROWS = 40
SHOWN_GROUPS = 20
SHOWN_REASONS = 5
SHOWN_WORDS = 3


def report(result: SweepResult, written: str = "", pictures: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.sweep/1. ``written``: where rows went, in words."""
    grid, shares = result.grid, result.summary.shares
    wins_by_axis = [row for other, axes in shares.items() for axis, one in axes.items() for row in _along(other, axis, one)]
    counted = {name: len(values) for name, values in {**grid.choices, **grid.numbers}.items() if len(values) > 1}
    words = ", ".join(f"{count:,} x {name}" for name, count in counted.items())
    title = f"Sweep over {grid.workload.name}: {grid.points:,} rows{f' ({words})' if words else ''}"
    reasons, tables = [*_best(result), *_compared(result)], _tables(result, wins_by_axis)
    said = [*shortly(result), " ".join(filter(None, [*_counts(result), written, *_kernels(result)]))]
    made = Report(title, said, tables, _notes(result), data(result, wins_by_axis), reasons=reasons)
    return replace(made, brief=on_screen(result), figures=figures(result), charts=pictures_of(result) if pictures else [])


def data(result: SweepResult, wins_by_axis: Sequence[Sequence[Metric]]) -> dict[str, Any]:
    """The object of schema perfmodel.sweep/1; ``rows`` is null if there are too many."""
    workload, counts, summary = result.grid.workload, result.counts, result.summary
    meanings = {one.name: one.meaning for one in workload.inputs} | {one.name: one.meaning for one in workload.columns}
    best, pareto = result.best, result.pareto
    return {
        **head("sweep", result.grid.study.as_json()),
        "devices": list(map(str, result.grid.choices.get("hardware", ()))),
        "columns": [{"name": one.name, "unit": one.unit, "meaning": meanings.get(one.name, "")} for one in fields_of(result.grid)],
        "counts": {"rows": counts.rows, "points": result.grid.points, "excluded": counts.excluded, "left_out": counts.left_out},
        "best": {"column": summary.objective, "groups": list(summary.best.values())},
        "comparison": _comparison(result, wins_by_axis) if summary.compared else None,
        "minimize": None if best is None or best.most else {"column": best.column, "rows": best.rows},
        "maximize": None if best is None or not best.most else {"column": best.column, "rows": best.rows},
        "pareto": None if pareto is None else {"columns": [pareto.first, pareto.second], "rows": pareto.rows},
        "rows": result.rows,
    }


def _comparison(result: SweepResult, wins_by_axis: Sequence[Sequence[Metric]]) -> dict[str, Any]:
    summary = result.summary
    wins, predicted = (
        {other: {"wins": wins, "of": of} for other, (wins, of) in found.items()} for found in (summary.compared, summary.predicted)
    )
    names = {"reference": str(summary.reference), "column": summary.objective}
    return {**names, "wins": wins, "predicted": predicted, "along": list(map(as_json, wins_by_axis))}


# Where one value of the compared choice beats the first: flash attention against standard

AxisRange = tuple[int | float, int | float]
"""A range of an axis: its first and its last value."""
WIN_LABELS = {"name": "", "axis": "along", "nowhere": "nowhere at", "everywhere": "everywhere at", "share": "share of configurations"}


def _along(other: str, axis: str, shares: WinShares) -> Iterator[list[Metric]]:
    """One row of metrics: values of ``axis`` at which ``other`` wins in every configuration, or in none; least and largest share of wins.

    Axis of numbers: ``always_at`` and ``never_at`` are all such ranges, ``always`` and ``never`` those at an end of the axis, or None.
    Axis of words: ``always`` and ``never`` are lists of words.
    """
    known = shares.of > 0
    if known.sum() < 2:
        return
    values, share = shares.values[known], shares.wins[known] / shares.of[known]
    least, most = float(share.min()), float(share.max())
    if least == most:
        return
    numbers = values.dtype.kind not in "US"
    order = values.argsort() if numbers else slice(None)
    values, share = values[order], share[order]
    ranges = [_ranges(values, share == end) if numbers else [] for end in (0, 1)]
    ends = [_end(found, values) if numbers else values[share == end].tolist() for end, found in enumerate(ranges)]
    named = [_listed(found or end) for found, end in zip(ranges, ends, strict=True)]
    yield [
        Metric("name", other, unit="text"),
        Metric("axis", axis, unit="text"),
        *(Metric(key, end) for key, end in zip(("never", "always"), ends, strict=True)),
        *(Metric(key, found) for key, found in zip(("never_at", "always_at"), ranges, strict=True)),
        Metric("least_share", least),
        Metric("most_share", most),
        *(Metric("", words, key) for key, words in zip(("nowhere", "everywhere"), named, strict=True)),
        Metric("", f"{least:.0%} to {most:.0%}", "share"),
    ]


def _ranges(values: Any, holds: Any) -> list[AxisRange]:
    """Ranges of the axis in which ``holds`` is true throughout."""
    runs = [list(places) for true, places in groupby(range(len(values)), holds.tolist().__getitem__) if true]
    return [(_plain(values[run[0]]), _plain(values[run[-1]])) for run in runs]


def _end(ranges: Sequence[AxisRange], values: Any) -> AxisRange | None:
    """The range at an end of the axis; the longer of two; None if there is none."""
    at_ends = [one for one in ranges if one[0] == values[0] or one[1] == values[-1]]
    return max(at_ends, key=lambda one: ((one[0] <= values) & (values <= one[1])).sum(), default=None)


def _plain(value: Any) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _listed(ranges: Any) -> str:
    """Words or ranges as text: the first few, then how many more there are and how far they reach."""
    if not ranges:
        return "-"
    named = [one if isinstance(one, str) else f"{one[0]:,}" if one[0] == one[1] else f"{one[0]:,} to {one[1]:,}" for one in ranges]
    if len(named) <= SHOWN_WORDS:
        return ", ".join(named)
    more = f"{len(named) - SHOWN_WORDS} more"
    return f"{', '.join(named[:SHOWN_WORDS])} and {more}" + ("" if isinstance(ranges[-1], str) else f" up to {ranges[-1][1]:,}")


def _counts(result: SweepResult) -> list[str]:
    counts = result.counts
    excluded = f"; {counts.excluded:,} excluded by constraints" if counts.excluded else ""
    missing = f"; {sum(counts.left_out.values()):,} without an answer" if counts.left_out else ""
    unfit = sum(row.get(FITS) == 0 for row in result.rows or ())
    large = f"; {unfit:,} do{'es' * (unfit == 1)} not fit the memory" if unfit else ""
    return [f"{counts.rows:,} rows{excluded}{missing}{large}."]


def _best(result: SweepResult) -> list[str]:
    column = result.summary.objective
    best = min(result.summary.best.values(), key=lambda row: float(row[column]), default=None)
    if best is None:
        return ["No row is left."]
    named = ", ".join(f"{name} {cell(name, best[name], result)}" for name in result.grid.given)
    mark = " It does not fit the memory." if best.get(FITS) == 0 else ""
    return [f"Least {column}: {cell(column, best[column], result)} at {named}.{mark}"]


def _compared(result: SweepResult) -> list[str]:
    """For each alternative to the reference: in how many configurations it is better."""
    summary, found = result.summary, []
    roofs = ", by the ratio of roofs alone" if summary.objective == ROOF else ""
    for other, (wins, of) in summary.compared.items():
        known, both = summary.predicted.get(other, (0, 0))
        if both:
            found.append(f"{other} is predicted to take less time than {summary.reference} in {_part(known, both)} configurations.")
        if of:
            found.append(f"{other} has less {summary.objective} than {summary.reference} in {_part(wins, of)} configurations{roofs}.")
    return found


def _part(wins: int, of: int) -> str:
    share = f"{min(max(wins / of, 0.001), 0.999):.1%}" if wins not in (0, of) else ("all" if wins else "none")
    return f"{share} of {of:,}"


def _kernels(result: SweepResult) -> list[str]:
    """A sentence on predicted times of several devices, each of which has a kernel of its own unless one is given."""
    choices, timed = result.grid.choices, PREDICTED in result.grid.columns
    if not timed or len(choices.get("hardware", ())) < 2 or choices.get("implementation", (None,)) != (None,):
        return []
    fix = ": take one with --implementation" if "implementation" in choices else ""
    return [f"Devices may be predicted for different kernels{fix}."]


def _notes(result: SweepResult) -> list[str]:
    shown = [*(result.rows or ())[:SHOWN_ROWS], *result.summary.best.values(), *(result.best.rows if result.best else ())]
    unfit = any(row.get(FITS) == 0 for row in shown)
    notes = ["fits NO: times are those of a GPU with more memory. Rows that fit alone: --where 'fits == 1'."] * unfit
    reasons = sorted(result.counts.left_out.items(), key=lambda item: -item[1])
    notes += [f"Without an answer: {number:,} rows: {reason}." for reason, number in reasons[:SHOWN_REASONS]]
    if len(reasons) > SHOWN_REASONS:
        rest = sum(number for _, number in reasons[SHOWN_REASONS:])
        notes.append(f"Without an answer: {rest:,} rows for {len(reasons) - SHOWN_REASONS} other reasons, all in the JSON.")
    return notes


def _tables(result: SweepResult, wins_by_axis: Sequence[Sequence[Metric]]) -> list[Table]:
    """Tables: all rows if there are few; the best row of each combination of choices; where an alternative wins; results of a search."""
    summary, tables = result.summary, []
    if result.rows and len(result.rows) <= SHOWN_ROWS:
        tables.append(rows_table("rows", result.rows, result))
    if len(summary.best) > 1:
        best = sorted(summary.best.values(), key=lambda row: float(row[summary.objective]))
        more = f", {SHOWN_GROUPS} of {len(best):,} groups" if len(best) > SHOWN_GROUPS else ""
        tables.append(rows_table(f"least {summary.objective} by {', '.join(summary.swept)}{more}", best[:SHOWN_GROUPS], result))
    if wins_by_axis:
        tables.append(as_rows(f"where less {summary.objective} than {summary.reference}", wins_by_axis, labels=WIN_LABELS))
    if result.best is not None:
        word = "most" if result.best.most else "least"
        tables.append(rows_table(f"the {len(result.best.rows)} rows with the {word} {result.best.column}", result.best.rows, result))
    if result.pareto is not None:
        rows, first, second = result.pareto.rows, result.pareto.first, result.pareto.second
        more = f", {SHOWN_ROWS} of {len(rows):,}" if len(rows) > SHOWN_ROWS else ""
        words = [("less", "no more") if sign > 0 else ("more", "no less") for sign in result.pareto.signs]
        title = f"Pareto front: no row has {words[0][0]} {first} and {words[1][1]} {second}{more}"
        tables.append(rows_table(title, spread(rows, SHOWN_ROWS), result))
    return tables
