"""What a sweep shows, summed up while it runs: the best rows, of every group and by one or two columns, and who beats whom where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.sweep.evaluate import GridBlock, VariantBlock
from perfmodel.sweep.grid import SweepGrid
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.table import Row

PREDICTED = "predicted_s"
MOST_GROUPS = 10_000
MOST_VALUES = 100_000
"""Groups, and values of an axis, beyond which neither is kept apart."""
MOST_REASONS, OTHER_REASONS = 1000, "other reasons"


@dataclass(slots=True)
class Counts:
    """Numbers of rows: those there are, those without an answer by reason, and those that the constraints take away."""

    rows: int = 0
    excluded: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """Number of rows that were looked at."""
        return self.rows + self.excluded + sum(self.left_out.values())

    def update(self, block: GridBlock) -> None:
        """Count one block."""
        self.merge(Counts(left_out=block.left_out))
        for answer in block.answers:
            self.merge(answer)

    def merge(self, other: Counts | VariantBlock) -> None:
        """Add the counts of others, or of one variant in a block."""
        self.rows += other.rows
        self.excluded += other.excluded
        for reason, number in other.left_out.items():
            known = reason if reason in self.left_out or len(self.left_out) < MOST_REASONS else OTHER_REASONS
            self.left_out[known] = self.left_out.get(known, 0) + number


@dataclass(slots=True)
class WinShares:
    """Configurations in which the alternative wins, for each value of an axis, ``of`` all compared there."""

    values: Any
    wins: Any
    of: Any

    def add(self, other: WinShares) -> None:
        """Add what was counted for the same values, or for others."""
        if len(other.values) == len(self.values) and (other.values == self.values).all():
            self.wins, self.of = self.wins + other.wins, self.of + other.of
            return
        self.values, where = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        both = (self.wins, other.wins), (self.of, other.of)
        self.wins, self.of = (np.bincount(where, np.concatenate(pair), len(self.values)) for pair in both)


@dataclass(slots=True)
class Summary:
    """Summary of a sweep. ``objective``: the column that is compared, less being better; ``swept``: choices with several values.

    ``best``: by the values of ``swept``. ``shares``: by value of the compared choice, then by axis or choice. ``compared``: in how many
    configurations each other one has less of the objective, and in how many both have it; ``predicted``: the same of predicted times.
    """

    objective: str
    swept: tuple[str, ...]
    reference: Any = None
    best: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    shares: dict[str, dict[str, WinShares]] = field(default_factory=dict)
    compared: dict[str, list[int]] = field(default_factory=dict)
    predicted: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, grid: SweepGrid, objective: str) -> Summary:
        """An empty summary of ``grid``; the first value of the compared choice is the reference."""
        swept = tuple(name for name, values in grid.choices.items() if len(values) > 1)
        return cls(objective, swept, grid.compared[0] if len(grid.compared) > 1 else None)

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        columns = {answer.name: answer.flat(self.objective) for answer in block.answers}
        for answer in block.answers:
            self._best(block, answer, columns[answer.name])
        reference = next((answer for answer in block.answers if answer.name == self.reference is not None), None)
        for answer in block.answers:
            if reference is not None and answer is not reference:
                self._along(block, str(answer.name), *_wins(columns[self.reference], columns[answer.name], self.compared, answer.name))
                if PREDICTED in block.grid.columns:
                    _wins(reference.flat(PREDICTED), answer.flat(PREDICTED), self.predicted, answer.name)

    def _best(self, block: GridBlock, answer: VariantBlock, column: Any) -> None:
        place = int(np.argmin(np.where(np.isfinite(column), column, np.inf)))
        key = tuple(answer.values[name] for name in self.swept)
        least_before = self.best[key][self.objective] if key in self.best else np.inf
        if column[place] < least_before and (key in self.best or len(self.best) < MOST_GROUPS):
            [self.best[key]] = block.rows(answer, [place])

    def _along(self, block: GridBlock, name: str, wins: Any, both: Any) -> None:
        """Counts where the alternative called ``name`` is better, for every value of a choice and along every axis."""
        for choice in self.swept:
            if choice in block.part.choices:
                word, numbers = str(block.part.choices[choice]), (np.array([np.count_nonzero(one)]) for one in (wins, both))
                self._add(name, choice, WinShares(np.array([word]), *numbers))
        wins, both = wins.reshape(block.lengths), None if both.all() else both.reshape(block.lengths)
        for axis, (one, values) in enumerate(block.part.axes.items()):
            if len(values) <= MOST_VALUES:
                length = block.lengths[axis]
                of = np.full(length, block.points / length) if both is None else _along(both, axis)
                self._add(name, one, WinShares(values[block.slices[axis]], _along(wins, axis), of))

    def _add(self, name: str, axis: str, found: WinShares) -> None:
        known = self.shares.setdefault(name, {}).setdefault(axis, found)
        if known is not found:
            known.add(found)

    def merge(self, other: Summary) -> None:
        """Take in what another has seen."""
        for key, row in other.best.items():
            if key not in self.best or row[self.objective] < self.best[key][self.objective]:
                self.best[key] = row
        for name, axes in other.shares.items():
            for axis, shares in axes.items():
                self._add(name, axis, shares)
        for mine, theirs in ((self.compared, other.compared), (self.predicted, other.predicted)):
            for name, (wins, of) in theirs.items():
                _count(mine, name, wins, of)


def _count(counts: dict[str, list[int]], name: str, wins: int, of: int) -> None:
    known = counts.setdefault(name, [0, 0])
    known[0], known[1] = known[0] + wins, known[1] + of


def _wins(first: Any, other: Any, counts: dict[str, list[int]], name: Any) -> tuple[Any, Any]:
    """Masks: where ``other`` is less than ``first``, and where both are numbers; noted in ``counts``."""
    both = np.isfinite(first) & np.isfinite(other)
    wins = (other < first) & both
    _count(counts, str(name), int(np.count_nonzero(wins)), int(np.count_nonzero(both)))
    return wins, both


def _along(flags: Any, axis: int) -> Any:
    """Number of flags set for each value of one axis."""
    return np.count_nonzero(flags, axis=tuple(other for other in range(flags.ndim) if other != axis)).astype(float)


class _Search:
    """Rows that are searched for by the values of some columns."""

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        for answer in block.answers:
            places = self._places(answer)
            if len(places):
                self._add(block.rows(answer, places))

    def merge(self, other: Any) -> None:
        """Take in the rows of another."""
        self._add(other.rows)

    def _places(self, answer: VariantBlock) -> Any:
        """Flat indices of the rows of ``answer`` that may be among those."""

    def _add(self, rows: list[Row]) -> None:
        """Keeps what belongs to the result of these rows, and of those before."""


@dataclass(slots=True)
class Best(_Search):
    """The ``top`` rows with the least ``column``, with ``most`` the most; the earlier one first where two are equal."""

    column: str
    top: int = 10
    most: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def word(self) -> str:
        """What is looked for."""
        return "most" if self.most else "least"

    def _places(self, answer: VariantBlock) -> Any:
        values = (-1 if self.most else 1) * answer.flat(self.column)
        places = np.flatnonzero(values < (self._cost(self.rows[-1]) if len(self.rows) >= self.top else np.inf))
        return places[np.argsort(values[places], kind="stable")[: self.top]]

    def _add(self, rows: list[Row]) -> None:
        self.rows = sorted([*self.rows, *rows], key=self._cost)[: self.top]

    def _cost(self, row: Row) -> float:
        return float(-row[self.column] if self.most else row[self.column])


@dataclass(slots=True)
class Pareto(_Search):
    """Rows of which no other one is at least as good in both columns and better in one; the best ``first`` before the others.

    ``signs``: of each column 1 if less of it is good, -1 if more is. Of rows that are equal in both the earliest is kept.
    """

    first: str
    second: str
    signs: tuple[int, int] = (1, 1)
    rows: list[Row] = field(default_factory=list)

    def _places(self, answer: VariantBlock) -> Any:
        x, y = (sign * answer.flat(name) for sign, name in self._sides())
        places = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        x, y = x[places], y[places]
        if self.rows:  # the least second value that the front has at most at x
            own = self._values(self.rows)
            before = np.searchsorted(own[0], x, side="right") - 1
            kept = y < np.where(before >= 0, own[1][before], np.inf)
            places, x, y = places[kept], x[kept], y[kept]
        return places[front(x, y)]

    def _values(self, rows: list[Row]) -> list[Any]:
        return [sign * np.array([row[name] for row in rows], float) for sign, name in self._sides()]

    def _sides(self) -> list[tuple[int, str]]:
        return list(zip(self.signs, (self.first, self.second), strict=True))

    def _add(self, rows: list[Row]) -> None:
        both = [*self.rows, *rows]
        self.rows = [both[index] for index in front(*self._values(both))]


def front(x: Any, y: Any) -> Any:
    """Indices of the points that no other one beats, by ascending x.

    >>> front(np.array([1.0, 2.0, 3.0, 2.0]), np.array([5.0, 3.0, 4.0, 3.0])).tolist()
    [0, 1]
    """
    order = np.lexsort((y, x))
    lowest = np.minimum.accumulate(y[order])
    before = np.concatenate(([np.inf], lowest[:-1]))
    return order[y[order] < before]


@dataclass(slots=True)
class Findings:
    """Summary of a sweep's rows, and results of its search. ``progress``: called with the number of rows as they come."""

    counts: Counts
    summary: Summary
    best: Best | None
    pareto: Pareto | None
    progress: Callable[[int], Any] | None = None

    @classmethod
    def of(cls, grid: SweepGrid, study: SweepStudy) -> Findings:
        """Empty findings; ``study``, complete, says what is searched for in ``grid``."""
        usual = grid.workload.objective if grid.workload.objective in grid.columns else grid.columns[0]
        sought = study.minimize or study.maximize
        best = None if sought is None else Best(sought, study.top, study.maximize is not None)
        pair = [(name, -1 if grid.workload.column(name).better > 0 else 1) for name in study.pareto or ()]
        pareto = Pareto(pair[0][0], pair[1][0], (pair[0][1], pair[1][1])) if pair else None
        return cls(Counts(), Summary.of(grid, study.minimize or usual), best, pareto)

    def _each(self) -> list[Any]:
        return [consumer for consumer in (self.counts, self.summary, self.best, self.pareto) if consumer is not None]

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        for one in self._each():
            one.update(block)
        self._advance(block.points * len(block.answers))

    def merge(self, other: Findings) -> None:
        """Take in what another has found in other chunks."""
        for own, its in zip(self._each(), other._each(), strict=True):
            own.merge(its)
        self._advance(other.counts.points)

    def _advance(self, points: int) -> None:
        if self.progress is not None:
            self.progress(points)
