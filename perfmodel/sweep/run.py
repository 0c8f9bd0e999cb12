"""A sweep from its first chunk to its last: blocks evaluated, shown to whoever sums them up, and gathered into tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from perfmodel.sweep.chunks import Chunk, Run, block_points, chunk_rows, chunks
from perfmodel.sweep.evaluate import Block, Evaluator
from perfmodel.sweep.grid import Grid
from perfmodel.sweep.table import FLAG, WORD, Table, fields_of, row_bytes

MOST_REASONS, OTHER_REASONS = 1000, "other reasons"
Progress = Callable[[int], None]
"""Told how many points have been evaluated since it was last told."""


class Consumer(Protocol):
    """Sees every block. Consumers of different chunks can be merged, in the order of the chunks."""

    def update(self, block: Block) -> None:
        """Take in one block, whose arrays will be used again."""

    def merge(self, other: Any) -> None:
        """Take in what another one has seen."""


@dataclass(slots=True)
class Counts:
    """How many rows there are, how many have no answer and why, and how many the constraints take away."""

    rows: int = 0
    excluded: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def update(self, block: Block) -> None:
        """Count one block."""
        for answer in block.answers:
            self.rows += block.points if answer.valid is None else int(np.count_nonzero(answer.valid))
            self.excluded += answer.excluded
            self._add(answer.left_out)

    def merge(self, other: Counts) -> None:
        """Add the counts of another."""
        self.rows += other.rows
        self.excluded += other.excluded
        self._add(other.left_out)

    def _add(self, left_out: Mapping[str, int]) -> None:
        for reason, number in left_out.items():
            known = reason if reason in self.left_out or len(self.left_out) < MOST_REASONS else OTHER_REASONS
            self.left_out[known] = self.left_out.get(known, 0) + number


class Runner:
    """Evaluates the chunks of a grid, in whatever order; ``tables``: whether rows are wanted or only what consumers make of them."""

    def __init__(self, grid: Grid, memory_bytes: int, *, tables: bool = True, rows: int | None = None) -> None:
        self.grid, self.fields, self.tables = grid, fields_of(grid), tables
        self.rows = rows or chunk_rows(grid, memory_bytes, row_bytes(self.fields))
        self._evaluators: dict[int, Evaluator] = {}
        self._table = Table.empty(self.fields, 0)
        self._scratch: dict[Any, dict[str, Any]] = {}

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in order."""
        return chunks(self.grid, self.rows)

    def evaluate(self, chunk: Chunk, consumers: Iterable[Consumer] = (), progress: Progress | None = None) -> Table:
        """The rows of ``chunk``, in memory that the next call uses again; no rows where no tables are wanted."""
        consumers = list(consumers)
        capacity = chunk.points * len(self.grid.compared) if self.tables else 0
        if self._table.capacity < capacity:
            self._table = Table.empty(self.fields, capacity)
        self._table.rows = 0
        for run in chunk.runs:
            for block in self._blocks(run):
                for consumer in consumers:
                    consumer.update(block)
                if self.tables:
                    self._append(block)
                if progress is not None:
                    progress(block.points * len(block.answers))
        return self._table

    def _blocks(self, run: Run) -> Iterator[Block]:
        evaluator = self._evaluator(run.part)
        for index in range(run.first, run.last):
            slices = evaluator.blocks.slices(index)
            yield evaluator.block(slices, self._outs(tuple(one.stop - one.start for one in slices)))

    def _evaluator(self, index: int) -> Evaluator:
        """That of part ``index``; the one before is let go, as parts come one after another."""
        if index not in self._evaluators:
            self._evaluators = {index: Evaluator(self.grid, self.grid.parts[index], block_points(self.grid, self.rows))}
        return self._evaluators[index]

    def _outs(self, lengths: tuple[int, ...]) -> dict[Any, dict[str, Any]]:
        """Where each cell writes its columns: into the table, one cell after the other, or into the same scratch every time."""
        points, found = prod(lengths), {}
        for position, value in enumerate(self.grid.compared):
            first = self._table.rows + position * points if self.tables else 0
            arrays = self._table.arrays if self.tables else self._scratch_of(value, points)
            found[value] = {name: arrays[name][first : first + points].reshape(lengths) for name in self.grid.columns}
        return found

    def _scratch_of(self, value: Any, points: int) -> dict[str, Any]:
        known = self._scratch.get(value)
        if known is None or any(len(array) < points for array in known.values()):
            self._scratch[value] = {name: np.empty(points) for name in self.grid.columns}
        return self._scratch[value]

    def _append(self, block: Block) -> None:
        """Fill in the inputs of a block's rows, and close the gaps that rows without an answer leave."""
        table, start = self._table, self._table.rows
        for answer in block.answers:
            valid = None if answer.valid is None else np.broadcast_to(answer.valid, block.lengths).reshape(-1)
            count = block.points if valid is None else int(np.count_nonzero(valid))
            target = slice(table.rows, table.rows + count)
            if count and (valid is not None or table.rows != start):
                for name, array in answer.columns.items():
                    flat = array.reshape(-1)
                    table.arrays[name][target] = flat if valid is None else flat[valid]
            if count:
                self._inputs(target, block.inputs(answer), valid, block.lengths)
            table.rows += count
            start += block.points

    def _inputs(self, target: slice, values: Mapping[str, Any], valid: Any, lengths: tuple[int, ...]) -> None:
        for one, name in zip(self.fields, self.grid.given, strict=False):
            value = values[name]
            if one.kind == WORD:
                value = one.words.index(str(value))
            elif one.kind == FLAG:
                value = bool(value)
            rows = self._table.arrays[one.name][target]
            if valid is None:
                np.copyto(rows.reshape(lengths), value, casting="unsafe")
            else:
                rows[...] = np.broadcast_to(value, lengths).reshape(-1)[valid]
