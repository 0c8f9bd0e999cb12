"""Blocks of a grid evaluated: inputs laid out along their axes, derived and checked, and every cell run on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from perfmodel.core.errors import PerfmodelError
from perfmodel.sweep.cells import Answer, CellRunner, Values
from perfmodel.sweep.chunks import BLOCK_POINTS, Slices
from perfmodel.sweep.grid import Grid, Part
from perfmodel.sweep.part_values import PartValues


@dataclass(frozen=True, slots=True)
class Block:
    """One block evaluated: its inputs ``values``, which broadcast to ``lengths``, and an answer for each value of the compared choice."""

    part: Part
    compared: str | None
    slices: Slices
    lengths: tuple[int, ...]
    values: Values
    answers: Sequence[Answer]

    @property
    def points(self) -> int:
        """Configurations in it."""
        return prod(self.lengths)

    def inputs(self, answer: Answer) -> Values:
        """Every input of one answer, choices too."""
        return {**self.part.choices, **self.values, str(self.compared): answer.name}


def check_cells(grid: Grid) -> None:
    """The error of every combination of choices, if there is but one: they have no answer, whatever the numbers."""
    errors: dict[str, PerfmodelError] = {}
    for part in grid.parts:
        for value in grid.compared:
            try:
                grid.workload.cell({**part.choices, **({grid.workload.compared: value} if grid.workload.compared else {})})
                return
            except PerfmodelError as error:
                errors.setdefault(error.message, error)
    if len(errors) == 1:
        raise next(iter(errors.values()))


class Evaluator(PartValues):
    """One part of a grid, ready to be evaluated in blocks of at most ``points``."""

    def __init__(self, grid: Grid, part: Part, points: int = BLOCK_POINTS) -> None:
        super().__init__(grid, part, points)
        self.cells: dict[Any, CellRunner | str] = {}
        whole = self.values(tuple(slice(0, length) for length in part.lengths))
        for value in grid.compared:
            chosen = {**part.choices, **({grid.workload.compared: value} if grid.workload.compared else {})}
            try:
                with np.errstate(all="ignore"):  # some derived numbers mean nothing
                    self.cells[value] = CellRunner(self, grid.workload.cell(chosen), whole)
            except PerfmodelError as error:
                self.cells[value] = error.message

    def block(self, slices: Slices, outs: Mapping[Any, Mapping[str, Any]]) -> Block:
        """The block at ``slices``. ``outs``: by value of the compared choice, arrays to write its columns to."""
        lengths = tuple(one.stop - one.start for one in slices)
        with np.errstate(all="ignore"):
            values = self.values(slices)
            wrong = self.unusable(values)
            wanted = self._wanted(values)
            answers = []
            for name, runner in self.cells.items():
                if isinstance(runner, str):
                    answers.append(Answer(name, {}, np.zeros(lengths, bool), {runner: prod(lengths)}))
                else:
                    answers.append(runner.run(name, values, slices, outs[name], wrong, wanted))
            return Block(self.part, self.grid.workload.compared, slices, lengths, values, answers)

    def _wanted(self, values: Values) -> Any:
        """Which rows the constraints on inputs let through; None for all."""
        wanted = None
        named = {**self.part.choices, **values}
        for expression in self.grid.where:
            if self.grid.workload.compared not in expression.names:
                holds = np.asarray(expression.value(named), bool)
                wanted = holds if wanted is None else wanted & holds
        return wanted
