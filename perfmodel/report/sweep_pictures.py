"""A sweep as pictures: the objective over its longest axis, the Pareto front among all rows; what does not fit the memory is marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from perfmodel.report.charts.format_number import UNITS
from perfmodel.report.charts.schema import Bar, BarChart, Chart, LineChart, Series
from perfmodel.sweep.base import FITS
from perfmodel.sweep.run_sweep import SweepResult
from perfmodel.sweep.table import Field, fields_of

LINES = 6
"""Of a picture."""
BARS = 12
CLOUD = 400
"""Rows beside a Pareto front."""
PREDICTED = "predicted_s"
SIZE = "_size_bytes"
NO_ROOM = "does not fit"

Row = Mapping[str, Any]


def pictures(result: SweepResult) -> list[Chart]:
    """The front first where one was asked for; lines where an axis of numbers has several values, else bars of the best rows."""
    found: list[Chart] = [chart for chart in (_front(result), _lines(result)) if chart is not None]
    return found or [chart for chart in [_bars(result)] if chart is not None]


def shown_column(result: SweepResult) -> str:
    """The column that pictures are of: what was searched for, else the predicted time where every row has one, else the objective."""
    rows, objective = result.rows or [], result.summary.objective
    if result.best is not None:
        return result.best.column
    return PREDICTED if rows and all(row.get(PREDICTED) is not None for row in rows) else objective


def _unit(result: SweepResult, name: str) -> str:
    one = next((one for one in fields_of(result.grid) if one.name == name), None)
    return one.unit if one is not None and one.unit in UNITS else "count"


def _better(result: SweepResult, name: str) -> int:
    return next((one.better for one in result.grid.workload.columns if one.name == name), -1) or -1


# Lines


def _lines(result: SweepResult) -> LineChart | None:
    """A line per combination of words; at each value the best row of the other axes."""
    sizes = {one.name for one in result.grid.workload.inputs if one.kind == "size"}
    values = {f"{name}{SIZE * (name in sizes)}": listed for name, listed in result.grid.numbers.items()}
    axes = [one for one in fields_of(result.grid) if one.name in values]
    counts = {one.name: len(values[one.name]) for one in axes}
    axis = max(axes, key=lambda one: counts[one.name], default=None)
    column = shown_column(result)
    if result.rows is None or axis is None or counts[axis.name] < 2:
        return None
    best = _best_along(result, axis, column)
    named = sorted(best, key=lambda name: _last(best[name], axis, column, result))[:LINES]
    series = [Series(name, [(x, row[column]) for x, row in sorted(best[name].items())], group=name) for name in named]
    unfit = sorted((x, row[column]) for name in named for x, row in best[name].items() if row.get(FITS) == 0)
    series += [Series(NO_ROOM, unfit, "markers")] if unfit else []
    others = [name for name, count in counts.items() if count > 1 and name != axis.name]
    notes = [f"At each {axis.name} the best over {' and '.join(others)}."] * bool(others)
    notes += [f"{len(named)} of {len(best)} lines: the best at the largest {axis.name}."] * (len(best) > len(named))
    title = f"{column} over {axis.name}"
    made = LineChart(title, axis.name, column, series, "count", _unit(result, column), caption=" ".join(notes))
    return made if any(one.points for one in series) else None


def _best_along(result: SweepResult, axis: Field, column: str) -> dict[str, dict[float, Row]]:
    """By name of a line and value of the axis: its best row."""
    sign, found = -_better(result, column), dict[str, dict[float, Row]]()
    for row in result.rows or []:
        if row.get(column) is None or not row[column] > 0 or not row[axis.name] > 0:
            continue
        line = found.setdefault(_name(row, result), {})
        known = line.get(row[axis.name])
        if known is None or _cost(row, column, sign) < _cost(known, column, sign):
            line[row[axis.name]] = row
    return found


def _cost(row: Row, column: str, sign: int) -> tuple[bool, float]:
    """What fits comes before what does not."""
    return row.get(FITS) == 0, sign * row[column]


def _last(line: Mapping[float, Row], axis: Field, column: str, result: SweepResult) -> tuple[float, float]:
    x = max(line)
    return -x, -_better(result, column) * line[x][column]


def _name(row: Row, result: SweepResult) -> str:
    """Its values of the choices that have several."""
    words = [(name, row[name]) for name in result.summary.swept if name in row]
    named = [(name if value else f"not {name}") if isinstance(value, bool) else str(value) for name, value in words]
    return ", ".join(named) or result.grid.workload.name


# The front, and bars


def _front(result: SweepResult) -> LineChart | None:
    """Every row as a dot, the front as a line through the rows that none beats."""
    pareto = result.pareto
    if pareto is None or not pareto.rows:
        return None
    x, y = pareto.first, pareto.second
    best = {(row[x], row[y]) for row in pareto.rows}
    rows = [row for row in result.rows or [] if row.get(x) and row.get(y) and (row[x], row[y]) not in best]
    step = max(1, len(rows) // CLOUD)
    fit, unfit = ([row for row in islice(rows, 0, None, step) if (row.get(FITS) == 0) is wrong] for wrong in (False, True))
    front = sorted((row[x], row[y]) for row in pareto.rows if row[x] > 0 and row[y] > 0)
    series = [Series("Pareto front", front, group="front")]
    series += [Series(name, sorted((row[x], row[y]) for row in own), "markers") for name, own in (("rows", fit), (NO_ROOM, unfit)) if own]
    title = f"Pareto front: {y} against {x}"
    return LineChart(title, x, y, series, _unit(result, x), _unit(result, y)) if front else None


def _bars(result: SweepResult) -> BarChart | None:
    """The best row of each combination of words."""
    column = shown_column(result)
    rows: Sequence[Row] = result.best.rows if result.best else list(result.summary.best.values()) or result.rows or []
    known = sorted((row for row in rows if row.get(column)), key=lambda row: -_better(result, column) * row[column])[:BARS]
    bars = [Bar(f"{_name(row, result)}{f', {NO_ROOM}' * (row.get(FITS) == 0)}", [(column, row[column])]) for row in known]
    return BarChart(f"{column}, the best rows", _unit(result, column), bars) if bars else None
