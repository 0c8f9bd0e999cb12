"""The roofs of a roofline on the page: axes from the device alone, lines with their names on them, and ridge points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.units import format_si
from perfmodel.report.charts.format_number import digits
from perfmodel.report.charts.frame import Axis, Plot, Size
from perfmodel.report.charts.labels import Box, Placer, Segment, leader, text_box
from perfmodel.report.charts.scene import Marker, Path, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import COMPUTE, MEMORY, Ceiling, Roofline

LEAST_INTENSITY = 0.1
"""FLOP/B at the left edge of every roofline: an elementwise kernel of fp32 does 1 FLOP per 8 B, a decode step of bf16 about 1."""
STEPS = 24
"""Places tried along a line for its label."""


def limits(ceilings: Sequence[Ceiling]) -> tuple[float, float, float, float]:
    """Least and largest intensity in FLOP/B, least and largest rate in FLOP/s: two pictures of one device compare."""
    slowest = min((c.value for c in ceilings if c.kind == MEMORY), default=1e12)
    highest = max((c.value for c in ceilings if c.kind == COMPUTE), default=1e12)
    most = 10.0 ** math.ceil(math.log10(10 * highest / slowest))
    least_rate, most_rate = slowest * LEAST_INTENSITY / 10, 4 * highest
    below = max(step for step in _round_numbers(least_rate) if step <= least_rate)
    return LEAST_INTENSITY, most, below, min(step for step in _round_numbers(most_rate) if step >= most_rate)


def _round_numbers(value: float) -> list[float]:
    """Round numbers around ``value``: 1, 2, 5 and 10 times a power of ten."""
    return [step * 10.0 ** math.floor(math.log10(value)) for step in (1, 2, 5, 10)]


def plot_of(chart: Roofline, size: Size, top: float, rows: int = 0) -> Plot:
    """The plot of ``chart`` below ``top``, with ``rows`` lines of words below its axis."""
    least, most, slowest, fastest = limits(chart.ceilings)
    left, right = size.font * 4.2, size.width - size.font * 1.8
    return Plot(Axis(least, most, left, right), Axis(slowest, fastest, size.height - size.font * (3.4 + 1.4 * rows), top), size)


@dataclass(frozen=True, slots=True)
class Roof:
    """Compute roofs of one height, unit and evidence, which are one line. ``shown``: before a selector is used."""

    ceiling: Ceiling
    keys: list[str]
    shown: bool


def roofs_of(chart: Roofline) -> list[Roof]:
    """The lines of its compute roofs, those shown first in front."""
    shown = chart.shown_keys()
    lines: dict[tuple[object, ...], list[Ceiling]] = {}
    for c in sorted(chart.compute_roofs(), key=lambda c: (c.key not in shown, c.measured, -c.value)):
        lines.setdefault((c.key in shown, c.value, c.unit, c.measured), []).append(c)
    return [Roof(_together(same), [c.key for c in same], same[0].key in shown) for same in lines.values()]


def _together(same: list[Ceiling]) -> Ceiling:
    names = ", ".join(sorted(c.dtype for c in same))
    return same[0] if len(same) == 1 else replace(same[0], name=f"{same[0].unit} {names}")


@dataclass(slots=True)
class LevelView:
    """A roofline over the bytes of one level, on its plot. ``memory``: the roofs of that level; ``top``: the highest that is shown."""

    chart: Roofline
    level: str
    plot: Plot
    placer: Placer = field(init=False)
    memory: list[Ceiling] = field(init=False)
    roofs: list[Roof] = field(init=False)
    top: float = field(init=False)

    def __post_init__(self) -> None:
        self.placer, self.memory, self.roofs = self.plot.placer(), self.chart.memory_roofs(self.level), roofs_of(self.chart)
        every = [roof.ceiling.value for roof in self.roofs] or [1e12]
        self.top = max([roof.ceiling.value for roof in self.roofs if roof.shown] or every)

    @property
    def font(self) -> float:
        """Pixels of its letters."""
        return self.plot.size.font

    @property
    def own(self) -> Ceiling | None:
        """The roof of the level: its datasheet's where there is one, else what was measured."""
        return min(self.memory, key=lambda c: c.measured, default=None)

    def diagonal(self, ceiling: Ceiling, first: float = 0.0, top: float | None = None) -> Path:
        """The line of a memory roof from the intensity ``first`` up to the rate ``top``."""
        first = max(first, self.plot.y.low / ceiling.value, self.plot.x.low)
        last = min((top or self.top) / ceiling.value, self.plot.x.high)
        return Path(_role(ceiling), [(self.plot.x.at(x), self.plot.y.at(x * ceiling.value)) for x in (first, last)])

    def horizontal(self, ceiling: Ceiling) -> Path:
        """The line of a compute roof, from its ridge with the highest roof of the level."""
        plot, y = self.plot, self.plot.y.at(ceiling.value)
        start = plot.x.at(plot.x.clamped(ceiling.value / self.memory[0].value)) if self.memory else plot.left
        return Path(_role(ceiling), [(start, y), (plot.right, y)])


def _role(ceiling: Ceiling) -> str:
    return "roof-measured" if ceiling.measured else "roof"


def words(ceiling: Ceiling) -> str:
    """Name, value, and whether it was measured."""
    value = format_si(ceiling.value, "FLOP/s" if ceiling.kind == COMPUTE else "B/s", 3)
    return f"{ceiling.name} {value}" + " measured" * ceiling.measured


def roofs(view: LevelView) -> list[Shape]:
    """The roofs of its level and of the compute units; those of units and dtypes that are not shown first get their labels later."""
    memory, placer, markers = view.memory, view.placer, list(view.placer.avoided)
    diagonals, levels = [view.diagonal(c) for c in memory], [view.horizontal(roof.ceiling) for roof in view.roofs]
    for line in [*(line for line, roof in zip(levels, view.roofs, strict=True) if roof.shown), *diagonals]:
        placer.avoid(line)
    labels: list[Shape] = []
    for ceiling in sorted(memory, key=lambda c: c.measured):
        labels += _clear_of(markers, list(_along_diagonal(ceiling, view)), ceiling.measured and len(memory) > 1, placer)
    crossed = markers + [Segment(line.points[0], line.points[-1]) for line in diagonals]
    groups: list[Shape] = []
    for line, roof in zip(levels, view.roofs, strict=True):
        names, ceiling = list[Text](), roof.ceiling
        if roof.shown:
            twin = ceiling.measured and any(other is not roof and roof.keys[0] in other.keys for other in view.roofs)
            names = _clear_of(crossed, list(_along_horizontal(ceiling, view)), twin, placer)
        above = [view.diagonal(c, view.top / c.value, ceiling.value) for c in memory] if ceiling.value > view.top else []
        groups.append(ShapeGroup([line, *names, *above], {"key": ",".join(roof.keys)}, hidden=not roof.shown))
    return [*diagonals, *groups, *labels]


def _clear_of(shapes: list[Box | Segment], every: list[Text], twin: bool, placer: Placer) -> list[Text]:
    """A label that lies on none of ``shapes``; else on as few as can be, unless the line has a ``twin`` beside it with a label."""
    clear = [text for text in every if not any(one.meets(text_box(text, placer.font)) for one in shapes)]
    return placer.place(clear) or ([] if twin else placer.place(every))


def _along_horizontal(ceiling: Ceiling, view: LevelView) -> Iterator[Text]:
    """Places of a label from right to left, above the line, then below it, then further away; what was measured first below."""
    font, ((start, y), (end, _)) = view.font, view.horizontal(ceiling).points
    above, below, right = y - font * 0.42, y + font * 1.12, end - font * 0.5
    sides = (below, above) if ceiling.measured else (above, below)
    for side in (*sides, above - font / 2, below + font / 2):
        for step in range(STEPS):
            yield Text("roof-label", right - step * (right - start) / STEPS, side, words(ceiling), "end")


def _along_diagonal(ceiling: Ceiling, view: LevelView) -> Iterator[Text]:
    """Places of a label from the lower end up, a corner at the line: left above it, or right below, where measured ones begin."""
    plot, gap = view.plot, view.font * 0.3
    low, high = max(plot.x.low, plot.y.low / ceiling.value), plot.x.clamped(view.top / ceiling.value)
    left = (-gap, -gap - 1, "end"), (gap, view.font * 1.05, "start")
    for across, down, anchor in reversed(left) if ceiling.measured else left:
        for step in range(STEPS):
            x = low * (high / low) ** (0.04 + 0.96 * step / STEPS)
            yield Text("roof-label", plot.x.at(x) + across, plot.y.at(x * ceiling.value) + down, words(ceiling), anchor)


def ridges(view: LevelView) -> list[Shape]:
    """The level's own line, stronger, and its ridge point with each compute roof that is shown, with the intensity there."""
    if view.own is None:
        return []
    line = replace(view.diagonal(view.own), role="roof-strong")
    view.placer.avoid(line)
    found = [ShapeGroup(shapes, {"key": ",".join(roof.keys)}) for roof in view.roofs if roof.shown and (shapes := _ridge(roof, view))]
    return [line, *found]


def waiting(view: LevelView) -> list[Shape]:
    """Labels and ridge points of roofs that are not shown first, hidden, where everything else has left room."""
    shapes: list[Shape] = []
    for roof in view.roofs:
        if not roof.shown:
            label = view.placer.place(_along_horizontal(roof.ceiling, view))
            shapes.append(ShapeGroup([*label, *_ridge(roof, view)], {"key": ",".join(roof.keys)}, hidden=True))
    return shapes


def _ridge(roof: Roof, view: LevelView) -> list[Shape]:
    """Where ``roof`` meets the level's own: a dot with its intensity; nothing beyond the axis, and for what was measured."""
    ceiling, own, font = roof.ceiling, view.own, view.font
    if own is None or ceiling.measured or not view.plot.x.holds(ceiling.value / own.value):
        return []
    at = view.plot.x.at(ceiling.value / own.value), view.plot.y.at(ceiling.value)
    value = digits(ceiling.value / own.value, 3)

    def far(label: Text) -> int:
        """A label further away may seem another ridge's, and one without its unit another number."""
        return int(math.dist((label.x, label.y), at) / (1.5 * font)) + (label.text == value)

    found = view.placer.place((place for words in (f"{value} FLOP/B", value) for place in _around_ridge(*at, words, font)), cost=far)
    edges = [text_box(label, font, air=0).nearest(at) for label in found]
    return [*(leader(at, edge, 0) for edge in edges if math.dist(at, edge) > 1.2 * font), Marker("ridge", *at, 2.6), *found]


def _around_ridge(x: float, y: float, text: str, font: float) -> Iterator[Text]:
    gap = font * 0.5
    for away in (0.0, 4.0, 8.0, 14.0, 22.0, 30.0):
        yield Text("ridge-label", x + gap + away, y + font * 1.25, text, "start")
        yield Text("ridge-label", x + gap, y + font * 1.25 + away, text, "start")
        yield Text("ridge-label", x - gap - away, y - font * 0.5, text, "end")
        yield Text("ridge-label", x, y - font * 0.7 - away, text, "middle")
        yield Text("ridge-label", x + gap + away, y - font * 0.5, text, "start")
        yield Text("ridge-label", x, y + font * 1.6 + away, text, "middle")
        yield Text("ridge-label", x - gap - away, y + font * 1.25, text, "end")
