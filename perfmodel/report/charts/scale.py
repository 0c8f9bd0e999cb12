"""Axes: from numbers to pixels, and where ticks stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.core.units import format_binary

LOG, LINEAR = "log", "linear"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``, over the pixels ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    scale: str = LOG

    def at(self, value: float) -> float:
        """The pixel of ``value``."""
        return self.start + self.part(value) * (self.end - self.start)

    def part(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.scale == LOG:
            return math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else -math.inf
        return (value - self.low) / (self.high - self.low)

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
        if decades < 1.2:
            steps: tuple[float, ...] = (1, 1.5, 2, 3, 5, 7) if self.per_decade > 5 * room else (1, 2, 5)
        else:
            steps = (1,) if self.per_decade < 3 * room else (1, 2, 5) if self.per_decade > 5 * room else (1, 3)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, math.ceil(room / self.per_decade))
        values = [step * 10.0**decade for decade in range(first, last + 1) if decade % every == 0 for step in steps]
        return [value for value in values if self.low * 0.999999 <= value <= self.high * 1.000001]

    def minor(self) -> list[float]:
        """Values of the fine grid of a logarithmic axis."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = [step * 10.0**decade for decade in range(first, last + 1) for step in range(2, 10)]
        return [value for value in values if self.low < value < self.high]


def _linear(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def fitted(values: list[float], scale: str, from_zero: bool = False) -> tuple[float, float]:
    """The ends of an axis that holds ``values`` with a little air."""
    known = [value for value in values if value > 0] if scale == LOG else values
    low, high = min(known, default=1.0), max(known, default=10.0)
    if scale == LOG:
        if high / low < 4:
            low, high = low / 2, high * 2
        return low / (high / low) ** 0.04, high * (high / low) ** 0.06
    low = 0.0 if from_zero or 0 <= low < high / 3 else low
    span = (high - low) or abs(high) or 1.0
    return (low if low == 0 else low - 0.05 * span), high + 0.08 * span


def tick_text(value: float, unit: str) -> str:
    """A tick's label, with a prefix and short.

    >>> tick_text(1e12, "FLOP/s"), tick_text(0.1, "FLOP/B"), tick_text(2e-6, "s"), tick_text(0.25, "share")
    ('1 T', '0.1', '2 us', '25 %')
    """
    if value == 0:
        return "0"
    if unit == "s":
        factor, name = next(((f, n) for f, n in _SMALL if abs(value) >= f * 0.9995), _SMALL[-1])
        return f"{value / factor:.3g} {name}"
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "ratio":
        return f"{value:.3g}x"
    factor, prefix = next(((f, p) for f, p in _PREFIXES if abs(value) >= f * 0.9995), (1.0, ""))
    return f"{value / factor:.4g} {prefix}".strip()


def power_of_two_text(value: float) -> str:
    """1024 as 1k, 131072 as 128k: lengths and sizes that are powers of two are known by these names."""
    whole = int(value)
    if value != whole or whole < 1024 or whole % 1024:
        return f"{value:g}"
    return format_binary(whole).replace(" ", "").replace("iB", "").replace("K", "k")
