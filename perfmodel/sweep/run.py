"""A sweep from its first chunk to its last: blocks evaluated, shown to whoever sums them up, and gathered into tables.

A block, which fits the processor's caches, fixes the first axes of a part, takes a stretch of the next one and all of the rest. Chunks
are blocks that fit the memory given. Both come in one order, so that a chunk means the same rows on every machine and in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from perfmodel.sweep.evaluate import Evaluator, GridBlock, Slices
from perfmodel.sweep.grid import SubGrid, SweepGrid
from perfmodel.sweep.table import RowTable, row_bytes

BLOCK_POINTS = 1 << 15
"""Points of a block: a result of 256 KiB, so that those in use stay in a core's caches."""
MOST_CHUNK_ROWS = 1 << 20
SLOW_ROWS = 256
"""Rows of a block and a chunk if rows are computed one by one: about a second's work, so that an interruption loses little."""
SHARE_OF_MEMORY = 0.25
"""Share of the given memory for the columns of a chunk; writers hold an encoded copy, and libraries take the rest."""
MOST_REASONS, OTHER_REASONS = 1000, "other reasons"


def blocks_of(part: SubGrid, points: int = BLOCK_POINTS) -> Iterator[Slices]:
    """Blocks of at most ``points``, or of one value per axis: stretches along one axis, all axes after it whole.

    >>> [block[0] for block in blocks_of(SubGrid({}, {}, {"d": [0] * 3, "n": [0] * 100}), 250)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    lengths, axis, inner = part.lengths, len(part.lengths) - 1, 1
    if not lengths:
        yield ()
        return
    while axis > 0 and inner * lengths[axis] <= points:
        inner *= lengths[axis]
        axis -= 1
    step, rest = max(points // inner, 1), tuple(slice(0, length) for length in lengths[axis + 1 :])
    for place in np.ndindex(*lengths[:axis]):
        for start in range(0, lengths[axis], step):
            yield (*(slice(index, index + 1) for index in place), slice(start, min(start + step, lengths[axis])), *rest)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are computed and written together. ``blocks``: each the number of its part and its place there."""

    index: int
    blocks: tuple[tuple[int, Slices], ...]
    points: int


def chunks(grid: SweepGrid, rows: int) -> Iterator[Chunk]:
    """Chunks of at most ``rows`` rows, or of one block."""
    points = max(rows // len(grid.compared), 1)
    most, index, held = min(points, SLOW_ROWS if grid.pointwise else BLOCK_POINTS), 0, 0
    blocks: list[tuple[int, Slices]] = []
    for number, part in enumerate(grid.parts):
        for block in blocks_of(part, most):
            size = prod(one.stop - one.start for one in block)
            if held and held + size > points:
                yield Chunk(index, tuple(blocks), held)
                index, held, blocks = index + 1, 0, []
            held += size
            blocks.append((number, block))
    if held:
        yield Chunk(index, tuple(blocks), held)


Consumer = Callable[[GridBlock], None]
"""Takes in every block of a run."""


@dataclass(slots=True)
class Counts:
    """Numbers of rows: those there are, those without an answer by reason, and those that the constraints take away."""

    rows: int = 0
    excluded: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """Number of rows that were looked at."""
        return self.rows + self.excluded + sum(self.left_out.values())

    def update(self, block: GridBlock) -> None:
        """Count one block."""
        self._add(block.left_out)
        for answer in block.answers:
            self.rows += answer.rows
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


def chunk_rows(grid: SweepGrid, memory_bytes: int) -> int:
    """Rows of a chunk that fits the memory given."""
    most = SLOW_ROWS if grid.pointwise else MOST_CHUNK_ROWS
    return max(1, min(most, int(SHARE_OF_MEMORY * memory_bytes / row_bytes(grid.fields))))


class Runner:
    """Evaluates the chunks of a grid of at most ``rows`` rows. ``tables``: whether rows are wanted or only what consumers make of them."""

    def __init__(self, grid: SweepGrid, rows: int, *, tables: bool = True) -> None:
        self.grid, self.rows, self.tables = grid, rows, tables
        self._evaluator: Evaluator | None = None
        self._table = RowTable.empty(grid.fields, 0)

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in order."""
        return chunks(self.grid, self.rows)

    def evaluate(self, chunk: Chunk, consumer: Consumer | None = None) -> RowTable:
        """The rows of ``chunk``, in memory that the next call uses again; no rows where no tables are wanted."""
        capacity = chunk.points * len(self.grid.compared) * self.tables
        if self._table.capacity < capacity:
            self._table = RowTable.empty(self.grid.fields, capacity)
        self._table.rows = 0
        for number, slices in chunk.blocks:
            part = self.grid.parts[number]
            if self._evaluator is None or self._evaluator.part is not part:  # the one before is let go: parts come one after another
                self._evaluator = Evaluator(self.grid, part)
            block = self._evaluator.block(slices, self._table if self.tables else None)
            if consumer is not None:
                consumer(block)
        return self._table
