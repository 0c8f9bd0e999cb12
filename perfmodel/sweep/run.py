"""A whole sweep: where its rows go, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.sweep.evaluate import Runner
from perfmodel.sweep.grid import SweepGrid, grid_of
from perfmodel.sweep.parts import Output, is_stream, write_parts, write_stream
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.summary import Best, Counts, Findings, Pareto, Summary
from perfmodel.sweep.table import Row

DEFAULT_MEMORY = 1 << 30
FEW_ROWS = 10_000
"""Rows up to which all of them are held and shown."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Result of a sweep. ``rows``: all of them if they are few, else None."""

    grid: SweepGrid
    counts: Counts
    summary: Summary
    best: Best | None
    pareto: Pareto | None
    rows: list[Row] | None


TRIED, TRIED_SLOW = 1 << 14, 8
"""Rows of a chunk while testing whether any row has an answer; the second if rows are computed one by one."""
MOST_CHUNKS = 4
"""Most chunks of this test; a larger grid passes it."""


def _check_choices(grid: SweepGrid) -> None:
    """Raises the error of the choices if all their combinations have the same one: then no numbers have an answer."""
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


def _check_few(grid: SweepGrid) -> None:
    """UsageError, before a file for rows is made, if no row of a small grid has an answer."""
    counts = Counts()
    runner = Runner(grid, TRIED_SLOW if grid.pointwise else TRIED, tables=False)
    for chunk in islice(runner.chunks(), MOST_CHUNKS + 1):
        if counts.rows or counts.excluded or chunk.index == MOST_CHUNKS:
            return
        runner.evaluate(chunk, counts.update)
    _check_rows(counts)


def _check_rows(counts: Counts) -> None:
    """UsageError if there is no row, and not because of constraints."""
    if counts.rows or counts.excluded or not counts.left_out:
        return
    commonest = max(counts.left_out, key=lambda reason: counts.left_out[reason])
    others = len(counts.left_out) - 1
    more = f" (and {others} other reasons)" if others else ""
    raise UsageError(f"no row has an answer: {commonest}{more}", "give other values; those that have none are left out of a sweep")


def run_sweep(
    study: SweepStudy, output: Output | None, memory: int = DEFAULT_MEMORY, expect: Callable[[int], Any] | None = None
) -> SweepResult:
    """Run ``study``, which must be complete, and write its rows to ``output`` if there is one.

    ``expect``: called with the number of rows; returns the function that is called with the number of rows done.
    """
    grid = grid_of(study)
    _check_choices(grid)
    if output is not None:
        _check_few(grid)
    findings, rows = Findings.of(grid, study), None
    findings.progress = None if expect is None else expect(grid.points)
    if output is None:
        few = grid.points <= FEW_ROWS
        runner = Runner(grid, grid.chunk_rows(memory), tables=few)
        rows = [row for chunk in runner.chunks() for row in runner.evaluate(chunk, findings.update).listed()]
        rows = rows if few else None
    elif output.dask is not None:
        from perfmodel.sweep.dask_run import write_cluster

        write_cluster(grid, output, memory, findings)
    elif is_stream(output):
        write_stream(Runner(grid, grid.chunk_rows(memory)), output, findings.update)
    else:
        write_parts(grid, output, memory, findings.update)
    if output is None or not output.resume:  # what was there before is not counted again
        _check_rows(findings.counts)
    return SweepResult(grid, findings.counts, findings.summary, findings.best, findings.pareto, rows)
