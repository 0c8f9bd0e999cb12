"""A whole sweep: what is asked of a study, where its rows go, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from perfmodel.core.errors import UsageError
from perfmodel.sweep.evaluate import check_variants
from perfmodel.sweep.grid import Grid, grid_of
from perfmodel.sweep.parts import Output, is_stream, write_parts, write_stream
from perfmodel.sweep.run import Consumer, Counts, Progress, Runner
from perfmodel.sweep.study import Study, workload_named
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


@dataclass(frozen=True, slots=True)
class SweepResult:
    """``rows``: all of them if they are few, else None."""

    study: Study
    grid: Grid
    counts: Counts
    summary: Summary
    best: Best | None
    pareto: Pareto | None
    rows: list[Row] | None


def complete(study: Study, search: Search) -> tuple[Study, Search]:
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


def consumers_of(search: Search, objective: str, grid: Grid) -> list[Consumer]:
    """What looks at rows as they come; a search comes last."""
    made: list[Consumer] = [Counts(), Summary.of(grid, objective)]
    if search.minimize is not None:
        made.append(Best(Reader.of(grid), search.minimize, search.top))
    if search.pareto is not None:
        made.append(Pareto(Reader.of(grid), search.pareto[0], search.pareto[1]))
    return made


TRIED, TRIED_SLOW = 1 << 14, 8
"""Rows of a chunk when it is tried whether any has an answer."""
MOST_CHUNKS = 4


def check_answers(grid: Grid) -> None:
    """UsageError if no row of a small grid has an answer: said before a file is made for rows."""
    counts = Counts()
    runner = Runner(grid, 0, tables=False, rows=TRIED_SLOW if grid.slow else TRIED)
    for chunk in islice(runner.chunks(), MOST_CHUNKS + 1):
        if counts.rows or counts.excluded or chunk.index == MOST_CHUNKS:
            return
        runner.evaluate(chunk, [counts])
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
    study: Study, search: Search, output: Output | None, memory: int = DEFAULT_MEMORY, expect: Callable[[int], Progress] | None = None
) -> SweepResult:
    """Run ``study``, completed, and write its rows to ``output`` if there is one. ``expect``: told the number of rows, tells progress."""
    grid = grid_of(study)
    check_variants(grid)
    if output is not None:
        check_answers(grid)
    tell = None if expect is None else expect(grid.points)
    usual = grid.workload.objective if grid.workload.objective in grid.columns else grid.columns[0]
    make = partial(consumers_of, search, search.minimize or usual)
    consumers, rows = make(grid), None
    if output is None:
        few = grid.points <= FEW_ROWS
        runner = Runner(grid, memory, tables=few)
        rows = [row for chunk in runner.chunks() for row in runner.evaluate(chunk, consumers, tell).listed()]
        rows = rows if few else None
    elif output.dask is not None:
        from perfmodel.sweep.dask_run import write_cluster

        write_cluster(grid, study, output, memory, consumers, make, tell)
    elif is_stream(output):
        write_stream(Runner(grid, memory), study, output, consumers, tell)
    else:
        write_parts(grid, study, output, memory, consumers, tell)
    found = {type(one): one for one in consumers}
    if output is None or not output.resume:  # what was there before is not counted again
        _check_rows(found[Counts])  # type: ignore[arg-type]
    return SweepResult(study, grid, found[Counts], found[Summary], found.get(Best), found.get(Pareto), rows)  # type: ignore[arg-type]
