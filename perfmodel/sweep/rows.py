"""Single rows of a block as plain Python values, and where in a block the best one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from perfmodel.sweep.cells import Answer
from perfmodel.sweep.evaluate import Block
from perfmodel.sweep.grid import Grid

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """Takes rows out of blocks: the inputs ``given``, then ``columns``; ``counts``: which of those are whole numbers."""

    given: Sequence[str]
    columns: Sequence[str]
    counts: frozenset[str]

    @classmethod
    def of(cls, grid: Grid) -> Reader:
        """A reader of the rows of ``grid``."""
        return cls(grid.given, grid.columns, frozenset(one.name for one in grid.workload.columns if one.whole))

    def row(self, block: Block, answer: Answer, place: int) -> Row:
        """The row at flat index ``place``."""
        index = np.unravel_index(place, block.lengths)
        inputs = block.inputs(answer)
        found = {name: _scalar(inputs[name], index, block.lengths) for name in self.given}
        for name in self.columns:
            found[name] = number(float(answer.columns[name][index]), whole=name in self.counts)
        return found


def _scalar(value: Any, index: tuple[Any, ...], lengths: tuple[int, ...]) -> Any:
    if not isinstance(value, np.ndarray):
        return number(value, whole=value.is_integer()) if isinstance(value, float) else value
    one = float(np.broadcast_to(value, lengths)[index])
    return number(one, whole=one.is_integer())


def number(value: float, *, whole: bool) -> int | float | None:
    """A column's value as Python has it: an int where it is a count and exact; None where there is none."""
    if not isfinite(value):
        return None
    return int(value) if whole and abs(value) <= 2**53 else value


def plain(value: Any) -> Any:
    """A number, or None where there is none."""
    return None if isinstance(value, float) and not isfinite(value) else value


def least(column: Any, valid: Any) -> int | None:
    """Flat index of the smallest value among the valid ones that are numbers; None if there is none."""
    flat = column.reshape(-1)
    if valid is not None:
        flat = np.where(np.broadcast_to(valid, column.shape).reshape(-1), flat, np.inf)
    place = int(np.argmin(flat))
    if np.isnan(flat[place]):
        flat = np.where(np.isnan(flat), np.inf, flat)
        place = int(np.argmin(flat))
    return place if np.isfinite(flat[place]) else None


def better(first: Mapping[str, Any], second: Mapping[str, Any] | None, column: str) -> bool:
    """Whether ``first`` has the smaller value."""
    return second is None or first[column] < second[column]
