"""Findings of a sweep, which grow block by block: counts of rows, the best row of each combination of choices, the rows that a search
asks for, and where alternatives beat the reference.
"""

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
"""Most combinations of choices of which the best row is kept."""
MOST_VALUES = 100_000
"""Most values of an axis along which wins are counted."""
MOST_REASONS, OTHER_REASONS = 1000, "other reasons"
"""Most reasons that are counted separately, and the name of the rest."""


@dataclass(slots=True)
class Counts:
    """Numbers of rows: ``rows`` with an answer, ``left_out`` without one, by reason, and ``excluded`` by constraints."""

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
        """Add other counts, or those of one variant in a block."""
        self.rows += other.rows
        self.excluded += other.excluded
        for reason, number in other.left_out.items():
            has_room = reason in self.left_out or len(self.left_out) < MOST_REASONS
            name = reason if has_room else OTHER_REASONS
            self.left_out[name] = self.left_out.get(name, 0) + number


@dataclass(slots=True)
class WinShares:
    """For each value of an axis: in how many configurations the alternative wins, ``of`` how many compared."""

    values: Any
    wins: Any
    of: Any

    def add(self, other: WinShares) -> None:
        """Add other counts, for the same values or for others."""
        if len(other.values) == len(self.values) and (other.values == self.values).all():
            self.wins, self.of = self.wins + other.wins, self.of + other.of
            return
        self.values, places = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        self.wins = np.bincount(places, np.concatenate([self.wins, other.wins]), len(self.values))
        self.of = np.bincount(places, np.concatenate([self.of, other.of]), len(self.values))


@dataclass(slots=True)
class Summary:
    """Summary of a sweep. ``objective``: the column that is compared, less being better; ``swept``: choices with several values.

    ``reference``: the value of the compared choice with which the other values, the alternatives, are compared. ``best``: the row with the
    least objective for each combination of the values of ``swept``. ``shares``: where an alternative wins, by alternative, then by axis or
    choice. ``compared``: in how many configurations each alternative has less of the objective than the reference, and in how many both
    have it; ``predicted``: the same for predicted times.
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
        for answer in block.answers:
            self._keep_best(block, answer)
        reference = next((answer for answer in block.answers if answer.name == self.reference is not None), None)
        if reference is None:
            return
        for answer in block.answers:
            if answer is not reference:
                name = str(answer.name)
                wins, both = _wins(reference.flat(self.objective), answer.flat(self.objective))
                _count(self.compared, name, int(wins.sum()), int(both.sum()))
                self._count_along_axes(block, name, wins, both)
                if PREDICTED in block.grid.columns:
                    wins, both = _wins(reference.flat(PREDICTED), answer.flat(PREDICTED))
                    _count(self.predicted, name, int(wins.sum()), int(both.sum()))

    def _keep_best(self, block: GridBlock, answer: VariantBlock) -> None:
        """Keeps the row of ``answer`` with the least objective, if none before had less in the same combination of choices."""
        column = answer.flat(self.objective)
        place = int(np.argmin(np.where(np.isfinite(column), column, np.inf)))
        key = tuple(answer.values[name] for name in self.swept)
        least_before = self.best[key][self.objective] if key in self.best else np.inf
        if column[place] < least_before and (key in self.best or len(self.best) < MOST_GROUPS):
            [self.best[key]] = block.rows(answer, [place])

    def _count_along_axes(self, block: GridBlock, name: str, wins: Any, both: Any) -> None:
        """Counts where the alternative called ``name`` wins, for the values of every choice and along every axis.

        ``wins``, ``both``: masks of the block, of where it wins and of where it can be compared.
        """
        for choice in self.swept:
            if choice in block.part.choices:
                value = np.array([str(block.part.choices[choice])])
                self._add(name, choice, WinShares(value, np.array([np.count_nonzero(wins)]), np.array([np.count_nonzero(both)])))
        wins, both = wins.reshape(block.lengths), None if both.all() else both.reshape(block.lengths)
        for axis, (input_name, values) in enumerate(block.part.axes.items()):
            if len(values) <= MOST_VALUES:
                length = block.lengths[axis]
                of = np.full(length, block.points / length) if both is None else _flags_along(both, axis)
                self._add(name, input_name, WinShares(values[block.slices[axis]], _flags_along(wins, axis), of))

    def _add(self, name: str, axis: str, shares: WinShares) -> None:
        """Adds to the shares of the alternative called ``name`` along ``axis``."""
        by_axis = self.shares.setdefault(name, {})
        if axis in by_axis:
            by_axis[axis].add(shares)
        else:
            by_axis[axis] = shares

    def merge(self, other: Summary) -> None:
        """Take in the summary of other chunks."""
        for key, row in other.best.items():
            if key not in self.best or row[self.objective] < self.best[key][self.objective]:
                self.best[key] = row
        for name, axes in other.shares.items():
            for axis, shares in axes.items():
                self._add(name, axis, shares)
        for counts, more in ((self.compared, other.compared), (self.predicted, other.predicted)):
            for name, (wins, of) in more.items():
                _count(counts, name, wins, of)


def _count(counts: dict[str, list[int]], name: str, wins: int, of: int) -> None:
    """Adds to the numbers of wins and of comparisons of ``name``."""
    wins_before, of_before = counts.get(name, (0, 0))
    counts[name] = [wins_before + wins, of_before + of]


def _wins(reference: Any, alternative: Any) -> tuple[Any, Any]:
    """Masks: where ``alternative`` is less than ``reference``, and where both are numbers."""
    both = np.isfinite(reference) & np.isfinite(alternative)
    return (alternative < reference) & both, both


def _flags_along(flags: Any, axis: int) -> Any:
    """Number of flags set for each value of one axis."""
    return np.count_nonzero(flags, axis=tuple(other for other in range(flags.ndim) if other != axis)).astype(float)


class _Search:
    """The rows that a search asks for, which grow block by block."""

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
        """Flat indices of the rows of ``answer`` that may belong to the result."""

    def _add(self, rows: list[Row]) -> None:
        """Keeps those of these rows and of the rows so far that belong to the result."""


@dataclass(slots=True)
class Best(_Search):
    """The ``top`` rows with the least ``column``, or with ``most`` the largest; of equal rows the earlier one first."""

    column: str
    top: int = 10
    most: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def word(self) -> str:
        """What is looked for."""
        return "most" if self.most else "least"

    def _places(self, answer: VariantBlock) -> Any:
        costs = (-1 if self.most else 1) * answer.flat(self.column)
        worst_kept = self._cost(self.rows[-1]) if len(self.rows) >= self.top else np.inf
        places = np.flatnonzero(costs < worst_kept)
        return places[np.argsort(costs[places], kind="stable")[: self.top]]

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
        x, y = self.signs[0] * answer.flat(self.first), self.signs[1] * answer.flat(self.second)
        places = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        x, y = x[places], y[places]
        if self.rows:  # leaves out rows that the front so far beats: its y falls as its x rises
            front_x, front_y = self._costs(self.rows)
            last_before = np.searchsorted(front_x, x, side="right") - 1
            not_beaten = y < np.where(last_before >= 0, front_y[last_before], np.inf)
            places, x, y = places[not_beaten], x[not_beaten], y[not_beaten]
        return places[front(x, y)]

    def _costs(self, rows: list[Row]) -> list[Any]:
        """Both columns of ``rows`` as arrays in which less is better."""
        first = np.array([row[self.first] for row in rows], float)
        second = np.array([row[self.second] for row in rows], float)
        return [self.signs[0] * first, self.signs[1] * second]

    def _add(self, rows: list[Row]) -> None:
        candidates = [*self.rows, *rows]
        self.rows = [candidates[index] for index in front(*self._costs(candidates))]


def front(x: Any, y: Any) -> Any:
    """Indices of the points that no other one beats in x and y, by ascending x.

    >>> front(np.array([1.0, 2.0, 3.0, 2.0]), np.array([5.0, 3.0, 4.0, 3.0])).tolist()
    [0, 1]
    """
    order = np.lexsort((y, x))
    lowest_so_far = np.minimum.accumulate(y[order])
    lowest_before = np.concatenate(([np.inf], lowest_so_far[:-1]))
    return order[y[order] < lowest_before]


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
        objective = grid.workload.objective if grid.workload.objective in grid.columns else grid.columns[0]
        searched = study.minimize or study.maximize
        best = None if searched is None else Best(searched, study.top, study.maximize is not None)
        pareto = None
        if study.pareto is not None:
            first, second = (grid.workload.column(name) for name in study.pareto)
            signs = (-1 if first.better > 0 else 1, -1 if second.better > 0 else 1)
            pareto = Pareto(first.name, second.name, signs)
        return cls(Counts(), Summary.of(grid, study.minimize or objective), best, pareto)

    def _consumers(self) -> list[Any]:
        return [consumer for consumer in (self.counts, self.summary, self.best, self.pareto) if consumer is not None]

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        for consumer in self._consumers():
            consumer.update(block)
        self._advance(block.points * len(block.answers))

    def merge(self, other: Findings) -> None:
        """Take in the findings of other chunks."""
        for consumer, others in zip(self._consumers(), other._consumers(), strict=True):
            consumer.merge(others)
        self._advance(other.counts.points)

    def _advance(self, points: int) -> None:
        if self.progress is not None:
            self.progress(points)
