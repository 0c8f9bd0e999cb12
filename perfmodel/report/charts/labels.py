"""Placement of labels without overlap: text widths, bounding boxes, and the best of candidate positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache

from perfmodel.core.frozen import dataclass
from perfmodel.report.charts.scene import XY, Path, Text

ASCENT, AIR = 0.8, 1.5
"""Share of a line's height above the baseline, and free pixels around a label."""
TURNS = 16
"""Positions tried on each ring around a mark."""
_WIDTHS = {
    280: "\"'ijl",
    300: "I",
    320: " ,.·",
    340: ":;|",
    360: "/\\",
    380: "f",
    400: "()[]t",
    420: "!r²",
    440: "³",
    460: '"-',
    500: "*`",
    540: "s",
    560: "?J_cz–",
    580: "Lk",
    600: "vxy",
    620: "Faeo",
    640: "$012356789bdghnpqu{}µ",
    660: "4Tα",
    680: "EKPSY",
    700: "ABVXZ",
    740: "CR",
    760: "HNU",
    780: "&DG",
    800: "OQ",
    820: "w",
    840: "#+<=>^~±×≤≥",
    900: "M",
    960: "%",
    980: "m",
    1000: "W—…→",
    1020: "@▲▼",
}
"""Advance width of characters in thousandths of the font size, rounded up to a multiple of 20. Each is the largest among Inter, DejaVu
Sans and Liberation Sans (as wide as Arial and Helvetica), so that a label stays in its box whichever font draws it.
"""
_BY_CHARACTER = {character: width for width, characters in _WIDTHS.items() for character in characters}
_OTHER_WIDTH = 760
_FIRST_WIDE, _WIDE_WIDTH = 0x1100, 1040
"""Widths of other characters. From Hangul (``_FIRST_WIDE``) on, they are as wide as Chinese ones."""
_BOLD = 1.12
"""Width of words in bold over regular: semibold Inter, bold DejaVu Sans."""
HEIGHT = 1.18
"""Height of a line, capitals to descenders, in font sizes."""


@lru_cache(maxsize=1 << 16)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Pixels of ``text`` at font size ``size``.

    >>> text_width("12", 10)
    12.8
    """
    total = sum(_BY_CHARACTER.get(character) or _unlisted_width(character) for character in text)
    return round(total * size / 1000 * (_BOLD if bold else 1), 3)


def _unlisted_width(character: str) -> int:
    return _WIDE_WIDTH if ord(character) >= _FIRST_WIDE else _OTHER_WIDTH


def shortened(text: str, size: float, width: float, bold: bool = False) -> str:
    """``text``, cut with an ellipsis if it is wider than ``width`` pixels."""
    if text_width(text, size, bold) <= width:
        return text
    while text and text_width(text + "…", size, bold) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def with_value(label: str, value: str, size: float, width: float) -> str:
    """``label`` and ``value`` as one text, whose label is cut if it is wider than ``width`` pixels."""
    return f"{shortened(label, size, width - text_width(f' {value}', size))} {value}"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with sides along the axes, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the boxes overlap."""
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom

    def inside(self, low: XY, high: XY) -> bool:
        """Whether the box lies within the rectangle from ``low`` to ``high``."""
        return low[0] <= self.left and self.right <= high[0] and low[1] <= self.top and self.bottom <= high[1]

    def nearest(self, at: XY) -> XY:
        """The point of the box that is nearest to ``at``."""
        return min(max(at[0], self.left), self.right), min(max(at[1], self.top), self.bottom)


@dataclass(frozen=True, slots=True)
class Segment:
    """A straight line between two ends."""

    start: XY
    end: XY

    def meets(self, box: Box) -> bool:
        """Whether a part of the segment lies in ``box``."""
        first, last = 0.0, 1.0  # the part of the segment that can lie in the box, as shares of its length
        sides = ((box.left, box.right), (box.top, box.bottom))
        for start, end, (low, high) in zip(self.start, self.end, sides, strict=True):
            if start == end:
                if not low < start < high:
                    return False
                continue
            enter, leave = sorted(((low - start) / (end - start), (high - start) / (end - start)))
            first, last = max(first, enter), min(last, leave)
        return first < last


def square(at: XY, half: float) -> Box:
    """The square with centre ``at`` and side 2 ``half``."""
    return Box(at[0] - half, at[1] - half, at[0] + half, at[1] + half)


def text_box(text: Text, size: float, bold: bool = False, air: float = AIR) -> Box:
    """The bounding box of ``text``, with a margin of ``air`` pixels."""
    width, height = text_width(text.text, size, bold), size * HEIGHT
    left = text.x - {"start": 0.0, "middle": width / 2, "end": width}[text.anchor]
    top = text.y - height * ASCENT
    return Box(left - air, top - air, left + width + air, top + height + air)


def text_boxes(text: Text, size: float, bold: bool = False, air: float = AIR) -> list[Box]:
    """Boxes that ``text`` covers: its bounding box, or squares along it if it is turned."""
    if not text.turn:
        return [text_box(text, size, bold, air)]
    width = text_width(text.text, size, bold)
    count = math.ceil(width / size)
    angle = math.radians(text.turn)
    cos, sin = math.cos(angle), math.sin(angle)
    above = 0.35 * size  # from the baseline to the middle of a line
    boxes = []
    for place in range(count):
        along = size / 2 + (width - size) * place / max(count - 1, 1)
        centre = (text.x + along * cos + above * sin, text.y + along * sin - above * cos)
        boxes.append(square(centre, size / 2))
    return boxes


def rings(at: XY, start: float, distances: Sequence[float], half_width: float, half_height: float) -> Iterator[XY]:
    """Points on widening ellipses around ``at``: for each distance, one whose half axes are that much more than those given.

    On each ellipse the points come by turns from both sides of the angle ``start``, the nearest first.
    """
    turns = [0]
    for turn in range(1, TURNS // 2):
        turns += [turn, -turn]
    turns.append(TURNS // 2)
    for distance in distances:
        for turn in turns:
            angle = start + turn * 2 * math.pi / TURNS
            yield at[0] + math.cos(angle) * (half_width + distance), at[1] - math.sin(angle) * (half_height + distance)


def leader(at: XY, edge: XY, gap: float) -> Path:
    """A thin line from a mark to the ``edge`` of its label, ``gap`` pixels away from the mark."""
    share = gap / max(math.dist(edge, at), gap)
    start = (at[0] + (edge[0] - at[0]) * share, at[1] + (edge[1] - at[1]) * share)
    return Path("leader", [start, edge])


@dataclass(slots=True)
class Placer:
    """Places labels of one font in a frame. ``taken``: placed labels, never overlapped; ``avoided``: shapes to keep visible."""

    low: XY
    high: XY
    font: float
    taken: list[Box] = field(default_factory=list)
    avoided: list[Box | Segment] = field(default_factory=list)

    def avoid(self, line: Path, times: int = 1) -> None:
        """Keep labels off ``line``; covering it costs as much as ``times`` shapes."""
        self.avoided += [Segment(line.points[0], line.points[-1])] * times

    def place(self, candidates: Iterable[Text], bold: bool = False, cost: Callable[[Text], int] = lambda text: 0) -> list[Text]:
        """The first candidate in the frame that covers nothing, else the one with the least cost; empty if all overlap labels.

        ``cost``: additional cost of a candidate, in covered shapes.
        """
        best: Text | None = None
        best_boxes, least_cost = list[Box](), math.inf
        for text in candidates:
            boxes = text_boxes(text, self.font, bold)
            if not all(box.inside(self.low, self.high) for box in boxes):
                continue
            if any(box.meets(label) for box in boxes for label in self.taken):
                continue
            covered = cost(text)
            for shape in self.avoided:
                if covered >= least_cost:
                    break
                covered += any(map(shape.meets, boxes))
            if covered < least_cost:
                best, best_boxes, least_cost = text, boxes, covered
            if covered == 0:
                break
        if best is None:
            return []
        self.taken += best_boxes
        return [best]
