"""A sweep into a file: chunk after chunk, each whole before the next, to be carried on where it was interrupted."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.grid import Grid
from perfmodel.sweep.lock import alone_at
from perfmodel.sweep.resume import Progress, forget, noted, unfinished_path, uninterrupted
from perfmodel.sweep.rows_file import RowsFile, carried_on, copy_path
from perfmodel.sweep.run import Chunk, Consumer, Runner
from perfmodel.sweep.run import Progress as Tell
from perfmodel.sweep.study import Study
from perfmodel.sweep.writers import ready, writer
from perfmodel.sweep.writers._sink import Sink

SCHEMA = "perfmodel.sweep/1"


def about(study: Study, rows_per_chunk: int) -> Mapping[str, Any]:
    """What a file says of itself, where its format has a place for that."""
    named = {"schema": SCHEMA, "version": __version__, "inputs": study.told(), "study": study.fingerprint()}
    return {**named, "rows_per_chunk": rows_per_chunk}


def write_stream(
    runner: Runner, study: Study, form: str, consumers: Sequence[Consumer], tell: Tell | None, path: Path | None = None
) -> None:
    """Every chunk to standard output, or into a pipe or device."""
    made = writer(form, Sink(path), runner.fields, about(study, runner.rows))
    for chunk in runner.chunks():
        made.write(runner.evaluate(chunk, consumers, tell))
    made.close()


def write_file(
    grid: Grid, study: Study, path: Path, form: str, memory: int, consumers: Sequence[Consumer], tell: Tell | None, resume: bool
) -> None:
    """Every chunk into ``path``, once all are there. DataError where a disk is full: what is written by then stays, to be carried on."""
    ready(form)
    try:
        if path.exists() and not path.is_file():
            if resume:
                raise UsageError(f"--resume: {path} is no file that rows can be read back from", "leave out --resume")
            write_stream(Runner(grid, memory), study, form, consumers, tell, path)
            return
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.is_symlink():  # still: it leads to itself
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        with alone_at(path):
            before = noted(path, study.fingerprint()) if resume else None
            runner = Runner(grid, memory, rows=before.rows_per_chunk if before else None)
            state = before or Progress(study.fingerprint(), runner.rows)
            chunks = runner.chunks()
            _catch_up(grid, runner, list(islice(chunks, state.chunks)), consumers, tell)
            _append(runner, study, path, form, state, chunks, consumers, tell)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _append(
    runner: Runner,
    study: Study,
    path: Path,
    form: str,
    state: Progress,
    chunks: Iterator[Chunk],
    consumers: Sequence[Consumer],
    tell: Tell | None,
) -> None:
    """``chunks`` to what ``state`` counts."""
    opened = None
    try:
        opened = _opened(runner, study, path, form, state)
        for chunk in chunks:
            table = runner.evaluate(chunk, consumers, tell)
            with uninterrupted():
                opened.append(table)
        with uninterrupted():
            opened.finish()
    except BaseException as error:
        if opened is not None:
            opened.stop()
            state = opened.state
        elif not state.chunks:
            forget(path)
        if not isinstance(error, OSError) or not state.chunks:
            raise
        raise DataError(
            f"{unfinished_path(path)}: {error.strerror or error}",
            f"its first {state.rows:,} rows can be read; make room and go on with --resume",
        ) from None


def _catch_up(grid: Grid, runner: Runner, chunks: Sequence[Any], consumers: Sequence[Consumer], tell: Tell | None) -> None:
    """Show consumers what an earlier run has written: that is computed again, which takes less than reading it would.

    Not where rows are computed one by one: there consumers see those of this run only.
    """
    if grid.slow:
        return
    again = Runner(grid, 0, tables=False, rows=runner.rows)
    for chunk in chunks:
        again.evaluate(chunk, consumers, tell)


def _opened(runner: Runner, study: Study, path: Path, form: str, state: Progress) -> RowsFile:
    """What becomes ``path``, with all that is whole already, to be appended to."""
    said = about(study, runner.rows)
    copy_path(path).unlink(missing_ok=True)  # of a run that was killed
    if state.chunks and form == "parquet":
        return carried_on(runner, path, said, state)
    sink = Sink(unfinished_path(path), state.position if state.chunks else 0)
    return RowsFile(path, sink, writer(form, sink, runner.fields, said, resumed=bool(state.chunks)), state)
