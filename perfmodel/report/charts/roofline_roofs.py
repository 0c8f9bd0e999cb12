"""Layout of roofs: the axes, lines with names, and ridge points."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field, replace

from perfmodel.core.frozen import dataclass
from perfmodel.core.units import format_si
from perfmodel.report.charts.format_number import digits
from perfmodel.report.charts.frame import Axis, Plot, Size
from perfmodel.report.charts.labels import Box, Placer, Segment, leader, text_box, text_boxes, text_width
from perfmodel.report.charts.scene import Marker, Path, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import COMPUTE, Ceiling, Roofline

LEAST_INTENSITY, LEAST_SHARE = 0.01, 1e-6
"""Lower ends of the axes: FLOP/B, and share of the highest roof."""
AIR = 2.0
"""Least factor between the last point or ridge and the end of an axis."""
BESIDE, STRUCK = 1.2, 3
"""Distance in font sizes from which a thin line leads to a label; and the cost, in covered lines, if that line crosses another label."""
STEPS = 24
"""Number of places tried along a line for its label."""


def limits(chart: Roofline) -> tuple[float, float, float, float]:
    """Lowest and highest intensity in FLOP/B, and lowest and highest rate in FLOP/s, around the points and ridges of all levels."""
    levels, keys = chart.levels(), chart.shown_keys()
    roofs = [c.value for c in chart.compute_roofs()] or [1e12]
    compute_roofs = [c.value for c in chart.compute_roofs() if c.key in keys] or roofs
    speeds = [c.value for level in levels for c in chart.memory_roofs(level)] or [1e12]
    times = [(p, [end for t in (p.measured, p.predicted) if t for end in (t.value, t.low, t.high)]) for p in chart.points]
    work = [(p.flops, p.bytes, seconds or [p.roofline_s]) for p, seconds in times]
    work += [(p.before.flops, p.before.bytes, [p.before.time_s]) for p in chart.points if p.before]
    spots = [flops / size for flops, moved, _ in work if flops for level, size in moved.items() if size and level in levels]
    rates = [flops / seconds for flops, _, times in work if flops for seconds in times if seconds]
    ends = (min([*spots, min(compute_roofs) / max(speeds)]) / AIR, max([*spots, max(compute_roofs) / min(speeds)]) * AIR)
    sides = (min([*rates, min(compute_roofs) / 10]) / AIR, max([*rates, *roofs]) * AIR**2)  # room for a name on the highest line
    lowest = max(ends[0], LEAST_INTENSITY), max(sides[0], max(roofs) * LEAST_SHARE)
    return _below(lowest[0]), 1 / _below(1 / ends[1]), _below(lowest[1]), 1 / _below(1 / sides[1])


def _below(value: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is no more than ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step * power for step in (0.5, 1, 2, 5) if step * power <= value)


def plot_of(chart: Roofline, size: Size, top: float, rows: int = 0) -> Plot:
    """The plot of ``chart`` below ``top``, with ``rows`` lines of text below its axis."""
    lowest, highest, slowest, fastest = limits(chart)
    left, right = size.font * 4.2, size.width - size.font * 1.8
    return Plot(Axis(lowest, highest, left, right), Axis(slowest, fastest, size.height - size.font * (3.4 + 1.4 * rows), top), size)


@dataclass(frozen=True, slots=True)
class Roof:
    """Compute roofs that share a line, with one height, unit and evidence. ``shown``: visible before a selector is used."""

    ceiling: Ceiling
    keys: list[str]
    shown: bool


def roofs_of(chart: Roofline) -> list[Roof]:
    """The lines of compute roofs, those shown first in front."""
    keys = chart.shown_keys()
    lines: dict[tuple[object, ...], list[Ceiling]] = {}
    for c in sorted(chart.compute_roofs(), key=lambda c: (c.key not in keys, c.measured, -c.value)):
        lines.setdefault((c.key in keys, c.value, c.unit, c.measured), []).append(c)
    return [Roof(_together(parallel), [c.key for c in parallel], parallel[0].key in keys) for parallel in lines.values()]


def _together(parallel: list[Ceiling]) -> Ceiling:
    names = ", ".join(sorted(c.dtype for c in parallel))
    return parallel[0] if len(parallel) == 1 else replace(parallel[0], name=f"{parallel[0].unit} {names}")


@dataclass(slots=True)
class LevelView:
    """A roofline over the bytes of one level, on its plot. ``memory``: roofs of that level; ``others``: one roof of each other level;
    ``top``: highest visible compute roof.
    """

    chart: Roofline
    level: str
    plot: Plot
    placer: Placer = field(init=False)
    memory: list[Ceiling] = field(init=False)
    others: list[Ceiling] = field(init=False)
    roofs: list[Roof] = field(init=False)
    top: float = field(init=False)

    def __post_init__(self) -> None:
        self.placer, self.memory, self.roofs = self.plot.placer(), self.chart.memory_roofs(self.level), roofs_of(self.chart)
        other_roofs = [self.chart.memory_roofs(level) for level in self.chart.levels() if level != self.level]
        self.others = [min(roofs, key=lambda c: c.measured) for roofs in other_roofs if roofs]
        peaks = [roof.ceiling.value for roof in self.roofs] or [1e12]
        self.top = max([roof.ceiling.value for roof in self.roofs if roof.shown] or peaks)

    @property
    def font(self) -> float:
        """Font size in pixels."""
        return self.plot.size.font

    @property
    def own(self) -> Ceiling | None:
        """The roof of the level: that of the datasheet, else the measured one."""
        return min(self.memory, key=lambda c: c.measured, default=None)

    def diagonal(self, ceiling: Ceiling, first: float = 0.0, top: float | None = None) -> Path:
        """The line of a memory roof from the intensity ``first`` up to the rate ``top``."""
        first = max(first, self.plot.y.low / ceiling.value, self.plot.x.low)
        last = min((top or self.top) / ceiling.value, self.plot.x.high)
        return Path(_role(ceiling), [(self.plot.x.at(x), self.plot.y.at(x * ceiling.value)) for x in (first, last)])

    def horizontal(self, ceiling: Ceiling) -> Path:
        """The line of a compute roof, from its ridge with the highest roof of any level."""
        plot, y = self.plot, self.plot.y.at(ceiling.value)
        steepest = max((c.value for c in [*self.memory, *self.others]), default=math.inf)
        start = plot.x.at(plot.x.clamped(ceiling.value / steepest))
        return Path(_role(ceiling), [(start, y), (plot.right, y)])


def _role(ceiling: Ceiling) -> str:
    return "roof-measured" if ceiling.measured else "roof"


def words(ceiling: Ceiling) -> str:
    """Label of a roof: name, value, and whether it was measured."""
    value = format_si(ceiling.value, "FLOP/s" if ceiling.kind == COMPUTE else "B/s", 3)
    return f"{ceiling.name} {value}" + " measured" * ceiling.measured


def roofs(view: LevelView) -> list[Shape]:
    """Shapes of the roofs of the level and of the compute units; labels of hidden ones come later."""
    memory, placer, markers = [*view.memory, *view.others], view.placer, list(view.placer.avoided)
    diagonals, levels = [view.diagonal(c) for c in memory], [view.horizontal(roof.ceiling) for roof in view.roofs]
    for line in [*(line for line, roof in zip(levels, view.roofs, strict=True) if roof.shown), *diagonals]:
        placer.avoid(line)
    labels: list[Shape] = []
    lines: list[Box | Segment] = [Segment(line.points[0], line.points[-1]) for line in diagonals]
    for ceiling in sorted(memory, key=lambda c: c.measured):
        twin = ceiling.measured and any(other.level == ceiling.level and not other.measured for other in memory)
        labels += _clear_of(markers + lines, list(_along_diagonal(ceiling, view)), twin, placer)
    crossed = markers + lines
    groups: list[Shape] = []
    for line, roof in zip(levels, view.roofs, strict=True):
        names, ceiling = list[Text](), roof.ceiling
        if roof.shown:
            twin = ceiling.measured and any(other is not roof and roof.keys[0] in other.keys for other in view.roofs)
            names = _clear_of(crossed, list(_along_horizontal(ceiling, view)), twin, placer)
        above = [view.diagonal(c, view.top / c.value, ceiling.value) for c in memory] if ceiling.value > view.top else []
        groups.append(ShapeGroup([line, *names, *above], {"key": ",".join(roof.keys)}, hidden=not roof.shown))
    return [*diagonals, *groups, *labels]


def _clear_of(shapes: list[Box | Segment], texts: list[Text], twin: bool, placer: Placer) -> list[Text]:
    """The label that covers the fewest ``shapes``; none if it would cover some and the line has a labelled ``twin``."""
    clear = (text for text in texts if not any(shape.meets(box) for box in text_boxes(text, placer.font) for shape in shapes))
    return placer.place(clear) or ([] if twin else placer.place(texts))


def _along_horizontal(ceiling: Ceiling, view: LevelView) -> Iterator[Text]:
    """Candidate places of a label from right to left: above the line, below it, then further away. Measured roofs begin below."""
    font, ((start, y), (end, _)) = view.font, view.horizontal(ceiling).points
    above, below, right = y - font * 0.42, y + font * 1.12, end - font * 0.5
    sides = (below, above) if ceiling.measured else (above, below)
    for side in (*sides, above - font / 2, below + font / 2):
        for step in range(STEPS):
            yield Text("roof-label", right - step * (right - start) / STEPS, side, words(ceiling), "end")


def _along_diagonal(ceiling: Ceiling, view: LevelView) -> Iterator[Text]:
    """Candidate places of a label along the line from its lower end: above it or below it."""
    start, end = view.diagonal(ceiling).points
    label, length = words(ceiling), math.dist(start, end) or 1
    across, down = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    sides = view.font * 0.4, -view.font * 1.15
    twin = ceiling.measured and any(c.level == ceiling.level and not c.measured for c in [*view.memory, *view.others])
    for off in reversed(sides) if twin else sides:
        for step in range(STEPS):
            at = 4 + (length - text_width(label, view.font) - 8) * step / (STEPS - 1)
            x, y = start[0] + at * across + off * down, start[1] + at * down - off * across
            yield Text("roof-label", x, y, label, turn=math.degrees(math.atan2(down, across)))


def ridges(view: LevelView) -> list[Shape]:
    """Shapes of the level's own line and of its ridge points with visible compute roofs, with the intensity there."""
    if view.own is None:
        return []
    line = replace(view.diagonal(view.own), role="roof-strong")
    view.placer.avoid(line)
    ridges = [ShapeGroup(shapes, {"key": ",".join(roof.keys)}) for roof in view.roofs if roof.shown and (shapes := _ridge(roof, view))]
    return [line, *ridges]


def waiting(view: LevelView) -> list[Shape]:
    """Hidden labels and ridge points of roofs that are not shown first, placed where there is room."""
    shapes: list[Shape] = []
    for roof in view.roofs:
        if not roof.shown:
            label = view.placer.place(_along_horizontal(roof.ceiling, view))
            shapes.append(ShapeGroup([*label, *_ridge(roof, view)], {"key": ",".join(roof.keys)}, hidden=True))
    return shapes


def _ridge(roof: Roof, view: LevelView) -> list[Shape]:
    """Ridge point of ``roof`` with the level's own line: a dot with its intensity; empty for measured roofs and beyond the axis."""
    ceiling, own_roof, font = roof.ceiling, view.own, view.font
    if own_roof is None or ceiling.measured or not view.plot.x.holds(ceiling.value / own_roof.value):
        return []
    at = view.plot.x.at(ceiling.value / own_roof.value), view.plot.y.at(ceiling.value)
    value = digits(ceiling.value / own_roof.value, 3)

    def far(label: Text) -> int:
        """A label further away may seem another ridge's, and a line to it is not to strike another label."""
        edge = text_box(label, font, air=0).nearest(at)
        away = math.dist(at, edge)
        struck = sum(Segment(at, edge).meets(other) for other in view.placer.taken) if away > BESIDE * font else 0
        return int(away / font) + STRUCK * struck

    label = view.placer.place((place for words in (f"{value} FLOP/B", value) for place in _around_ridge(*at, words, font)), cost=far)
    edges = [text_box(label, font, air=0).nearest(at) for label in label]
    return [*(leader(at, edge, 0) for edge in edges if math.dist(at, edge) > BESIDE * font), Marker("ridge", *at, 2.6), *label]


def _around_ridge(x: float, y: float, text: str, font: float) -> Iterator[Text]:
    gap = font * 0.5
    for away in (0.0, 4.0, 8.0, 14.0, 22.0, 30.0):
        yield Text("ridge-label", x + gap + away, y + font * 1.25, text, "start")
        yield Text("ridge-label", x + gap, y + font * 1.25 + away, text, "start")
        yield Text("ridge-label", x - gap - away, y - font * 0.5, text, "end")
        yield Text("ridge-label", x - gap, y - font * 0.5 - away, text, "end")
        yield Text("ridge-label", x, y - font * 0.7 - away, text, "middle")
        yield Text("ridge-label", x + gap + away, y - font * 0.5, text, "start")
        yield Text("ridge-label", x, y + font * 1.6 + away, text, "middle")
        yield Text("ridge-label", x - gap - away, y + font * 1.25, text, "end")
