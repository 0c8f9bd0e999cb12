"""What a screen says of a sweep: the best row, who beats whom how often, the rows that decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.charts.format_number import digits
from perfmodel.report.document import SCREEN_ROWS, Figure, Table
from perfmodel.report.sweep_pictures import SIZE, shown_column
from perfmodel.sweep.base import FITS
from perfmodel.sweep.run_sweep import SweepResult
from perfmodel.sweep.table import WHOLE, WORD, fields_of

MATTER = (FITS, "predicted_s", "tokens_per_s", "roofline_s", "memory_bytes", "dram_bytes")
"""Columns that a screen shows beside what was searched for."""
ROOF = "roofline_s"
"""The column of times at the roof."""


def shortly(result: SweepResult) -> list[str]:
    """The best row, and who beats whom how often, a sentence each."""
    summary, column = result.summary, result.best.column if result.best else result.summary.objective
    rows = result.best.rows if result.best else sorted(summary.best.values(), key=lambda row: float(row[column]))
    if not rows:
        return ["No row is left."]
    word = "Most" if result.best and result.best.most else "Least"
    room = {None: "", 0: "; it does NOT FIT the memory", 1: ", fits the memory"}[rows[0].get(FITS)]
    named = [_named(name, rows[0][name], result) for name in _swept(result) if name in rows[0]]
    found = [f"{word} {column}: {cell(column, rows[0][column], result)}{' at ' * bool(named)}{', '.join(named)}{room}."]
    if result.pareto is not None:
        front = result.pareto
        return [*found, f"Pareto front: {len(front.rows):,} rows that none beats in {front.first} and {front.second}."]
    return [*found, *filter(None, [_beaten(result)])]


def _swept(result: SweepResult) -> list[str]:
    """Inputs of several values, as rows name them."""
    every = {**result.grid.choices, **result.grid.numbers}
    return [one.name for one in fields_of(result.grid) if len(every.get(one.name.removesuffix(SIZE), ())) > 1]


def _beaten(result: SweepResult) -> str:
    """Who is faster than the first one by prediction, else has less of the objective, how often."""
    summary = result.summary
    known = {other: pair for other, pair in summary.predicted.items() if pair[1]}
    what = "Faster by prediction" if known else "Lower roof" if summary.objective == ROOF else f"Less {summary.objective}"
    known = known or {other: pair for other, pair in summary.compared.items() if pair[1]}
    named = [f"{other} in {_share(wins, of)}" for other, (wins, of) in known.items()]
    return f"{what} than {summary.reference}: {', '.join(named)} of the configurations." if named else ""


def _share(wins: int, of: int) -> str:
    return "all" if wins == of else "none" if not wins else f"{min(max(wins / of, 0.01), 0.99):.0%}"


def _named(name: str, value: Any, result: SweepResult) -> str:
    """A value of the best row: words alone, numbers after their axis."""
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return str(value) if isinstance(value, str) else f"{name} {cell(name, value, result)}"


def figures(result: SweepResult) -> list[Figure]:
    """How many rows, the ends of the column that is looked at, how many rows fit, the size of the front."""
    column = shown_column(result)
    values = [row[column] for row in result.rows or result.summary.best.values() if row.get(column) is not None]
    ends = (("least", min(values)), ("most", max(values))) if values else ()
    fitting = [row[FITS] for row in result.rows or () if row.get(FITS) is not None]
    found = [Figure("rows", f"{result.counts.rows:,}"), *(Figure(f"{word} {column}", cell(column, end, result)) for word, end in ends)]
    found += [Figure("fit the memory", f"{sum(fitting):,.0f} of {len(fitting):,}")] if fitting else []
    return [*found, *([Figure("on the Pareto front", f"{len(result.pareto.rows):,}")] if result.pareto else [])]


def on_screen(result: SweepResult) -> list[Table]:
    """The rows that decide: searched for, of the front, the best of every group, or all; what is swept and searched by stands first."""
    summary = result.summary
    if result.pareto is not None:
        title, rows = "Pareto front", spread(result.pareto.rows, SCREEN_ROWS)
    elif result.best is not None:
        title, rows = f"{'most' if result.best.most else 'least'} {result.best.column}", result.best.rows[:SCREEN_ROWS]
    elif len(summary.best) > 1:
        best = sorted(summary.best.values(), key=lambda row: float(row[summary.objective]))
        title, rows = f"least {summary.objective} by {', '.join(summary.swept)}", best[:SCREEN_ROWS]
    else:
        title, rows = "rows", spread(result.rows or [], SCREEN_ROWS)
    return [rows_table(title, rows, result, _deciding(result, rows))] if rows else []


def _deciding(result: SweepResult, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of columns in the order in which a narrow screen keeps them; inputs of one value are left out."""
    sought = [*([result.pareto.first, result.pareto.second] if result.pareto else []), shown_column(result), *MATTER]
    columns = [name for name in sought if name in rows[0] and any(row[name] is not None for row in rows)]
    return list(dict.fromkeys([*_swept(result), *columns]))


# Rows as text


def spread(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most ``most`` of ``rows``, evenly, with both ends."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (most - 1))] for index in range(most)]


def rows_table(title: str, rows: Sequence[Mapping[str, Any]], result: SweepResult, names: Sequence[str] | None = None) -> Table:
    """``rows`` as text; ``names``: of the columns, by default all."""
    known = {one.name: one for one in fields_of(result.grid) if rows and one.name in rows[0]}
    fields = [known[name] for name in (known if names is None else names) if name in known]
    cells = [[cell(one.name, row[one.name], result) for one in fields] for row in rows]
    return Table(title, [one.name for one in fields], cells, "".join("l" if one.kind == WORD else "r" for one in fields))


def cell(name: str, value: Any, result: SweepResult) -> str:
    """A value of the column ``name`` with its unit."""
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
    whole = one.kind == WHOLE or float(value).is_integer() or abs(value) >= 1000
    return format_count(round(value)) if whole else digits(value, 4)
