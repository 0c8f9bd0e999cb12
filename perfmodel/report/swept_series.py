"""Series of a workload over one of its sizes, comparisons of two series, and where their order turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import pairwise

from perfmodel.core.arith import Number
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.trace import FormulaStep
from perfmodel.core.units import format_time
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.frame import power_of_two_text
from perfmodel.report.charts.roofline_metrics import RESOURCES, bound
from perfmodel.report.charts.schema import RooflinePoint
from perfmodel.report.device_names import short_names
from perfmodel.report.document import SCREEN_ROWS, Table
from perfmodel.report.saved import Interval
from perfmodel.report.speedup import EITHER, PREDICTED, Side, gain_range_text, gain_text, interval_text, ratio, verdict_sentence

ROOF = "at the roof"
NO_ROOM = "does not fit"


@dataclass(frozen=True, slots=True)
class WorkloadAnswer:
    """An answer to a workload. ``series``: its name in a sweep, such as its algorithm.

    ``accesses``: bytes without any cache; ``memory``: bytes of all tensors at once; ``fits``: whether the device holds them. ``kernels``:
    predicted implementations by operation. ``parts``: points of its kernels. ``missing``: why no time is predicted. ``left_out``: dominant
    causes that its roof leaves out. ``steps``: formulas of every number.
    """

    point: RooflinePoint
    series: str
    accesses: Number | None = None
    memory: Number | None = None
    fits: bool | None = None
    parts: Sequence[RooflinePoint] = ()
    missing: Sequence[str] = ()
    left_out: tuple[str, ...] = ()
    steps: Callable[[], Sequence[FormulaStep]] | None = field(default=None, compare=False)
    kernels: Mapping[str, str] = field(default_factory=dict)

    @property
    def longest(self) -> RooflinePoint | None:
        """The kernel that takes most of the time; None if kernels have no points."""
        return max(self.parts, key=lambda part: part.share or 0, default=None)


def seconds(answer: WorkloadAnswer, basis: str = PREDICTED) -> float:
    """Predicted seconds; those at the roof without a prediction or with ``basis`` ROOF; 0 if unknown."""
    predicted = answer.point.predicted if basis == PREDICTED else None
    return predicted.value if predicted else answer.point.roofline_s or 0.0


@dataclass(slots=True)
class SweptSeries:
    """A series on one device: answers by value. ``called``: its name in sentences, by default ``name``."""

    name: str
    device: Device
    answers: dict[int, WorkloadAnswer]
    notes: list[str]
    called: str = ""

    @property
    def spoken(self) -> str:
        """Name in sentences."""
        return self.called or self.name

    @property
    def runs(self) -> list[int]:
        """Values at which it fits the memory or that is unknown; all values if it never fits."""
        return [value for value, answer in self.answers.items() if answer.fits is not False] or list(self.answers)

    @property
    def predicted(self) -> bool:
        """Whether every value is predicted."""
        return all(answer.point.predicted for answer in self.answers.values())


@dataclass(frozen=True, slots=True)
class SpeedCrossover:
    """A turn of the order. ``at``: first value after it; ``seconds``: of the faster series there. ``rises``: the other series leads."""

    at: int
    seconds: float
    rises: bool


@dataclass(frozen=True)
class Pairwise:
    """Two series over common values. ``again``: function that answers at any value, to find turns of the order."""

    first: SweptSeries
    other: SweptSeries
    over: str
    again: Callable[[int], dict[str, WorkloadAnswer]]

    @property
    def values(self) -> list[int]:
        """Values at which both can run; if there are none, all common values."""
        common = [value for value in self.first.answers if value in self.other.answers]
        return [value for value in common if value in self.first.runs and value in self.other.runs] or common

    @property
    def cut(self) -> bool:
        """Whether one of the two does not fit the memory at a larger value."""
        return max(self.first.answers) > self.values[-1] or max(self.other.answers) > self.values[-1]

    @property
    def basis(self) -> str:
        """PREDICTED if both are predicted at all values, else ROOF."""
        return PREDICTED if self.first.predicted and self.other.predicted else ROOF

    @cached_property
    def turns(self) -> list[SpeedCrossover]:
        """The turns of the order, found by bisection between the values."""
        turns = []
        leads = {value: self._leads({series.name: series.answers[value] for series in (self.first, self.other)}) for value in self.values}
        for low, high in pairwise(self.values):
            if leads[low] != leads[high]:
                at = self._first(low, high, leads[high])
                turns.append(SpeedCrossover(at, min(self._times(self.again(at))), leads[high]))
        return turns

    def _times(self, pair: dict[str, WorkloadAnswer]) -> tuple[float, float]:
        return seconds(pair[self.first.name], self.basis), seconds(pair[self.other.name], self.basis)

    def _leads(self, pair: dict[str, WorkloadAnswer]) -> bool:
        first, other = self._times(pair)
        return other < first

    def _first(self, low: int, high: int, rises: bool) -> int:
        """The first value above ``low`` with the order of ``high``; the search ends at a size without an answer."""
        while high - low > 1:
            middle = (low + high) // 2
            try:
                turned = self._leads(self.again(middle)) == rises
            except PerfmodelError:
                return high
            low, high = (low, middle) if turned else (middle, high)
        return high

    def _against(self, value: int, where: str) -> str:
        sides = ((swept.name, swept.answers[value]) for swept in (self.first, self.other))
        first, other = (Side(name, float(at.point.roofline_s or 0.0), at.point.predicted, left_out=at.left_out) for name, at in sides)
        return verdict_sentence(first, other, f" at {self.over} {where}")

    def sentence(self) -> str:
        """Sentence on which series is faster where, on what basis, and by how much at the ends."""
        first, last = self.values[0], self.values[-1]
        end = self._against(last, f"{last:,}" + ", the largest of them at which both fit the memory" * self.cut)
        if self.turns:
            words = [("faster" if turn.rises else "slower", f"from {self.over} {turn.at:,} on") for turn in self.turns]
            basis = "predicted to be " if self.basis == PREDICTED else ""
            then = "".join(f" and {word} {since}" for word, since in words[1:]) + ("" if basis else ", by the ratio of roofs")
            return f"{self.other.name} is {basis}{words[0][0]} than {self.first.name} {words[0][1]}{then}. {end}."
        return f"{end}." if first == last else f"{end}. {self._against(first, f'{first:,}')}."

    def answer(self) -> str:
        """Short sentence without full stop: which series is faster, by how much from where on, and which stops fitting."""
        basis, name, first, gains = self._based, self.other.spoken, self.first.spoken, self.gains()
        if self.turns:
            word = "faster" if self.turns[0].rises else "slower"
            sides = ", ".join(f"{gain_text(gains[value])} at {size(self.over, value)}" for value in dict.fromkeys((min(gains), max(gains))))
            return f"{name} is {basis}{word} than {first} from {size(self.over, self.turns[0].at)} on: {sides}{self._unfit()}"
        tail = self.settled()
        since = f" from {size(self.over, min(tail))} on" * (len(tail) > 1) or f" at {size(self.over, min(tail))}"
        either = "either may be faster: " * all(map(self._doubtful, tail))
        return f"{either}{name} is {basis}{gain_range_text(min(tail.values()), max(tail.values()), first)}{since}{self._unfit()}"

    @property
    def _based(self) -> str:
        return "predicted " if self.basis == PREDICTED else "by the ratio of roofs "

    def _doubtful(self, value: int) -> bool:
        """Whether the interval of the gain at ``value`` contains 1."""
        gain = self.gain(value)
        return gain is not None and EITHER in interval_text(gain)

    def gains(self) -> dict[int, float]:
        """Gain of the other series by value."""
        gains = {}
        for value in self.values:
            first, other = self._times({series.name: series.answers[value] for series in (self.first, self.other)})
            gains[value] = first / other
        return gains

    def settled(self) -> dict[int, float]:
        """The gains from the value on after which all are within a factor of two of the largest; all gains if that is only the last one."""
        gains = self.gains()
        sizes = {value: max(gain, 1 / gain) for value, gain in gains.items()}
        small = [value for value, gain in sizes.items() if 2 * gain < max(sizes.values())]
        tail = {value: gain for value, gain in gains.items() if value > max(small, default=-1)}
        return tail if len(tail) > 1 else gains

    def sensitivity(self) -> list[str]:
        """Sentences on what would change the answer: other sizes, prediction errors, a missing prediction, more memory."""
        gains, sentences, name = self.gains(), list[str](), self.other.spoken
        small, doubtful = min(gains), list(filter(self._doubtful, gains))
        if small not in self.settled() and not self.turns:
            sentences.append(f"Small sizes: at {size(self.over, small)} {name} is {self._based}{gain_text(gains[small])}.")
        if doubtful:
            sentences.append(f"The error of the prediction: at {size(self.over, doubtful[-1])} either may be faster.")
        sentences += [f"A prediction: {series.spoken} has a roof alone." for series in (self.first, self.other) if not series.predicted]
        if (unfit := self.unfit()) is not None:
            series, value = unfit
            needs = text(float(series.answers[value].memory or 0), "B")
            sentences.append(f"More memory, or a smaller batch: {series.spoken} needs {needs} at {size(self.over, value)}.")
        return sentences

    def unfit(self) -> tuple[SweptSeries, int] | None:
        """The series that stops fitting the memory first, and at which value; None if both fit."""
        unfit = ((value, series) for series in (self.first, self.other) for value, answer in series.answers.items() if answer.fits is False)
        first = min(unfit, key=lambda pair: pair[0], default=None)
        return None if first is None else (first[1], first[0])

    def _unfit(self) -> str:
        unfit = self.unfit()
        return "" if unfit is None else f"; {unfit[0].spoken} stops fitting the memory at {size(self.over, unfit[1])}"

    def gain(self, value: int) -> Interval | None:
        """Gain of the other series at ``value`` with its interval; None if one is not predicted."""
        first, other = (series.answers[value].point.predicted for series in (self.first, self.other))
        return ratio(first, other) if first and other else None


SIZES = {"n": "{} tokens", "kv_len": "{} keys", "batch": "batch {}", "d": "head dim {}", "heads": "{} heads", "kv_heads": "{} KV heads"}
"""Phrases for sizes."""


def size(over: str, value: int) -> str:
    """Phrase for the value of a swept size.

    >>> size("n", 1024), size("n", 32768), size("tile_m", 128)
    ('1,024 tokens', '32k tokens', 'tile_m 128')
    """
    number = power_of_two_text(value) if value >= 10_000 and not value % 1024 else f"{value:,}"
    return SIZES.get(over, f"{over} {{}}").format(number)


def single_sentence(swept: SweptSeries, over: str) -> str:
    """Sentence on a single series from the first value to the last."""
    first, last = min(swept.runs), max(swept.runs)
    a, b = seconds(swept.answers[first]), seconds(swept.answers[last])
    before, after = _limit(swept.answers[first]), _limit(swept.answers[last])
    binds = f"bound by {before}" + (f", at the end by {after}" if after != before else " throughout")
    grown, basis = f"{text(b, 's')} ({text(b / a, 'ratio')})", PREDICTED if swept.predicted else ROOF
    return f"{swept.name} takes {text(a, 's')} at {over} {first:,} and {grown} at {last:,}, {basis}, {binds}."


def _limit(answer: WorkloadAnswer) -> str:
    return RESOURCES.get(bound(answer.point) or "", "nothing known")


def too_large(swept: SweptSeries, over: str) -> str:
    """Sentence on the value from which the series does not fit the memory; empty if it fits."""
    beyond = next((value for value, answer in swept.answers.items() if answer.fits is False), None)
    if beyond is None:
        return ""
    return f"{swept.name} does not fit the memory from {over} {beyond:,} on: it needs {text(swept.answers[beyond].memory, 'B')}."


def table(all_series: Sequence[SweptSeries], over: str) -> Table:
    """Short table of times: a row per value, a column per series, with marks for roofs and for values that do not fit."""
    values = sorted({value for swept in all_series for value in swept.answers})
    names = short_names(swept.device.name for swept in all_series)
    if len(values) > SCREEN_ROWS:
        values = [values[place * (len(values) - 1) // (SCREEN_ROWS - 1)] for place in range(SCREEN_ROWS)]
    heads = [swept.name + f" {names[swept.device.name]}" * (len(names) > 1) + ", roof" * (not swept.predicted) for swept in all_series]
    rows = [[f"{value:,}", *(_time(swept, value) for swept in all_series)] for value in values]
    return Table("predicted time", [over, *heads], rows, "r" * (1 + len(all_series)))


def _time(swept: SweptSeries, value: int) -> str:
    answer = swept.answers.get(value)
    if answer is None:
        return "-"
    return NO_ROOM if answer.fits is False else format_time(seconds(answer), 3)
