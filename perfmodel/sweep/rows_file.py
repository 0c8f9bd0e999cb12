"""A file of rows that is being written, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.resume import Progress, done, forget, note, unfinished_path, uninterrupted
from perfmodel.sweep.run import Runner
from perfmodel.sweep.table import RowTable
from perfmodel.sweep.writers import Writer
from perfmodel.sweep.writers._sink import Sink


class RowsFile:
    """What becomes ``path``, to which chunks are appended; ``state`` says what of it is whole."""

    def __init__(self, path: Path, sink: Sink, writer: Writer, state: Progress) -> None:
        self.path, self.sink, self.writer = path, sink, writer
        self._note(replace(state, position=sink.position))

    def append(self, table: RowTable) -> None:
        """One more chunk, in the file and in its progress, or in neither."""
        self.writer.write(table)
        chunks, rows = self.state.chunks + 1, self.state.rows + table.rows
        self._note(replace(self.state, chunks=chunks, rows=rows, position=self.sink.position))

    def finish(self) -> None:
        """All rows are there."""
        self._close()
        done(self.path)

    def stop(self) -> None:
        """What is there can be read, and be carried on; without a chunk nothing stays. A second failure here is ignored."""
        with uninterrupted(), suppress(OSError):
            self._close()
        if not self.state.chunks:
            forget(self.path)

    def _note(self, state: Progress) -> None:
        note(self.path, state)
        self.state = state

    def _close(self) -> None:
        self.writer.close()


class CarriedOn(RowsFile):
    """A Parquet file that is carried on: a copy, as its footer stands behind the rows.

    A copy is worth nothing before its own footer is written. Until then the file stays as it was, and so does its progress.
    """

    def __init__(self, path: Path, sink: Sink, writer: Writer, state: Progress) -> None:
        self.before = state
        super().__init__(path, sink, writer, state)

    def stop(self) -> None:
        """The same; if not even the footer can be written, the file is what it was before."""
        with uninterrupted():
            try:
                self._close()
            except (OSError, DataError):
                copy_path(self.path).unlink(missing_ok=True)
                self.state = self.before

    def _note(self, state: Progress) -> None:
        """Not in the progress file yet."""
        self.state = state

    def _close(self) -> None:
        self.writer.close()
        place = copy_path(self.path)
        if _rows(place) != self.state.rows:  # a write that failed leaves no footer, without another error
            raise DataError(f"{place}: was not written in full")
        place.replace(unfinished_path(self.path))
        note(self.path, self.state)


def copy_path(path: Path) -> Path:
    """Where ``path`` is carried on, if it is a Parquet file."""
    return path.with_name(f".{path.name}.resumed")


def _rows(path: Path) -> int | None:
    """Of a Parquet file; None if it has no footer."""
    from perfmodel.sweep.writers.parquet import library

    pa = library()
    try:
        return int(pa.parquet.read_metadata(path).num_rows)
    except pa.ArrowException:
        return None


def carried_on(runner: Runner, path: Path, about: Mapping[str, Any], state: Progress) -> CarriedOn:
    """A copy of the row groups that ``state`` counts, of what becomes ``path``, to append to; OSError, and no copy, without room."""
    from perfmodel.sweep.writers.parquet import ParquetWriter

    sink = Sink(copy_path(path))
    try:
        made = ParquetWriter(sink, runner.fields, about)
        try:
            _copy(unfinished_path(path), made, state.rows)
        except BaseException:
            with suppress(OSError):
                made.close()
            raise
    except BaseException:
        copy_path(path).unlink(missing_ok=True)
        raise
    return CarriedOn(path, sink, made, state)


def _copy(path: Path, made: Any, most: int) -> None:
    """The first ``most`` rows of ``path``."""
    from perfmodel.sweep.writers.parquet import library

    pa = library()
    try:
        source = pa.parquet.ParquetFile(path)
    except pa.ArrowException:
        raise UsageError(f"--resume: {path} has no footer: it was not closed", "leave out --resume to write it anew") from None
    rows = 0
    with source:
        for group in range(source.num_row_groups):
            held = source.metadata.row_group(group).num_rows
            if rows + held <= most:
                made.append(source.read_row_group(group))
                rows += held
    if rows != most:
        raise DataError(f"{path}: holds other rows than its progress file says", "leave out --resume to write it anew")
