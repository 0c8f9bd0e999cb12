"""Any chart as pictures, wide and narrow, and as the table of its numbers."""

from __future__ import annotations

from importlib import import_module

from perfmodel.report.charts.frame import Size
from perfmodel.report.charts.kinds import BarChart, Chart, LineChart, Roofline, ScatterChart
from perfmodel.report.charts.points import points_table
from perfmodel.report.charts.scene import Scene
from perfmodel.report.document import Column, DataTable, Value


def sizes(chart: Chart) -> tuple[Size, Size]:
    """The sizes of its wide and of its narrow picture."""
    found: tuple[Size, Size] = import_module(f"{__package__}.{chart.kind}").SIZES
    return found


def scene(chart: Chart, size: Size) -> Scene:
    """``chart`` in a picture of ``size``."""
    made: Scene = import_module(f"{__package__}.{chart.kind}").scene(chart, size)
    return made


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
