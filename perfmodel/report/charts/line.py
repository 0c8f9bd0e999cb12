"""A sweep as a picture: lines with bands, crossovers marked, names at the ends of the lines where there is room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from perfmodel.report.charts.cells import text
from perfmodel.report.charts.frame import NARROW_LINE, WIDE_LINE, Key, Plot, Size, legend, tick_width, ticks
from perfmodel.report.charts.kinds import LineChart, Series
from perfmodel.report.charts.labels import Placer, rectangle, segment
from perfmodel.report.charts.roofline_points import SHAPES
from perfmodel.report.charts.scale import LOG, Axis, fitted, power_of_two_text, tick_text
from perfmodel.report.charts.scene import Group, Marker, Path, Scene, Shape, Text
from perfmodel.report.charts.text_width import shortened, text_width

SIZES = (WIDE_LINE, NARROW_LINE)
MOST_TICKS = 14
"""Values of x that are ticks themselves."""
STRUCK = 3
"""A label that a mark's line strikes is as bad as one over that many other shapes."""
WIDEST_NAME = 0.26
"""Of the picture's width: longer names go to a legend."""


def scene(chart: LineChart, size: Size = WIDE_LINE) -> Scene:
    """``chart`` in a picture of ``size``."""
    names = max((text_width(series.name, size.font, bold=True) for series in chart.series), default=0) + 14
    at_ends = not size.narrow and names <= WIDEST_NAME * size.width and 1 < len(chart.series) <= 8
    keys = [] if at_ends else [_key(chart, series) for series in chart.series]
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
    shapes += _limits(chart, plot, size, placer) + _marks(chart, plot, size, placer)
    if at_ends:
        shapes += _names(chart, plot, size)
    return Scene(size.width, size.height, shapes, chart.title, describe(chart))


def describe(chart: LineChart) -> str:
    """The picture in words."""
    marks = "".join(f" {mark.label} at {axes_text(chart)(mark.x)}." for mark in chart.marks)
    return (
        f"{chart.y_label} over {chart.x_label}: {', '.join(series.name for series in chart.series)}.{marks} Every number is in the table."
    )


def _axis_title(label: str, unit: str) -> str:
    return f"{label}, {unit}" if unit in ("FLOP", "FLOP/s", "B", "B/s", "tokens/s", "FLOP/B") else label


def colour_of(chart: LineChart, series: Series) -> int:
    """The number of its colour: series of one group share it."""
    groups = list(dict.fromkeys(one.group or one.name for one in chart.series))
    return groups.index(series.group or series.name)


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
    placer.avoided += [segment(ends, 2) for ends in pairwise(spots)]
    role = {"line": "series", "dashed": "series-dashed"}.get(series.style)
    shapes: list[Shape] = [Path(role, spots, series=number)] if role and len(spots) > 1 else []
    if series.style == "dashed" and len(spots) > 1:
        return [_tagged(series, shapes)]
    shape, r = SHAPES[number % len(SHAPES)], 4.2 if series.style == "markers" else 3.0
    for (x, y), at in zip(series.points, spots, strict=True):
        placer.avoided.append(rectangle(at[0] - r, at[1] - r, 2 * r, 2 * r))
        tip = f"{series.name}: {text(y, chart.y_unit)} at {chart.x_label} {axes_text(chart)(x)}"
        shapes.append(Group([Marker("dot", *at, r, shape, number)], {"tip": tip}))
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


def _marks(chart: LineChart, plot: Plot, size: Size, placer: Placer) -> list[Shape]:
    shapes: list[Shape] = []
    heads: list[Shape] = []
    spots = [(plot.x.at(plot.x.clamped(m.x)), plot.top if m.y is None else plot.y.at(plot.y.clamped(m.y))) for m in chart.marks]
    for (x, top), mark in zip(spots, chart.marks, strict=True):
        line = [(x, top), (x, plot.bottom)]
        shapes.append(Path("mark", line))
        placer.avoided += [segment(line, 3)] * STRUCK
        if mark.y is not None:
            heads.append(Marker("before", x, top, 4.0, "diamond"))
            placer.avoided.append(rectangle(x - 5, top - 5, 10, 10))
    for (x, top), mark in zip(spots, chart.marks, strict=True):
        found = placer.place(_beside(x, top, mark.label, plot, size), size.font)
        heads += [found] if found else []
    return shapes + heads


def _beside(x: float, y: float, label: str, plot: Plot, size: Size) -> Iterator[Text]:
    rows = max(1, math.floor((plot.bottom - plot.top) / (size.font * 1.4)))
    near = sorted(range(rows), key=lambda row: abs(plot.top + (row + 1) * size.font * 1.4 - y))
    feet = [plot.top + (row + 1) * size.font * 1.4 - 2 for row in near]
    for foot in feet:
        yield Text("mark-label", x + 7, foot, label)
        yield Text("mark-label", x - 7, foot, label, "end")
    room = plot.right - plot.left - 10
    short = shortened(label, size.font, room)
    half = text_width(short, size.font) / 2 + 5
    middle = min(max(x, plot.left + half), plot.right - half)
    for foot in feet:  # where neither side is wide enough
        yield Text("mark-label", middle, foot, short, "middle")
