"""SVG: the pictures of a report on one sheet; text stays text, the same bytes each time."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from perfmodel.core.errors import UsageError
from perfmodel.report import charts
from perfmodel.report.charts.draw import standalone
from perfmodel.report.charts.frame import Size
from perfmodel.report.charts.labels import shortened, text_width
from perfmodel.report.charts.roofline_metrics import reached
from perfmodel.report.charts.scene import SHAPES, Marker, Scene, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import Chart, Roofline
from perfmodel.report.document import Report
from perfmodel.report.made_by import lines

NEEDS = "charts"
WIDTH, HEIGHT, MARGIN, FONT = 1120.0, 630.0, 28.0, 13.0
"""One panel, 16 to 9."""
KEY_WIDTH, KEY_FONT = 276.0, 12.0


def render(report: Report) -> str:
    """The sheet. UsageError for a report without pictures."""
    if not report.charts:
        raise UsageError("--output: this report has no picture to write", "end the file in .html, .json, .md or .txt")
    return standalone(sheet(report), FONT)


def size_of(chart: Chart) -> Size:
    """The size of its picture on a page."""
    found: Size = import_module(f"{charts.__name__}.{chart.kind}").SIZE
    return found


def scene(chart: Chart, size: Size) -> Scene:
    """``chart`` in a picture of ``size``."""
    made: Scene = import_module(f"{charts.__name__}.{chart.kind}").scene(chart, size)
    return made


def sheet(report: Report) -> Scene:
    """All pictures of ``report`` as one: one alone, several in two columns, each in the shorter one; below them how it was made."""
    drawn, shapes = [panel(chart) for chart in report.charts], list[Shape]()
    ends = [0.0] * min(len(drawn), 2)
    for one in drawn:
        column = ends.index(min(ends))
        shapes.append(ShapeGroup(one.children, move=(WIDTH * column, ends[column])))
        ends[column] += one.height
    height = max(ends)
    width = WIDTH * len(ends)
    for line in lines(report.provenance):
        shapes.append(Text("note", MARGIN, height + FONT * 0.4, shortened(line, FONT, width - 2 * MARGIN)))
        height += FONT * 1.6
    return Scene(width, height, shapes, report.title, " ".join(scene.description for scene in drawn))


def panel(chart: Chart) -> Scene:
    """``chart`` under its title; a roofline with the names of its points beside it."""
    head = MARGIN + FONT * 1.35
    shapes: list[Shape] = [Text("title", MARGIN, head, shortened(chart.title, FONT * 1.35, WIDTH - 2 * MARGIN, bold=True))]
    top = head + FONT
    if chart.caption:
        room = WIDTH - 2 * MARGIN - (KEY_WIDTH if isinstance(chart, Roofline) and chart.points else 0)
        shapes.append(Text("subtitle", MARGIN, head + FONT * 1.6, shortened(chart.caption, FONT, room)))
        top += FONT * 1.6
    key = _key(chart, top + FONT) if isinstance(chart, Roofline) and chart.points else []
    width = WIDTH - 2 * MARGIN - (KEY_WIDTH + 20 if key else 0)
    picture = scene(chart, Size(width, HEIGHT - top - MARGIN / 2, FONT))
    moved = replace(picture, children=[*shapes, *key, ShapeGroup(picture.children, move=(MARGIN, top))], width=WIDTH)
    return replace(moved, height=max(top + picture.height + MARGIN / 2, HEIGHT if key else 0))


def _key(chart: Roofline, top: float) -> list[Shape]:
    """Number, name and share of the roof of as many points as there is room for."""
    left, right, line = WIDTH - MARGIN - KEY_WIDTH, WIDTH - MARGIN, KEY_FONT * 1.5
    room, groups = int((HEIGHT - MARGIN - top) / line), chart.groups
    shown = chart.points if len(chart.points) <= room else chart.points[: room - 1]
    shapes: list[Shape] = [Text("key-value", right, top - line, "of its roof", "end")]
    for place, point in enumerate(shown):
        y, series, share = top + place * line, groups.index(point.group), reached(point)
        name = shortened(point.name, KEY_FONT, right - left - 54 - text_width(share, KEY_FONT))
        shapes.append(Marker("measured", left + 5, y - KEY_FONT * 0.35, 3.6, SHAPES[series % len(SHAPES)], series))
        shapes += [Text("key-number", left + 34, y, str(point.number), "end"), Text("key-name", left + 42, y, name)]
        shapes.append(Text("key-value", right, y, share, "end"))
    if len(shown) < len(chart.points):
        shapes.append(Text("key-value", left, top + len(shown) * line, f"and {len(chart.points) - len(shown)} more, in the report's table"))
    return shapes
