"""Blocks of a grid evaluated: inputs laid out along their axes, derived and checked, and every variant run on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from perfmodel.core.errors import PerfmodelError
from perfmodel.sweep.base import Skipped, SweepVariant
from perfmodel.sweep.expression import Expression
from perfmodel.sweep.grid import SubGrid, SweepGrid
from perfmodel.sweep.recording import Recording, Replay

Slices = tuple[slice, ...]
Values = Mapping[str, Any]


@dataclass(slots=True)
class VariantBlock:
    """One variant in one block. ``inputs``: every one, choices too; numbers broadcast to ``lengths``.

    ``name``: its value of the compared choice. ``columns``: arrays of the block's shape, none where the variant has no answer.
    ``valid``: which rows count, None for all. ``left_out``: how many rows have no answer, by reason; ``excluded``: how many the
    constraints take away.
    """

    name: Any
    inputs: Values
    lengths: tuple[int, ...]
    columns: Mapping[str, Any]
    valid: Any = None
    left_out: dict[str, int] = field(default_factory=dict)
    excluded: int = 0

    @property
    def rows(self) -> int:
        """Number of rows that count."""
        return prod(self.lengths) if self.valid is None else int(np.count_nonzero(self.valid))

    def exclude(self, constraints: Sequence[Expression], named: Values) -> None:
        """Takes away the rows in which one of ``constraints`` does not hold."""
        for expression in constraints:
            holds, before = np.broadcast_to(np.asarray(expression.value(named), bool), self.lengths), self.rows
            if not holds.all():
                self.valid = holds if self.valid is None else self.valid & holds
                self.excluded += before - self.rows

    def leave_out(self, skipped: Sequence[Skipped]) -> None:
        """Removes the rows without an answer; a row with several reasons counts for the first."""
        for gap in skipped:
            if np.any(gap.where):
                valid, before = np.ones(self.lengths, bool) if self.valid is None else self.valid, self.rows
                self.valid = valid & ~gap.where
                if before > self.rows:
                    self.left_out[gap.reason] = self.left_out.get(gap.reason, 0) + before - self.rows


@dataclass(frozen=True, slots=True)
class GridBlock:
    """One block evaluated: an answer for each value of the compared choice."""

    grid: SweepGrid
    part: SubGrid
    slices: Slices
    lengths: tuple[int, ...]
    answers: Sequence[VariantBlock]

    @property
    def points(self) -> int:
        """Number of configurations in the block."""
        return prod(self.lengths)


def check_variants(grid: SweepGrid) -> None:
    """Raises the error of every combination of choices, if it is the same: they have no answer, whatever the numbers."""
    errors: dict[str, PerfmodelError] = {}
    for part in grid.parts:
        for choices in grid.variants(part).values():
            try:
                grid.workload.variant(choices)
                return
            except PerfmodelError as error:
                errors.setdefault(error.message, error)
    if len(errors) == 1:
        raise next(iter(errors.values()))


class Evaluator:
    """One part of a grid, ready to be evaluated in blocks."""

    def __init__(self, grid: SweepGrid, part: SubGrid) -> None:
        self.grid, self.part = grid, part
        self.fast = [name for name in grid.columns if name not in grid.pointwise]
        self.slow = [name for name in grid.columns if name in grid.pointwise]
        self.variants: dict[Any, tuple[SweepVariant, Replay] | str] = {}
        whole = self._values(tuple(slice(0, length) for length in part.lengths))
        for value, choices in grid.variants(part).items():
            try:
                with np.errstate(all="ignore"):  # some derived numbers mean nothing
                    variant = grid.workload.variant(choices)
                    self.variants[value] = variant, self._recorded(variant, whole)
            except PerfmodelError as error:
                self.variants[value] = error.message

    def _values(self, slices: Slices) -> dict[str, Any]:
        """Values by name: arrays that broadcast to the block, or plain numbers; what repeats another is the same object."""
        values: dict[str, Any] = dict(self.part.fixed)
        for axis, (name, stretch) in enumerate(zip(self.part.axes, slices, strict=True)):
            shape = [1] * len(slices)
            shape[axis] = -1
            values[name] = self.part.axes[name][stretch].reshape(shape)
        for name, expression in self.grid.derived.items():
            values[name] = expression.value(values) if expression.alias is None else values[expression.alias]
        return values

    def _skipped(self, values: dict[str, Any]) -> list[Skipped]:
        """Rows whose derived numbers mean nothing; these are replaced by 1 so that they do no harm."""
        gaps = []
        for name, expression in self.grid.derived.items():
            axis = self.grid.workload.named[name]
            if expression.alias is not None:
                values[name] = values[expression.alias]
                continue
            value = np.asarray(values[name], float)
            wrong = ~((value >= axis.least) & (value <= axis.most) & ((value == np.floor(value)) | (axis.kind == "number")))
            if wrong.any():
                whole = "" if axis.kind == "number" else "whole "
                gaps.append(Skipped(f"{name} = {expression.text} is no {whole}number of its range", wrong))
                value = np.where(wrong, 1.0, value)
            values[name] = value
        return gaps

    def _recorded(self, variant: SweepVariant, whole: Values) -> Replay:
        """The variant's formulas, with numbers of one value written into them."""
        depends, recording = variant.extras(whole), Recording()
        first = self._values(tuple(slice(0, 1) for _ in self.part.lengths))
        if not self.fast:
            return Replay({})
        self._skipped(first)
        extra = variant.prepare(first)[0]
        numbers: dict[str, Any] = {}
        inputs = self.grid.workload.named
        for name, value in {**first, **extra}.items():
            if any(np.size(whole[source]) > 1 for source in depends.get(name, [name])):
                numbers[name] = recording.leaf(self.grid.source(name))
            else:
                plain = float(np.asarray(value).reshape(-1)[0])
                real = name not in extra and inputs[name].kind == "number"
                numbers[name] = plain if real else int(plain)
        formulas = variant.formulas(numbers)
        return Replay({name: formulas[name] for name in self.fast})

    def block(self, slices: Slices, outs: Mapping[Any, Mapping[str, Any]]) -> GridBlock:
        """The block at ``slices``. ``outs``: by value of the compared choice, arrays to write its columns to."""
        lengths = tuple(stretch.stop - stretch.start for stretch in slices)
        with np.errstate(all="ignore"):
            values = self._values(slices)
            skipped, answers = self._skipped(values), []
            for name, entry in self.variants.items():
                inputs = {**self.part.choices, **values, str(self.grid.workload.compared): name}
                if isinstance(entry, str):
                    answers.append(VariantBlock(name, inputs, lengths, {}, np.zeros(lengths, bool), {entry: prod(lengths)}))
                else:
                    answers.append(VariantBlock(name, inputs, lengths, outs[name]))
                    self._fill(answers[-1], *entry, values, skipped)
            return GridBlock(self.grid, self.part, slices, lengths, answers)

    def _fill(self, answer: VariantBlock, variant: SweepVariant, replay: Replay, values: Values, skipped: list[Skipped]) -> None:
        """Fills in the columns of ``answer``, and marks the rows that do not count."""
        extra, missing = variant.prepare(values)
        replay.run({**values, **extra}, answer.columns)
        answer.exclude(self.grid.where, answer.inputs)
        answer.leave_out([*skipped, *missing])
        if self.slow:
            answer.leave_out(self._points(answer, variant, values))
        answer.exclude(self.grid.filters, {**answer.inputs, **answer.columns})

    def _points(self, answer: VariantBlock, variant: SweepVariant, values: Values) -> list[Skipped]:
        """Fills the columns that are computed row by row; NaN, and the rows by reason, where there is no answer."""
        lengths = answer.lengths
        laid = {name: np.broadcast_to(value, lengths).reshape(-1) for name, value in values.items()}
        flat = {name: answer.columns[name].reshape(-1) for name in self.slow}
        for column in flat.values():
            column.fill(np.nan)
        unanswered: dict[str, Any] = {}
        for row in range(prod(lengths)) if answer.valid is None else np.flatnonzero(answer.valid).tolist():
            try:
                answer_of_row = variant.point({name: _plain(value[row]) for name, value in laid.items()}, self.slow)
            except PerfmodelError as error:
                unanswered.setdefault(error.message, np.zeros(lengths, bool)).reshape(-1)[row] = True
                continue
            for name, column in flat.items():
                column[row] = np.nan if answer_of_row[name] is None else answer_of_row[name]
        return [Skipped(reason, where) for reason, where in unanswered.items()]


def _plain(value: Any) -> Any:
    return int(value) if float(value).is_integer() else float(value)
