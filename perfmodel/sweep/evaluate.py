"""Evaluation of a grid, block by block: inputs are laid out along their axes, derived and checked, and every variant runs on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.sweep.base import SweepVariant
from perfmodel.sweep.expression import Expression
from perfmodel.sweep.grid import Chunk, Slices, SubGrid, SweepGrid
from perfmodel.sweep.recording import Recording, Replay
from perfmodel.sweep.table import Row, RowTable

Values = Mapping[str, Any]


@dataclass(slots=True)
class VariantBlock:
    """One variant in one block. ``name``: its value of the compared choice.

    ``values``: its inputs and columns by name; numbers broadcast to ``lengths``. ``valid``: mask of the rows that count, None for all.
    ``left_out``: number of rows without an answer, by reason; ``excluded``: number of rows that constraints exclude.
    """

    name: Any
    values: dict[str, Any]
    lengths: tuple[int, ...]
    valid: Any = None
    left_out: Counter[str] = field(default_factory=Counter)
    excluded: int = 0

    @property
    def rows(self) -> int:
        """Number of rows that count."""
        return prod(self.lengths) if self.valid is None else int(np.count_nonzero(self.valid))

    def exclude(self, constraints: Sequence[Expression]) -> None:
        """Excludes the rows in which one of ``constraints`` does not hold."""
        for expression in constraints:
            self.excluded += self._drop(np.logical_not(expression.value(self.values)))

    def leave_out(self, reasons: Mapping[str, Any]) -> None:
        """Excludes rows without an answer, from a mask per reason; a row with several reasons counts for the first."""
        for reason, where in reasons.items():
            if dropped := self._drop(where):
                self.left_out[reason] += dropped

    def _drop(self, where: Any) -> int:
        """Excludes the rows ``where``; returns how many of them counted before."""
        if not np.any(where):
            return 0
        before, kept = self.rows, np.logical_not(where)
        self.valid = np.broadcast_to(kept, self.lengths) if self.valid is None else self.valid & kept
        return before - self.rows

    def flat(self, name: str) -> Any:
        """The column called ``name`` as a flat array; NaN in rows that do not count."""
        column = np.broadcast_to(self.values[name], self.lengths)
        return (column if self.valid is None else np.where(self.valid, column, np.nan)).reshape(-1)


@dataclass(frozen=True, slots=True)
class GridBlock:
    """One block evaluated. ``answers``: one for each value of the compared choice that has a variant; ``left_out``: rows of the others."""

    grid: SweepGrid
    part: SubGrid
    slices: Slices
    lengths: tuple[int, ...]
    answers: Sequence[VariantBlock]
    left_out: dict[str, int]

    @property
    def points(self) -> int:
        """Number of configurations in the block."""
        return prod(self.lengths)

    def rows(self, answer: VariantBlock, places: Sequence[int]) -> list[Row]:
        """The rows of ``answer`` at these flat indices."""
        table = RowTable.empty(self.grid.fields, len(places))
        table.append(answer.values, self.lengths, np.unravel_index(places, self.lengths) if self.lengths else None, len(places))
        return table.listed()


class Evaluator:
    """One part of a grid, ready to be evaluated in blocks."""

    def __init__(self, grid: SweepGrid, part: SubGrid) -> None:
        self.grid, self.part = grid, part
        self.slow_columns = [name for name in grid.columns if name in grid.pointwise]  # computed row by row
        self.variants: dict[Any, tuple[Values, SweepVariant, Replay]] = {}  # choices, variant, formulas
        self.unanswered = Counter[str]()  # number of combinations without a variant, by reason
        for value, choices in grid.variants(part).items():
            try:
                with np.errstate(all="ignore"):  # some derived numbers mean nothing
                    variant = grid.workload.variant(choices)
                    self.variants[value] = choices, variant, self._recorded(variant)
            except PerfmodelError as error:
                self.unanswered[error.message] += 1

    def _values(self, slices: Slices) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values by name, and masks of rows whose derived numbers mean nothing, by reason; these numbers are replaced by 1.

        Values are arrays that broadcast to the block, or plain numbers; an input that repeats another is the same object.
        """
        values, reasons = dict[str, Any](self.part.fixed), dict[str, Any]()
        for axis, (name, stretch) in enumerate(zip(self.part.axes, slices, strict=True)):
            shape = [1] * len(slices)
            shape[axis] = -1
            values[name] = self.part.axes[name][stretch].reshape(shape)
        for name, expression in self.grid.derived.items():
            if expression.alias is not None:
                values[name] = values[expression.alias]
                continue
            axis_input, value = self.grid.workload.named[name], np.asarray(expression.value(values), float)
            kind, valid = "number", (value >= axis_input.least) & (value <= axis_input.most)
            if axis_input.kind != "number":
                kind, valid = "whole number", valid & (value == np.floor(value))
            if not valid.all():
                reasons[f"{name} = {expression.text} is no {kind} of its range"] = ~valid
                value = np.where(valid, value, 1.0)
            values[name] = value
        return values, reasons

    def _recorded(self, variant: SweepVariant) -> Replay:
        """The variant's recorded formulas; inputs with a single value are constants in them."""
        columns = [name for name in self.grid.columns if name not in self.slow_columns]
        if not columns:
            return Replay({})
        recording, numbers = Recording(), dict[str, Any]()
        corner, _ = self._values(tuple(slice(0, 2) for _ in self.part.lengths))  # two values along every axis tell what varies along it
        for name, value in corner.items():
            if np.size(value) > 1:
                numbers[name] = recording.leaf(self.grid.source(name))
            else:
                constant = float(np.asarray(value).reshape(-1)[0])
                numbers[name] = constant if self.grid.workload.named[name].kind == "number" else int(constant)
        added_inputs, _ = variant.prepare(corner)
        numbers |= {name: recording.leaf(name) for name in added_inputs}
        formulas = variant.formulas(numbers)
        return Replay({name: formulas[name] for name in columns})

    def block(self, slices: Slices, table: RowTable | None) -> GridBlock:
        """The block at ``slices``, whose rows are added to ``table``."""
        lengths = tuple(stretch.stop - stretch.start for stretch in slices)
        with np.errstate(all="ignore"):
            values, reasons = self._values(slices)
            answers = [self._answer(name, lengths, values, reasons, table) for name in self.variants]
        left_out = {reason: variants * prod(lengths) for reason, variants in self.unanswered.items()}
        return GridBlock(self.grid, self.part, slices, lengths, answers, left_out)

    def _answer(self, name: Any, lengths: tuple[int, ...], values: Values, reasons: Values, table: RowTable | None) -> VariantBlock:
        """The columns of one variant, and the rows that count, which are added to ``table``."""
        choices, variant, replay = self.variants[name]
        added_inputs, without_answer = variant.prepare(values)
        answer = VariantBlock(name, {**choices, **values}, lengths)
        columns = replay.run({**values, **added_inputs})
        answer.exclude(self.grid.where)
        answer.leave_out({**reasons, **without_answer})
        answer.values |= columns
        if self.slow_columns:
            answer.leave_out(self._points(answer, variant, values))
        answer.exclude(self.grid.filters)
        if table is not None:  # now, while the columns are in the processor's caches
            table.append(answer.values, lengths, answer.valid, answer.rows)
        return answer

    def _points(self, answer: VariantBlock, variant: SweepVariant, values: Values) -> dict[str, Any]:
        """Fills the columns that are computed row by row, with NaN if there is no answer; returns masks of such rows by reason."""
        lengths, points = answer.lengths, prod(answer.lengths)
        inputs = {name: np.broadcast_to(value, lengths).reshape(-1) for name, value in values.items()}
        columns = {name: np.full(points, np.nan) for name in self.slow_columns}
        reasons: dict[str, Any] = {}
        for row in range(points) if answer.valid is None else np.flatnonzero(answer.valid).tolist():
            try:
                point = variant.point({name: _python_value(value[row]) for name, value in inputs.items()}, self.slow_columns)
            except PerfmodelError as error:
                reasons.setdefault(error.message, np.zeros(points, bool))[row] = True
                continue
            for name, column in columns.items():
                if point[name] is not None:
                    column[row] = point[name]
        answer.values |= {name: column.reshape(lengths) for name, column in columns.items()}
        return {reason: where.reshape(lengths) for reason, where in reasons.items()}


def _python_value(value: Any) -> Any:
    """``value`` as an int if it is whole, else as a float."""
    return int(value) if float(value).is_integer() else float(value)


Consumer = Callable[[GridBlock], None]
"""Takes in every block of a run."""


class Runner:
    """Evaluates the chunks of a grid of at most ``rows`` rows. ``tables``: whether rows are wanted, or only consumers."""

    def __init__(self, grid: SweepGrid, rows: int, *, tables: bool = True) -> None:
        self.grid, self.rows, self.tables = grid, rows, tables
        self._evaluator: Evaluator | None = None
        self._table = RowTable.empty(grid.fields, 0)

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in order."""
        return self.grid.chunks(self.rows)

    def evaluate(self, chunk: Chunk, consumer: Consumer | None = None) -> RowTable:
        """The rows of ``chunk``, in memory that the next call reuses; no rows if no tables are wanted."""
        capacity = chunk.points * len(self.grid.compared) * self.tables
        if self._table.capacity < capacity:
            self._table = RowTable.empty(self.grid.fields, capacity)
        self._table.rows = 0
        for number, slices in chunk.blocks:
            part = self.grid.parts[number]
            if self._evaluator is None or self._evaluator.part is not part:  # parts come one after another, so only the last is kept
                self._evaluator = Evaluator(self.grid, part)
            block = self._evaluator.block(slices, self._table if self.tables else None)
            if consumer is not None:
                consumer(block)
        return self._table
