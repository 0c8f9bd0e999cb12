"""What every picture has: its size, the room around the plot, grid and ticks, and a legend that wraps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfmodel.report.charts.labels import Placer, text_box
from perfmodel.report.charts.scale import LOG, Axis
from perfmodel.report.charts.scene import XY, Grid, Marker, Path, Rect, Shape, Text
from perfmodel.report.charts.text_width import shortened, text_width


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels of a picture, and of its letters. ``narrow``: as on a phone, where names are shortened."""

    width: float
    height: float
    font: float = 12.0

    @property
    def narrow(self) -> bool:
        """Whether long names have no room."""
        return self.width < 500


WIDE, NARROW = Size(760, 500), Size(368, 400, 11.0)
WIDE_LINE, NARROW_LINE = Size(760, 360), Size(368, 300, 11.0)


@dataclass(frozen=True, slots=True)
class Plot:
    """The rectangle that data is drawn in, with its two axes."""

    x: Axis
    y: Axis

    @property
    def left(self) -> float:
        """Its left edge."""
        return self.x.start

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x.end

    @property
    def top(self) -> float:
        """Its upper edge."""
        return self.y.end

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y.start

    def placer(self, inset: float = 2) -> Placer:
        """For labels inside the plot."""
        return Placer((self.left + inset, self.top + inset), (self.right - inset, self.bottom - inset))


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a sample and its name. ``sample``: a marker or a line's role; ``shape`` of a marker."""

    name: str
    role: str
    shape: str = ""
    series: int | None = None


def legend(keys: Sequence[Key], size: Size, left: float, right: float, top: float) -> tuple[list[Shape], float]:
    """``keys`` in rows between ``left`` and ``right`` from ``top`` on, and the y below the last row."""
    shapes: list[Shape] = []
    x, line = left, size.font * 1.5
    y = top + size.font
    for key in keys:
        swatch = size.font * (0.9 if key.shape else 1.8)
        name = shortened(key.name, size.font, right - left - swatch - 5)
        width = swatch + 5 + text_width(name, size.font)
        if x > left and x + width > right:
            x, y = left, y + line
        middle = y - size.font * 0.34
        shapes.append(_sample(key, x, middle, swatch, size))
        shapes.append(Text("legend", x + swatch + 5, y, name))
        x += width + size.font * 1.3
    return shapes, y + size.font * 0.5 if keys else top


def _sample(key: Key, x: float, middle: float, width: float, size: Size) -> Shape:
    if key.shape == "box":
        return Rect(key.role, x, middle - width / 2, width, width, key.series)
    if key.shape:
        return Marker(key.role, x + width / 2, middle, size.font * 0.38, key.shape, key.series)
    return Path(key.role, [(x, middle), (x + width, middle)], series=key.series)


def ticks(
    plot: Plot, size: Size, x_text: Callable[[float], str], y_text: Callable[[float], str], x_values: Sequence[float] | None = None
) -> list[Shape]:
    """Frame, grid and tick labels of both axes; labels that would meet the one before are left out.

    ``x_values``: ticks of the x axis, instead of round numbers.
    """
    frame = Rect("plot", plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top)
    fine = [_across(plot, plot.x.at(value), True) for value in ([] if x_values or size.narrow else _fine(plot.x))]
    fine += [_across(plot, plot.y.at(value), False) for value in ([] if size.narrow else _fine(plot.y))]
    labels: list[Shape] = []
    lines: list[tuple[XY, XY]] = []
    taken = Placer((0, 0), (size.width, size.height))
    for value in x_values or plot.x.ticks(size.font * 4):
        at = plot.x.at(value)
        lines.append(_across(plot, at, True))
        words = Text("tick", at, plot.bottom + size.font * 1.3, x_text(value), "middle")
        labels += [placed] if words.text and (placed := taken.place([words], size.font)) else []
    for value in plot.y.ticks(size.font * 2.2):
        at = plot.y.at(value)
        lines.append(_across(plot, at, False))
        words = Text("tick", plot.left - 7, at + size.font * 0.35, y_text(value), "end")
        labels += [placed] if (placed := taken.place([words], size.font)) else []
    return [frame, Grid("grid-minor", fine), Grid("grid", lines), *labels]


def _fine(axis: Axis) -> list[float]:
    return axis.minor() if axis.scale == LOG and axis.per_decade > 60 else []


def _across(plot: Plot, at: float, vertical: bool) -> tuple[XY, XY]:
    return ((at, plot.top), (at, plot.bottom)) if vertical else ((plot.left, at), (plot.right, at))


def tick_width(axis_ticks: Sequence[float], text: Callable[[float], str], size: Size) -> float:
    """Pixels of the widest tick label."""
    return max((text_width(text(value), size.font) for value in axis_ticks), default=0.0)


def reserve(placer: Placer, text: Text, size: float, bold: bool = False) -> Text:
    """``text`` where it stands, and kept free from now on."""
    placer.taken.append(text_box(text, size, bold))
    return text
