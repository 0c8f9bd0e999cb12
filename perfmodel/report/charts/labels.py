"""Labels that keep off each other: boxes, turned ones too, and the first free place among candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from perfmodel.report.charts.scene import XY, Text
from perfmodel.report.charts.text_width import HEIGHT, text_width

ASCENT, AIR = 0.8, 1.5
"""Share of a line's height above the baseline; pixels that stay free around a label."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, turned or not: its corners in order, and the upright one around it. ``upright``: it is that one."""

    corners: tuple[XY, ...]
    left: float
    top: float
    right: float
    bottom: float
    upright: bool

    def meets(self, other: Box) -> bool:
        """Whether the two overlap: no side of either separates them."""
        if self.left >= other.right or other.left >= self.right or self.top >= other.bottom or other.top >= self.bottom:
            return False
        turned = [one for one in (self, other) if not one.upright]  # the rectangles around them have told of the others' sides
        return not any(_separates(one.corners, side, self.corners, other.corners) for one in turned for side in (0, 1))

    def inside(self, low: XY, high: XY) -> bool:
        """Whether every corner is in the upright rectangle from ``low`` to ``high``."""
        return low[0] <= self.left and self.right <= high[0] and low[1] <= self.top and self.bottom <= high[1]


def box(corners: Iterable[XY]) -> Box:
    """The box with these corners."""
    found = tuple(corners)
    xs, ys = [x for x, _ in found], [y for _, y in found]
    upright = len(set(xs)) == 2 and len(set(ys)) == 2
    return Box(found, min(xs), min(ys), max(xs), max(ys), upright)


def _separates(corners: tuple[XY, ...], side: int, one: tuple[XY, ...], other: tuple[XY, ...]) -> bool:
    """Whether a line along that side of ``corners``, opposite sides being parallel, lies between ``one`` and ``other``."""
    (ax, ay), (bx, by) = corners[side], corners[side + 1]
    nx, ny = by - ay, ax - bx
    mine, its = [x * nx + y * ny for x, y in one], [x * nx + y * ny for x, y in other]
    return max(mine) <= min(its) or max(its) <= min(mine)


def rectangle(x: float, y: float, width: float, height: float) -> Box:
    """An upright box, its upper left corner at (x, y)."""
    return box(((x, y), (x + width, y), (x + width, y + height), (x, y + height)))


def segment(ends: Sequence[XY], width: float = 1.0) -> Box:
    """The box of a straight line between two ``ends``."""
    a, b = ends[0], ends[-1]
    length = math.dist(a, b) or 1.0
    dx, dy = (b[1] - a[1]) / length * width / 2, (a[0] - b[0]) / length * width / 2
    return box([(a[0] + dx, a[1] + dy), (b[0] + dx, b[1] + dy), (b[0] - dx, b[1] - dy), (a[0] - dx, a[1] - dy)])


def text_box(text: Text, size: float, bold: bool = False, air: float = AIR) -> Box:
    """The box that ``text`` takes."""
    width, height = text_width(text.text, size, bold), size * HEIGHT
    left = text.x - {"start": 0.0, "middle": width / 2, "end": width}[text.anchor]
    top = text.y - height * ASCENT
    corners = [
        (left - air, top - air),
        (left + width + air, top - air),
        (left + width + air, top + height + air),
        (left - air, top + height + air),
    ]
    if not text.angle:
        return box(corners)
    cos, sin = math.cos(math.radians(text.angle)), math.sin(math.radians(text.angle))
    turned = [(text.x + (x - text.x) * cos + (y - text.y) * sin, text.y - (x - text.x) * sin + (y - text.y) * cos) for x, y in corners]
    return box(turned)


@dataclass(slots=True)
class Placer:
    """Places labels in a frame. ``taken``: labels, never to be met; ``avoided``: shapes that a label should not hide."""

    low: XY
    high: XY
    taken: list[Box] = field(default_factory=list)
    avoided: list[Box] = field(default_factory=list)

    def place(
        self, candidates: Iterable[Text], size: float, bold: bool = False, cost: Callable[[Text], int] = lambda text: 0
    ) -> Text | None:
        """The first candidate in the frame that meets nothing; else the one that hides least; None if each meets a label.

        ``cost``: what else speaks against a candidate, in shapes that it would hide.
        """
        best: tuple[int, Text, Box] | None = None
        for text in candidates:
            place = text_box(text, size, bold)
            if not place.inside(self.low, self.high) or any(place.meets(other) for other in self.taken):
                continue
            hidden = cost(text)
            for other in self.avoided:
                if best is not None and hidden >= best[0]:
                    break
                hidden += place.meets(other)
            if best is None or hidden < best[0]:
                best = (hidden, text, place)
            if not hidden:
                break
        if best is None:
            return None
        self.taken.append(best[2])
        return best[1]

    def copy(self) -> Placer:
        """The same frame and labels, for one of several layers of which one is shown at a time."""
        return Placer(self.low, self.high, list(self.taken), list(self.avoided))
