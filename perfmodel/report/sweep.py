"""The report of a sweep: how many rows, the best of every group, where one algorithm stops beating another, what was searched for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel import __version__
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.document import Report, Table
from perfmodel.report.sweep_pays import pays_data, pays_sentences, pays_table
from perfmodel.sweep.base import FITS
from perfmodel.sweep.run_sweep import SweepResult
from perfmodel.sweep.table import WHOLE, WORD, fields_of

SHOWN_ROWS = 40
SHOWN_GROUPS = 20
SHOWN_REASONS = 5


def report(result: SweepResult, written: str = "") -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.sweep/1. ``written``: where rows went, in words."""
    tables = [_rows_table("rows", result.rows, result)] if result.rows and len(result.rows) <= SHOWN_ROWS else []
    tables += [*_groups(result), *pays_table(result), *_found(result)]
    title = f"Sweep over {result.grid.workload.name}: {_axes(result)}"
    verdict = [*_counts(result), *([written] if written else []), *_best(result), *pays_sentences(result)]
    return Report(title, verdict, tables, _notes(result), data(result))


def data(result: SweepResult) -> dict[str, Any]:
    """The object of schema perfmodel.sweep/1; ``rows`` are null where they are many."""
    fields = fields_of(result.grid)
    workload = result.grid.workload
    meanings = {one.name: one.meaning for one in workload.inputs} | {one.name: one.meaning for one in workload.columns}
    counts = result.counts
    return {
        "schema": "perfmodel.sweep/1",
        "version": __version__,
        "inputs": result.grid.study.told(),
        "columns": [{"name": one.name, "unit": one.unit, "meaning": meanings.get(one.name, "")} for one in fields],
        "counts": {"rows": counts.rows, "points": result.grid.points, "excluded": counts.excluded, "left_out": counts.left_out},
        "best": {"column": result.summary.objective, "groups": list(result.summary.best.values())},
        "comparison": pays_data(result),
        "minimize": None if result.best is None else {"column": result.best.column, "rows": result.best.rows},
        "pareto": None if result.pareto is None else {"columns": [result.pareto.first, result.pareto.second], "rows": result.pareto.rows},
        "rows": result.rows,
    }


# Words


def _axes(result: SweepResult) -> str:
    grid = result.grid
    counted = {name: len(values) for name, values in {**grid.choices, **grid.numbers}.items() if len(values) > 1}
    words = ", ".join(f"{count:,} x {name}" for name, count in counted.items())
    return f"{grid.points:,} rows" + (f" ({words})" if words else "")


def _counts(result: SweepResult) -> list[str]:
    counts = result.counts
    words = [f"{counts.rows:,} rows"]
    if counts.excluded:
        words.append(f"{counts.excluded:,} excluded by constraints")
    if counts.left_out:
        words.append(f"{sum(counts.left_out.values()):,} without an answer")
    return ["; ".join(words) + "."]


def _best(result: SweepResult) -> list[str]:
    column = result.summary.objective
    best = min(result.summary.best.values(), key=lambda row: float(row[column]), default=None)
    if best is None:
        return ["No row is left."]
    named = ", ".join(f"{name} {_cell(name, best[name], result)}" for name in result.grid.given)
    mark = " It does not fit the memory." if best.get(FITS) == 0 else ""
    return [f"Least {column}: {_cell(column, best[column], result)} at {named}.{mark}"]


def _groups(result: SweepResult) -> list[Table]:
    """The best row of every combination of choices that are swept."""
    summary = result.summary
    if len(summary.best) < 2:
        return []
    rows = sorted(summary.best.values(), key=lambda row: float(row[summary.objective]))
    more = f", {SHOWN_GROUPS} of {len(rows):,} groups" if len(rows) > SHOWN_GROUPS else ""
    return [_rows_table(f"least {summary.objective} by {', '.join(summary.swept)}{more}", rows[:SHOWN_GROUPS], result)]


def _found(result: SweepResult) -> list[Table]:
    """What was searched for."""
    tables = []
    if result.best is not None:
        tables.append(_rows_table(f"the {len(result.best.rows)} rows with the least {result.best.column}", result.best.rows, result))
    if result.pareto is not None:
        rows = result.pareto.rows
        more = f", {SHOWN_ROWS} of {len(rows):,}" if len(rows) > SHOWN_ROWS else ""
        title = f"Pareto front: no row has less {result.pareto.first} and no more {result.pareto.second}{more}"
        tables.append(_rows_table(title, _spread(rows, SHOWN_ROWS), result))
    return tables


def _spread(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most ``most`` of ``rows``, evenly, with both ends."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (most - 1))] for index in range(most)]


def _rows_table(title: str, rows: Sequence[Mapping[str, Any]], result: SweepResult) -> Table:
    fields = fields_of(result.grid)
    names = [one.name for one in fields if rows and one.name in rows[0]]
    words = {one.name for one in fields if one.kind == WORD}
    cells = [[_cell(name, row[name], result) for name in names] for row in rows]
    return Table(title, names, cells, "".join("l" if name in words else "r" for name in names))


def _cell(name: str, value: Any, result: SweepResult) -> str:
    one = next((one for one in fields_of(result.grid) if one.name == name), None)
    if value is None:
        return "-"
    if name == FITS:
        return "yes" if value else "NO"
    if isinstance(value, (bool, str)) or one is None:
        return str(value)
    if one.unit == "s":
        return format_time(value)
    if one.unit in ("B", "FLOP", "OP"):
        return format_si(value, one.unit)
    return format_count(int(value)) if one.kind == WHOLE or float(value).is_integer() else f"{value:.4g}"


def _unfit(result: SweepResult) -> list[str]:
    """What is to be known where a row that is shown does not fit."""
    shown = [*(result.rows or ())[:SHOWN_ROWS], *result.summary.best.values(), *(result.best.rows if result.best else ())]
    if all(row.get(FITS) != 0 for row in shown):
        return []
    return ["fits NO: times are those of a GPU with more memory. Rows that fit alone: --where 'fits == 1'."]


def _notes(result: SweepResult) -> list[str]:
    reasons = sorted(result.counts.left_out.items(), key=lambda item: -item[1])
    notes = _unfit(result) + [f"Without an answer: {number:,} rows: {reason}." for reason, number in reasons[:SHOWN_REASONS]]
    if len(reasons) > SHOWN_REASONS:
        rest = sum(number for _, number in reasons[SHOWN_REASONS:])
        notes.append(f"Without an answer: {rest:,} rows for {len(reasons) - SHOWN_REASONS} other reasons, all in the JSON.")
    return notes
