"""Rows in memory: one NumPy array per column; words as codes, each word kept once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.core.errors import visible
from perfmodel.sweep.grid import Grid

WORD, FLAG, WHOLE, COUNT, REAL = "word", "flag", "whole", "count", "real"
_TYPES: Mapping[str, Any] = {WORD: np.int32, FLAG: np.bool_, WHOLE: np.int64, COUNT: np.float64, REAL: np.float64}


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table. ``kind``: a word, true or false, a whole number, a count (whole, and exact up to 2^53), a real number.

    ``words``: what the codes of a column of words mean.
    """

    name: str
    unit: str
    kind: str
    words: tuple[str, ...] = ()

    @property
    def type(self) -> Any:
        """NumPy's type."""
        return _TYPES[self.kind]

    @property
    def written(self) -> list[str]:
        """``words`` as they are written: the name of a file need be no UTF-8, and may steer a terminal."""
        return list(map(visible, self.words))


def fields_of(grid: Grid) -> tuple[Field, ...]:
    """Inputs that were given, then results."""
    found = []
    for name in grid.given:
        one = grid.workload.input(name)
        assert one is not None
        kind = {"name": WORD, "flag": FLAG, "whole": WHOLE, "size": WHOLE, "number": REAL}[one.kind]
        words = tuple(map(str, grid.choices[name])) if kind == WORD else ()
        found.append(Field(f"{name}_size_bytes" if one.kind == "size" else name, one.unit, kind, words))
    for name in grid.columns:
        column = grid.workload.column(name)
        found.append(Field(name, column.unit, COUNT if column.whole else REAL))
    return tuple(found)


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of one row."""
    return sum(np.dtype(one.type).itemsize for one in fields)


@dataclass(slots=True)
class Table:
    """``rows`` of the arrays are in use."""

    fields: tuple[Field, ...]
    arrays: dict[str, Any] = field(default_factory=dict)
    rows: int = 0

    @classmethod
    def empty(cls, fields: tuple[Field, ...], capacity: int) -> Table:
        """Room for ``capacity`` rows."""
        return cls(fields, {one.name: np.empty(capacity, one.type) for one in fields})

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return len(next(iter(self.arrays.values())))

    def column(self, name: str) -> Any:
        """The values in use, codes where they are words; not a copy."""
        return self.arrays[name][: self.rows]

    def decoded(self, name: str) -> Any:
        """The values in use, words as such."""
        one = next(one for one in self.fields if one.name == name)
        return np.array(one.words, object)[self.column(name)] if one.kind == WORD else self.column(name)

    def part(self, first: int, last: int) -> Table:
        """Rows ``first`` to ``last`` - 1; not a copy."""
        return Table(self.fields, {name: values[first:last] for name, values in self.arrays.items()}, last - first)
