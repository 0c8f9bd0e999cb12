"""Layout of a sweep: lines with bands, marks for crossovers and limits, and names at the ends of the lines if there is room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.frame import LINEAR, LOG, Axis, Key, Plot, Size, fitted, legend, power_of_two_text, tick_text, ticks
from perfmodel.report.charts.labels import Placer, Segment, leader, rings, shortened, square, text_box, text_width, with_value
from perfmodel.report.charts.scene import SHAPES, XY, Marker, Path, Scene, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.saved import Number

SIZE = Size(540, 340)
MOST_TICKS = 14
"""Most values of x that become ticks themselves."""
CROSSED = 6
"""Cost of a label over a curve, in steps of distance from its mark."""
WIDEST_NAME = 0.26
"""Longest name beside a line, as a share of the chart's width; longer names go to a legend."""
MOST_LINES = 4
"""Most marks with lines down to the axis."""
MOST_DOTS = 48
"""Most points of a line that have dots."""
STRUCK = 3
"""Cost of a label crossed by a mark's line, in covered shapes."""
AWAY = (2.0, 8.0, 16.0, 26.0, 38.0, 52.0, 70.0, 90.0, 115.0, 145.0)
"""Distances in pixels tried between a diamond and its label."""


def scene(chart: LineChart, size: Size = SIZE) -> Scene:
    """``chart`` in a picture of ``size``."""
    chart, font = stacked(chart), size.font
    areas = any(series.style == "area" for series in chart.series)
    names = max((text_width(series.name, font, bold=True) for series in chart.series), default=0) + 14
    at_ends = not areas and names <= WIDEST_NAME * size.width and 1 < len(chart.series) <= 8
    shapes, below = legend([] if at_ends else _keys(chart), size, font * 0.6, size.width - font, 2)
    plot = _plot(chart, size, below + font * 1.8, names if at_ends else font * 1.8)
    shapes.append(Text("axis", font * 0.6, below + font, _axis_title(chart.y_label, chart.y_unit)))
    shapes.append(Text("axis", plot.middle, plot.bottom + font * 2.9, _axis_title(chart.x_label, chart.x_unit), "middle"))
    shapes += ticks(plot, x_text(chart), lambda value: tick_text(value, chart.y_unit), _x_ticks(chart))
    placer = plot.placer()
    shapes += [shape for series in chart.series for shape in _band(chart, series, plot)]
    shapes += [_line(chart, place, plot, placer) for place in range(len(chart.series))]
    shapes += _limits(chart, plot, placer)
    shapes += _marks(chart, plot, placer)
    return Scene(size.width, size.height, [*shapes, *(_names(chart, plot) if at_ends else [])], chart.title, describe(chart))


def stacked(chart: LineChart) -> LineChart:
    """``chart`` with areas stacked, each as a band from its lower to its upper edge."""
    base = dict[Number, Number]()

    def lifted(series: Series) -> Series:
        if series.style != "area":
            return series
        edges = [(base.get(x, 0), base.get(x, 0) + y) for x, y in series.points]
        base.update({x: top for (x, _), (_, top) in zip(series.points, edges, strict=True)})
        return replace(series, points=[(x, base[x]) for x, _ in series.points], band=edges)

    return replace(chart, series=list(map(lifted, chart.series)))


def describe(chart: LineChart) -> str:
    """The picture in words."""
    marked = "".join(f" {mark.words} at {x_text(chart)(mark.x)}." for mark in chart.marks)
    names = ", ".join(series.name for series in chart.series)
    return f"{chart.y_label} over {chart.x_label}: {names}.{marked} Every number is in the table."


def _axis_title(label: str, unit: str) -> str:
    return f"{label}, {unit}" if unit in ("FLOP", "FLOP/s", "B", "B/s", "tokens/s", "FLOP/B") else label


def _colours(chart: LineChart) -> dict[str, int]:
    """Colour number of each group of series."""
    return {name: number for number, name in enumerate(dict.fromkeys(line.group or line.name for line in chart.series))}


def _colour(chart: LineChart, series: Series) -> int:
    return _colours(chart)[series.group or series.name]


def _keys(chart: LineChart) -> list[Key]:
    """Legend entries: one per line. Dashed companions of lines, such as roofs, share an entry if there are several."""
    lines = {series.name for series in chart.series if series.style != "dashed"}
    companions = [series for series in chart.series if series.style == "dashed" and series.group in lines]
    shared_names = {series.name.removeprefix(f"{series.group}, ") for series in companions}
    names = {series.name for series in companions}
    if len(names) < 2 or len(shared_names) > 1 or shared_names & names:
        return [_key(chart, series) for series in chart.series]
    [shared_name] = shared_names
    return [*(_key(chart, series) for series in chart.series if series.name not in names), Key(shared_name, "series-dashed")]


def _key(chart: LineChart, series: Series) -> Key:
    number = _colour(chart, series)
    if series.style == "markers":
        return Key(series.name, "dot", SHAPES[number % len(SHAPES)], number)
    if series.style == "area":
        return Key(series.name, "area", "box", number)
    return Key(series.name, "series-dashed" if series.style == "dashed" else "series", series=number)


# Axes


def _plot(chart: LineChart, size: Size, top: float, right: float) -> Plot:
    (x_low, x_high), (y_low, y_high) = axis_ends(chart)
    y = Axis(y_low, y_high, size.height - size.font * 3.4, top, chart.y_scale)
    left = max((text_width(tick_text(value, chart.y_unit), size.font) for value in y.ticks(size.font * 2.2)), default=0.0) + 12
    return Plot(Axis(x_low, x_high, max(left, size.font * 3), size.width - right, chart.x_scale), y, size)


def axis_ends(chart: LineChart) -> tuple[tuple[float, float], tuple[float, float]]:
    """The axes' ends, so that every point, band, mark and limit is inside."""
    xs = [*(x for series in chart.series for x, _ in series.points), *(mark.x for mark in chart.marks)]
    ys = [y for series in chart.series for _, y in series.points]
    ys += [end for series in chart.series for ends in series.band for end in ends] + [limit.value for limit in chart.limits]
    cloud = all(series.style == "markers" for series in chart.series)
    x = fitted(xs, chart.x_scale) if cloud and chart.x_scale == LINEAR else _x_ends(xs, chart.x_scale)
    return x, fitted(ys, chart.y_scale, from_zero=not cloud)


def _x_ends(values: list[float], scale: str) -> tuple[float, float]:
    values = [value for value in values if value > 0 or scale != LOG]
    low, high = min(values, default=1.0), max(values, default=10.0)
    if scale == LOG:
        return (low / 1.1, high * 1.1) if high > low else (low / 2, high * 2)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _swept(chart: LineChart) -> list[float]:
    return sorted({x for series in chart.series for x, _ in series.points})


def _x_ticks(chart: LineChart) -> list[float] | None:
    """Ticks of x: the swept values themselves if there are few, else None."""
    values = _swept(chart)
    return values if chart.x_scale == LOG and 1 < len(values) <= MOST_TICKS else None


def x_text(chart: LineChart) -> Callable[[float], str]:
    """Function that writes values of x."""
    return power_of_two_text if chart.x_unit == "count" and chart.x_scale == LOG else lambda value: tick_text(value, chart.x_unit)


# Lines


def _band(chart: LineChart, series: Series, plot: Plot) -> list[Shape]:
    """The band of a series, if it has one: a closed line along its lower ends and back along its upper ones."""
    lower, upper = list[XY](), list[XY]()
    for (x, _), (low, high) in zip(series.points, series.band, strict=False):
        lower.append(plot.at(x, low))
        upper.append(plot.at(x, high))
    if len(lower) < 2:
        return []
    role = "area" if series.style == "area" else "band"
    return [_tagged(series, [Path(role, [*lower, *reversed(upper)], closed=True, series=_colour(chart, series))])]


def _tagged(series: Series, shapes: list[Shape]) -> ShapeGroup:
    return ShapeGroup(shapes, {"device": series.device} if series.device else {})


def _line(chart: LineChart, place: int, plot: Plot, placer: Placer) -> ShapeGroup:
    """The shapes of the ``place``-th series; each dot links to its cell in the table of numbers."""
    series = chart.series[place]
    colour = _colour(chart, series)
    spots = [plot.at(x, y) for x, y in series.points]
    placer.avoided += [Segment(*ends) for ends in pairwise(spots)] * CROSSED
    role = {"line": "series", "dashed": "series-dashed"}.get(series.style)
    shapes: list[Shape] = [Path(role, spots, series=colour)] if role and len(spots) > 1 else []
    most_dots = {"area": 0, "dashed": 1, "line": MOST_DOTS}.get(series.style, len(spots))
    if len(spots) > most_dots or series.style == "area":
        return _tagged(series, shapes)
    shape = SHAPES[colour % len(SHAPES)]
    radius = 4.2 if series.style == "markers" else 3.0
    swept = _swept(chart)
    for (x, _), at in zip(series.points, spots, strict=True):
        placer.avoided += [square(at, radius)] * CROSSED
        dot = Marker("dot", *at, radius, shape, colour)
        shapes.append(ShapeGroup([dot], {"row": str(swept.index(x)), "line": str(place)}))
    return _tagged(series, shapes)


def _names(chart: LineChart, plot: Plot) -> list[Shape]:
    """Names at the right ends of the lines, moved apart where lines end close together."""
    font = plot.size.font
    least_distance = font * 1.3

    def end_y(series: Series) -> float:
        return plot.at(*series.points[-1])[1]

    from_top = sorted((series for series in chart.series if series.points), key=end_y)
    ys: list[float] = []
    for series in from_top:
        ys.append(max(end_y(series), ys[-1] + least_distance) if ys else end_y(series))
    if not ys:
        return []
    beyond = max(0.0, ys[-1] - (plot.bottom - 2))
    ys = [y - beyond for y in ys]
    for place in reversed(range(len(ys) - 1)):
        ys[place] = min(ys[place], ys[place + 1] - least_distance)
    shapes: list[Shape] = []
    for y, series in zip(ys, from_top, strict=True):
        name = Text("series-label", plot.right + 8, y + font * 0.35, series.name, series=_colour(chart, series))
        shapes.append(_tagged(series, [name]))
    return shapes


def _limits(chart: LineChart, plot: Plot, placer: Placer) -> list[Shape]:
    shapes: list[Shape] = []
    font = plot.size.font
    for limit in chart.limits:
        y = plot.y.at(limit.value)
        line = Path("limit", [(plot.left, y), (plot.right, y)])
        placer.avoid(line)
        words = with_value(limit.label, text(limit.value, chart.y_unit), font, plot.right - plot.left - 20)
        places = (Text("mark-label", plot.left + 8 + step * 24, side, words) for side in (y - 5, y + font * 1.2) for step in range(16))
        shapes += [line, *placer.place(places)]
    return shapes


# Marks


def _marks(chart: LineChart, plot: Plot, placer: Placer) -> list[Shape]:
    """The marks of ``chart``; a mark of one group has the group's colour."""
    colours = _colours(chart)
    spots = [_mark_place(mark, plot) for mark in chart.marks]
    lines, diamonds, labels = list[Shape](), list[Shape](), list[Shape]()
    tops: dict[float, float] = {}  # by x, the highest of the lines there
    for at, mark in zip(spots, chart.marks, strict=True):
        x, y = at
        if mark.y is None or len(chart.marks) <= MOST_LINES:
            lines.append(Path("mark", [at, (x, plot.bottom)]))
            tops[x] = min(y, tops.get(x, y))
        if mark.y is not None:
            colour = colours.get(mark.group)
            diamonds.append(Marker("before" if colour is None else "predicted", x, y, 4.0, "diamond", colour))
            placer.avoided += [square(at, 5)] * STRUCK
    for x, top in tops.items():
        placer.avoid(Path("mark", [(x, top), (x, plot.bottom)]), STRUCK)
    for at, mark in zip(spots, chart.marks, strict=True):
        labels += _label(at, mark, [other for other in spots if other != at], plot, placer, colours.get(mark.group))
    return [*lines, *diamonds, *labels]


def _mark_place(mark: Mark, plot: Plot) -> XY:
    """The place of a mark; at the top of the plot if it lies on no line."""
    if mark.y is None:
        x, _ = plot.at(mark.x, plot.y.low)
        return x, plot.top
    return plot.at(mark.x, mark.y)


def _label(at: XY, mark: Mark, other_places: list[XY], plot: Plot, placer: Placer, series: int | None) -> list[Shape]:
    """The label of a mark at ``at``, with a thin line if it is further away."""
    font = plot.size.font
    far = 1.6 * font  # distance from which a line leads to a label

    def strays(label: Text) -> int:
        """Penalty of a place: distance from the mark, other marks that are nearer, and labels that a line to it would strike."""
        box = text_box(label, font, air=0)
        edge = box.nearest(at)
        length, line = math.dist(at, edge), Segment(at, edge)
        struck = STRUCK * sum(line.meets(other) for other in placer.taken) if length > far else 0
        nearer = sum(math.dist(other, box.nearest(other)) < length for other in other_places)
        return int(length / (2 * font)) + struck + nearer

    placed = placer.place(_places(at, mark, series, plot), cost=strays)
    if not placed or mark.y is None:
        return [*placed]
    edge = text_box(placed[0], font, air=0).nearest(at)
    below_mark = edge[1] > at[1] and abs(edge[0] - at[0]) < 1.5 * font  # the mark's own line leads there
    if below_mark or math.dist(at, edge) < far:
        return [*placed]
    line = leader(at, edge, 6)
    placer.avoid(line, STRUCK)
    return [line, *placed]


def _places(at: XY, mark: Mark, series: int | None, plot: Plot) -> Iterator[Text]:
    """Candidate places of a label: on widening rings around the diamond, then beside its line, and last over it."""
    (x, y), font, role = at, plot.size.font, "mark-label" if series is None else "mark-of-series"
    half = text_width(mark.label, font) / 2
    for centre, middle in rings(at, math.pi / 2, AWAY, 5 + half, 5 + font * 0.6) if mark.y is not None else ():
        yield Text(role, centre, middle + font * 0.35, mark.label, "middle", series)
    rows = max(1, math.floor((plot.bottom - plot.top) / (font * 1.4)))
    feet = sorted((plot.top + (row + 1) * font * 1.4 - 2 for row in range(rows)), key=lambda foot: abs(foot + 2 - y))
    for foot in feet:
        yield Text(role, x + 7, foot, mark.label, "start", series)
        yield Text(role, x - 7, foot, mark.label, "end", series)
    short = shortened(mark.label, font, plot.right - plot.left - 10)
    half = text_width(short, font) / 2 + 5
    for foot in feet:
        yield Text(role, min(max(x, plot.left + half), plot.right - half), foot, short, "middle", series)
