"""Charts as tables and sentences, for formats without pictures and for downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perfmodel.core.units import format_si
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.roofline import above
from perfmodel.report.charts.roofline_metrics import SHORT, bound, error, intensity, next_roof, noise, remarks, share_of_roof
from perfmodel.report.charts.schema import COMPUTE, LEVELS, MEMORY, BarChart, Chart, LineChart, Roofline, RooflinePoint, ScatterChart
from perfmodel.report.document import Column, DataTable, Table, Value


def numbers(chart: Chart) -> DataTable:
    """The numbers of a chart as a table."""
    if isinstance(chart, Roofline):
        return points_table([chart])
    if isinstance(chart, LineChart):
        return _of_lines(chart)
    return _of_bars(chart) if isinstance(chart, BarChart) else _of_pairs(chart)


# Points of rooflines


def _headroom(point: RooflinePoint) -> float | None:
    """How many times faster the point would be at its roof."""
    share = share_of_roof(point)
    return 1 / share if share else None


def _next_roof(point: RooflinePoint) -> tuple[str | None, float | None]:
    """The roof that would limit next, and how many times higher it is; None twice if there is none."""
    following = next_roof(point)
    if following is None:
        return None, None
    name, times = following
    return SHORT.get(name, name), times


_TIMES: list[tuple[Column, Callable[[RooflinePoint], Value]]] = [
    (Column("lower_s", "lower bound", "s"), lambda p: p.lower_s),
    (Column("roofline_s", "roofline", "s"), lambda p: p.roofline_s),
    (Column("predicted_s", "predicted", "s", "predicted_low_s", "predicted_high_s"), lambda p: p.predicted.value if p.predicted else None),
    (Column("predicted_low_s", "predicted, low", "s"), lambda p: p.predicted.low if p.predicted else None),
    (Column("predicted_high_s", "predicted, high", "s"), lambda p: p.predicted.high if p.predicted else None),
    (Column("measured_s", "measured", "s", under="noise"), lambda p: p.measured.value if p.measured else None),
    (Column("noise", "noise", "share"), noise),
    (Column("error", "error", "error"), error),
    (Column("bound", "bound by"), lambda p: SHORT.get(bound(p) or "", bound(p))),
    (Column("share_of_roof", "of its roof", "share", under="headroom"), share_of_roof),
    (Column("headroom", "headroom", "ratio"), _headroom),
    (Column("next_roof", "next roof", under="next_roof_ratio"), lambda p: _next_roof(p)[0]),
    (Column("next_roof_ratio", "away", "ratio"), lambda p: _next_roof(p)[1]),
    (Column("time_share", "share of time", "share"), lambda p: p.share),
    (Column("note", "note"), lambda p: "; ".join(remarks(p)) or None),
]


def points_table(charts: Iterable[Roofline]) -> DataTable:
    """Every point of ``charts``, one row each."""
    charts = list(charts)
    several = len({chart.device for chart in charts}) > 1
    first: list[tuple[Column, Callable[[RooflinePoint], Value]]] = [
        (Column("number", "#", "count"), lambda p: p.number),
        (Column("name", "workload", under="device"), lambda p: p.name),
    ]
    device = Column("device", "device")
    others: list[tuple[Column, Callable[[RooflinePoint], Value]]] = [
        (Column("group", "group"), lambda p: p.group),
        (Column("dtype", "dtype"), lambda p: p.dtype),
        (Column("flops", "FLOP", "FLOP"), lambda p: p.flops if p.flops or p.dtype else None),  # None: nobody counted them
    ]
    for level in reversed(LEVELS):
        if any(level in point.bytes for chart in charts for point in chart.points):
            others += _of_level(level)
    others += _TIMES
    rows: list[list[Value]] = []
    for chart in charts:
        device_id = chart.device if several else None
        rows += [[*(value(p) for _, value in first), device_id, *(value(p) for _, value in others)] for p in chart.points]
    return DataTable("Points", [*(column for column, _ in first), device, *(column for column, _ in others)], rows)


def _of_level(level: str) -> list[tuple[Column, Callable[[RooflinePoint], Value]]]:
    return [
        (Column(f"{level}_bytes", f"{LEVELS[level]} traffic", "B"), lambda p: p.bytes.get(level)),
        (Column(f"{level}_intensity", f"arithmetic intensity, {LEVELS[level]}", "FLOP/B"), lambda p: intensity(p, level)),
    ]


_BRIEF = ("number", "name", "device", "dtype", "flops", "roofline_s", "predicted_s", "measured_s", "error", "bound", "share_of_roof")


def brief_table(charts: Iterable[Roofline]) -> DataTable:
    """The points of ``charts`` in the columns that fit a page of text."""
    table = points_table(charts)
    ends = {key for column in table.columns if column.key in _BRIEF for key in (column.low, column.high)}
    places = [place for place, c in enumerate(table.columns) if c.key in (*_BRIEF, *ends) or c.key.endswith("_intensity")]
    return DataTable(table.title, [table.columns[place] for place in places], [[row[place] for place in places] for row in table.rows])


def point_notes(charts: Sequence[Roofline]) -> list[str]:
    """Remarks on points, with the points' numbers, and a sentence on points above the roofs shown first."""
    numbers_of: dict[str, list[str]] = {}
    above_roof = []
    for chart in charts:
        for point in chart.points:
            for remark in remarks(point):
                numbers_of.setdefault(remark, []).append(str(point.number))
        above_roof += [str(point.number) for point in above(chart, chart.first_level())]
    notes = [f"{', '.join(numbers)}: {remark}" for remark, numbers in numbers_of.items()]
    if above_roof:
        notes.append(f"ABOVE THE ROOF: {', '.join(above_roof)}")
    return notes


# Other pictures


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
    columns = [Column("name", ""), *(Column(part, part, chart.unit) for part in parts)]
    with_intervals = any(bar.ends for bar in chart.bars)
    if with_intervals:
        columns.append(Column("total", "total", chart.unit, "low", "high"))
        columns += [Column("low", "low", chart.unit), Column("high", "high", chart.unit)]
    else:
        columns.append(Column("total", "total", chart.unit))
    rows: list[list[Value]] = []
    for bar in chart.bars:
        values = dict(bar.segments)
        interval = [bar.low, bar.high] if with_intervals else []
        rows.append([bar.name, *(values.get(part) for part in parts), bar.total, *interval])
    return DataTable(chart.title, columns, rows)


def _of_pairs(chart: ScatterChart) -> DataTable:
    units = [("measured", chart.unit), ("predicted", chart.unit), ("error", "error")]
    columns = [Column("name", "run"), Column("group", "group"), *(Column(name, name, unit) for name, unit in units)]
    rows: list[list[Value]] = [[p.name, p.group, p.measured, p.predicted, p.predicted / p.measured - 1] for p in chart.pairs]
    return DataTable(chart.title, columns, rows)


def marks_table(chart: Chart) -> Table | None:
    """Table of crossovers, knees and capacities with their values; None for a chart without any."""
    rows = []
    if isinstance(chart, LineChart):
        rows += [[mark.words, f"{chart.x_label} {text(mark.x, chart.x_unit)}"] for mark in chart.marks]
        rows += [[limit.label, text(limit.value, chart.y_unit)] for limit in chart.limits]
    elif isinstance(chart, BarChart):
        rows += [[limit.label, text(limit.value, chart.unit)] for limit in chart.limits]
    return Table(f"{chart.title}: marks", ["mark", "at"], rows) if rows else None


def roofs_table(chart: Roofline, brief: bool = False) -> Table:
    """Table of roofs with value and evidence. ``brief``: only the compute roofs shown first, without sources."""
    columns = ["roof", "value", "evidence"] if brief else ["roof", "value", "evidence", "source"]
    keys = chart.shown_keys()
    rows = []
    for ceiling in chart.ceilings:
        if not brief or ceiling.kind == MEMORY or ceiling.key in keys:
            value = format_si(ceiling.value, "FLOP/s" if ceiling.kind == COMPUTE else "B/s")
            rows.append([ceiling.name, value, ceiling.evidence, ceiling.source][: len(columns)])
    return Table(f"Roofs of {chart.device_name}", columns, rows, "lrll"[: len(columns)])
