"""The roofs of a roofline on the page: lines, their names on them, and ridge points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from perfmodel.core.units import format_si
from perfmodel.report.charts.format_number import digits
from perfmodel.report.charts.frame import Plot, Size
from perfmodel.report.charts.labels import Box, Line, Placer, segment, text_box
from perfmodel.report.charts.roofline_axes import compute_ceilings, key, level_ceiling, memory_ceilings, shown_keys
from perfmodel.report.charts.scene import XY, Group, Marker, Path, Shape, Text
from perfmodel.report.charts.schema import COMPUTE, MEASURED, Ceiling, Roofline

STEPS = 24
"""Places tried along a line for its label."""


def top_rate(chart: Roofline, keys: list[str]) -> float:
    """The highest roof among these units and dtypes."""
    every = compute_ceilings(chart)
    return max((c.value for c in every if key(c.unit, c.dtype) in keys), default=max((c.value for c in every), default=1e12))


def roofs(chart: Roofline, plot: Plot, size: Size, level: str, placer: Placer) -> list[Shape]:
    """The roofs of ``level`` and of the compute units; those of units and dtypes that are not shown first get their labels later."""
    shown, memory = shown_keys(chart), memory_ceilings(chart, level)
    top, markers = top_rate(chart, shown), list(placer.avoided)
    lines_of = merged(compute_ceilings(chart), shown)
    lines = [_diagonal(ceiling, plot, plot.x.low, top) for ceiling in memory]
    levels = [_level_line(ceiling, plot, memory) for ceiling, keys in lines_of]
    placer.avoided += [segment(path.points) for path, (_, keys) in zip(levels, lines_of, strict=True) if keys[0] in shown]
    placer.avoided += [segment(path.points) for path in lines]
    labels: list[Shape] = []
    groups = []
    for ceiling in sorted(memory, key=lambda c: c.evidence == MEASURED):
        twin = ceiling.evidence == MEASURED and any(c is not ceiling for c in memory)
        labels += _clear_of(markers, list(_along_diagonal(ceiling, plot, size, top)), twin, placer, size)
    for (ceiling, keys), path in zip(lines_of, levels, strict=True):
        shapes: list[Shape] = [path]
        if keys[0] in shown:
            twin = ceiling.evidence == MEASURED and any(other is not ceiling and keys[0] in own for other, own in lines_of)
            crossed = markers + [segment(line.points) for line in lines]
            shapes += _clear_of(crossed, list(_along_level(ceiling, plot, size, path.points[0][0])), twin, placer, size)
        if ceiling.value > top:
            shapes += [_diagonal(other, plot, top / other.value, ceiling.value) for other in memory]
        groups.append(Group(shapes, {"key": ",".join(keys)}, hidden=keys[0] not in shown))
    return [*lines, *groups, *labels]


def _clear_of(shapes: list[Box | Line], every: list[Text], twin: bool, placer: Placer, size: Size) -> list[Shape]:
    """A label that lies on none of ``shapes``; else on as few as can be, unless the line has a ``twin`` beside it with a label."""
    clear = [text for text in every if not any(one.meets(text_box(text, size.font)) for one in shapes)]
    return _placed(iter(clear), placer, size) or ([] if twin else _placed(iter(every), placer, size))


def merged(found: list[Ceiling], shown: list[str]) -> list[tuple[Ceiling, list[str]]]:
    """Compute roofs with their keys, those shown first in front; roofs of one height, unit and evidence are one line."""
    lines: dict[tuple[object, ...], list[Ceiling]] = {}
    for c in sorted(found, key=lambda c: (key(c.unit, c.dtype) not in shown, c.evidence == MEASURED, -c.value)):
        lines.setdefault((key(c.unit, c.dtype) in shown, c.value, c.unit, c.evidence == MEASURED), []).append(c)
    return [(_together(same), [key(c.unit, c.dtype) for c in same]) for same in lines.values()]


def _together(same: list[Ceiling]) -> Ceiling:
    names = ", ".join(sorted(c.dtype for c in same))
    return same[0] if len(same) == 1 else replace(same[0], name=f"{same[0].unit} {names}")


def _placed(candidates: Iterator[Text], placer: Placer, size: Size, cost: Callable[[Text], int] = lambda text: 0) -> list[Shape]:
    found = placer.place(candidates, size.font, cost=cost)
    return [] if found is None else [found]


def _role(ceiling: Ceiling) -> str:
    return "roof-measured" if ceiling.evidence == MEASURED else "roof"


def words(ceiling: Ceiling) -> str:
    """Name, value, and whether it was measured."""
    value = format_si(ceiling.value, "FLOP/s" if ceiling.kind == COMPUTE else "B/s", 3)
    return f"{ceiling.name} {value}" + (" measured" if ceiling.evidence == MEASURED else "")


def _diagonal(ceiling: Ceiling, plot: Plot, first: float, top: float) -> Path:
    """The line of a memory level from the intensity ``first`` up to the rate ``top``."""
    first = max(first, plot.y.low / ceiling.value, plot.x.low)
    last = min(top / ceiling.value, plot.x.high)
    ends = [(plot.x.at(x), plot.y.at(x * ceiling.value)) for x in (first, last)]
    return Path(_role(ceiling), ends)


def _start(ceiling: Ceiling, plot: Plot, memory: list[Ceiling]) -> float:
    """The pixel from which a compute roof is one: its ridge with the highest roof of the level."""
    return plot.x.at(plot.x.clamped(ceiling.value / memory[0].value)) if memory else plot.left


def _level_line(ceiling: Ceiling, plot: Plot, memory: list[Ceiling]) -> Path:
    y = plot.y.at(ceiling.value)
    return Path(_role(ceiling), [(_start(ceiling, plot, memory), y), (plot.right, y)])


def _along_level(ceiling: Ceiling, plot: Plot, size: Size, start: float) -> Iterator[Text]:
    """From the right end to the left, above the line, then below it, then further away; what was measured first below."""
    y, text = plot.y.at(ceiling.value), words(ceiling)
    above, below = y - size.font * 0.42, y + size.font * 1.12
    sides = (below, above) if ceiling.evidence == MEASURED else (above, below)
    right = plot.right - size.font * 0.5
    for side in (*sides, above - size.font / 2, below + size.font / 2):
        for step in range(STEPS):
            x = right - step * (right - start) / STEPS
            yield Text("roof-label", x, side, text, "end")


def _along_diagonal(ceiling: Ceiling, plot: Plot, size: Size, top: float) -> Iterator[Text]:
    """From the lower end upwards, a corner at the line: to the left, above it, or to the right, below; what was measured first there."""
    low, high = max(plot.x.low, plot.y.low / ceiling.value), plot.x.clamped(top / ceiling.value)
    gap, said = size.font * 0.3, words(ceiling)
    left = (-gap, -gap - 1, "end"), (gap, size.font * 1.05, "start")
    for across, down, anchor in reversed(left) if ceiling.evidence == MEASURED else left:
        for step in range(STEPS):
            x = low * (high / low) ** (0.04 + 0.96 * step / STEPS)
            yield Text("roof-label", plot.x.at(x) + across, plot.y.at(x * ceiling.value) + down, said, anchor)


def ridges(chart: Roofline, plot: Plot, size: Size, level: str, placer: Placer) -> list[Shape]:
    """The selected level's own line, stronger, and its ridge point with each compute roof, with the intensity there."""
    memory = level_ceiling(chart, level)
    if memory is None:
        return []
    shown = shown_keys(chart)
    line = _diagonal(memory, plot, plot.x.low, top_rate(chart, shown))
    placer.avoided.append(segment(line.points))
    lines_of = [(ceiling, keys) for ceiling, keys in merged(compute_ceilings(chart), shown) if keys[0] in shown]
    found = [_ridge(ceiling, keys, memory, plot, size, placer) for ceiling, keys in lines_of]
    return [Path("roof-strong", line.points), *(group for group in found if group)]


def waiting(chart: Roofline, plot: Plot, size: Size, level: str, placer: Placer) -> list[Shape]:
    """Labels and ridge points of roofs that are not shown first, hidden, where everything else has left room."""
    shown, memory = shown_keys(chart), memory_ceilings(chart, level)
    own = level_ceiling(chart, level)
    shapes: list[Shape] = []
    for ceiling, keys in merged(compute_ceilings(chart), shown):
        if keys[0] in shown:
            continue
        label = _placed(_along_level(ceiling, plot, size, _start(ceiling, plot, memory)), placer, size)
        ridge = _ridge(ceiling, keys, own, plot, size, placer) if own else None
        shapes.append(Group([*label, *(ridge.children if ridge else [])], {"key": ",".join(keys)}, hidden=True))
    return shapes


def _ridge(ceiling: Ceiling, keys: list[str], memory: Ceiling, plot: Plot, size: Size, placer: Placer) -> Group | None:
    intensity = ceiling.value / memory.value
    if ceiling.evidence == MEASURED or not plot.x.holds(intensity):
        return None
    x, y = plot.x.at(intensity), plot.y.at(ceiling.value)
    value = digits(intensity, 3)

    def far(label: Text) -> int:
        """A label further away may seem another ridge's, and one without its unit another number."""
        return int(math.dist((label.x, label.y), (x, y)) / (1.5 * size.font)) + (label.text == value)

    places = (place for words in (f"{value} FLOP/B", value) for place in _around_ridge(x, y, words, size))
    found = _placed(places, placer, size, far)
    lines = [line for label in found if isinstance(label, Text) and (line := _leader((x, y), label, size))]
    return Group([*lines, Marker("ridge", x, y, 2.6), *found], {"key": ",".join(keys)})


def _leader(at: XY, label: Text, size: Size) -> Path | None:
    """A thin line to a label that had to go further away."""
    around = text_box(label, size.font, air=0)
    edge = (min(max(at[0], around.left), around.right), min(max(at[1], around.top), around.bottom))
    return Path("leader", [at, edge]) if math.dist(at, edge) > 1.2 * size.font else None


def _around_ridge(x: float, y: float, text: str, size: Size) -> Iterator[Text]:
    gap = size.font * 0.5
    for away in (0.0, 4.0, 8.0, 14.0, 22.0, 30.0):
        yield Text("ridge-label", x + gap + away, y + size.font * 1.25, text, "start")
        yield Text("ridge-label", x + gap, y + size.font * 1.25 + away, text, "start")
        yield Text("ridge-label", x - gap - away, y - size.font * 0.5, text, "end")
        yield Text("ridge-label", x, y - size.font * 0.7 - away, text, "middle")
        yield Text("ridge-label", x + gap + away, y - size.font * 0.5, text, "start")
        yield Text("ridge-label", x, y + size.font * 1.6 + away, text, "middle")
        yield Text("ridge-label", x - gap - away, y + size.font * 1.25, text, "end")
