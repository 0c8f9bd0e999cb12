"""One cell of a part of a grid, run block by block: formulas on columns, slow columns row by row, rows without an answer marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.core.errors import PerfmodelError
from perfmodel.sweep.base import Cell, LeftOut
from perfmodel.sweep.bound import Bound
from perfmodel.sweep.chunks import Slices
from perfmodel.sweep.graph import Graph
from perfmodel.sweep.part_values import PartValues
from perfmodel.sweep.program import Program, compiled

if TYPE_CHECKING:
    from perfmodel.sweep.grid import Part

MOST_SHAPES = 8
"""Shapes of blocks for which memory is kept at once: all of a part have one, but for those at its ends."""

Values = Mapping[str, Any]


@dataclass(slots=True)
class Answer:
    """One cell in one block. ``columns``: arrays of the block's shape; ``valid``: which rows count, None for all.

    ``left_out``: how many rows have no answer, by reason; ``excluded``: how many the constraints take away.
    """

    name: Any
    columns: dict[str, Any]
    valid: Any
    left_out: dict[str, int] = field(default_factory=dict)
    excluded: int = 0


class CellRunner:
    """One cell of a part: its program, compiled once, with memory for the shapes of blocks met so far."""

    def __init__(self, owner: PartValues, cell: Cell, whole: Values) -> None:
        self.owner, self.cell = owner, cell
        grid, part = owner.grid, owner.part
        self.extras = cell.extras(whole)
        self.fast = tuple(name for name in grid.columns if name not in grid.pointwise)
        self.slow = tuple(name for name in grid.columns if name in grid.pointwise)
        self.program = self._compiled(part) if self.fast else None
        self.bound: dict[tuple[int, ...], Bound] = {}
        self.last: dict[tuple[int, ...], Slices] = {}

    def _compiled(self, part: Part) -> Program:
        """The cell's formulas, with numbers of one value written into them."""
        owner, graph = self.owner, Graph()
        grid = owner.grid
        first = owner.values(tuple(slice(0, 1) for _ in part.lengths))
        with np.errstate(all="ignore"):
            owner.unusable(first)
            extra = self.cell.prepare(first)[0]
        numbers: dict[str, Any] = {}
        axes: dict[str, int] = {}
        for name, value in {**first, **extra}.items():
            source, bits = grid.source(name), self._axes_of(name)
            whole = name in extra or getattr(grid.workload.input(name), "kind", "whole") != "number"
            if bits:
                numbers[name], axes[source] = graph.leaf(source, whole=whole, low=0 if name in extra else self._least(name)), bits
            else:
                plain = float(np.asarray(value).reshape(-1)[0])
                numbers[name] = int(plain) if whole else plain
        formulas = self.cell.formulas(numbers)
        usual = tuple(one.stop - one.start for one in owner.blocks.slices(0))
        loose = {one.name for one in grid.workload.columns if not one.whole}
        return compiled({name: formulas[name] for name in self.fast}, axes, usual, loose)

    def _least(self, name: str) -> float:
        """What an input is never below: rows where it would be are left out, and computed with another value."""
        one = self.owner.grid.workload.input(name)
        return 0 if one is None else one.least

    def _axes_of(self, name: str) -> int:
        bits = 0
        for one in self.extras.get(name, [name]):
            bits |= self.owner.grid.axes_of(one, self.owner.part)
        return bits

    def run(
        self, name: Any, values: dict[str, Any], slices: Slices, outs: Mapping[str, Any], wrong: Sequence[LeftOut], wanted: Any
    ) -> Answer:
        """The answer of this cell in a block."""
        lengths = tuple(one.stop - one.start for one in slices)
        extra, missing = self.cell.prepare(values)
        if self.program is not None:
            self._bound(lengths).run({**values, **extra}, outs, self._changed(slices))
        answer = Answer(name, dict(outs), None)
        _mark(answer, [*wrong, *missing], self._wanted(name, values, wanted), lengths)
        if self.slow:
            self._points(answer, values, lengths)
        self._filter(answer, values, lengths)
        return answer

    def _bound(self, lengths: tuple[int, ...]) -> Bound:
        """The program for blocks of this shape."""
        assert self.program is not None
        if lengths not in self.bound:
            if len(self.bound) >= MOST_SHAPES:
                self.bound.clear()
                self.last.clear()
            self.bound[lengths] = Bound(self.program, lengths)
        return self.bound[lengths]

    def _changed(self, slices: Slices) -> int:
        """Axes along which this block differs from the last one of its shape."""
        lengths = tuple(one.stop - one.start for one in slices)
        before = self.last.get(lengths)
        self.last[lengths] = slices
        if before is None:
            return -1
        return sum(1 << axis for axis, (one, other) in enumerate(zip(slices, before, strict=True)) if one != other)

    def _wanted(self, name: Any, values: Values, wanted: Any) -> Any:
        """``wanted`` with the constraints that read the compared choice."""
        grid = self.owner.grid
        named = {**self.owner.part.choices, **values, str(grid.workload.compared): name}
        for expression in grid.where:
            if grid.workload.compared in expression.names:
                holds = np.asarray(expression.value(named), bool)
                wanted = holds if wanted is None else wanted & holds
        return wanted

    def _filter(self, answer: Answer, values: Values, lengths: tuple[int, ...]) -> None:
        """Take away the rows that the constraints on columns exclude."""
        grid = self.owner.grid
        named = {**self.owner.part.choices, **values, str(grid.workload.compared): answer.name, **answer.columns}
        for expression in grid.filters:
            holds = np.broadcast_to(np.asarray(expression.value(named), bool), lengths)
            kept = holds if answer.valid is None else answer.valid & holds
            answer.excluded += int(_count(answer.valid, lengths) - np.count_nonzero(kept))
            answer.valid = kept

    def _points(self, answer: Answer, values: Values, lengths: tuple[int, ...]) -> None:
        """Fill the columns that are computed row by row; NaN where there is no answer."""
        rows = range(prod(lengths)) if answer.valid is None else np.flatnonzero(answer.valid).tolist()
        laid = {name: np.broadcast_to(value, lengths) for name, value in values.items()}
        flat = {name: answer.columns[name].reshape(-1) for name in (*self.fast, *self.slow)}
        for name in self.slow:
            flat[name].fill(np.nan)
        unanswered: dict[str, list[int]] = {}
        for row in rows:
            place = np.unravel_index(row, lengths)
            try:
                found = self.cell.point({name: _plain(value[place]) for name, value in laid.items()}, self.slow)
            except PerfmodelError as error:
                unanswered.setdefault(error.message, []).append(row)
                continue
            for name in self.slow:
                flat[name][row] = np.nan if found[name] is None else found[name]
        missing = [LeftOut(reason, np.isin(np.arange(prod(lengths)), which).reshape(lengths)) for reason, which in unanswered.items()]
        _mark(answer, missing, None, lengths)


def _plain(value: Any) -> Any:
    return int(value) if float(value).is_integer() else float(value)


def _count(valid: Any, lengths: tuple[int, ...]) -> int:
    return prod(lengths) if valid is None else int(np.count_nonzero(valid))


def _mark(answer: Answer, left_out: Sequence[LeftOut], wanted: Any, lengths: tuple[int, ...]) -> None:
    """Mark the rows that constraints take away, then those without an answer, each by its first reason."""
    if wanted is not None and not np.all(wanted):
        answer.valid = np.broadcast_to(wanted, lengths).copy()
        answer.excluded = prod(lengths) - int(np.count_nonzero(answer.valid))
    for one in left_out:
        if np.any(one.where):
            valid = np.ones(lengths, bool) if answer.valid is None else answer.valid
            hit = valid & one.where
            number = int(np.count_nonzero(hit))
            if number:
                answer.left_out[one.reason] = answer.left_out.get(one.reason, 0) + number
                answer.valid = valid & ~hit
