"""A sweep as a picture: lines with bands, crossovers and limits marked, names at the ends of the lines where there is room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.frame import LOG, Axis, Key, Plot, Size, fitted, legend, power_of_two_text, tick_text, tick_width, ticks
from perfmodel.report.charts.labels import Box, Placer, rectangle, segment, shortened, text_box, text_width
from perfmodel.report.charts.roofline_points import SHAPES
from perfmodel.report.charts.scene import XY, Group, Marker, Path, Scene, Shape, Text
from perfmodel.report.charts.schema import LineChart, Mark, Series

SIZE = Size(540, 340)
MOST_TICKS = 14
"""Values of x that are ticks themselves."""
CROSSED = 6
"""A label over a curve, whose halo interrupts it, is as bad as one that is so many steps away from its mark."""
WIDEST_NAME = 0.26
"""Of the picture's width: longer names go to a legend."""
STRUCK = 3
"""A label that a mark's line strikes is as bad as one over that many other shapes."""
AWAY = (2.0, 8.0, 16.0, 26.0, 38.0, 52.0, 70.0, 90.0, 115.0, 145.0)
"""Pixels from a diamond to its label."""
TURNS = 16


def scene(chart: LineChart, size: Size = SIZE) -> Scene:
    """``chart`` in a picture of ``size``."""
    names = max((text_width(series.name, size.font, bold=True) for series in chart.series), default=0) + 14
    at_ends = names <= WIDEST_NAME * size.width and 1 < len(chart.series) <= 8
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
    placer.avoided += [segment(ends) for ends in pairwise(spots)] * CROSSED
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


# Marks


def marks(chart: LineChart, plot: Plot, size: Size, placer: Placer, colours: dict[str, int]) -> list[Shape]:
    """Every mark of ``chart``; those of a group of series in its colour, which ``colours`` has by name."""
    shapes: list[Shape] = []
    heads: list[Shape] = []
    labels: list[Shape] = []
    spots = [(plot.x.at(plot.x.clamped(m.x)), plot.top if m.y is None else plot.y.at(plot.y.clamped(m.y))) for m in chart.marks]
    for (x, top), mark in zip(spots, chart.marks, strict=True):
        shapes.append(Path("mark", [(x, top), (x, plot.bottom)]))
        if mark.y is not None:
            series = colours.get(mark.group)
            heads.append(Marker("before" if series is None else "predicted", x, top, 4.0, "diamond", series))
            placer.avoided += [rectangle(x - 5, top - 5, 10, 10)] * STRUCK
    for x, top in {x: min(other for at, other in spots if at == x) for x, _ in spots}.items():
        placer.avoided += [segment([(x, top), (x, plot.bottom)])] * STRUCK
    for at, mark in zip(spots, chart.marks, strict=True):
        labels += _label(at, mark, [other for other in spots if other != at], plot, size, placer, colours)
    return [*shapes, *heads, *labels]


def _label(at: XY, mark: Mark, others: list[XY], plot: Plot, size: Size, placer: Placer, colours: dict[str, int]) -> list[Shape]:
    series = colours.get(mark.group)
    role = "mark-label" if series is None else "mark-of-series"

    def strays(text: Text) -> int:
        """How far it is from its mark, marks that it seems to belong to instead, and labels that a line to it would strike."""
        around = text_box(text, size.font, air=0)
        edge = _nearest(at, around)
        own, line = math.dist(at, edge), segment([at, edge])
        struck = STRUCK * sum(line.meets(other) for other in placer.taken) if own > 1.6 * size.font else 0
        return int(own / (2 * size.font)) + struck + sum(_distance(other, around) < own for other in others)

    found = placer.place(_places(at, mark, role, series, plot, size), size.font, cost=strays)
    if found is None:
        return []
    edge = _nearest(at, text_box(found, size.font, air=0))
    along = edge[1] > at[1] and abs(edge[0] - at[0]) < 1.5 * size.font  # its own line leads there
    if mark.y is None or along or math.dist(at, edge) < 1.6 * size.font:
        return [found]
    part = 6 / math.dist(at, edge)
    line = [(at[0] + (edge[0] - at[0]) * part, at[1] + (edge[1] - at[1]) * part), edge]
    placer.avoided += [segment(line)] * STRUCK
    return [Path("leader", line), found]


def _nearest(at: XY, around: Box) -> XY:
    """The place in ``around`` that is nearest to ``at``."""
    return min(max(at[0], around.left), around.right), min(max(at[1], around.top), around.bottom)


def _distance(at: XY, around: Box) -> float:
    return math.dist(at, _nearest(at, around))


def _places(at: XY, mark: Mark, role: str, series: int | None, plot: Plot, size: Size) -> Iterator[Text]:
    """Around the diamond on ever wider rings; then anywhere beside its line, and where neither side is wide enough, over it."""
    x, y = at
    half = text_width(mark.label, size.font) / 2
    for away in AWAY if mark.y is not None else ():
        for turn in range(TURNS):
            angle = math.pi / 2 + (turn + 1) // 2 * (1 if turn % 2 else -1) * 2 * math.pi / TURNS
            middle = (x + math.cos(angle) * (5 + away + half), y - math.sin(angle) * (5 + away + size.font * 0.6))
            yield Text(role, middle[0], middle[1] + size.font * 0.35, mark.label, "middle", series=series)
    rows = max(1, math.floor((plot.bottom - plot.top) / (size.font * 1.4)))
    near = sorted(range(rows), key=lambda row: abs(plot.top + (row + 1) * size.font * 1.4 - y))
    feet = [plot.top + (row + 1) * size.font * 1.4 - 2 for row in near]
    for foot in feet:
        yield Text(role, x + 7, foot, mark.label, series=series)
        yield Text(role, x - 7, foot, mark.label, "end", series=series)
    short = shortened(mark.label, size.font, plot.right - plot.left - 10)
    half = text_width(short, size.font) / 2 + 5
    middle_x = min(max(x, plot.left + half), plot.right - half)
    for foot in feet:
        yield Text(role, middle_x, foot, short, "middle", series=series)
