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
    timed = [one for one in found if one.before.better]
    if not found:
        return [f"{before} and {after} have nothing in common to compare."]
    counts = Counter(one.word for one in timed)
    gains = [one.gain for one in timed if one.ratio]
    said = []
    if timed:
        middle = quantile(gains, 0.5) if gains else 1.0
        way = "as fast" if 0.995 < middle < 1.005 else f"{middle:.3g}x faster" if middle > 1 else f"{1 / middle:.3g}x slower"
        parts = ", ".join(f"{counts[word]} {word}" for word in (FASTER, SLOWER, SAME) if counts[word])
        said.append(
            f"{after} against {before}: {parts} of {len(timed)} times and rates (within {threshold:.0%} is SAME); in the median {way}."
        )
    worst = sorted((one for one in timed if one.word == SLOWER), key=lambda one: one.gain)[:NAMED]
    said += [f"{SLOWER}: {_told(one)}." for one in worst]
    if not worst:
        best = sorted((one for one in timed if one.word == FASTER), key=lambda one: -one.gain)[:1]
        said += [f"{FASTER}: {_told(one)}." for one in best]
    moved = Counter(one.word for one in found if not one.before.better and one.word != SAME)
    if moved:
        said.append(f"Of the counts {' and '.join(f'{count} are {word}' for word, count in moved.items())}.")
    elif len(timed) < len(found):
        said.append(f"All {len(found) - len(timed)} counts are the same.")
    return said


def _told(one: Change) -> str:
    ratio = f"{one.gain:.3g}x" if one.gain >= 1 else f"{1 / one.gain:.3g}x"
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
