"""Before against after: every number that both have, its ratio, and whether that is more than a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.report.charts.cells import text
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


def verdict(found: Sequence[Change], before: str, after: str, threshold: float) -> list[str]:
    """How many are faster and slower, by how much, and the worst by name."""
    timed = _counted_once([one for one in found if one.before.better])
    if not found:
        return [f"{before} and {after} have nothing in common to compare."]
    counts = Counter(one.word for one in timed)
    said = []
    if timed:
        parts = ", ".join(f"{counts[word]} {word}" for word in (FASTER, SLOWER, SAME) if counts[word])
        said.append(f"{after} against {before}: {parts} of {_what(timed)} (within {threshold:.0%} is SAME); {_gains(timed)}.")
    worst = sorted((one for one in timed if one.word == SLOWER), key=lambda one: one.gain)[:NAMED]
    said += [f"{SLOWER}: {_told(one)}." for one in worst]
    if not worst:
        best = sorted((one for one in timed if one.word == FASTER), key=lambda one: -one.gain)[:1]
        said += [f"{FASTER}: {_told(one)}." for one in best]
    moved = Counter(one.word for one in found if not one.before.better and one.word != SAME)
    if moved:
        parts = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for word, count in moved.items())
        said.append(f"Of the counts {parts}.")
    elif counted := sum(not one.before.better for one in found):
        said.append(f"All {counted} counts are the same.")
    return said


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


def _what(timed: Sequence[Change]) -> str:
    """How many of which kind."""
    kinds = {_kind(one) for one in timed}
    kind, units = kinds.pop() if len(kinds) == 1 else None, {one.before.unit for one in timed}
    words = KIND_WORDS[kind] if kind is not None else "times" if units == {"s"} else "times and rates" if "s" in units else "rates"
    one = words.replace("times", "time").replace("rates", "rate").replace("bounds", "bound")
    return f"{len(timed)} {words if len(timed) > 1 else one}"


def _gains(timed: Sequence[Change]) -> str:
    """The median of what can be compared with each other, else from the least to the most."""
    gains = [one.gain for one in timed if one.ratio]
    if not gains:
        return "no ratio is known"
    if all(one.before.unit in COMPARABLE for one in timed):
        return f"in the median {_way(quantile(gains, 0.5))}"
    ends = list(dict.fromkeys(_way(gain) for gain in (min(gains), max(gains))))
    return f"all {ends[0]}" if len(ends) == 1 else f"from {ends[0]} to {ends[1]}"


def _way(gain: float) -> str:
    return "as fast" if 0.995 < gain < 1.005 else f"{text(gain, 'ratio')} faster" if gain > 1 else f"{text(1 / gain, 'ratio')} slower"


def _told(one: Change) -> str:
    ratio = text(max(one.gain, 1 / one.gain), "ratio")
    values = f"{text(one.before.value, one.before.unit)} before, {text(one.after.value, one.after.unit)} after"
    return f"{one.before.what}, {one.before.quantity}, {ratio} ({values})"


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
    return Report(title, verdict(found, *names, threshold), [], notes, data_tables=tables("changes", found, *names)), found
