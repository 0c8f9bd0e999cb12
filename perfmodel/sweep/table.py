"""Rows in memory: tables of one NumPy array per column, words as codes; and single rows of a block as plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from perfmodel.core.errors import visible
from perfmodel.sweep.evaluate import VariantBlock
from perfmodel.sweep.grid import SweepGrid

WORD, FLAG, WHOLE, COUNT, REAL = "word", "flag", "whole", "count", "real"
_TYPES: Mapping[str, Any] = {WORD: np.int32, FLAG: np.bool_, WHOLE: np.int64, COUNT: np.float64, REAL: np.float64}
_KINDS = {"name": WORD, "flag": FLAG, "whole": WHOLE, "size": WHOLE, "number": REAL}
EXACT = 2.0**53
"""Counts up to this are whole numbers in float64."""

Row = dict[str, Any]


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
        """NumPy type of the column."""
        return _TYPES[self.kind]

    @property
    def written(self) -> list[str]:
        """``words`` escaped for output: a file name may hold invalid UTF-8 or terminal control characters."""
        return list(map(visible, self.words))


def fields_of(grid: SweepGrid) -> tuple[Field, ...]:
    """Inputs that were given, then results."""
    listed = []
    for name in grid.given:
        axis = grid.workload.named[name]
        kind = _KINDS[axis.kind]
        words = tuple(map(str, grid.choices[name])) if kind == WORD else ()
        listed.append(Field(f"{name}_size_bytes" if axis.kind == "size" else name, axis.unit, kind, words))
    columns = map(grid.workload.column, grid.columns)
    return (*listed, *(Field(axis.name, axis.unit, COUNT if axis.whole else REAL) for axis in columns))


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of one row."""
    return sum(np.dtype(one.type).itemsize for one in fields)


@dataclass(slots=True)
class RowTable:
    """``rows`` of the arrays are in use."""

    fields: tuple[Field, ...]
    arrays: dict[str, Any] = field(default_factory=dict)
    rows: int = 0

    @classmethod
    def empty(cls, fields: tuple[Field, ...], capacity: int) -> RowTable:
        """A table with room for ``capacity`` rows, none in use."""
        return cls(fields, {one.name: np.empty(capacity, one.type) for one in fields})

    @property
    def capacity(self) -> int:
        """Number of rows there is room for."""
        return len(next(iter(self.arrays.values())))

    def column(self, name: str) -> Any:
        """The values in use, codes where they are words; not a copy."""
        return self.arrays[name][: self.rows]

    def decoded(self, name: str) -> Any:
        """The values in use, words as such."""
        one = next(one for one in self.fields if one.name == name)
        return np.array(one.words, object)[self.column(name)] if one.kind == WORD else self.column(name)

    def part(self, first: int, last: int) -> RowTable:
        """Rows ``first`` to ``last`` - 1; not a copy."""
        return RowTable(self.fields, {name: values[first:last] for name, values in self.arrays.items()}, last - first)

    def listed(self) -> list[Row]:
        """Rows as plain Python values, None where there is no number."""
        columns = {one.name: self.decoded(one.name).tolist() for one in self.fields}
        for one in self.fields:
            if one.kind in (COUNT, REAL):
                columns[one.name] = [value if isfinite(value) else None for value in columns[one.name]]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def row_of(grid: SweepGrid, answer: VariantBlock, place: int) -> Row:
    """The row at flat index ``place``: inputs that are given, then columns."""
    index, row = np.unravel_index(place, answer.lengths), dict[str, Any]()
    for name in grid.given:
        value = answer.inputs[name]
        if isinstance(value, np.ndarray):
            value = float(np.broadcast_to(value, answer.lengths)[index])
        row[name] = _number(value, whole=value.is_integer()) if isinstance(value, float) else value
    counts = {column.name for column in grid.workload.columns if column.whole}
    return row | {name: _number(float(answer.columns[name][index]), whole=name in counts) for name in grid.columns}


def _number(value: float, *, whole: bool) -> int | float | None:
    """A column's value as Python has it: an int where it is a count and exact; None where there is none."""
    if not isfinite(value):
        return None
    return int(value) if whole and abs(value) <= EXACT else value
