"""Layout of stacked bars: a row per bar, names of parts where there is room, capacities as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.core.units import format_time
from perfmodel.report.charts.format_number import between, text
from perfmodel.report.charts.frame import LINEAR, LOG, Axis, Key, Size, legend, tick_text
from perfmodel.report.charts.labels import Placer, shortened, text_width, with_value
from perfmodel.report.charts.scene import Path, Rect, Scene, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import Bar, BarChart, Limit

SIZE = Size(540, 0)
"""The height follows from the number of bars."""
BAR = 3.2
"""Height of a bar with its name above it, in font sizes."""
ROW = 1.55
"""Distance of two rows of names above the bars, in font sizes."""
FAR = 3.0
"""A capacity more than this many times the longest bar is not drawn."""


def scene(chart: BarChart, size: Size = SIZE) -> Scene:
    """``chart`` in a picture as wide as ``size``."""
    font = size.font
    parts = list(dict.fromkeys(name for bar in chart.bars for name, _ in bar.segments))
    keys = [Key(name, "bar", "box", place) for place, name in enumerate(parts)] if len(parts) > 1 else []
    shapes, below = legend(keys, size, font * 0.6, size.width - font, 2)
    longest = max((bar.total for bar in chart.bars), default=1)
    near = [limit for limit in chart.limits if limit.value <= FAR * longest]
    top = below + font * (0.9 + ROW * len(near) if near else 0.6)
    bottom = top + font * BAR * len(chart.bars)
    axis = _axis(chart, near, size)
    shapes += _ticks(axis, top, bottom, chart.unit, size)
    limit_places = [axis.at(limit.value) for limit in near]
    lines = [Path("limit", [(x, top - 4), (x, bottom)]) for x in limit_places]
    placer = Placer((0, below), (size.width, top), font)
    for line in lines:
        placer.avoid(line)
    for limit, x, line in zip(near, limit_places, lines, strict=True):
        shapes += [line, *placer.place(_limit_names(limit, x, top, chart.unit, size))]
    for place, bar in enumerate(chart.bars):
        y = top + place * font * BAR
        shapes += _bar(bar, parts, axis, y, chart, size)
        shapes += _interval(bar, axis, y + font * 2.35, font)
        bar_end = axis.at(max(bar.total, *bar.ends, chart.origin))
        shapes.append(_total(bar_end, _total_words(bar, chart.unit), y + font * 2.7, size, limit_places))
    return Scene(size.width, bottom + font * 2.4, shapes, chart.title, describe(chart))


def _axis(chart: BarChart, limits: Sequence[Limit], size: Size) -> Axis:
    """The axis over all bars, intervals and ``limits``, with room for the sums at its end."""
    totals = [bar.total for bar in chart.bars]
    interval_ends = [end for bar in chart.bars for end in bar.ends]
    high = max([*totals, *interval_ends, *(limit.value for limit in limits), chart.origin]) or 1
    widest = max((text_width(_total_words(bar, chart.unit), size.font) for bar in chart.bars), default=0.0)
    end = size.width - (widest * 1.15 + 14)
    if chart.origin:
        return Axis(min(chart.origin, *totals), high, size.font * 1.3, end, LOG)
    return Axis(0, high, size.font * 0.6, end, LINEAR)


def _total_words(bar: Bar, unit: str) -> str:
    """The sum of a bar with its interval, as text."""
    ends = [format_time(end, 3) if unit == "s" else text(end, unit) for end in bar.ends]
    return f"{text(bar.total, unit)} ({between(*ends)})" if ends else text(bar.total, unit)


def _interval(bar: Bar, axis: Axis, y: float, font: float) -> list[Shape]:
    """The interval of a bar as a line with upright ends."""
    if not bar.ends:
        return []
    places = [axis.at(end) for end in bar.ends]
    upright = [Path("interval", [(x, y - font * 0.4), (x, y + font * 0.4)]) for x in places]
    return [Path("interval", [(x, y) for x in places]), *upright]


def describe(chart: BarChart) -> str:
    """The picture in words."""
    totals = ", ".join(f"{bar.name} {_total_words(bar, chart.unit)}" for bar in chart.bars[:8])
    return f"Stacked bars: {totals}. Every number is in the table."


def _limit_names(limit: Limit, x: float, top: float, unit: str, size: Size) -> Iterator[Text]:
    """Candidate places above the bars for the name of a capacity whose line is at ``x``, lowest row first."""
    words = with_value(limit.label, text(limit.value, unit), size.font, size.width - 12)
    half = text_width(words, size.font) / 2 + 4
    for row in range(8):
        foot = top - 8 - row * size.font * ROW
        yield Text("mark-label", min(max(x, half), size.width - half), foot, words, "middle")
        yield Text("mark-label", x - 4, foot, words, "end")
        yield Text("mark-label", x + 4, foot, words, "start")


def _total(bar_end: float, words: str, y: float, size: Size, lines: Sequence[float]) -> Text:
    """The sum of a bar behind its end at x ``bar_end``, or beyond ``lines`` (their x) that would cross it."""
    x = bar_end + 7
    width = text_width(words, size.font, bold=True)
    for line in sorted(lines):
        if x - 4 < line < x + width + 4:
            x = line + 6
    return Text("bar-total", x, y, words)


def _ticks(axis: Axis, top: float, bottom: float, unit: str, size: Size) -> list[Shape]:
    placer = Placer((0, 0), (size.width, bottom + size.font * 3), size.font)
    shapes: list[Shape] = []
    for value in axis.ticks(size.font * 6):
        x = axis.at(value)
        words = Text("tick", x, bottom + size.font * 1.4, text(value, unit) if value else "0", "middle")
        shapes += [Path("grid", [(x, top), (x, bottom)]), *placer.place([words])]
    return shapes


def _bar(bar: Bar, parts: list[str], axis: Axis, y: float, chart: BarChart, size: Size) -> list[Shape]:
    """The name of a bar and, below it, its parts, with values where there is room."""
    top, height = y + size.font * 1.5, size.font * 1.7
    name = shortened(bar.name, size.font, size.width - 2 * size.font)
    shapes: list[Shape] = [Text("key", axis.start, top - size.font * 0.4, name)]
    unit = chart.unit
    reached = 0.0
    for part, value in bar.segments:
        start, end = sorted((axis.at(chart.origin or reached), axis.at(reached + value)))
        reached += value
        tip = f"{bar.name}, {part}: {text(value, unit)}"
        shapes.append(ShapeGroup([Rect("bar", start, top, end - start, height, parts.index(part), tip)], {"tip": tip}))
        words = text(value, unit) if unit == "B" else tick_text(value, unit)
        free_end = min(end, axis.at(bar.ends[0]) - 4) if bar.ends else end  # the interval hides what follows
        if text_width(words, size.font) + 8 < free_end - start and len(bar.segments) > 1:
            shapes.append(Text("bar-inside", (start + free_end) / 2, top + height / 2 + size.font * 0.35, words, "middle"))
    return shapes
