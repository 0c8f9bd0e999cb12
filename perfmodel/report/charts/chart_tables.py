"""What a picture shows, as tables and in words: for formats without pictures, and to sort and save it."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.core.units import format_si
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.roofline_axes import first_level, key, shown_keys
from perfmodel.report.charts.roofline_metrics import points_table, remarks
from perfmodel.report.charts.roofline_points import above
from perfmodel.report.charts.schema import COMPUTE, MEMORY, BarChart, Chart, LineChart, Roofline, ScatterChart
from perfmodel.report.document import Column, DataTable, Table, Value


def numbers(chart: Chart) -> DataTable:
    """What the picture shows, as a table."""
    if isinstance(chart, Roofline):
        return points_table([chart])
    if isinstance(chart, LineChart):
        return _of_lines(chart)
    return _of_bars(chart) if isinstance(chart, BarChart) else _of_pairs(chart)


def _of_lines(chart: LineChart) -> DataTable:
    columns = [Column("x", chart.x_label, chart.x_unit)]
    for place, series in enumerate(chart.series):
        low, high = (f"y{place}_low", f"y{place}_high") if series.band else ("", "")
        columns.append(Column(f"y{place}", series.name, chart.y_unit, low, high))
        if series.band:
            columns += [Column(low, f"{series.name}, low", chart.y_unit), Column(high, f"{series.name}, high", chart.y_unit)]
    rows: dict[float, dict[str, Value]] = {}
    for place, series in enumerate(chart.series):
        for index, (x, y) in enumerate(series.points):
            row = rows.setdefault(x, {"x": x})
            row[f"y{place}"] = y
            if index < len(series.band):
                row[f"y{place}_low"], row[f"y{place}_high"] = series.band[index]
    return DataTable(chart.title, columns, [[rows[x].get(column.key) for column in columns] for x in sorted(rows)])


def _of_bars(chart: BarChart) -> DataTable:
    parts = list(dict.fromkeys(name for bar in chart.bars for name, _ in bar.segments))
    columns = [Column("name", ""), *(Column(part, part, chart.unit) for part in parts), Column("total", "total", chart.unit)]
    rows: list[list[Value]] = []
    for bar in chart.bars:
        values = dict(bar.segments)
        rows.append([bar.name, *(values.get(part) for part in parts), sum(values.values())])
    return DataTable(chart.title, columns, rows)


def _of_pairs(chart: ScatterChart) -> DataTable:
    units = [("measured", chart.unit), ("predicted", chart.unit), ("error", "error")]
    columns = [Column("name", "run"), Column("group", "group"), *(Column(name, name, unit) for name, unit in units)]
    rows: list[list[Value]] = [[p.name, p.group, p.measured, p.predicted, p.predicted / p.measured - 1] for p in chart.pairs]
    return DataTable(chart.title, columns, rows)


def marks_table(chart: Chart) -> Table | None:
    """Crossovers, knees and capacities, each with the value that it lies at; None for a picture without any."""
    rows = []
    if isinstance(chart, LineChart):
        rows += [[mark.words, f"{chart.x_label} {text(mark.x, chart.x_unit)}"] for mark in chart.marks]
        rows += [[limit.label, text(limit.value, chart.y_unit)] for limit in chart.limits]
    elif isinstance(chart, BarChart):
        rows += [[limit.label, text(limit.value, chart.unit)] for limit in chart.limits]
    return Table(f"{chart.title}: marks", ["mark", "at"], rows) if rows else None


def roofs_table(chart: Roofline, brief: bool = False) -> Table:
    """Every roof with its value and the evidence for it. ``brief``: of the compute roofs those shown first, and without sources."""
    shown = shown_keys(chart)
    found = [c for c in chart.ceilings if not brief or c.kind == MEMORY or key(c.unit, c.dtype) in shown]
    rows = [[c.name, format_si(c.value, "FLOP/s" if c.kind == COMPUTE else "B/s"), c.evidence, c.source] for c in found]
    columns = ["roof", "value", "evidence", "source"][: 3 if brief else 4]
    return Table(f"Roofs of {chart.device_name}", columns, [row[: len(columns)] for row in rows], "lrll"[: len(columns)])


def point_notes(charts: Sequence[Roofline]) -> list[str]:
    """What is to be said of points, and which of them lie above the roofs of the level that their picture opens at."""
    over = [str(point.number) for chart in charts for point in above(chart, first_level(chart))]
    return [*remarks(charts), *[f"ABOVE THE ROOF: {', '.join(over)}"] * bool(over)]
