"""Crossovers, knees and limits on a sweep: a line down to the axis, a diamond, and the label near it, clear of the curves."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfmodel.report.charts.frame import Plot, Size
from perfmodel.report.charts.kinds import LineChart, Mark
from perfmodel.report.charts.labels import Box, Placer, rectangle, segment, text_box
from perfmodel.report.charts.scene import XY, Marker, Path, Shape, Text
from perfmodel.report.charts.text_width import shortened, text_width

STRUCK = 3
"""A label that a mark's line strikes is as bad as one over that many other shapes."""
AWAY = (2.0, 8.0, 16.0, 26.0, 38.0, 52.0, 70.0, 90.0, 115.0, 145.0)
"""Pixels from a diamond to its label."""
TURNS = 16


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
        placer.avoided += [segment([(x, top), (x, plot.bottom)], 3)] * STRUCK
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
