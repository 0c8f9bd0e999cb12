"""A sweep as a picture: lines with bands, crossovers marked, names at the ends of the lines where there is room."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from perfmodel.report.charts.cells import text
from perfmodel.report.charts.frame import NARROW_LINE, WIDE_LINE, Key, Plot, Size, legend, tick_width, ticks
from perfmodel.report.charts.kinds import LineChart, Series
from perfmodel.report.charts.labels import Placer, rectangle, segment
from perfmodel.report.charts.line_marks import marks
from perfmodel.report.charts.roofline_points import SHAPES
from perfmodel.report.charts.scale import LOG, Axis, fitted, power_of_two_text, tick_text
from perfmodel.report.charts.scene import Group, Marker, Path, Scene, Shape, Text
from perfmodel.report.charts.text_width import shortened, text_width

SIZES = (WIDE_LINE, NARROW_LINE)
MOST_TICKS = 14
"""Values of x that are ticks themselves."""
CROSSED = 6
"""A label over a curve, whose halo interrupts it, is as bad as one that is so many steps away from its mark."""
WIDEST_NAME = 0.26
"""Of the picture's width: longer names go to a legend."""


def scene(chart: LineChart, size: Size = WIDE_LINE) -> Scene:
    """``chart`` in a picture of ``size``."""
    names = max((text_width(series.name, size.font, bold=True) for series in chart.series), default=0) + 14
    at_ends = not size.narrow and names <= WIDEST_NAME * size.width and 1 < len(chart.series) <= 8
    keys = [] if at_ends else _keys(chart)
    shapes, below = legend(keys, size, size.font * 0.6, size.width - size.font, 2)
    plot = _plot(chart, size, below + size.font * 1.8, names if at_ends else size.font * 1.8)
    shapes.append(Text("axis", size.font * 0.6, below + size.font, _axis_title(chart.y_label, chart.y_unit)))
    shapes.append(
        Text("axis", (plot.left + plot.right) / 2, plot.bottom + size.font * 2.9, _axis_title(chart.x_label, chart.x_unit), "middle")
    )
    shapes += ticks(plot, size, axes_text(chart), lambda value: tick_text(value, chart.y_unit), _x_ticks(chart))
    placer = plot.placer()
    shapes += [shape for series in chart.series for shape in _band(chart, series, plot)]
    shapes += [shape for series in chart.series for shape in _line(chart, series, plot, placer)]
    shapes += _limits(chart, plot, size, placer)
    shapes += marks(chart, plot, size, placer, {one.group or one.name: colour_of(chart, one) for one in chart.series})
    if at_ends:
        shapes += _names(chart, plot, size)
    return Scene(size.width, size.height, shapes, chart.title, describe(chart))


def describe(chart: LineChart) -> str:
    """The picture in words."""
    marked = "".join(f" {mark.words} at {axes_text(chart)(mark.x)}." for mark in chart.marks)
    return (
        f"{chart.y_label} over {chart.x_label}: {', '.join(series.name for series in chart.series)}.{marked} Every number is in the table."
    )


def _axis_title(label: str, unit: str) -> str:
    return f"{label}, {unit}" if unit in ("FLOP", "FLOP/s", "B", "B/s", "tokens/s", "FLOP/B") else label


def colour_of(chart: LineChart, series: Series) -> int:
    """The number of its colour: series of one group share it."""
    groups = list(dict.fromkeys(one.group or one.name for one in chart.series))
    return groups.index(series.group or series.name)


def _keys(chart: LineChart) -> list[Key]:
    """A key per line; dashed ones that go with a line of their colour, such as its roof, have one for all where there are several."""
    drawn = {series.name for series in chart.series if series.style != "dashed"}
    beside = {s.name: s.name.removeprefix(f"{s.group}, ") for s in chart.series if s.style == "dashed" and s.group in drawn}
    words = set(beside.values())
    if len(beside) < 2 or len(words) > 1 or words & set(beside):
        return [_key(chart, series) for series in chart.series]
    return [*(_key(chart, series) for series in chart.series if series.name not in beside), Key(words.pop(), "series-dashed")]


def _key(chart: LineChart, series: Series) -> Key:
    number = colour_of(chart, series)
    if series.style == "markers":
        return Key(series.name, "dot", SHAPES[number % len(SHAPES)], number)
    return Key(series.name, "series-dashed" if series.style == "dashed" else "series", series=number)


def _plot(chart: LineChart, size: Size, top: float, right: float) -> Plot:
    (x_low, x_high), (y_low, y_high) = axis_ends(chart)
    y = Axis(y_low, y_high, size.height - size.font * 3.4, top, chart.y_scale)
    left = tick_width(y.ticks(size.font * 2.2), lambda value: tick_text(value, chart.y_unit), size) + 12
    return Plot(Axis(x_low, x_high, max(left, size.font * 3), size.width - right, chart.x_scale), y)


def axis_ends(chart: LineChart) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ends of x and y, so that every point, band, mark and limit is on the picture."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    ys += [end for series in chart.series for ends in series.band for end in ends] + [limit.value for limit in chart.limits]
    return _x_ends([*xs, *(mark.x for mark in chart.marks)], chart.x_scale), fitted(ys, chart.y_scale, from_zero=True)


def _x_ends(values: list[float], scale: str) -> tuple[float, float]:
    values = [value for value in values if value > 0 or scale != LOG]
    low, high = min(values, default=1.0), max(values, default=10.0)
    if scale == LOG:
        return (low / 1.1, high * 1.1) if high > low else (low / 2, high * 2)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x_ticks(chart: LineChart) -> list[float] | None:
    """The swept values themselves where there are few."""
    values = sorted({x for series in chart.series for x, _ in series.points})
    return [float(value) for value in values] if chart.x_scale == LOG and 1 < len(values) <= MOST_TICKS else None


def axes_text(chart: LineChart) -> Callable[[float], str]:
    """How values of x are written."""
    return power_of_two_text if chart.x_unit == "count" and chart.x_scale == LOG else lambda value: tick_text(value, chart.x_unit)


def _at(plot: Plot, x: float, y: float) -> tuple[float, float]:
    return plot.x.at(plot.x.clamped(x)), plot.y.at(plot.y.clamped(y))


def _band(chart: LineChart, series: Series, plot: Plot) -> list[Shape]:
    pairs = list(zip(series.points, series.band, strict=False))
    lower = [_at(plot, x, low) for (x, _), (low, _) in pairs]
    upper = [_at(plot, x, high) for (x, _), (_, high) in pairs]
    return (
        [_tagged(series, [Path("band", [*lower, *reversed(upper)], closed=True, series=colour_of(chart, series))])]
        if len(pairs) > 1
        else []
    )


def _tagged(series: Series, shapes: list[Shape]) -> Group:
    return Group(shapes, {"device": series.device} if series.device else {})


def _line(chart: LineChart, series: Series, plot: Plot, placer: Placer) -> list[Shape]:
    number = colour_of(chart, series)
    spots = [_at(plot, x, y) for x, y in series.points]
    placer.avoided += [segment(ends, 2) for ends in pairwise(spots)] * CROSSED
    role = {"line": "series", "dashed": "series-dashed"}.get(series.style)
    shapes: list[Shape] = [Path(role, spots, series=number)] if role and len(spots) > 1 else []
    if series.style == "dashed" and len(spots) > 1:
        return [_tagged(series, shapes)]
    shape, r = SHAPES[number % len(SHAPES)], 4.2 if series.style == "markers" else 3.0
    row_of = {x: row for row, x in enumerate(sorted({x for one in chart.series for x, _ in one.points}))}
    place = next(place for place, one in enumerate(chart.series) if one is series)
    for (x, _), at in zip(series.points, spots, strict=True):
        placer.avoided += [rectangle(at[0] - r, at[1] - r, 2 * r, 2 * r)] * CROSSED
        in_table = {"row": str(row_of[x]), "line": str(place)}
        shapes.append(Group([Marker("dot", *at, r, shape, number)], in_table))
    return [_tagged(series, shapes)]


def _names(chart: LineChart, plot: Plot, size: Size) -> list[Shape]:
    """Names at the right ends, moved apart where lines end close together, in the order of the lines."""
    ends = sorted((plot.y.at(plot.y.clamped(series.points[-1][1])), place) for place, series in enumerate(chart.series) if series.points)
    line = size.font * 1.3
    ys: list[float] = []
    for y, _ in ends:
        ys.append(max(y, ys[-1] + line) if ys else y)
    over = max(0.0, (ys[-1] if ys else 0) - (plot.bottom - 2))
    ys = [y - over for y in ys]
    for place in range(len(ys) - 2, -1, -1):
        ys[place] = min(ys[place], ys[place + 1] - line)
    found: list[Shape] = []
    for y, (_, place) in zip(ys, ends, strict=True):
        series = chart.series[place]
        found.append(
            _tagged(series, [Text("series-label", plot.right + 8, y + size.font * 0.35, series.name, series=colour_of(chart, series))])
        )
    return found


def _limits(chart: LineChart, plot: Plot, size: Size, placer: Placer) -> list[Shape]:
    shapes: list[Shape] = []
    for limit in chart.limits:
        y = plot.y.at(limit.value)
        ends = [(plot.left, y), (plot.right, y)]
        placer.avoided.append(segment(ends))
        value = text(limit.value, chart.y_unit)
        room = plot.right - plot.left - 20 - text_width(f" {value}", size.font)
        said = f"{shortened(limit.label, size.font, room)} {value}"
        places = (Text("mark-label", plot.left + 8 + step * 24, side, said) for side in (y - 5, y + size.font * 1.2) for step in range(16))
        found = placer.place(places, size.font)
        shapes += [Path("limit", ends), *([found] if found else [])]
    return shapes
