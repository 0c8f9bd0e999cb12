"""Rows in memory: tables of one NumPy array per column, words as codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import isfinite
from typing import Any

import numpy as np

from perfmodel.core.errors import visible
from perfmodel.core.frozen import dataclass
from perfmodel.sweep.base import SweepColumn, SweepInput

WORD, FLAG, WHOLE, COUNT, REAL = "name", "flag", "whole", "count", "number"
_TYPES: Mapping[str, Any] = {WORD: np.int32, FLAG: np.bool_, WHOLE: np.int64, COUNT: np.float64, REAL: np.float64}
EXACT = 2.0**53
"""Counts up to this are whole numbers in float64."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table. ``kind``: a word, true or false, a whole number, a count (whole, and exact up to 2^53), a real number.

    ``words``: what the codes of a column of words mean. ``source``: the input or result that it holds.
    """

    name: str
    unit: str
    kind: str
    words: tuple[str, ...] = ()
    source: str = ""

    @property
    def type(self) -> Any:
        """NumPy type of the column."""
        return _TYPES[self.kind]

    @property
    def written(self) -> list[str]:
        """``words`` escaped for output: a file name may hold invalid UTF-8 or terminal control characters."""
        return list(map(visible, self.words))


def input_field(axis: SweepInput, values: Sequence[Any]) -> Field:
    """The column of an input; ``values``: all that it has, if it is a choice."""
    name = f"{axis.name}_size_bytes" if axis.size else axis.name
    return Field(name, axis.unit, axis.kind, tuple(map(str, values)) if axis.kind == WORD else (), axis.name)


def result_field(column: SweepColumn) -> Field:
    """The column of a result."""
    return Field(column.name, column.unit, COUNT if column.whole else REAL, source=column.name)


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of one row."""
    return sum(np.dtype(field_.type).itemsize for field_ in fields)


@dataclass(slots=True)
class RowTable:
    """A table of one array per column, of which the first ``rows`` values are in use."""

    fields: tuple[Field, ...]
    arrays: dict[str, Any] = field(default_factory=dict)
    rows: int = 0

    @classmethod
    def empty(cls, fields: tuple[Field, ...], capacity: int) -> RowTable:
        """A table with room for ``capacity`` rows, none in use."""
        return cls(fields, {field_.name: np.empty(capacity, field_.type) for field_ in fields})

    @property
    def capacity(self) -> int:
        """Number of rows there is room for."""
        return len(next(iter(self.arrays.values())))

    def append(self, values: dict[str, Any], lengths: tuple[int, ...], where: Any, rows: int) -> None:
        """Adds ``rows`` rows of a block of ``lengths``, to which ``values`` broadcast.

        ``where``: mask or indices of these rows in the block; None for all.
        """
        target = slice(self.rows, self.rows + rows)
        for field_ in self.fields:
            value, array = values[field_.source], self.arrays[field_.name][target]
            if field_.kind == WORD:
                value = field_.words.index(str(value))
            if where is None:
                np.copyto(array.reshape(lengths), value, casting="unsafe")
                if field_.type is np.float64 and np.size(value) > 1:
                    values[field_.source] = array.reshape(lengths)  # later readers use the copy, and the memory of the result is free
            else:
                array[...] = np.broadcast_to(value, lengths)[where]
        self.rows += rows

    def column(self, name: str) -> Any:
        """The values in use as a view, with words as codes."""
        return self.arrays[name][: self.rows]

    def decoded(self, name: str) -> Any:
        """The values in use, with words as text."""
        field_ = next(field_ for field_ in self.fields if field_.name == name)
        return np.array(field_.words, object)[self.column(name)] if field_.kind == WORD else self.column(name)

    def part(self, first: int, last: int) -> RowTable:
        """Rows ``first`` to ``last`` - 1, as views."""
        return RowTable(self.fields, {name: values[first:last] for name, values in self.arrays.items()}, last - first)

    def plain(self, field_: Field) -> list[Any]:
        """The values in use as Python has them: an int where it is a count and exact; None where there is no number."""
        values = self.decoded(field_.name)
        if field_.kind == COUNT:
            all_exact = (np.abs(values) <= EXACT).all()
            return list(values.astype(np.int64).tolist()) if all_exact else [_count(value) for value in values.tolist()]
        if field_.kind == REAL and not np.isfinite(values).all():
            return [value if isfinite(value) else None for value in values.tolist()]
        return list(values.tolist())

    def listed(self) -> list[Row]:
        """Rows as plain Python values, None where there is no number."""
        columns = {field_.name: self.plain(field_) for field_ in self.fields}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _count(value: float) -> int | float | None:
    """A count as an int if it is exact; None where there is no number."""
    if not isfinite(value):
        return None
    return int(value) if abs(value) <= EXACT else value
