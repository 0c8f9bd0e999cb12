"""Before against after: the ratio of every number that two reports share, and whether it changed by more than a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.core.arith import quantile
from perfmodel.core.units import format_time
from perfmodel.report.against import MEASURED, PREDICTED, Side, against, ends, ratio, ratio_notes, times, way
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Chart, Interval, Limit
from perfmodel.report.document import Column, DataTable, Figure, Report, Table, Value
from perfmodel.report.metrics import BOUND_WORDS, Metric, Metrics, better

SAME, FASTER, SLOWER, LESS, MORE, BETTER, WORSE = "SAME", "FASTER", "SLOWER", "LESS", "MORE", "BETTER", "WORSE"
DEFAULT_THRESHOLD = 0.05
MOST_ROWS = 60
"""If there are more rows, those that are SAME are left out of the table."""
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
KINDS_OF_TIME = (
    ("time, measured", "measured"),
    ("time, predicted", "predicted", "step, predicted"),
    ("time at the roof", "roofline", "roofline_s"),
    ("lower bound", "lower", "lower warm", "step, bound", "no overlap", *(f"terms {name}" for name in BOUND_WORDS)),
)
"""Labels of the kinds of time, the most telling first. Only the first kind that both sides have counts in a summary."""
KIND_WORDS = ("measured times", "predicted times", "times at the roof", "lower bounds")
ROOF, OTHER = 2, len(KIND_WORDS)
"""Index of times at the roof in ``KINDS_OF_TIME``, and the index that stands for any other metric."""
RATIOS = {ROOF: ", ratio of roofs", 3: ", ratio of bounds"}
"""What the ratio of two such times is called, by index of their kind."""
PEAKS = ("peak", "bandwidth")
"""Quantities that are roofs of a device."""
COMPARABLE = ("s", "tokens/s", "requests/s")
"""Units in which a median of ratios has a meaning: it has none over the unlike peaks and bandwidths of a device."""
ALL = "all"
"""What a metric is of that is of the whole answer."""
NAMED = 3
"""Changes that the summary names."""


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity before and after. ``ratio``: after / before; None if only one of them is zero. ``word``: SAME, FASTER and so on.

    The ``key`` of a metric names the thing, its ``label`` the quantity: "flash2, forward" and "DRAM traffic".
    """

    before: Metric
    after: Metric
    ratio: float | None
    word: str

    @property
    def speed(self) -> bool:
        """Whether it is a time or a rate."""
        return is_speed(self.before.unit)

    @property
    def gain(self) -> float:
        """How many times better; 1 if the ratio is unknown or neither way is better."""
        return self.ratio ** better(self.before.unit) if self.ratio else 1.0

    @property
    def kind(self) -> int:
        """Index in ``KINDS_OF_TIME``; ``OTHER`` if the label is none of these."""
        return next((place for place, names in enumerate(KINDS_OF_TIME) if self.before.label in names), OTHER)

    @property
    def name(self) -> str:
        """What it is a number of, then which."""
        return self.before.label if self.before.key == ALL else f"{self.before.key}, {self.before.label}"

    @property
    def rank(self) -> int:
        """Place of the kind of number, the most telling first: other times and rates after predictions, before roofs and bounds."""
        return (0, 1, 3, 4, 2)[self.kind]


def is_speed(unit: str) -> bool:
    """Whether numbers in ``unit`` are times or rates, which get faster or slower."""
    return unit == "s" or unit.endswith("/s")


def changes(before: Metrics, after: Metrics, threshold: float = DEFAULT_THRESHOLD) -> list[Change]:
    """The changes of every metric that both have, in the order of ``before``. ``threshold``: relative change that still is SAME."""
    known = {(one.key, one.label, one.unit): one for one in after}
    both = ((old, known.get((old.key, old.label, old.unit))) for old in before)
    return [_change(old, new, threshold) for old, new in both if new is not None]


def _change(old: Metric, new: Metric, threshold: float) -> Change:
    if old.value == new.value:
        return Change(old, new, 1.0, SAME)
    way = better(old.unit) * (1 if new.value > old.value else -1)
    good, bad = (FASTER, SLOWER) if is_speed(old.unit) else (BETTER, WORSE)
    word = {1: good, -1: bad}.get(way, MORE if new.value > old.value else LESS)
    if old.value * new.value <= 0:
        return Change(old, new, None, word)
    ratio, allowed = new.value / old.value, 1 + max(threshold, _noise(old), _noise(new))
    return Change(old, new, ratio, SAME if 1 / allowed <= ratio <= allowed else word)


def _noise(one: Metric) -> float:
    """(p90 - p10) / median of a measurement; 0 of anything else."""
    measured = one.label == "time, measured" and one.low is not None and one.high is not None
    return float((one.high or 0) - (one.low or 0)) / one.value if measured else 0.0


def report(before: Metrics, after: Metrics, names: tuple[str, str], threshold: float) -> tuple[Report, list[Change]]:
    """The comparison as a document, and its changes. Numbers that only one of the two has are counted in a note."""
    found = changes(before, after, threshold)
    common = {(one.before.key, one.before.label, one.before.unit) for one in found}
    notes = []
    for name, metrics in zip(names, (before, after), strict=True):
        own = [one for one in metrics if (one.key, one.label, one.unit) not in common]
        if own:
            notes.append(f"Only in {name}: {len(own)} numbers, such as {own[0].key}, {own[0].label}.")
    same = sum(one.word == SAME for one in found)
    if len(found) > MOST_ROWS and same:
        notes.append(f"{same} of {len(found)} rows are the same and left out.")
    notes.append(f"SAME: within {threshold:.0%}, or within the noise of a measurement where that is larger.")
    every, title = (before, after), f"{names[0]} against {names[1]}"
    sentences = summary(found, *names, threshold, every)
    made = Report(title, answers(found, *names, threshold, every), [], notes + ratio_notes(sentences), reasons=sentences)
    drawn: list[Chart] = [one for one in [chart(found, names)] if one]
    tabled = tables("changes", found, *names)
    return replace(made, data_tables=tabled, brief=brief(found, *names), figures=figures(found), charts=drawn), found


def tables(title: str, found: Sequence[Change], before: str, after: str) -> list[DataTable]:
    """A table per unit and a row per change; rows that are the same are left out if there are many."""
    shown = [one for one in found if one.word != SAME] if len(found) > MOST_ROWS else list(found)
    made = []
    for unit in dict.fromkeys(one.before.unit for one in shown):
        heads = {"what": "what", "quantity": "quantity", "before": before, "after": after, "ratio": "after / before", "change": "change"}
        units = {"before": unit, "after": unit, "ratio": "ratio"}
        columns = [Column(key, head, units.get(key, "text")) for key, head in heads.items()]
        own = [(one, one.before) for one in shown if one.before.unit == unit]
        rows: list[list[Value]] = [[old.key, old.label, old.value, one.after.value, one.ratio, one.word] for one, old in own]
        made.append(DataTable(f"{title}: {UNIT_TITLES.get(unit, unit)}", columns, rows))
    return made


def summary(found: Sequence[Change], before: str, after: str, threshold: float, every: tuple[Metrics, Metrics] = ((), ())) -> list[str]:
    """How many are faster and slower, by how much, and the worst by name. ``every``: all metrics of both sides."""
    if not found:
        return [f"{before} and {after} have nothing in common to compare."]
    every = every if every[0] else ([one.before for one in found], [one.after for one in found])
    timed = _counted_once([one for one in found if one.speed])
    sentences = [f"{after} against {before}: {_counted(timed, threshold)}."] if timed else []
    named = sorted((one for one in timed if one.word == SLOWER), key=lambda one: one.gain)[:NAMED]
    if not named:
        named = sorted((one for one in timed if one.word == FASTER), key=lambda one: (one.rank, -one.gain))[:1]
    sentences += [f"{one.word}: {_sentence(one, (before, after), every)}." for one in named]
    counts = [one.word for one in found if not one.speed]
    moved = Counter(word for word in counts if word != SAME)
    if moved:
        parts = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for word, count in moved.items())
        sentences.append(f"Of the other numbers {parts}.")
    elif counts:
        sentences.append(f"All {len(counts)} other numbers are the same.")
    return sentences


def answers(found: Sequence[Change], before: str, after: str, threshold: float, every: tuple[Metrics, Metrics] = ((), ())) -> list[str]:
    """At most three short sentences: how many are faster and slower, by how much; the worst; what became of the counts."""
    first, *others = summary(found, before, after, threshold, every)
    timed = _counted_once([one for one in found if one.speed])
    if not timed:
        return [first, *others][:3]
    counts = [said for said in others if "other numbers" in said][-1:]
    if len(timed) == 1 and timed[0].kind != OTHER:
        return [f"{_of_one(timed[0], before, after)}.", *counts]
    worst = min((one for one in timed if one.word == SLOWER), key=lambda one: one.gain, default=None)
    best = max((one for one in timed if one.word == FASTER), key=lambda one: (-one.rank, one.gain), default=None)
    named = [f"{one.word}: {_in_short(one)}." for one in [worst or best] if one]
    return [f"{after} against {before}: {_counted(timed, threshold)}.", *named, *counts]


def _of_one(one: Change, before: str, after: str) -> str:
    """``new is predicted 1.3x slower than old (1.2x to 1.4x): 13 ms against 10 ms``."""
    kind = ("measured", "predicted", "by the ratio of roofs", "by the ratio of bounds")[one.kind]
    known = ratio(_interval(one.before), _interval(one.after))
    both = f"{format_time(one.after.value, 3)} against {format_time(one.before.value, 3)}"
    return f"{after} is {kind} {way(known.value, before)}{ends(known)}: {both}, {one.before.key}"


def _in_short(one: Change) -> str:
    old, new = one.before, one.after
    gain = text(max(one.gain, 1 / one.gain), "ratio")
    values = [format_time(value, 3) if old.unit == "s" else text(value, old.unit) for value in (new.value, old.value)]
    return f"{one.name}, {gain}: {values[0]}, before {values[1]}"


ROWS_ON_SCREEN = 12


def brief(found: Sequence[Change], before: str, after: str) -> list[Table]:
    """The rows of a screen: what is slower first, then what is faster, other changes, and what stayed."""
    order = {SLOWER: 0, FASTER: 1, WORSE: 2, BETTER: 2, MORE: 3, LESS: 3, SAME: 4}
    place = {one: (order[one.word], one.rank, one.before.key != ALL, one.gain if one.word == SLOWER else -one.gain) for one in found}
    chosen = sorted(found, key=lambda one: place[one])[:ROWS_ON_SCREEN]
    sides = [[_brief_cell(side) for side in (one.after, one.before)] for one in chosen]
    several = len({one.before.key for one in chosen}) > 1
    heads = ([f"{one.before.label}{f', {one.before.key}' * (several and one.before.key != ALL)}", _changed(one)] for one in chosen)
    rows = [[*head, *cells] for head, cells in zip(heads, sides, strict=True)]
    return [Table("", ["number", "change", after, before], rows, "lrrr")] if rows else []


def _changed(one: Change) -> str:
    """``2.24x FASTER``; the ratio is never below 1."""
    return one.word if one.word == SAME or not one.ratio else f"{text(max(one.ratio, 1 / one.ratio), 'ratio')} {one.word}"


def _brief_cell(one: Metric) -> str:
    return format_time(one.value, 3) if one.unit == "s" else text(one.value, one.unit)


def figures(found: Sequence[Change]) -> list[Figure]:
    """How many are faster, slower and the same, the median gain and the worst."""
    timed = _counted_once([one for one in found if one.speed])
    words, gains = Counter(one.word for one in timed), [one.gain for one in timed if one.ratio]
    shown = [Figure(f"times and rates that are {word}", str(words[word])) for word in (FASTER, SLOWER, SAME)] if timed else []
    if gains and all(one.before.unit in COMPARABLE for one in timed):
        shown += [Figure("in the median", way(quantile(gains, 0.5))), Figure("the worst", way(min(gains)))]
    counts = Counter(one.word for one in found if not one.speed)
    return [*shown, *(Figure(f"other numbers that are {word}", str(number)) for word, number in counts.items())][:5]


def chart(found: Sequence[Change], names: tuple[str, str]) -> BarChart | None:
    """After over before of every time and rate, the worst first; None where there is none."""
    timed = [one for one in _counted_once([one for one in found if one.speed]) if one.ratio]
    chosen = sorted(timed, key=lambda one: one.gain)[:ROWS_ON_SCREEN]
    bars = [Bar(one.name, [("gain", one.gain)]) for one in chosen]
    return BarChart(f"How many times better {names[1]} is", "ratio", bars, [Limit(names[0], 1.0)]) if bars else None


def _counted_once(timed: Sequence[Change]) -> list[Change]:
    """Per thing, only the times of its best kind: its roof, for one, does not change when its kernel does."""
    best: dict[str, int] = {}
    for one in timed:
        best[one.before.key] = min(one.kind, best.get(one.before.key, OTHER))
    return [one for one in timed if one.kind in (OTHER, best[one.before.key])]


def _counted(timed: Sequence[Change], threshold: float) -> str:
    """How many are faster, slower or the same per kind of time, the best kind first, and by how much."""
    clauses: list[str] = []
    for _, kind in sorted({(one.rank, one.kind) for one in timed}):
        own = [one for one in timed if one.kind == kind]
        counts = Counter(one.word for one in own)
        parts = ", ".join(f"{counts[word]} {word}" for word in (FASTER, SLOWER, SAME) if counts[word])
        same = "" if clauses else f" (within {threshold:.0%} is SAME)"
        clauses.append(f"{parts} of {_number_and_kind(kind, own)}{same}; {_gains(kind, own)}")
    return "; ".join(clauses)


def _number_and_kind(kind: int, timed: Sequence[Change]) -> str:
    """``3 measured times``: the number and the name of the kind."""
    units = {one.before.unit for one in timed}
    words = KIND_WORDS[kind] if kind < OTHER else "times" if units == {"s"} else "times and rates" if "s" in units else "rates"
    one = words.replace("times", "time").replace("rates", "rate").replace("bounds", "bound")
    return f"{len(timed)} {words if len(timed) > 1 else one}"


def _gains(kind: int, timed: Sequence[Change]) -> str:
    """The median gain if the units allow one, else the range; for roofs and bounds it says that these are ratios of such."""
    gains = [one.gain for one in timed if one.ratio]
    if not gains:
        return "no ratio is known"
    if all(one.before.unit in COMPARABLE for one in timed):
        return f"in the median {way(quantile(gains, 0.5))}{RATIOS.get(kind, '')}{_median_ends(timed)}"
    if all(one.before.label.startswith(PEAKS) for one in timed) and max(gains) > min(gains):
        return "ratios of roofs " + " to ".join(dict.fromkeys(times(gain) for gain in (min(gains), max(gains))))
    least, *most = dict.fromkeys(way(gain) for gain in (min(gains), max(gains)))
    return f"from {least} to {most[0]}" if most else f"all {least}"


def _median_ends(timed: Sequence[Change]) -> str:
    """The median of the lower and of the upper ends of the intervals; empty unless every change has one."""
    found = [
        ratio(_interval(one.before), _interval(one.after)) for one in timed if one.ratio and one.before.value and one.before.unit == "s"
    ]
    lows, highs = [one.low for one in found if one.low], [one.high for one in found if one.high]
    if not found or len(lows) < len(timed) or len(highs) < len(timed):
        return ""
    return ends(Interval(quantile([one.value for one in found], 0.5), quantile(lows, 0.5), quantile(highs, 0.5)))


def _interval(one: Metric) -> Interval:
    return Interval(one.value, one.low, one.high)


def _sentence(one: Change, names: tuple[str, str], every: tuple[Metrics, Metrics]) -> str:
    old, new = one.before, one.after
    if one.kind <= ROOF:
        first, other = (_side(name, old.key, metrics) for name, metrics in zip(names, every, strict=True))
        return f"{old.key}: {against(first, other)}"
    gain = text(max(one.gain, 1 / one.gain), "ratio")
    of = RATIOS.get(ROOF if old.label.startswith(PEAKS) else one.kind, "")
    return f"{one.name}, {gain}{of} ({text(old.value, old.unit)} before, {text(new.value, new.unit)} after)"


def _side(name: str, what: str, metrics: Metrics) -> Side:
    """The best time and the roof of the thing ``what`` on the side called ``name``."""
    own = {one.label: one for one in metrics if one.key == what}
    measured, predicted, roof, _ = (next((own[name] for name in names if name in own), None) for names in KINDS_OF_TIME)
    best = measured or predicted
    return Side(name, roof.value if roof else 0.0, _interval(best) if best else None, MEASURED if measured else PREDICTED)
