"""A whole sweep: what is asked of a study, where its rows go, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.sweep.evaluate import GridBlock, check_variants
from perfmodel.sweep.grid import SweepGrid, grid_of
from perfmodel.sweep.parts import Output, is_stream, write_parts, write_stream
from perfmodel.sweep.run import Consumer, Counts, Runner
from perfmodel.sweep.study import SweepStudy, workload_named
from perfmodel.sweep.summary import Best, Pareto, Summary
from perfmodel.sweep.table import Reader, Row

DEFAULT_MEMORY = 1 << 30
MOST_TOP = 10_000
FEW_ROWS = 10_000
"""Rows up to which all of them are held and shown."""


@dataclass(frozen=True, slots=True)
class Search:
    """``minimize``: the column whose ``top`` least rows are wanted, ``pareto``: two columns; None for neither."""

    minimize: str | None = None
    pareto: tuple[str, ...] | None = None
    top: int = 10


@dataclass(slots=True)
class Findings:
    """What the rows of a sweep sum up to, and what was searched for among them. ``tell``: told of ``points`` as they come."""

    counts: Counts
    summary: Summary
    best: Best | None
    pareto: Pareto | None
    points: int = 0
    tell: Callable[[int], Any] | None = None

    @classmethod
    def of(cls, search: Search, grid: SweepGrid) -> Findings:
        """None so far."""
        usual = grid.workload.objective if grid.workload.objective in grid.columns else grid.columns[0]
        reader, column = Reader.of(grid), search.minimize or usual
        best = Best(reader, column, search.top) if search.minimize is not None else None
        pareto = Pareto(reader, search.pareto[0], search.pareto[1]) if search.pareto is not None else None
        return cls(Counts(), Summary.of(grid, column), best, pareto)

    def _each(self) -> list[Consumer]:
        return [one for one in (self.counts, self.summary, self.best, self.pareto) if one is not None]

    def update(self, block: GridBlock) -> None:
        """Take in one block."""
        for one in self._each():
            one.update(block)
        self._count(block.points * len(block.answers))

    def merge(self, other: Findings) -> None:
        """Take in what another has found in other chunks."""
        for own, its in zip(self._each(), other._each(), strict=True):
            own.merge(its)
        self._count(other.points)

    def _count(self, points: int) -> None:
        self.points += points
        if self.tell is not None:
            self.tell(points)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """``rows``: all of them if they are few, else None."""

    grid: SweepGrid
    counts: Counts
    summary: Summary
    best: Best | None
    pareto: Pareto | None
    rows: list[Row] | None


def complete(study: SweepStudy, search: Search) -> tuple[SweepStudy, Search]:
    """Both with full names of columns; the study with every column that the search reads."""
    workload = workload_named(study.workload)

    def named(names: Iterable[str], option: str) -> tuple[str, ...]:
        return tuple(workload.column_named(name, option).name for name in names)

    minimize = next(iter(named([search.minimize] if search.minimize is not None else [], "--minimize")), None)
    pareto = None if search.pareto is None else named(search.pareto, "--pareto")
    if not 1 <= search.top <= MOST_TOP:
        raise UsageError(f"--top is {search.top}", f"give a whole number from 1 to {MOST_TOP:,}; for more rows use --where and -o")
    shown = [*workload.shown, workload.objective] if study.columns is None else named(study.columns, "--columns")
    columns = [*shown, *(pareto or ()), *([minimize] if minimize else [])]
    return replace(study, columns=tuple(dict.fromkeys(columns))), Search(minimize, pareto, search.top)


TRIED, TRIED_SLOW = 1 << 14, 8
"""Rows of a chunk when it is tried whether any has an answer."""
MOST_CHUNKS = 4


def check_answers(grid: SweepGrid) -> None:
    """UsageError if no row of a small grid has an answer: said before a file is made for rows."""
    counts = Counts()
    runner = Runner(grid, 0, tables=False, rows=TRIED_SLOW if grid.slow else TRIED)
    for chunk in islice(runner.chunks(), MOST_CHUNKS + 1):
        if counts.rows or counts.excluded or chunk.index == MOST_CHUNKS:
            return
        runner.evaluate(chunk, counts)
    _check_rows(counts)


def _check_rows(counts: Counts) -> None:
    """UsageError if there is no row, and not because of constraints."""
    if counts.rows or counts.excluded or not counts.left_out:
        return
    reason = max(counts.left_out, key=lambda one: counts.left_out[one])
    others = len(counts.left_out) - 1
    more = f" (and {others} other reasons)" if others else ""
    raise UsageError(f"no row has an answer: {reason}{more}", "give other values; those that have none are left out of a sweep")


def run_sweep(
    study: SweepStudy, search: Search, output: Output | None, memory: int = DEFAULT_MEMORY, expect: Callable[[int], Any] | None = None
) -> SweepResult:
    """Run ``study``, completed, and write its rows to ``output`` if there is one.

    ``expect``: told the number of rows, gives a function to be told of them as they are evaluated.
    """
    grid = grid_of(study)
    check_variants(grid)
    if output is not None:
        check_answers(grid)
    found, rows = Findings.of(search, grid), None
    found.tell = None if expect is None else expect(grid.points)
    if output is None:
        few = grid.points <= FEW_ROWS
        runner = Runner(grid, memory, tables=few)
        rows = [row for chunk in runner.chunks() for row in runner.evaluate(chunk, found).listed()]
        rows = rows if few else None
    elif output.dask is not None:
        from perfmodel.sweep.dask_run import write_cluster

        write_cluster(grid, output, memory, found, partial(Findings.of, search))
    elif is_stream(output):
        write_stream(Runner(grid, memory), output, found)
    else:
        write_parts(grid, output, memory, found)
    if output is None or not output.resume:  # what was there before is not counted again
        _check_rows(found.counts)
    return SweepResult(grid, found.counts, found.summary, found.best, found.pareto, rows)
