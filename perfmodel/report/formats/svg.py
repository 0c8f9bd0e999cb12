"""SVG: the charts of a report on one sheet, with text as text; the same bytes each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from perfmodel.core.errors import UsageError
from perfmodel.report import charts
from perfmodel.report.charts.draw import standalone
from perfmodel.report.charts.format_number import ABSENT
from perfmodel.report.charts.frame import Size
from perfmodel.report.charts.labels import shortened, text_width
from perfmodel.report.charts.roofline_metrics import reached
from perfmodel.report.charts.scene import SHAPES, Marker, Scene, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import Chart, Roofline
from perfmodel.report.document import Report, captioned, provenance_lines

NEEDS = "charts"
WIDTH, HEIGHT, MARGIN, FONT = 1120.0, 630.0, 28.0, 13.0
"""One panel, 16 to 9."""
PAGE_WIDTH = 1184.0
"""Width of a chart that is as wide as a page."""
STEP = 1.55
"""Distance of lines in font sizes."""
LEAST = 440.0
"""Least height of a panel below a long verdict."""
SENTENCES = 3
"""Most sentences of the verdict above the charts."""
KEY_WIDTH, KEY_FONT = 276.0, 12.0


def render(report: Report) -> str:
    """The sheet as SVG. UsageError for a report without charts."""
    if not report.charts:
        raise UsageError("--output: this report has no picture to write", "end the file in .html, .json, .md or .txt")
    return standalone(sheet(report), FONT)


def size_of(chart: Chart) -> Size:
    """The size of the chart on a page."""
    size: Size = import_module(f"{charts.__name__}.{chart.kind}").SIZE
    return size


def wide_of(chart: Chart) -> Size:
    """The size of the chart if it is as wide as the page."""
    return replace(size_of(chart), width=PAGE_WIDTH)


def scene(chart: Chart, size: Size) -> Scene:
    """``chart`` in a picture of ``size``."""
    drawn: Scene = import_module(f"{charts.__name__}.{chart.kind}").scene(chart, size)
    return drawn


def sheet(report: Report) -> Scene:
    """All charts of ``report`` in two columns, with the answer above and the provenance below."""
    filled = [0.0] * min(len(report.charts), 2)  # height of the charts in each column so far
    width = WIDTH * len(filled)
    shapes, top = _head(report, width)
    foot_lines = provenance_lines(report.provenance)
    _, foot_height = _written(foot_lines, "note", FONT * 0.4, width)
    panel_height = HEIGHT if len(filled) > 1 else max(HEIGHT - top - foot_height, LEAST)
    descriptions = []
    for chart in captioned(report):
        title = "" if chart.title == report.title else chart.title
        drawn = panel(replace(chart, title=title), panel_height)
        column = filled.index(min(filled))
        shapes.append(ShapeGroup(drawn.children, move=(WIDTH * column, top + filled[column])))
        filled[column] += drawn.height
        descriptions.append(drawn.description)
    foot, end = _written(foot_lines, "note", top + max(filled) + FONT * 0.4, width)
    return Scene(width, max(end, HEIGHT), [*shapes, *foot], report.title, " ".join(descriptions))


def _head(report: Report, width: float) -> tuple[list[Shape], float]:
    """Shapes of title, verdict and main numbers, and the y where charts begin."""
    title, top = _written([report.title], "title", MARGIN + FONT * 1.35, width, FONT * 1.35)
    shapes, top = _written(report.verdict[:SENTENCES], "key", top, width)
    figures = " · ".join(f"{figure.label} {figure.value}" for figure in report.figures)
    numbers, top = _written([figures] if figures else [], "note", top, width)
    return [*title, *shapes, *numbers], top - FONT * 0.6


def _written(sentences: Sequence[str], role: str, y: float, width: float, font: float = FONT) -> tuple[list[Shape], float]:
    """Shapes of wrapped sentences from ``y`` down, and the y of the next line."""
    listed = [line for words in sentences for line in _wrapped(words, font, width - 2 * MARGIN)]
    return [Text(role, MARGIN, y + place * font * STEP, line) for place, line in enumerate(listed)], y + font * STEP * len(listed)


def _wrapped(words: str, font: float, room: float) -> list[str]:
    """``words`` in lines of at most ``room`` pixels."""
    lines: list[str] = []
    for word in words.split(" "):
        short = shortened(word, font, room)
        if lines and text_width(f"{lines[-1]} {short}", font, bold=True) <= room:
            lines[-1] += f" {short}"
        else:
            lines.append(short)
    return lines


def panel(chart: Chart, height: float = HEIGHT) -> Scene:
    """``chart`` under its title in ``height`` pixels (bars take what they need); a roofline has its key beside it."""
    shapes: list[Shape] = []
    head = MARGIN
    title = shortened(chart.title, FONT * 1.35, WIDTH - 2 * MARGIN, bold=True)
    if title:
        head += FONT * 1.35
        shapes.append(Text("title", MARGIN, head, title))
    top = head + FONT
    with_key = isinstance(chart, Roofline) and bool(chart.points)
    if chart.caption:
        caption, end = _written([chart.caption], "subtitle", head + FONT * 1.6, WIDTH - KEY_WIDTH if with_key else WIDTH)
        shapes += caption
        top = top + end - head - FONT * 1.6
    width = WIDTH - 2 * MARGIN
    if isinstance(chart, Roofline) and with_key:
        shapes += _key(chart, top + FONT, height)
        width -= KEY_WIDTH + 20
    picture = scene(chart, Size(width, height - top - MARGIN / 2, FONT))
    shapes.append(ShapeGroup(picture.children, move=(MARGIN, top)))
    needed = top + picture.height + MARGIN / 2
    return replace(picture, children=shapes, width=WIDTH, height=max(needed, height) if with_key else needed)


def _key(chart: Roofline, top: float, height: float) -> list[Shape]:
    """Shapes of the key: number, name and share of the roof of points, as far as there is room."""
    right = WIDTH - MARGIN
    left = right - KEY_WIDTH
    line = KEY_FONT * 1.5
    room = int((height - MARGIN - top) / line)
    drawn = chart.points if len(chart.points) <= room else chart.points[: room - 1]
    shapes: list[Shape] = []
    with_shares = any(reached(point) != ABSENT for point in chart.points)
    if with_shares:
        shapes.append(Text("key-value", right, top - line, "of its roof", "end"))
    for place, point in enumerate(drawn):
        y = top + place * line
        series = chart.groups.index(point.group)
        share = reached(point) if with_shares else ""
        name = shortened(point.name, KEY_FONT, right - left - 54 - text_width(share, KEY_FONT))
        shapes += [
            Marker("measured", left + 5, y - KEY_FONT * 0.35, 3.6, SHAPES[series % len(SHAPES)], series),
            Text("key-number", left + 34, y, str(point.number), "end"),
            Text("key-name", left + 42, y, name),
            Text("key-value", right, y, share, "end"),
        ]
    further = len(chart.points) - len(drawn)
    if further:
        shapes.append(Text("key-value", left, top + len(drawn) * line, f"and {further} more, in the report's table"))
    return shapes
