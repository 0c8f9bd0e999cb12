"""What a sweep shows, summed up while it runs: the best rows, of every group and by one or two columns, and who beats whom where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.sweep.evaluate import GridBlock, VariantBlock
from perfmodel.sweep.grid import SweepGrid
from perfmodel.sweep.table import Reader, Row

PREDICTED = "predicted_s"
OFTEN_UNKNOWN = "predicted"
"""How the names of columns begin that are NaN where nothing is predicted."""
MOST_GROUPS = 10_000
MOST_VALUES = 100_000
"""Groups, and values of an axis, beyond which neither is kept apart."""


@dataclass(slots=True)
class WinShares:
    """For each value of an axis: in how many configurations the other one wins, and of how many."""

    values: Any
    wins: Any
    of: Any

    def add(self, other: WinShares) -> None:
        """Add what was counted for the same values, or for others."""
        if len(other.values) == len(self.values) and (other.values == self.values).all():
            self.wins, self.of = self.wins + other.wins, self.of + other.of
            return
        values, where = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        wins, of = np.zeros(len(values)), np.zeros(len(values))
        np.add.at(wins, where, np.concatenate([self.wins, other.wins]))
        np.add.at(of, where, np.concatenate([self.of, other.of]))
        self.values, self.wins, self.of = values, wins, of


@dataclass(slots=True)
class Summary:
    """``objective``: the column that is compared, less being better; ``swept``: choices with several values.

    ``best``: by the values of ``swept``. ``shares``: by value of the compared choice, then by axis or choice. ``predicted``: in how
    many configurations each other one is predicted to take less, and in how many both are predicted, if such times are computed.
    """

    reader: Reader
    objective: str
    swept: tuple[str, ...]
    reference: Any = None
    best: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    shares: dict[str, dict[str, WinShares]] = field(default_factory=dict)
    compared: dict[str, list[int]] = field(default_factory=dict)
    predicted: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, grid: SweepGrid, objective: str) -> Summary:
        """A summary of ``grid``; the first value of the compared choice is what the others are held against."""
        swept = tuple(name for name, values in grid.choices.items() if len(values) > 1)
        return cls(Reader.of(grid), objective, swept, grid.compared[0] if len(grid.compared) > 1 else None)

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        for answer in block.answers:
            self._best(block, answer)
        usable = {answer.name: answer for answer in block.answers if answer.columns}
        reference = usable.pop(self.reference, None)
        if reference is not None:
            for answer in usable.values():
                self._compare(block, reference, answer)

    def _best(self, block: GridBlock, answer: VariantBlock) -> None:
        place = _least(answer.columns[self.objective], answer.valid) if answer.columns else None
        if place is None:
            return
        inputs = block.inputs(answer)
        key = tuple(inputs[name] for name in self.swept)
        value = float(answer.columns[self.objective].reshape(-1)[place])
        known = self.best.get(key)
        if known is None and len(self.best) >= MOST_GROUPS:
            return
        if known is None or value < known[self.objective]:
            self.best[key] = self.reader.row(block, answer, place)

    def _compare(self, block: GridBlock, reference: VariantBlock, answer: VariantBlock) -> None:
        """Count where ``answer`` is better, along every axis."""
        wins = answer.columns[self.objective] < reference.columns[self.objective]
        both = None
        sides = (reference.columns[self.objective], answer.columns[self.objective])
        known = [np.isfinite(side) for side in sides] if self.objective.startswith(OFTEN_UNKNOWN) else []
        for valid in (reference.valid, answer.valid, *known):
            if valid is not None:
                both = valid if both is None else both & valid
        if both is not None:
            wins &= both
            both = np.broadcast_to(both, block.lengths)
        name = str(answer.name)
        number, of = int(np.count_nonzero(wins)), block.points if both is None else int(np.count_nonzero(both))
        _count(self.compared, name, number, of)
        if PREDICTED in reference.columns:
            self._compare_predicted(name, reference.columns[PREDICTED], answer.columns[PREDICTED], both)
        for choice in self.swept:
            if choice in block.part.choices:
                self._add(name, choice, np.array([str(block.part.choices[choice])]), np.array([number]), np.array([of]))
        self._axes(block, name, wins, both)

    def _compare_predicted(self, name: str, first: Any, other: Any, both: Any) -> None:
        """Among rows where both are predicted, which are NaN elsewhere."""
        known = np.isfinite(first) & np.isfinite(other) & (True if both is None else both)
        _count(self.predicted, name, int(np.count_nonzero(known & (other < first))), int(np.count_nonzero(known)))

    def _axes(self, block: GridBlock, name: str, wins: Any, both: Any) -> None:
        for axis, (one, values) in enumerate(block.part.axes.items()):
            if len(values) <= MOST_VALUES:
                length = block.lengths[axis]
                of = np.full(length, block.points / length) if both is None else _along(both, axis)
                self._add(name, one, values[block.slices[axis]], _along(wins, axis), of)

    def _add(self, name: str, axis: str, values: Any, wins: Any, of: Any) -> None:
        found = WinShares(values, wins.astype(float), of.astype(float))
        known = self.shares.setdefault(name, {}).setdefault(axis, found)
        if known is not found:
            known.add(found)

    def merge(self, other: Summary) -> None:
        """Take in what another has seen."""
        for key, row in other.best.items():
            best = self.best.get(key)
            if best is None or row[self.objective] < best[self.objective]:
                self.best[key] = row
        for name, axes in other.shares.items():
            for axis, shares in axes.items():
                known = self.shares.setdefault(name, {}).setdefault(axis, shares)
                if known is not shares:
                    known.add(shares)
        for mine, theirs in ((self.compared, other.compared), (self.predicted, other.predicted)):
            for name, (wins, of) in theirs.items():
                _count(mine, name, wins, of)


def _count(counts: dict[str, list[int]], name: str, wins: int, of: int) -> None:
    known = counts.setdefault(name, [0, 0])
    known[0], known[1] = known[0] + wins, known[1] + of


def _along(flags: Any, axis: int) -> Any:
    """How many are set for each value of one axis."""
    rest = tuple(other for other in range(flags.ndim) if other != axis)
    return np.count_nonzero(flags, axis=rest) if rest else flags.astype(float)


def _least(column: Any, valid: Any) -> int | None:
    """Flat index of the smallest value among the valid ones that are numbers; None if there is none."""
    flat = column.reshape(-1)
    if valid is not None:
        flat = np.where(np.broadcast_to(valid, column.shape).reshape(-1), flat, np.inf)
    place = int(np.argmin(flat))
    if np.isnan(flat[place]):
        flat = np.where(np.isnan(flat), np.inf, flat)
        place = int(np.argmin(flat))
    return place if np.isfinite(flat[place]) else None


def _usable(answer: VariantBlock, *columns: str) -> Any:
    """Flat mask of the rows that are valid and have all ``columns``."""
    arrays = [answer.columns[name].reshape(-1) for name in columns]
    usable = np.isfinite(arrays[0])
    for array in arrays[1:]:
        usable &= np.isfinite(array)
    if answer.valid is not None:
        usable &= np.broadcast_to(answer.valid, answer.columns[columns[0]].shape).reshape(-1)
    return usable


@dataclass(slots=True)
class Best:
    """The ``top`` rows with the least ``column``, the earlier one first where two are equal."""

    reader: Reader
    column: str
    top: int = 10
    rows: list[Row] = field(default_factory=list)

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        for answer in block.answers:
            if not answer.columns:
                continue
            values = answer.columns[self.column].reshape(-1)
            limit = self.rows[-1][self.column] if len(self.rows) >= self.top else np.inf
            if answer.valid is None and not values.min() < limit:
                continue
            places = np.flatnonzero(_usable(answer, self.column) & (values < limit))
            if len(places) > self.top:
                places = places[np.argsort(values[places], kind="stable")[: self.top]]
            self._add([self.reader.row(block, answer, int(place)) for place in places])

    def merge(self, other: Best) -> None:
        """Take in the best rows of another."""
        self._add(other.rows)

    def _add(self, rows: list[Row]) -> None:
        self.rows = sorted([*self.rows, *rows], key=lambda row: row[self.column])[: self.top]


@dataclass(slots=True)
class Pareto:
    """Rows of which no other one is at most as large in both columns and smaller in one; by ascending ``first``.

    Of rows that are equal in both columns the earliest is kept.
    """

    reader: Reader
    first: str
    second: str
    rows: list[Row] = field(default_factory=list)

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        for answer in block.answers:
            if not answer.columns:
                continue
            places = np.flatnonzero(_usable(answer, self.first, self.second))
            x, y = (answer.columns[name].reshape(-1)[places] for name in (self.first, self.second))
            if self.rows and len(places):
                kept = y < self._reached(x)
                places, x, y = places[kept], x[kept], y[kept]
            if len(places):
                self._add([self.reader.row(block, answer, int(places[index])) for index in front(x, y)])

    def _reached(self, x: Any) -> Any:
        """The least second value that the front has at most at ``x``."""
        own = np.array([row[self.first] for row in self.rows], float), np.array([row[self.second] for row in self.rows], float)
        places = np.searchsorted(own[0], x, side="right") - 1
        return np.where(places >= 0, own[1][places], np.inf)

    def merge(self, other: Pareto) -> None:
        """Take in the front of another."""
        self._add(other.rows)

    def _add(self, rows: list[Row]) -> None:
        both = [*self.rows, *rows]
        x, y = (np.array([row[name] for row in both], float) for name in (self.first, self.second))
        self.rows = [both[index] for index in front(x, y)]


def front(x: Any, y: Any) -> Any:
    """Indices of the points that no other one beats, by ascending x.

    >>> front(np.array([1.0, 2.0, 3.0, 2.0]), np.array([5.0, 3.0, 4.0, 3.0])).tolist()
    [0, 1]
    """
    order = np.lexsort((y, x))
    lowest = np.minimum.accumulate(y[order])
    before = np.concatenate(([np.inf], lowest[:-1]))
    return order[y[order] < before]
