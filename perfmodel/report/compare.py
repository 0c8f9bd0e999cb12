"""Before against after: the ratio of every number that two reports share, and whether it changed by more than a threshold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfmodel.core.arith import quantile
from perfmodel.core.units import format_time
from perfmodel.report.against import MEASURED, PREDICTED, Side, against, ends, ratio, ratio_notes, times, way
from perfmodel.report.answer import capital
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Interval
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
BASES = ("measured ", "predicted ", "by the ratio of roofs ", "by the ratio of bounds ")
"""What a gain rests on, by index of the kind of its times."""
SPELLED, MOST_LETTERS = 3, 60
"""Things, and letters of their names, up to which the headline names every one."""
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


_FAMILIES = frozenset(["NVIDIA", "AMD", "Intel", "Apple", "Google", "Amazon", "Instinct", "GeForce", "Tesla", "Xeon", "Platinum"])
"""Words of a device's name without which it is still known."""
_SPOKEN_AN = re.compile(r"[AEFHILMNORSX][A-Z\d]|[AEIOU]|8")


def short_name(name: str) -> str:
    """The part of a device's ``name`` by which it is called.

    >>> [short_name(one) for one in ("NVIDIA A100 SXM 80 GB", "NVIDIA GeForce RTX 4090", "Apple M3 Max, 40-core GPU", "Test device")]
    ['A100', 'RTX 4090', 'M3 Max', 'Test device']
    """
    words = [word for word in name.replace(",", "").split() if word not in _FAMILIES]
    model = next((place for place, word in enumerate(words, 1) if any(map(str.isdigit, word))), None)
    if model is None:
        return name
    return " ".join(words[: model + (words[model : model + 1] in (["Max"], ["Ultra"], ["Pro"]))])


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Short names of devices by their full ones; the full ones where the short ones do not tell them apart."""
    found = {name: short_name(name) for name in names}
    return found if len(set(found.values())) == len(found) else {name: name for name in found}


def a_device(name: str) -> str:
    """
    >>> a_device("NVIDIA H200 SXM")
    'an H200'
    """
    return one_of(short_name(name))


def one_of(device: str) -> str:
    """
    >>> one_of("H200"), one_of("TPU v5p"), one_of("NVIDIA H100 PCIe 80 GB"), one_of("Test device")
    ('an H200', 'a TPU v5p', 'NVIDIA H100 PCIe 80 GB', 'Test device')
    """
    if device != short_name(device) or not any(map(str.isdigit, device)):
        return device
    return f"{'an' if _SPOKEN_AN.match(device) else 'a'} {device}"


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


@dataclass(frozen=True, slots=True)
class Compared:
    """One side of a comparison: its name, its metrics, and what a sentence calls it, such as ``the H200``."""

    name: str
    metrics: Metrics
    called: str = ""

    @property
    def spoken(self) -> str:
        """What a sentence calls it."""
        return self.called or self.name


def report(before: Compared, after: Compared, threshold: float, title: str = "") -> tuple[Report, list[Change]]:
    """The comparison as a document, and its changes. Numbers that only one of the two has are counted in a note."""
    found, names, called = changes(before.metrics, after.metrics, threshold), (before.name, after.name), (before.spoken, after.spoken)
    common = {(one.before.key, one.before.label, one.before.unit) for one in found}
    notes = []
    for side in (before, after):
        own = [one for one in side.metrics if (one.key, one.label, one.unit) not in common]
        if own:
            notes.append(f"Only in {side.name}: {len(own)} number{'s' * (len(own) > 1)}, such as {own[0].key}, {own[0].label}.")
    same = sum(one.word == SAME for one in found)
    if len(found) > MOST_ROWS and same:
        notes.append(f"{same} of {len(found)} rows are the same and left out.")
    notes.append(f"SAME: within {threshold:.0%}, or within the noise of a measurement where that is larger.")
    every = (before.metrics, after.metrics)
    sentences = summary(found, *names, threshold, every)
    made = Report(
        f"{names[0]} against {names[1]}",
        answers(found, *names, threshold, every, called),
        [],
        notes + ratio_notes(sentences),
        data_tables=tables(title or "changes", found, *names),
        brief=brief(found, *(name.removeprefix("the ") for name in called)),
        figures=figures(found),
        charts=[one for one in [chart(found, called)] if one],
        reasons=sentences,
        sensitivity=sensitivity(found, *called),
    )
    return made, found


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


def answers(
    found: Sequence[Change],
    before: str,
    after: str,
    threshold: float,
    every: tuple[Metrics, Metrics] = ((), ()),
    called: tuple[str, str] | None = None,
) -> list[str]:
    """At most three short sentences: which side is faster and by how much; how many things are faster and slower; other numbers.

    ``called``: what the first sentence calls the two sides, such as ``the H200``.
    """
    full = summary(found, before, after, threshold, every)
    timed = _counted_once([one for one in found if one.speed])
    if not timed:
        return full[:3]
    others = [said for said in full if "other numbers" in said][-1:]
    if len(timed) == 1 and timed[0].kind != OTHER:
        return [f"{_of_one(timed[0], *(called or (before, after)))}.", *others]
    return [headline(timed, *(called or (before, after))), f"{_counted(timed, threshold, gains=False)}.", *others]


def headline(timed: Sequence[Change], before: str, after: str) -> str:
    """The median gain with its interval, and the gains of single things: of times of the most telling kind, else of all rates.

    ``timed``: times and rates, each thing once.
    """
    own, names = _telling(timed)
    if not own:
        return f"{_leading(after)} against {before}: no ratio is known."
    gains = [one.gain for one in own]
    if not _alike(own):
        share = " to ".join(dict.fromkeys(map(times, (min(gains), max(gains)))))
        has = f"{share} the rates of" if share != times(1.0) else "the same rates as"
        return f"By the ratio of {'roofs' if _of_profiles(own) else 'rates'} {after} has {has} {before}{_named(own, names)}."
    basis = BASES[own[0].kind] if own[0].kind < OTHER else ""
    slower = sum(one.word == SLOWER for one in own)
    but = f"; SLOWER: {slower} of {len(own)}" if 0 < slower < len(own) else ""
    middle = f"{way(quantile(gains, 0.5), before)}{_median_ends(own) * any(gain != 1 for gain in gains)}"
    return f"{_leading(after)} is {basis}{middle}{_named(own, names)}{but}."


def _leading(name: str) -> str:
    """``name`` at the start of a sentence; names of algorithms and files stay as they are typed."""
    return capital(name) if name.startswith("the ") else name


def _telling(timed: Sequence[Change]) -> tuple[list[Change], list[str]]:
    """Changes of the most telling kind whose ratio is known, the largest gain first, and what each is of."""
    best = min((one.rank for one in timed), default=0)
    own = sorted((one for one in timed if one.rank == best and one.ratio), key=lambda one: -one.gain)
    return own, _things(own)


def _alike(timed: Sequence[Change]) -> bool:
    """Whether a median of their ratios has a meaning."""
    return all(one.before.unit in COMPARABLE for one in timed)


def _of_profiles(timed: Sequence[Change]) -> bool:
    """Whether the rates are roofs of a device."""
    return all(one.before.label.startswith(PEAKS) for one in timed)


def _named(own: Sequence[Change], names: Sequence[str]) -> str:
    """The gains by name, the largest first, of losses alike; of many the largest and the least."""
    gains = [one.gain for one in own]
    lost = max(gains) <= 1
    words = [times(1 / gain if lost else gain) if lost or min(gains) >= 1 else way(gain) for gain in gains]
    told = list(zip(names, words, strict=True))[:: -1 if lost else 1]
    if len(set(words)) < 2:
        return ""
    if len(told) <= SPELLED and sum(map(len, names)) <= MOST_LETTERS:
        return f": {', '.join(f'{name} {gain}' for name, gain in told)}"
    (first, most), *_, (last, least) = told
    return f": most {most} ({first}), least {least} ({last})"


def _things(timed: Sequence[Change]) -> list[str]:
    """What each change is of, without its sizes where that tells them apart."""
    names = [one.before.key if one.before.key != ALL else one.before.label for one in timed]
    short = [name.partition(", ")[0] for name in names]
    return [brief if short.count(brief) == 1 else name for brief, name in zip(short, names, strict=True)]


def _of_one(one: Change, before: str, after: str) -> str:
    """``new is predicted 1.3x slower than old (1.2x to 1.4x): 13 ms against 10 ms``."""
    known = ratio(_interval(one.before), _interval(one.after))
    both = f"{format_time(one.after.value, 3)} against {format_time(one.before.value, 3)}"
    return f"{_leading(after)} is {BASES[one.kind]}{way(known.value, before)}{ends(known)}: {both}, {one.before.key}"


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
    """The numbers that decide: of one thing its gain and both times; of several the median gain, the largest and the least."""
    timed = _counted_once([one for one in found if one.speed])
    own, names = _telling(timed)
    gains, shown = [one.gain for one in own], list[Figure]()
    if len(own) == 1:
        [one] = own
        known = ratio(_interval(one.before), _interval(one.after)) if one.before.unit == "s" else Interval(one.gain)
        shown = [Figure(f"speedup, {one.name}", f"{way(known.value)}{ends(known)}")]
        shown += [Figure(side, _brief_cell(metric)) for side, metric in (("before", one.before), ("after", one.after))]
    elif own:
        shown = [Figure("in the median", f"{way(quantile(gains, 0.5))}{_median_ends(own)}")] * _alike(own)
        shown += [Figure(f"{word}, {names[at]}", way(gains[at])) for word, at in (("most", 0), ("least", -1))]
    counts = Counter(one.word for one in timed)
    shown += [Figure(f"times and rates that are {word}", str(counts[word])) for word in (FASTER, SLOWER, SAME) if counts]
    others = Counter(one.word for one in found if not one.speed)
    return [*shown[:4], *(Figure(f"other numbers that are {word}", str(number)) for word, number in others.items())][:5]


def sensitivity(found: Sequence[Change], before: str, after: str) -> list[str]:
    """What would change the answer: the thing that gains least, and a price that eats the gain up."""
    own, names = _telling(_counted_once([one for one in found if one.speed]))
    if len(own) < 2 or not _alike(own):
        return []
    gains = [one.gain for one in own]
    most, least, middle = times(gains[0]), times(gains[-1]), times(quantile(gains, 0.5))
    price = f"A price: for the same money {after} may cost {middle} as much as {before} per hour, {least} to {most} by workload."
    return [f"Other work: {names[-1]} gains least, {least}.", price]


def chart(found: Sequence[Change], names: tuple[str, str]) -> BarChart | None:
    """After over before of every time and rate, the worst first; None where there is none."""
    timed = [one for one in _counted_once([one for one in found if one.speed]) if one.ratio]
    chosen = sorted(timed, key=lambda one: one.gain)[:ROWS_ON_SCREEN]
    several = len({one.before.label for one in chosen}) > 1
    bars = [Bar(one.name if several or one.before.key == ALL else one.before.key, [("gain", one.gain)]) for one in chosen]
    return BarChart(f"How many times better {names[1]} is than {names[0]}", "ratio", bars, origin=1) if bars else None


def _counted_once(timed: Sequence[Change]) -> list[Change]:
    """Per thing, only the times of its best kind: its roof, for one, does not change when its kernel does."""
    best: dict[str, int] = {}
    for one in timed:
        best[one.before.key] = min(one.kind, best.get(one.before.key, OTHER))
    return [one for one in timed if one.kind in (OTHER, best[one.before.key])]


def _counted(timed: Sequence[Change], threshold: float, gains: bool = True) -> str:
    """How many are faster, slower or the same per kind of time, the best kind first; with ``gains``, by how much."""
    clauses: list[str] = []
    for _, kind in sorted({(one.rank, one.kind) for one in timed}):
        own = [one for one in timed if one.kind == kind]
        counts = Counter(one.word for one in own)
        parts = ", ".join(f"{counts[word]} {word}" for word in (FASTER, SLOWER, SAME) if counts[word])
        same = "" if clauses else f" (within {threshold:.0%} is SAME)"
        clauses.append(f"{parts} of {_number_and_kind(kind, own)}{same}" + f"; {_gains(kind, own)}" * gains)
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
    if _alike(timed):
        return f"in the median {way(quantile(gains, 0.5))}{RATIOS.get(kind, '')}{_median_ends(timed)}"
    if _of_profiles(timed) and max(gains) > min(gains):
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
