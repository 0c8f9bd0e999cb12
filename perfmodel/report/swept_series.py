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

    @property
    def unfit_from(self) -> int | None:
        """The first value at which it does not fit the memory; None if it fits at all."""
        unfit = [value for value, answer in self.answers.items() if answer.fits is False]
        return min(unfit, default=None)


@dataclass(frozen=True, slots=True)
class SpeedCrossover:
    """A turn of the order of two series: from the value ``at`` on the other series leads (``rises``) or the first one.

    ``seconds``: time of the faster series at that value.
    """

    at: int
    seconds: float
    rises: bool

    @property
    def word(self) -> str:
        """What the other series is from the turn on."""
        return "faster" if self.rises else "slower"


@dataclass(frozen=True)
class Pairwise:
    """Two series over common values. ``answers_at``: function that answers at any value, to find turns of the order."""

    first: SweptSeries
    other: SweptSeries
    over: str
    answers_at: Callable[[int], dict[str, WorkloadAnswer]]

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
        for low, high in pairwise(self.values):
            rises = self._other_leads(self._answers(high))
            if self._other_leads(self._answers(low)) != rises:
                at = self._turning_value(low, high, rises)
                turns.append(SpeedCrossover(at, min(self._times(self.answers_at(at))), rises))
        return turns

    def _answers(self, value: int) -> dict[str, WorkloadAnswer]:
        """The answers of both series at one of ``values``, by name of the series."""
        return {series.name: series.answers[value] for series in (self.first, self.other)}

    def _times(self, answers: Mapping[str, WorkloadAnswer]) -> tuple[float, float]:
        """Seconds of the first series and of the other."""
        return seconds(answers[self.first.name], self.basis), seconds(answers[self.other.name], self.basis)

    def _other_leads(self, answers: Mapping[str, WorkloadAnswer]) -> bool:
        first_s, other_s = self._times(answers)
        return other_s < first_s

    def _turning_value(self, low: int, high: int, rises: bool) -> int:
        """The first value above ``low`` with the order of ``high``; the search ends at a size without an answer."""
        while high - low > 1:
            middle = (low + high) // 2
            try:
                turned = self._other_leads(self.answers_at(middle)) == rises
            except PerfmodelError:
                return high
            if turned:
                high = middle
            else:
                low = middle
        return high

    def _verdict_at(self, value: int, where: str) -> str:
        """Sentence without full stop on which series is faster at ``value``. ``where``: the value in words."""

        def side(swept: SweptSeries) -> Side:
            answer = swept.answers[value]
            return Side(swept.name, float(answer.point.roofline_s or 0.0), answer.point.predicted, left_out=answer.left_out)

        return verdict_sentence(side(self.first), side(self.other), f" at {self.over} {where}")

    def sentence(self) -> str:
        """Sentence on which series is faster where, on what basis, and by how much at the ends."""
        first, last = self.values[0], self.values[-1]
        where = f"{last:,}, the largest of them at which both fit the memory" if self.cut else f"{last:,}"
        at_last = self._verdict_at(last, where)
        if self.turns:
            basis = "predicted to be " if self.basis == PREDICTED else ""
            first_turn, *later_turns = self.turns
            words = f"{first_turn.word} than {self.first.name} from {self.over} {first_turn.at:,} on"
            words += "".join(f" and {turn.word} from {self.over} {turn.at:,} on" for turn in later_turns)
            words += "" if basis else ", by the ratio of roofs"
            return f"{self.other.name} is {basis}{words}. {at_last}."
        if first == last:
            return f"{at_last}."
        return f"{at_last}. {self._verdict_at(first, f'{first:,}')}."

    def answer(self) -> str:
        """Short sentence without full stop: which series is faster, by how much from where on, and which stops fitting."""
        gains = self.gains()
        if self.turns:
            turn = self.turns[0]
            ends = dict.fromkeys((min(gains), max(gains)))
            at_ends = ", ".join(f"{gain_text(gains[value])} at {size(self.over, value)}" for value in ends)
            words = f"{turn.word} than {self.first.spoken} from {size(self.over, turn.at)} on: {at_ends}"
            return f"{self.other.spoken} is {self._basis_words}{words}{self._unfit_clause()}"
        settled = self.settled()
        since = size(self.over, min(settled))
        where = f"from {since} on" if len(settled) > 1 else f"at {since}"
        either = "either may be faster: " if all(map(self._doubtful, settled)) else ""
        gain = gain_range_text(min(settled.values()), max(settled.values()), self.first.spoken)
        return f"{either}{self.other.spoken} is {self._basis_words}{gain} {where}{self._unfit_clause()}"

    @property
    def _basis_words(self) -> str:
        return "predicted " if self.basis == PREDICTED else "by the ratio of roofs "

    def _doubtful(self, value: int) -> bool:
        """Whether the interval of the gain at ``value`` contains 1."""
        gain = self.gain(value)
        return gain is not None and EITHER in interval_text(gain)

    def gains(self) -> dict[int, float]:
        """Gain of the other series by value."""
        gains = {}
        for value in self.values:
            first_s, other_s = self._times(self._answers(value))
            gains[value] = first_s / other_s
        return gains

    def settled(self) -> dict[int, float]:
        """The gains from the value on after which all are within a factor of two of the largest; all gains if that is only the last one."""
        gains = self.gains()
        factors = {value: max(gain, 1 / gain) for value, gain in gains.items()}
        small = [value for value, factor in factors.items() if 2 * factor < max(factors.values())]
        settled = {value: gain for value, gain in gains.items() if value > max(small, default=-1)}
        return settled if len(settled) > 1 else gains

    def sensitivity(self) -> list[str]:
        """Sentences on what would change the answer: other sizes, prediction errors, a missing prediction, more memory."""
        gains = self.gains()
        sentences = []
        smallest = min(gains)
        if smallest not in self.settled() and not self.turns:
            gain = gain_text(gains[smallest])
            sentences.append(f"Small sizes: at {size(self.over, smallest)} {self.other.spoken} is {self._basis_words}{gain}.")
        doubtful = list(filter(self._doubtful, gains))
        if doubtful:
            sentences.append(f"The error of the prediction: at {size(self.over, doubtful[-1])} either may be faster.")
        sentences += [f"A prediction: {series.spoken} has a roof alone." for series in (self.first, self.other) if not series.predicted]
        unfit = self.unfit()
        if unfit is not None:
            series, value = unfit
            needs = text(float(series.answers[value].memory or 0), "B")
            sentences.append(f"More memory, or a smaller batch: {series.spoken} needs {needs} at {size(self.over, value)}.")
        return sentences

    def unfit(self) -> tuple[SweptSeries, int] | None:
        """The series that stops fitting the memory first, and at which value; None if both fit."""
        starts = [(series, start) for series in (self.first, self.other) if (start := series.unfit_from) is not None]
        return min(starts, key=lambda pair: pair[1], default=None)

    def _unfit_clause(self) -> str:
        unfit = self.unfit()
        if unfit is None:
            return ""
        series, value = unfit
        return f"; {series.spoken} stops fitting the memory at {size(self.over, value)}"

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
    first_s, last_s = seconds(swept.answers[first]), seconds(swept.answers[last])
    first_limit, last_limit = _limit(swept.answers[first]), _limit(swept.answers[last])
    limits = f"{first_limit} throughout" if first_limit == last_limit else f"{first_limit}, at the end by {last_limit}"
    times = f"{text(first_s, 's')} at {over} {first:,} and {text(last_s, 's')} ({text(last_s / first_s, 'ratio')}) at {last:,}"
    return f"{swept.name} takes {times}, {PREDICTED if swept.predicted else ROOF}, bound by {limits}."


def _limit(answer: WorkloadAnswer) -> str:
    return RESOURCES.get(bound(answer.point) or "", "nothing known")


def too_large(swept: SweptSeries, over: str) -> str:
    """Sentence on the value from which the series does not fit the memory; empty if it fits."""
    start = swept.unfit_from
    if start is None:
        return ""
    return f"{swept.name} does not fit the memory from {over} {start:,} on: it needs {text(swept.answers[start].memory, 'B')}."


def table(all_series: Sequence[SweptSeries], over: str) -> Table:
    """Short table of times: a row per value, a column per series, with marks for roofs and for values that do not fit."""
    values = sorted({value for swept in all_series for value in swept.answers})
    names = short_names(swept.device.name for swept in all_series)
    if len(values) > SCREEN_ROWS:
        values = [values[place * (len(values) - 1) // (SCREEN_ROWS - 1)] for place in range(SCREEN_ROWS)]
    heads = [over]
    for swept in all_series:
        name = f"{swept.name} {names[swept.device.name]}" if len(names) > 1 else swept.name
        heads.append(name if swept.predicted else f"{name}, roof")
    rows = [[f"{value:,}", *(_time(swept, value) for swept in all_series)] for value in values]
    return Table("predicted time", heads, rows, "r" * len(heads))


def _time(swept: SweptSeries, value: int) -> str:
    answer = swept.answers.get(value)
    if answer is None:
        return "-"
    return NO_ROOM if answer.fits is False else format_time(seconds(answer), 3)
