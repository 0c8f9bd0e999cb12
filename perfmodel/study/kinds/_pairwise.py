"""The series of a sweep, each on one device: which of two is faster, and where that turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.report.against import PREDICTED, Side, against
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.roofline_metrics import RESOURCES, bound, soft_bound
from perfmodel.study.points import Found

ROOF = "at the roof"


def seconds(one: Found) -> float | None:
    """Predicted, else at the roof."""
    return one.point.predicted.value if one.point.predicted else one.point.roofline_s


def on_basis(one: Found, basis: str) -> float:
    """Seconds predicted, or at the roof."""
    known = one.point.predicted
    return known.value if basis == PREDICTED and known else float(one.point.roofline_s or 0.0)


@dataclass(slots=True)
class SweptSeries:
    """One series on one device: answers by value."""

    name: str
    device: Device
    found: dict[int, Found]
    notes: list[str]

    @property
    def runs(self) -> list[int]:
        """Values at which it fits the memory, as far as that is known; where it never does, all of them."""
        return [value for value, one in self.found.items() if one.fits is not False] or list(self.found)

    @property
    def predicted(self) -> bool:
        """Whether every value is predicted."""
        return all(one.point.predicted for one in self.found.values())


@dataclass(frozen=True, slots=True)
class SpeedCrossover:
    """``at``: the first value at which the order has turned, ``seconds`` of the faster one there. ``rises``: the other one leads."""

    at: int
    seconds: float
    rises: bool


@dataclass(frozen=True, slots=True)
class Pairwise:
    """Two series over the values that both have. ``again``: both answers at any value, to find where the order turns."""

    first: SweptSeries
    other: SweptSeries
    over: str
    again: Callable[[int], dict[str, Found]]

    @property
    def values(self) -> list[int]:
        """Values at which both can run; where there are none, those that both have."""
        known = [value for value in self.first.found if value in self.other.found]
        return [value for value in known if value in self.first.runs and value in self.other.runs] or known

    @property
    def cut(self) -> bool:
        """Whether a larger value does not fit the memory with one of the two."""
        return max(self.first.found) > self.values[-1] or max(self.other.found) > self.values[-1]

    @property
    def basis(self) -> str:
        """Predictions where both are predicted throughout, else roofs."""
        return PREDICTED if self.first.predicted and self.other.predicted else ROOF

    def gain(self, value: int) -> float:
        """How many times faster the other one is."""
        return on_basis(self.first.found[value], self.basis) / on_basis(self.other.found[value], self.basis)

    def side(self, swept: SweptSeries, value: int) -> Side:
        """``swept`` at ``value``, as a verdict takes it."""
        one = swept.found[value]
        return Side(swept.name, float(one.point.roofline_s or 0.0), one.point.predicted, left_out=one.left_out)

    def turns(self) -> list[SpeedCrossover]:
        """Where the order turns, by bisection between the values."""
        values, found = self.values, []
        leads = [self.gain(value) > 1 for value in values]
        for place in range(1, len(values)):
            if leads[place] != leads[place - 1]:
                at = self._first(values[place - 1], values[place], leads[place])
                both = self.again(at)
                times = [on_basis(both[swept.name], self.basis) for swept in (self.first, self.other)]
                found.append(SpeedCrossover(at, min(times), leads[place]))
        return found

    def _first(self, low: int, high: int, rises: bool) -> int:
        """The first value above ``low`` at which the order is that of ``high``; sizes that mean nothing end the search."""
        while high - low > 1:
            middle = (low + high) // 2
            try:
                both = self.again(middle)
            except PerfmodelError:
                return high
            leads = on_basis(both[self.other.name], self.basis) < on_basis(both[self.first.name], self.basis)
            low, high = (low, middle) if leads == rises else (middle, high)
        return high

    def sentence(self, turns: Sequence[SpeedCrossover]) -> str:
        """Who is faster where, on which basis, and by how much at the ends."""
        first, last = self.values[0], self.values[-1]
        where = f"{last:,}, the largest of them at which both fit the memory" if self.cut else f"{last:,}"
        end = against(self.side(self.first, last), self.side(self.other, last), f" at {self.over} {where}")
        if turns:
            words = [("faster" if turn.rises else "slower", f"from {self.over} {turn.at:,} on") for turn in turns]
            basis = "predicted to be " if self.basis == PREDICTED else ""
            then = "".join(f" and {word} {since}" for word, since in words[1:]) + ("" if basis else ", by the ratio of roofs")
            return f"{self.other.name} is {basis}{words[0][0]} than {self.first.name} {words[0][1]}{then}. {end}."
        start = against(self.side(self.first, first), self.side(self.other, first), f" at {self.over} {first:,}")
        return f"{end}." if first == last else f"{end}. {start}."


def alone(swept: SweptSeries, over: str) -> str:
    """A series without another: from the first value to the last."""
    ends = min(swept.runs), max(swept.runs)
    a, b = (seconds(swept.found[value]) or 0.0 for value in ends)
    limits = [_limit(swept.found[value]) for value in ends]
    basis = PREDICTED if swept.predicted else ROOF
    binds = f"bound by {limits[0]}" + (f", at the end by {limits[1]}" if limits[1] != limits[0] else " throughout")
    grown = f"{text(b, 's')} ({text(b / a, 'ratio')})"
    return f"{swept.name} takes {text(a, 's')} at {over} {ends[0]:,} and {grown} at {ends[1]:,}, {basis}, {binds}."


def _limit(one: Found) -> str:
    return RESOURCES.get(bound(one.point) or "", "nothing known") + " (a soft roof: products with clusters pass it)" * soft_bound(one.point)


def too_large(swept: SweptSeries, over: str) -> str:
    """From where on it does not fit the memory; empty if it does."""
    beyond = next((value for value, one in swept.found.items() if one.fits is False), None)
    if beyond is None:
        return ""
    return f"{swept.name} does not fit the memory from {over} {beyond:,} on: it needs {text(plain(swept.found[beyond].memory), 'B')}."


def alike(series: Sequence[SweptSeries], value: Callable[[Found], float | None]) -> bool:
    """Whether every device has the same values, such as bytes that do not depend on it."""
    known: dict[str, list[float | None]] = {}
    rows = [(swept.name, [value(one) for one in swept.found.values()]) for swept in series]
    return all(known.setdefault(name, values) == values for name, values in rows)


def plain(value: object) -> int | float | None:
    """A number of a single answer as such."""
    return value if isinstance(value, (int, float)) else None
