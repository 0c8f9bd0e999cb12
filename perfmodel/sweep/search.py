"""What is looked for in a sweep: the best rows by one column, and the rows that no other one beats in both of two columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.sweep.cells import Answer
from perfmodel.sweep.evaluate import Block
from perfmodel.sweep.rows import Reader, Row


def _usable(answer: Answer, *columns: str) -> Any:
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

    def update(self, block: Block) -> None:
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

    def update(self, block: Block) -> None:
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
