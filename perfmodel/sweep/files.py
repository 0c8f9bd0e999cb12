"""A sweep into a file: chunk after chunk, each whole before the next, to be carried on where it was interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.errors import DataError, UsageError
from perfmodel.sweep.grid import Grid
from perfmodel.sweep.resume import Progress, done, note, noted, uninterrupted
from perfmodel.sweep.run import Consumer, Runner
from perfmodel.sweep.run import Progress as Tell
from perfmodel.sweep.study import Study
from perfmodel.sweep.writers import Writer, ready, writer
from perfmodel.sweep.writers._sink import Sink


def about(study: Study) -> Mapping[str, Any]:
    """What a file says of itself, where its format has a place for that."""
    return {"schema": "perfmodel.sweep/1", "version": __version__, "inputs": study.told(), "study": study.fingerprint()}


def write_stream(runner: Runner, study: Study, form: str, consumers: Sequence[Consumer], tell: Tell | None) -> None:
    """Every chunk to standard output."""
    made = writer(form, Sink(None), runner.fields, about(study))
    for chunk in runner.chunks():
        made.write(runner.evaluate(chunk, consumers, tell))
    made.close()


def write_file(
    grid: Grid, study: Study, path: Path, form: str, memory: int, consumers: Sequence[Consumer], tell: Tell | None, resume: bool
) -> None:
    """Every chunk into ``path``. DataError where a disk is full: what is written by then stays, and can be read."""
    ready(form)
    before = noted(path, study.fingerprint()) if resume else None
    runner = Runner(grid, memory, rows=before.rows_per_chunk if before else None)
    state = before or Progress(study.fingerprint(), runner.rows)
    chunks = runner.chunks()
    _catch_up(grid, runner, list(islice(chunks, state.chunks)), consumers, tell)
    try:
        made, sink = _opened(runner, study, path, form, state)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    try:
        note(path, replace(state, position=sink.position))
        for chunk in chunks:
            table = runner.evaluate(chunk, consumers, tell)
            with uninterrupted():
                made.write(table)
                state = replace(state, chunks=state.chunks + 1, rows=state.rows + table.rows, position=sink.position)
                note(path, state)
        with uninterrupted():
            made.close()
            done(path)
    except OSError as error:
        _closed(made)
        raise DataError(
            f"{path}: {error.strerror or error}", f"its first {state.rows:,} rows can be read; make room and go on with --resume"
        ) from None
    except BaseException:
        _closed(made)
        raise


def _closed(made: Writer) -> None:
    """Close what was interrupted; that it fails as well would tell nothing new."""
    with uninterrupted(), suppress(OSError):
        made.close()


def _catch_up(grid: Grid, runner: Runner, chunks: Sequence[Any], consumers: Sequence[Consumer], tell: Tell | None) -> None:
    """Show consumers what an earlier run has written: that is computed again, which takes less than reading it would.

    Not where rows are computed one by one: there consumers see those of this run only.
    """
    if grid.slow:
        return
    again = Runner(grid, 0, tables=False, rows=runner.rows)
    for chunk in chunks:
        again.evaluate(chunk, consumers, tell)


def _opened(runner: Runner, study: Study, path: Path, form: str, state: Progress) -> tuple[Writer, Sink]:
    """A writer that appends to what is whole already. A Parquet file is copied: its footer stands behind the rows."""
    if state.chunks and form == "parquet":
        return _copied(runner, study, path, state)
    sink = Sink(path, state.position if state.chunks else 0)
    return writer(form, sink, runner.fields, about(study), resumed=bool(state.chunks)), sink


def _copied(runner: Runner, study: Study, path: Path, state: Progress) -> tuple[Writer, Sink]:
    """The whole row groups in a new file, which then takes the place of the old one."""
    from perfmodel.sweep.writers.parquet import ParquetWriter, library

    pa = library()
    try:
        source = pa.parquet.ParquetFile(path)
    except pa.ArrowException:
        raise UsageError(f"--resume: {path} has no footer: it was not closed", "leave out --resume to write it anew") from None
    sink = Sink(path.with_name(f".{path.name}.resumed"))
    made, rows = ParquetWriter(sink, runner.fields, about(study)), 0
    with source:
        for group in range(source.num_row_groups):
            held = source.metadata.row_group(group).num_rows
            if rows + held <= state.rows:
                made.append(source.read_row_group(group))
                rows += held
    sink.rename(path)
    return made, sink
