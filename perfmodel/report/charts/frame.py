"""Parts of every chart: axes from numbers to pixels, the plot rectangle, grid and ticks, and a legend that wraps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from perfmodel.core.frozen import dataclass
from perfmodel.core.units import format_binary
from perfmodel.report.charts.labels import Placer, shortened, text_width
from perfmodel.report.charts.scene import XY, Grid, Marker, Path, Rect, Shape, Text

LOG, LINEAR = "log", "linear"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from ``low`` to ``high``, over the pixels ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    scale: str = LOG

    def at(self, value: float) -> float:
        """The pixel of ``value``."""
        if self.scale == LINEAR:
            part = (value - self.low) / (self.high - self.low)
        else:
            part = math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else -math.inf
        return self.start + part * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Whether ``value`` lies on the axis."""
        return self.low <= value <= self.high

    def clamped(self, value: float) -> float:
        """``value``, or the nearer end."""
        return min(max(value, self.low), self.high)

    @property
    def per_decade(self) -> float:
        """Pixels of a factor of ten."""
        return abs(self.end - self.start) / math.log10(self.high / self.low)

    def ticks(self, room: float = 44) -> list[float]:
        """Values with a label, at least ``room`` pixels apart: decades where there are some, else round numbers."""
        if self.scale == LINEAR:
            return _linear(self.low, self.high, max(2, int(abs(self.end - self.start) / room)))
        decades = math.log10(self.high / self.low)
        wide = self.per_decade > 5 * room
        steps: tuple[float, ...]
        if decades < 1.2:
            steps = (1, 1.5, 2, 3, 5, 7) if wide else (1, 2, 5)
        elif wide:
            steps = (1, 2, 5)
        else:
            steps = (1,) if self.per_decade < 3 * room else (1, 3)
        values = self._multiples(steps, max(1, math.ceil(room / self.per_decade)))
        return [value for value in values if self.low * 0.999999 <= value <= self.high * 1.000001]

    def _multiples(self, steps: Iterable[float], every: int = 1) -> list[float]:
        """``steps`` times every so many powers of ten, from below the axis to beyond it."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        return [step * 10.0**decade for decade in range(first, last + 1) if decade % every == 0 for step in steps]

    def minor(self) -> list[float]:
        """Values of the fine grid of a logarithmic axis; none where its lines would lie too close."""
        if self.scale == LINEAR or self.per_decade <= 60:
            return []
        return [value for value in self._multiples(range(2, 10)) if self.low < value < self.high]


def _linear(low: float, high: float, most: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most about ``most`` of them."""
    least_step = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(least_step))
    steps = [factor * magnitude for factor in (1, 2, 2.5, 5, 10)]
    step = min(step for step in steps if step >= least_step * 0.999999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def fitted(values: list[float], scale: str, from_zero: bool = False) -> tuple[float, float]:
    """The ends of an axis that holds ``values`` with some margin."""
    positive = [value for value in values if value > 0] if scale == LOG else values
    low, high = min(positive, default=1.0), max(positive, default=10.0)
    if scale == LOG:
        if high / low < 4:
            low, high = low / 2, high * 2
        return low / (high / low) ** 0.04, high * (high / low) ** 0.06
    if from_zero or 0 <= low < high / 3:
        low = 0.0
    span = (high - low) or abs(high) or 1.0
    margin = 0.05 * span if low else 0.0
    return low - margin, high + 0.08 * span


def tick_text(value: float, unit: str) -> str:
    """A short label of a tick, with a unit prefix.

    >>> tick_text(1e12, "FLOP/s"), tick_text(0.1, "FLOP/B"), tick_text(2e-6, "s"), tick_text(0.25, "share")
    ('1 T', '0.1', '2 us', '25 %')
    """
    if value == 0:
        return "0"
    if unit == "s":
        factor, name = _prefix(value, _SMALL)
        return f"{value / factor:.3g} {name}"
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "ratio":
        return f"{value:.3g}x"
    factor, prefix = _prefix(value, _PREFIXES)
    return f"{value / factor:.4g} {prefix}".strip()


def _prefix(value: float, prefixes: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The first of ``prefixes``, by falling factors, that ``value`` reaches but for rounding; else the last one."""
    for factor, name in prefixes:
        if abs(value) >= factor * 0.9995:
            return factor, name
    return prefixes[-1]


def power_of_two_text(value: float) -> str:
    """A power of two as 1k for 1024 or 128k for 131072."""
    rounded = int(value)
    if value != rounded or rounded < 1024 or rounded % 1024:
        return f"{value:g}"
    return format_binary(rounded).replace(" ", "").replace("iB", "").replace("K", "k")


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a chart, and of its font, in pixels."""

    width: float
    height: float
    font: float = 14.0


PICTURE = Size(540, 460)
"""Size on a page, which scales it; letters stay readable in the 368 pixel wide column of a phone."""


@dataclass(frozen=True, slots=True)
class Plot:
    """The rectangle for data, with its two axes, in a chart of ``size``."""

    x: Axis
    y: Axis
    size: Size

    @property
    def left(self) -> float:
        """Left edge."""
        return self.x.start

    @property
    def right(self) -> float:
        """Right edge."""
        return self.x.end

    @property
    def top(self) -> float:
        """Upper edge."""
        return self.y.end

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.y.start

    @property
    def middle(self) -> float:
        """Half way from left to right."""
        return (self.left + self.right) / 2

    def at(self, x: float, y: float) -> XY:
        """The pixel place of a value; at the edge if it lies beyond."""
        return self.x.at(self.x.clamped(x)), self.y.at(self.y.clamped(y))

    def placer(self) -> Placer:
        """A placer of labels inside the plot, two pixels from its edges."""
        return Placer((self.left + 2, self.top + 2), (self.right - 2, self.bottom - 2), self.size.font)


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a sample and its name. ``role``: style of the marker or line; ``shape`` and ``radius``: of a marker."""

    name: str
    role: str
    shape: str = ""
    series: int | None = None
    radius: float = 0.0


def legend(keys: Sequence[Key], size: Size, left: float, right: float, top: float) -> tuple[list[Shape], float]:
    """Shapes of ``keys`` in rows between ``left`` and ``right`` from ``top`` on, and the y below the last row."""
    shapes: list[Shape] = []
    font, x, y = size.font, left, top + size.font
    for key in keys:
        swatch = font * (0.9 if key.shape else 1.8)
        name = shortened(key.name, font, right - left - swatch - 5)
        width = swatch + 5 + text_width(name, font)
        if x > left and x + width > right:
            x, y = left, y + font * 1.5
        shapes += [_sample(key, x, y - font * 0.34, swatch, font * 0.38), Text("legend", x + swatch + 5, y, name)]
        x += width + font * 1.3
    return shapes, y + font * 0.5 if keys else top


def _sample(key: Key, x: float, middle: float, width: float, radius: float) -> Shape:
    if key.shape == "box":
        return Rect(key.role, x, middle - width / 2, width, width, key.series)
    if key.shape:
        return Marker(key.role, x + width / 2, middle, key.radius or radius, key.shape, key.series)
    return Path(key.role, [(x, middle), (x + width, middle)], series=key.series)


def ticks(
    plot: Plot, x_text: Callable[[float], str], y_text: Callable[[float], str], x_values: Sequence[float] | None = None
) -> list[Shape]:
    """Frame, grid and tick labels of both axes; labels that would meet the one before are left out.

    ``x_values``: ticks of the x axis, instead of round numbers.
    """
    font, placer = plot.size.font, Placer((0, 0), (plot.size.width, plot.size.height), plot.size.font)

    def upright(values: Sequence[float]) -> list[tuple[XY, XY]]:
        return [((at, plot.top), (at, plot.bottom)) for at in map(plot.x.at, values)]

    def level(values: Sequence[float]) -> list[tuple[XY, XY]]:
        return [((plot.left, at), (plot.right, at)) for at in map(plot.y.at, values)]

    xs, ys = x_values or plot.x.ticks(font * 4), plot.y.ticks(font * 2.2)
    words = [Text("tick", plot.x.at(value), plot.bottom + font * 1.3, x_text(value), "middle") for value in xs]
    words += [Text("tick", plot.left - 7, plot.y.at(value) + font * 0.35, y_text(value), "end") for value in ys]
    return [
        Rect("plot", plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top),
        Grid("grid-minor", upright([] if x_values else plot.x.minor()) + level(plot.y.minor())),
        Grid("grid", upright(xs) + level(ys)),
        *(label for word in words if word.text for label in placer.place([word])),
    ]
