"""Comparison of two reports: the ratio of every number that both have, and whether it changed by more than a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from perfmodel.core.arith import quantile
from perfmodel.core.frozen import dataclass
from perfmodel.core.units import format_time
from perfmodel.report.answer import upper_first
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart
from perfmodel.report.document import Column, DataTable, Figure, Report, Table, Value
from perfmodel.report.metrics import BOUND_WORDS, Metric, Metrics, better
from perfmodel.report.saved import Interval
from perfmodel.report.speedup import MEASURED, PREDICTED, Side, gain_text, interval_text, ratio, ratio_notes, ratio_text, verdict_sentence

SAME, FASTER, SLOWER, LESS, MORE, BETTER, WORSE = "SAME", "FASTER", "SLOWER", "LESS", "MORE", "BETTER", "WORSE"
ORDER = {SLOWER: 0, FASTER: 1, WORSE: 2, BETTER: 2, MORE: 3, LESS: 3, SAME: 4}
"""Order of changes in the short table."""
DEFAULT_THRESHOLD = 0.05
MOST_ROWS = 60
"""Most rows of the table with changes that are SAME."""
ROWS_ON_SCREEN = 12
UNIT_TITLES = {
    "s": "times",
    "B": "bytes",
    "FLOP": "FLOP",
    "B/s": "bandwidths",
    "FLOP/s": "rates",
    "tokens/s": "tokens per second",
    "requests/s": "requests per second",
    "FLOP/B": "intensities",
    "J": "energies",
    "W": "power",
    "Hz": "clocks",
    "share": "shares",
    "count": "counts",
    "price": "prices",
}
PEAKS = ("peak", "bandwidth")
"""Beginnings of the labels of a device's roofs."""
COMPARABLE = ("s", "tokens/s", "requests/s")
"""Units in which a median of ratios is meaningful, unlike over the peaks and bandwidths of a device."""
MOST_NAMES, MOST_LETTERS = 3, 60
"""Most things, and most letters of their names, for a headline that names all."""
ALL = "all"
"""Key of metrics of the whole answer."""
NAMED = 3
"""Most changes that the summary names."""


class KindOfMetric(NamedTuple):
    """A kind of metric, by its ``labels``: the name of several, the basis of a gain, and the name of a ratio."""

    words: str
    labels: tuple[str, ...]
    basis: str = ""
    ratio: str = ""


OF_MEASUREMENT = KindOfMetric("measured times", ("time, measured", "measured"), "measured ")
OF_PREDICTION = KindOfMetric("predicted times", ("time, predicted", "predicted", "step, predicted"), "predicted ")
OTHER = KindOfMetric("", ())
OF_ROOF = KindOfMetric("times at the roof", ("time at the roof", "roofline", "roofline_s"), "by the ratio of roofs ", ", ratio of roofs")
OF_BOUND = KindOfMetric(
    "lower bounds",
    ("lower bound", "lower", "lower warm", "step, bound", "no overlap", *(f"terms {name}" for name in BOUND_WORDS)),
    "by the ratio of bounds ",
    ", ratio of bounds",
)
KINDS = (OF_MEASUREMENT, OF_PREDICTION, OTHER, OF_ROOF, OF_BOUND)
"""Kinds of metrics, the most telling first. In a summary only the first kind of time counts that both sides have of a thing."""


@dataclass(frozen=True, slots=True)
class Change:
    """A quantity before and after. ``ratio``: after / before, None if only one of them is zero. ``word``: SAME, FASTER and so on.

    The ``key`` of a metric names the thing, its ``label`` the quantity: "flash2, forward" and "DRAM traffic".
    """

    before: Metric
    after: Metric
    ratio: float | None
    word: str

    @property
    def speed(self) -> bool:
        """Whether the quantity is a time or a rate."""
        return is_speed(self.before.unit)

    @property
    def gain(self) -> float:
        """Factor of improvement; 1 if the ratio is unknown, or if neither direction is better."""
        return self.ratio ** better(self.before.unit) if self.ratio else 1.0

    @property
    def gain_with_ends(self) -> Interval:
        """The gain; for a time with the interval that follows from both sides."""
        if self.before.unit == "s" and self.before.value:
            return ratio(_interval(self.before), _interval(self.after))
        return Interval(self.gain)

    @property
    def kind(self) -> KindOfMetric:
        """The kind of metric by its label, or ``OTHER``."""
        for kind in KINDS:
            if self.before.label in kind.labels:
                return kind
        return OTHER

    @property
    def rank(self) -> int:
        """Rank of its kind, the most telling first: other times and rates come after predictions and before roofs and bounds."""
        return KINDS.index(self.kind)

    @property
    def name(self) -> str:
        """Name of the change: the thing, then the quantity."""
        return self.before.label if self.before.key == ALL else f"{self.before.key}, {self.before.label}"

    @property
    def multiple(self) -> str:
        """The ratio or its inverse, never below 1, as in ``2.24x``; ``1x`` if it is unknown."""
        ratio = self.ratio or 1
        return text(max(ratio, 1 / ratio), "ratio")


def is_speed(unit: str) -> bool:
    """Whether ``unit`` is one of times or rates, which get faster or slower."""
    return unit == "s" or unit.endswith("/s")


def changes(before: Metrics, after: Metrics, threshold: float = DEFAULT_THRESHOLD) -> list[Change]:
    """Changes of the metrics that both have, in the order of ``before``. ``threshold``: largest relative change that is SAME."""
    after_by_name = {_identity(metric): metric for metric in after}
    return [_change(old, after_by_name[_identity(old)], threshold) for old in before if _identity(old) in after_by_name]


def _identity(metric: Metric) -> tuple[str, str, str]:
    """What the metrics of both sides have in common: thing, quantity and unit."""
    return metric.key, metric.label, metric.unit


def _change(old: Metric, new: Metric, threshold: float) -> Change:
    if old.value == new.value:
        return Change(old, new, 1.0, SAME)
    word = _word(old.unit, grown=new.value > old.value)
    if old.value * new.value <= 0:
        return Change(old, new, None, word)
    ratio = new.value / old.value
    allowed = 1 + max(threshold, _noise(old), _noise(new))
    return Change(old, new, ratio, SAME if 1 / allowed <= ratio <= allowed else word)


def _word(unit: str, grown: bool) -> str:
    """The word for a number in ``unit`` that has ``grown`` or, if not, fallen."""
    direction = better(unit)
    if direction == 0:
        return MORE if grown else LESS
    is_good = grown == (direction > 0)
    if is_speed(unit):
        return FASTER if is_good else SLOWER
    return BETTER if is_good else WORSE


def _noise(metric: Metric) -> float:
    """(p90 - p10) / median of a measurement; 0 for other metrics."""
    if metric.label != "time, measured" or metric.low is None or metric.high is None:
        return 0.0
    return float(metric.high - metric.low) / float(metric.value)


def _interval(metric: Metric) -> Interval:
    return Interval(metric.value, metric.low, metric.high)


@dataclass(frozen=True, slots=True)
class Compared:
    """One side of a comparison: its name, its metrics, and its name in sentences, such as ``the H200``."""

    name: str
    metrics: Metrics
    called: str = ""

    @property
    def spoken(self) -> str:
        """Name within a sentence."""
        return self.called or self.name

    @property
    def leading(self) -> str:
        """Name at the start of a sentence; names of algorithms and files keep their letters."""
        return upper_first(self.spoken) if self.spoken.startswith("the ") else self.spoken

    def of(self, thing: str) -> Side:
        """The best time and the roof of ``thing`` on this side."""
        by_label = {metric.label: metric for metric in self.metrics if metric.key == thing}

        def first_of(kind: KindOfMetric) -> Metric | None:
            present = [by_label[label] for label in kind.labels if label in by_label]
            return present[0] if present else None

        measured, predicted, roof = first_of(OF_MEASUREMENT), first_of(OF_PREDICTION), first_of(OF_ROOF)
        best = measured or predicted
        time = _interval(best) if best else None
        return Side(self.name, roof.value if roof else 0.0, time, MEASURED if measured else PREDICTED)


class NamedChange(NamedTuple):
    """A change and the short name of what changed."""

    name: str
    change: Change


@dataclass(frozen=True)
class MetricComparison:
    """A comparison of two sides by common metrics. ``threshold``: largest relative change that is SAME."""

    before: Compared
    after: Compared
    threshold: float = DEFAULT_THRESHOLD

    @cached_property
    def changes(self) -> list[Change]:
        """Changes of all common metrics."""
        return changes(self.before.metrics, self.after.metrics, self.threshold)

    @cached_property
    def timed(self) -> list[Change]:
        """Changes of times and rates. Of each thing only the most telling kind of time counts: a roof shows no change of kernel."""
        speeds = [change for change in self.changes if change.speed]
        best_rank: dict[str, int] = {}
        for change in speeds:
            if change.kind is not OTHER:
                best_rank[change.before.key] = min(change.rank, best_rank.get(change.before.key, len(KINDS)))
        return [change for change in speeds if change.kind is OTHER or change.rank == best_rank[change.before.key]]

    @cached_property
    def telling(self) -> list[NamedChange]:
        """The changes of the most telling kind with known ratios, the largest gain first."""
        best_rank = min((change.rank for change in self.timed), default=0)
        chosen = [change for change in self.timed if change.rank == best_rank and change.ratio]
        by_gain = sorted(chosen, key=lambda change: -change.gain)
        return [NamedChange(name, change) for name, change in zip(_things(by_gain), by_gain, strict=True)]

    def report(self, title: str = "") -> Report:
        """The comparison as a report; ``title`` begins those of tables. A note counts numbers that only one side has."""
        sentences = self.summary()
        chart = self._chart()
        return Report(
            f"{self.before.name} against {self.after.name}",
            self.answers(),
            [],
            [*self._notes(), *ratio_notes(sentences)],
            data_tables=self._tables(title or "changes"),
            brief=self._brief(),
            figures=self._figures(),
            charts=[chart] if chart else [],
            reasons=sentences,
            sensitivity=self._sensitivity(),
        )

    def summary(self) -> list[str]:
        """Sentences on how many are faster and slower, by how much, and on the worst by name."""
        if not self.changes:
            return [f"{self.before.name} and {self.after.name} have nothing in common to compare."]
        sentences = [f"{self.after.name} against {self.before.name}: {self._counted()}."] if self.timed else []
        slower = [change for change in self.timed if change.word == SLOWER]
        faster = [change for change in self.timed if change.word == FASTER]
        named = sorted(slower, key=lambda change: change.gain)[:NAMED]
        if not named:
            named = sorted(faster, key=lambda change: (change.rank, -change.gain))[:1]
        return [*sentences, *(f"{change.word}: {self._sentence(change)}." for change in named), *self._others()]

    def _others(self) -> list[str]:
        """Sentence on numbers that are neither times nor rates; empty without any."""
        words = [change.word for change in self.changes if not change.speed]
        if not words:
            return []
        changed = Counter(word for word in words if word != SAME)
        if not changed:
            return [f"All {len(words)} other numbers are the same."]
        parts = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for word, count in changed.items())
        return [f"Of the other numbers {parts}."]

    def answers(self) -> list[str]:
        """At most three short sentences: which side is faster and by how much; how many things are faster and slower; others."""
        if not self.timed:
            return self.summary()[:3]
        [first, *others] = self.timed
        if not others and first.kind is not OTHER:
            return [f"{self._of_one(first)}.", *self._others()]
        return [self.headline(), f"{self._counted(gains=False)}.", *self._others()]

    def headline(self) -> str:
        """Sentence on the median gain with its interval and on single gains, over times of the most telling kind or else rates."""
        before = self.before.spoken
        changes = [entry.change for entry in self.telling]
        if not changes:
            return f"{self.after.leading} against {before}: no ratio is known."
        named = _named(self.telling)
        if not _alike(changes):
            least_and_most = dict.fromkeys(ratio_text(change.gain) for change in (changes[-1], changes[0]))
            rates = f"{' to '.join(least_and_most)} the rates of"
            if list(least_and_most) == [ratio_text(1.0)]:
                rates = "the same rates as"
            basis = "roofs" if _of_profiles(changes) else "rates"
            return f"By the ratio of {basis} {self.after.spoken} has {rates} {before}{named}."
        gain = gain_text(_median(changes), before)
        if any(change.gain != 1 for change in changes):
            gain += _median_ends(changes)
        slower = sum(change.word == SLOWER for change in changes)
        exceptions = f"; SLOWER: {slower} of {len(changes)}" if 0 < slower < len(changes) else ""
        return f"{self.after.leading} is {changes[0].kind.basis}{gain}{named}{exceptions}."

    def _of_one(self, change: Change) -> str:
        """Sentence on a single change, such as ``new is predicted 1.3x slower than old (1.2x to 1.4x): 13 ms against 10 ms``."""
        gain, old, new = change.gain_with_ends, change.before, change.after
        faster = f"{gain_text(gain.value, self.before.spoken)}{interval_text(gain)}"
        times = f"{format_time(new.value, 3)} against {format_time(old.value, 3)}"
        return f"{self.after.leading} is {change.kind.basis}{faster}: {times}, {old.key}"

    def _sentence(self, change: Change) -> str:
        """Sentence without full stop on a single change, among others."""
        old, new = change.before, change.after
        if change.kind in (OF_MEASUREMENT, OF_PREDICTION, OF_ROOF):
            return f"{old.key}: {verdict_sentence(self.before.of(old.key), self.after.of(old.key))}"
        kind = OF_ROOF if old.label.startswith(PEAKS) else change.kind
        return f"{change.name}, {change.multiple}{kind.ratio} ({text(old.value, old.unit)} before, {text(new.value, new.unit)} after)"

    def _counted(self, gains: bool = True) -> str:
        """Sentence on how many are faster, slower or the same per kind of time; ``gains``: also by how much."""
        clauses: list[str] = []
        for kind in KINDS:
            changes = [change for change in self.timed if change.kind is kind]
            if not changes:
                continue
            counts = Counter(change.word for change in changes)
            parts = ", ".join(f"{counts[word]} {word}" for word in (FASTER, SLOWER, SAME) if counts[word])
            clause = f"{parts} of {_number_and_kind(changes)}"
            if not clauses:
                clause += f" (within {self.threshold:.0%} is SAME)"
            clauses.append(f"{clause}; {_gains(changes)}" if gains else clause)
        return "; ".join(clauses)

    def _sensitivity(self) -> list[str]:
        """Sentences on what would change the answer: the thing that gains least, and a price ratio that cancels the gain."""
        changes = [entry.change for entry in self.telling]
        if len(changes) < 2 or not _alike(changes):
            return []
        most, least, median = ratio_text(changes[0].gain), ratio_text(changes[-1].gain), ratio_text(_median(changes))
        money = f"for the same money {self.after.spoken} may cost {median} as much as {self.before.spoken} per hour"
        return [f"Other work: {self.telling[-1].name} gains least, {least}.", f"A price: {money}, {least} to {most} by workload."]

    def _figures(self) -> list[Figure]:
        """Figures: gain and both times of a single thing, or the median, largest and least gain of several; then counts of changes."""
        changes = [entry.change for entry in self.telling]
        figures = []
        if len(changes) == 1:
            [change] = changes
            gain = change.gain_with_ends
            figures.append(Figure(f"speedup, {change.name}", f"{gain_text(gain.value)}{interval_text(gain)}"))
            figures.append(Figure("before", _brief_cell(change.before)))
            figures.append(Figure("after", _brief_cell(change.after)))
        elif changes:
            if _alike(changes):
                figures.append(Figure("in the median", f"{gain_text(_median(changes))}{_median_ends(changes)}"))
            most, least = self.telling[0], self.telling[-1]
            figures.append(Figure(f"most, {most.name}", gain_text(most.change.gain)))
            figures.append(Figure(f"least, {least.name}", gain_text(least.change.gain)))
        if self.timed:
            counts = Counter(change.word for change in self.timed)
            figures += [Figure(f"times and rates that are {word}", str(counts[word])) for word in (FASTER, SLOWER, SAME)]
        other_counts = Counter(change.word for change in self.changes if not change.speed)
        other_figures = [Figure(f"other numbers that are {word}", str(count)) for word, count in other_counts.items()]
        return [*figures[:4], *other_figures][:5]

    def _notes(self) -> list[str]:
        common = {_identity(change.before) for change in self.changes}
        notes = []
        for side in (self.before, self.after):
            only = [metric for metric in side.metrics if _identity(metric) not in common]
            if only:
                notes.append(f"Only in {side.name}: {len(only)} number{'s' * (len(only) > 1)}, such as {only[0].key}, {only[0].label}.")
        left_out = len(self.changes) - len(self._listed)
        if left_out:
            notes.append(f"{left_out} of {len(self.changes)} rows are the same and left out.")
        return [*notes, f"SAME: within {self.threshold:.0%}, or within the noise of a measurement where that is larger."]

    @property
    def _listed(self) -> list[Change]:
        """Changes for the tables; those that are SAME are left out if there are many."""
        if len(self.changes) <= MOST_ROWS:
            return self.changes
        return [change for change in self.changes if change.word != SAME]

    def _tables(self, title: str) -> list[DataTable]:
        """Tables by unit with a row per change."""
        tables = []
        for unit in dict.fromkeys(change.before.unit for change in self._listed):
            columns = [
                Column("what", "what"),
                Column("quantity", "quantity"),
                Column("before", self.before.name, unit),
                Column("after", self.after.name, unit),
                Column("ratio", "after / before", "ratio"),
                Column("change", "change"),
            ]
            rows: list[list[Value]] = []
            for change in self._listed:
                old = change.before
                if old.unit == unit:
                    rows.append([old.key, old.label, old.value, change.after.value, change.ratio, change.word])
            tables.append(DataTable(f"{title}: {UNIT_TITLES.get(unit, unit)}", columns, rows))
        return tables

    def _brief(self) -> list[Table]:
        """The short table: slower things first, then faster ones, other changes, and the rest."""

        def place(change: Change) -> tuple[float, ...]:
            least_telling_gain = change.gain if change.word == SLOWER else -change.gain
            return ORDER[change.word], change.rank, change.before.key != ALL, least_telling_gain

        chosen = sorted(self.changes, key=place)[:ROWS_ON_SCREEN]
        several = len({change.before.key for change in chosen}) > 1
        rows = []
        for change in chosen:
            name = change.before.label
            if several and change.before.key != ALL:
                name += f", {change.before.key}"
            word = change.word if change.word == SAME or not change.ratio else f"{change.multiple} {change.word}"
            rows.append([name, word, _brief_cell(change.after), _brief_cell(change.before)])
        heads = [side.spoken.removeprefix("the ") for side in (self.after, self.before)]
        return [Table("", ["number", "change", *heads], rows, "lrrr")] if rows else []

    def _chart(self) -> BarChart | None:
        """Chart of the gain of every time and rate, the worst first; None without any."""
        with_ratio = [change for change in self.timed if change.ratio]
        if not with_ratio:
            return None
        worst = sorted(with_ratio, key=lambda change: change.gain)[:ROWS_ON_SCREEN]
        several = len({change.before.label for change in worst}) > 1
        bars = []
        for change in worst:
            name = change.name if several or change.before.key == ALL else change.before.key
            bars.append(Bar(name, [("gain", change.gain)]))
        title = f"How many times better {self.after.spoken} is than {self.before.spoken}"
        return BarChart(title, "ratio", bars, origin=1)


def _median(changes: Sequence[Change]) -> float:
    return quantile([change.gain for change in changes], 0.5)


def _alike(timed: Sequence[Change]) -> bool:
    """Whether a median of their ratios is meaningful."""
    return all(change.before.unit in COMPARABLE for change in timed)


def _of_profiles(timed: Sequence[Change]) -> bool:
    """Whether the rates are roofs of a device."""
    return all(change.before.label.startswith(PEAKS) for change in timed)


def _named(telling: Sequence[NamedChange]) -> str:
    """Phrase with the gains by name, the largest first; of many only the largest and the least.

    If all are losses, the largest loss comes first.
    """
    gains = [(entry.name, entry.change.gain) for entry in telling]
    highest, lowest = gains[0][1], gains[-1][1]
    if highest <= 1:
        texts = [(name, ratio_text(1 / gain)) for name, gain in reversed(gains)]
    elif lowest >= 1:
        texts = [(name, ratio_text(gain)) for name, gain in gains]
    else:
        texts = [(name, gain_text(gain)) for name, gain in gains]
    if len({text for _, text in texts}) < 2:
        return ""
    if len(texts) <= MOST_NAMES and sum(len(name) for name, _ in texts) <= MOST_LETTERS:
        return f": {', '.join(f'{name} {text}' for name, text in texts)}"
    (first, most), *_, (last, least) = texts
    return f": most {most} ({first}), least {least} ({last})"


def _things(timed: Sequence[Change]) -> list[str]:
    """Name of the thing of each change, without sizes if the names still differ."""
    names = [change.before.key if change.before.key != ALL else change.before.label for change in timed]
    short = [name.partition(", ")[0] for name in names]
    return [brief if short.count(brief) == 1 else name for brief, name in zip(short, names, strict=True)]


def _brief_cell(metric: Metric) -> str:
    return format_time(metric.value, 3) if metric.unit == "s" else text(metric.value, metric.unit)


def _number_and_kind(timed: Sequence[Change]) -> str:
    """Number and name of the kind, as in ``3 measured times``."""
    units = {change.before.unit for change in timed}
    words = timed[0].kind.words
    if not words and units == {"s"}:
        words = "times"
    elif not words:
        words = "times and rates" if "s" in units else "rates"
    if len(timed) == 1:
        words = words.replace("times", "time").replace("rates", "rate").replace("bounds", "bound")
    return f"{len(timed)} {words}"


def _gains(timed: Sequence[Change]) -> str:
    """Phrase with the median gain if the units allow one, else the range; for roofs and bounds it says that they are ratios of such."""
    with_ratio = [change for change in timed if change.ratio]
    if not with_ratio:
        return "no ratio is known"
    if _alike(timed):
        return f"in the median {gain_text(_median(with_ratio))}{timed[0].kind.ratio}{_median_ends(timed)}"
    least, most = min(change.gain for change in with_ratio), max(change.gain for change in with_ratio)
    if _of_profiles(timed) and most > least:
        return f"ratios of roofs {' to '.join(dict.fromkeys((ratio_text(least), ratio_text(most))))}"
    least_text, most_text = gain_text(least), gain_text(most)
    return f"all {least_text}" if least_text == most_text else f"from {least_text} to {most_text}"


def _median_ends(timed: Sequence[Change]) -> str:
    """Phrase with the median ends of the intervals; empty unless every change has an interval."""
    gains = [change.gain_with_ends for change in timed if change.ratio and change.before.unit == "s"]
    lows, highs = [change.low for change in gains if change.low], [change.high for change in gains if change.high]
    if not gains or len(lows) < len(timed) or len(highs) < len(timed):
        return ""
    return interval_text(Interval(quantile([gain.value for gain in gains], 0.5), quantile(lows, 0.5), quantile(highs, 0.5)))
