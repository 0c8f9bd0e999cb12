"""Work in pieces: blocks, which fit the processor's caches, and chunks of blocks, which fit the memory given.

A block fixes the first axes of a part, takes a stretch of the next one and all of the rest. Blocks are numbered through the parts,
and chunks are runs of them, so that a chunk means the same rows on every machine and after every interruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from perfmodel.sweep.grid import Grid, Part

BLOCK_POINTS = 1 << 15
"""Points of a block: a result of 256 KiB, so that those in use stay in a core's caches."""
MOST_CHUNK_ROWS = 1 << 20
SLOW_ROWS = 256
"""Of a block and a chunk where rows are computed one by one: about a second's work, so that little is lost with it."""
SHARE_OF_MEMORY = 0.25
"""Of the memory given, for the columns of a chunk; writers hold it a second time, encoded, and libraries take the rest."""

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a part of ``lengths`` is cut: stretches of ``step`` along ``axis``, all axes after it whole."""

    lengths: tuple[int, ...]
    axis: int
    step: int

    @property
    def stretches(self) -> int:
        """Blocks for one combination of the first axes."""
        return -(-self.lengths[self.axis] // self.step) if self.lengths else 1

    @property
    def count(self) -> int:
        """Blocks in all."""
        return prod(self.lengths[: self.axis]) * self.stretches

    def slices(self, index: int) -> Slices:
        """The stretch of every axis in block ``index``."""
        outer, stretch = divmod(index, self.stretches)
        found = [slice(stretch * self.step, min((stretch + 1) * self.step, self.lengths[self.axis]))] if self.lengths else []
        for length in reversed(self.lengths[: self.axis]):
            outer, place = divmod(outer, length)
            found.insert(0, slice(place, place + 1))
        return (*found, *(slice(0, length) for length in self.lengths[self.axis + 1 :]))


def blocks_of(part: Part, points: int = BLOCK_POINTS) -> Blocks:
    """Blocks of at most ``points``, as long as one value of an axis makes no more.

    >>> blocks_of(Part({}, {}, {"d": [0] * 3, "n": [0] * 100}), 250)
    Blocks(lengths=(3, 100), axis=0, step=2)
    """
    lengths, axis, inner = part.lengths, len(part.lengths) - 1, 1
    while axis > 0 and inner * lengths[axis] <= points:
        inner *= lengths[axis]
        axis -= 1
    return Blocks(lengths, max(axis, 0), max(points // inner, 1))


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks ``first`` to ``last`` - 1 of a part; ``points`` in them."""

    part: int
    first: int
    last: int
    points: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are computed and written together."""

    index: int
    runs: tuple[Run, ...]

    @property
    def points(self) -> int:
        """Configurations in it."""
        return sum(run.points for run in self.runs)


def chunk_rows(grid: Grid, memory_bytes: int, row_bytes: int) -> int:
    """Rows of a chunk for which ``memory_bytes`` suffice."""
    return max(1, min(SLOW_ROWS if grid.slow else MOST_CHUNK_ROWS, int(SHARE_OF_MEMORY * memory_bytes / row_bytes)))


def block_points(grid: Grid, rows: int) -> int:
    """Most points of a block in chunks of ``rows`` rows."""
    return min(max(rows // len(grid.compared), 1), SLOW_ROWS if grid.slow else BLOCK_POINTS)


def chunks(grid: Grid, rows: int) -> Iterator[Chunk]:
    """Chunks of at most ``rows`` rows, or of one block."""
    points, index = max(rows // len(grid.compared), 1), 0
    runs: tuple[Run, ...] = ()
    held = 0
    for number, part in enumerate(grid.parts):
        blocks = blocks_of(part, block_points(grid, rows))
        first = 0
        for block in range(blocks.count):
            size = prod(one.stop - one.start for one in blocks.slices(block))
            if held and held + size > points:
                yield Chunk(index, _with(runs, number, first, block, held))
                index, runs, held, first = index + 1, (), 0, block
            held += size
        runs = _with(runs, number, first, blocks.count, held)
    if held:
        yield Chunk(index, runs)


def _with(runs: tuple[Run, ...], part: int, first: int, last: int, held: int) -> tuple[Run, ...]:
    """``runs`` and those blocks, which make up what is ``held`` beyond them."""
    return (*runs, Run(part, first, last, held - sum(run.points for run in runs))) if last > first else runs
