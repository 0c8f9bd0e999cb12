"""Before against after: every number that both have, its ratio, and whether that is more than a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from perfmodel.report.against import MEASURED, PREDICTED, Side, against, ends, ratio, ratio_notes, times, way
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Column, DataTable, Report, Value
from perfmodel.report.readings import HIGH, LOW, Reading
from perfmodel.validation.statistics import quantile

SAME, FASTER, SLOWER, LESS, MORE = "SAME", "FASTER", "SLOWER", "LESS", "MORE"
DEFAULT_THRESHOLD = 0.05
MOST_ROWS = 60
"""Of more, those that are the same are left out of the table."""
UNIT_TITLES = {
    "s": "times",
    "B": "bytes",
    "FLOP": "FLOP",
    "B/s": "bandwidths",
    "FLOP/s": "rates",
    "tokens/s": "tokens per second",
    "FLOP/B": "intensities",
}
KINDS_OF_TIME = (
    ("time, measured", "measured"),
    ("time, predicted", "predicted", "step, predicted"),
    ("time at the roof", "roofline", "roofline_s"),
    ("lower bound", "lower", "step, bound", "no overlap"),
)
"""Times of one thing by what they say of it, best first: a verdict counts a thing once."""
KIND_WORDS = ("measured times", "predicted times", "times at the roof", "lower bounds")
ROOF = 2
RATIOS: dict[int | None, str] = {ROOF: ", ratio of roofs", 3: ", ratio of bounds"}
"""What the ratio of such times is, by the place of their kind."""
PEAKS = ("peak", "bandwidth")
"""Quantities that are roofs of a device."""
COMPARABLE = ("s", "tokens/s")
"""Units of which a median says something; peaks and bandwidths of a device are of unlike things."""
NAMED = 3
"""Changes that the verdict names."""


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity. ``ratio``: after / before; None where only one of them is zero."""

    before: Reading
    after: Reading
    ratio: float | None
    word: str

    @property
    def gain(self) -> float:
        """How many times better, for what has a better way; 1 where that cannot be said."""
        if not self.ratio or self.before.better not in (LOW, HIGH):
            return 1.0
        return 1 / self.ratio if self.before.better == LOW else self.ratio


def changes(before: Sequence[Reading], after: Sequence[Reading], threshold: float = DEFAULT_THRESHOLD) -> list[Change]:
    """Of everything that both have, in the order of ``before``."""
    known = {reading.key: reading for reading in after}
    return [_change(old, known[old.key], threshold) for old in before if old.key in known]


def _change(old: Reading, new: Reading, threshold: float) -> Change:
    if old.value == new.value:
        return Change(old, new, 1.0, SAME)
    if not old.value or not new.value:
        return Change(old, new, None, _word(old, new.value > old.value))
    ratio = new.value / old.value
    allowed = 1 + max(threshold, old.noise, new.noise)
    return Change(old, new, ratio, SAME if 1 / allowed <= ratio <= allowed else _word(old, ratio > 1))


def _word(of: Reading, more: bool) -> str:
    if of.better == LOW:
        return SLOWER if more else FASTER
    if of.better == HIGH:
        return FASTER if more else SLOWER
    return MORE if more else LESS


def tables(title: str, found: Sequence[Change], before: str, after: str) -> list[DataTable]:
    """A table per unit and a row per change; rows that are the same are left out if there are many."""
    shown = [one for one in found if one.word != SAME] if len(found) > MOST_ROWS else list(found)
    return [
        _table(title, unit, [one for one in shown if one.before.unit == unit], before, after)
        for unit in dict.fromkeys(one.before.unit for one in shown)
    ]


def _table(title: str, unit: str, shown: Sequence[Change], before: str, after: str) -> DataTable:
    columns = [
        Column("what", "what"),
        Column("quantity", "quantity"),
        Column("before", before, unit),
        Column("after", after, unit),
        Column("ratio", "after / before", "ratio"),
        Column("change", "change"),
    ]
    rows: list[list[Value]] = [
        [one.before.what, one.before.quantity, one.before.value, one.after.value, one.ratio, one.word] for one in shown
    ]
    return DataTable(f"{title}: {UNIT_TITLES.get(unit, unit)}", columns, rows)


Readings = tuple[Sequence[Reading], Sequence[Reading]]


def verdict(found: Sequence[Change], before: str, after: str, threshold: float, every: Readings = ((), ())) -> list[str]:
    """How many are faster and slower, by how much, and the worst by name. ``every``: all readings, to tell what one side lacks."""
    timed = _counted_once([one for one in found if one.before.better])
    if not found:
        return [f"{before} and {after} have nothing in common to compare."]
    said = [f"{after} against {before}: {_counted(timed, threshold)}."] if timed else []
    told = partial(_told, names=(before, after), every=every if every[0] else ([c.before for c in found], [c.after for c in found]))
    worst = sorted((one for one in timed if one.word == SLOWER), key=lambda one: one.gain)[:NAMED]
    said += [f"{SLOWER}: {told(one)}." for one in worst]
    if not worst:
        best = sorted((one for one in timed if one.word == FASTER), key=lambda one: (_kind(one) or 0, -one.gain))[:1]
        said += [f"{FASTER}: {told(one)}." for one in best]
    moved = Counter(one.word for one in found if not one.before.better and one.word != SAME)
    if moved:
        parts = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for word, count in moved.items())
        said.append(f"Of the counts {parts}.")
    elif counted := sum(not one.before.better for one in found):
        said.append(f"All {counted} counts are the same.")
    return said


def _counted(timed: Sequence[Change], threshold: float) -> str:
    """How many of each kind of time, the best kind first, and by how much."""
    kinds: dict[int | None, list[Change]] = {}
    for one in timed:
        kinds.setdefault(_kind(one), []).append(one)
    clauses: list[str] = []
    for kind in sorted(kinds, key=lambda kind: len(KIND_WORDS) if kind is None else kind):
        counts = Counter(one.word for one in kinds[kind])
        parts = ", ".join(f"{counts[word]} {word}" for word in (FASTER, SLOWER, SAME) if counts[word])
        same = "" if clauses else f" (within {threshold:.0%} is SAME)"
        clauses.append(f"{parts} of {_what(kind, kinds[kind])}{same}; {_gains(kind, kinds[kind])}")
    return "; ".join(clauses)


def _kind(one: Change) -> int | None:
    """Place in KINDS_OF_TIME; None for what is none of these."""
    return next((place for place, names in enumerate(KINDS_OF_TIME) if one.before.quantity in names), None)


def _counted_once(timed: Sequence[Change]) -> list[Change]:
    """Of the times of one thing the best kind that both sides have; roofs stay as they are when a kernel changes."""
    best: dict[str, int] = {}
    for one in timed:
        kind = _kind(one)
        if kind is not None:
            best[one.before.what] = min(kind, best.get(one.before.what, kind))
    return [one for one in timed if (kind := _kind(one)) is None or kind == best[one.before.what]]


def _what(kind: int | None, timed: Sequence[Change]) -> str:
    """How many of which kind."""
    units = {one.before.unit for one in timed}
    words = KIND_WORDS[kind] if kind is not None else "times" if units == {"s"} else "times and rates" if "s" in units else "rates"
    one = words.replace("times", "time").replace("rates", "rate").replace("bounds", "bound")
    return f"{len(timed)} {words if len(timed) > 1 else one}"


def _gains(kind: int | None, timed: Sequence[Change]) -> str:
    """The median of what can be compared with each other, else from the least to the most; of roofs and bounds what that is."""
    gains = [one.gain for one in timed if one.ratio]
    if not gains:
        return "no ratio is known"
    if all(one.before.unit in COMPARABLE for one in timed):
        of = RATIOS.get(kind, "")
        return f"in the median {way(quantile(gains, 0.5), most='at most ' * bool(of))}{of}{_median_ends(timed)}"
    if all(one.before.quantity.startswith(PEAKS) for one in timed) and max(gains) > min(gains):
        return "ratios of roofs " + " to ".join(dict.fromkeys(times(gain) for gain in (min(gains), max(gains))))
    told = list(dict.fromkeys(way(gain) for gain in (min(gains), max(gains))))
    return f"all {told[0]}" if len(told) == 1 else f"from {told[0]} to {told[1]}"


def _median_ends(timed: Sequence[Change]) -> str:
    """The medians of both ends of all intervals, where every one is known."""
    found = [ratio(_interval(one.before), _interval(one.after)) for one in timed if one.ratio and one.before.unit == "s"]
    lows, highs = [one.low for one in found if one.low], [one.high for one in found if one.high]
    if not found or len(lows) < len(timed) or len(highs) < len(timed):
        return ""
    return ends(Interval(quantile([one.value for one in found], 0.5), quantile(lows, 0.5), quantile(highs, 0.5)))


def _interval(one: Reading) -> Interval:
    return Interval(one.value, one.low, one.high)


def _told(one: Change, names: tuple[str, str], every: Readings) -> str:
    kind, what = _kind(one), one.before.what
    if kind is not None and kind <= ROOF:
        first, other = (_side(name, what, readings) for name, readings in zip(names, every, strict=True))
        return f"{what}: {against(first, other)}"
    gain = text(max(one.gain, 1 / one.gain), "ratio")
    values = f"{text(one.before.value, one.before.unit)} before, {text(one.after.value, one.after.unit)} after"
    of = RATIOS.get(ROOF if one.before.quantity.startswith(PEAKS) else kind, "")
    return f"{what}, {one.before.quantity}, {gain}{of} ({values})"


def _side(name: str, what: str, readings: Sequence[Reading]) -> Side:
    """What is known of the times of one thing on one side."""
    own = {reading.quantity: reading for reading in readings if reading.what == what}
    measured, predicted, roof, _ = (next((own[name] for name in names if name in own), None) for names in KINDS_OF_TIME)
    best = measured or predicted
    return Side(name, roof.value if roof else 0.0, _interval(best) if best else None, MEASURED if measured else PREDICTED)


def report(before: Sequence[Reading], after: Sequence[Reading], names: tuple[str, str], threshold: float) -> tuple[Report, list[Change]]:
    """The comparison as a document, and its changes. Numbers that only one of the two has are counted in a note."""
    found = changes(before, after, threshold)
    common = {one.before.key for one in found}
    notes = []
    for name, readings in zip(names, (before, after), strict=True):
        own = [reading for reading in readings if reading.key not in common]
        if own:
            notes.append(f"Only in {name}: {len(own)} numbers, such as {own[0].what}, {own[0].quantity}.")
    same = sum(one.word == SAME for one in found)
    if len(found) > MOST_ROWS and same:
        notes.append(f"{same} of {len(found)} rows are the same and left out.")
    notes.append(f"SAME: within {threshold:.0%}, or within the noise of a measurement where that is larger.")
    title = f"{names[0]} against {names[1]}"
    said = verdict(found, *names, threshold, (before, after))
    return Report(title, said, [], notes + ratio_notes(said), data_tables=tables("changes", found, *names)), found
