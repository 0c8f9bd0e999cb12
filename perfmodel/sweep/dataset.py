"""A sweep into a folder: one Parquet file per chunk, so that chunks can be written in any order, by any machine, more than once.

A file gets its name only when it is whole, and a chunk always means the same rows: written again, after a machine was lost, it takes
the place of an equal one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from perfmodel.errors import DataError, UsageError
from perfmodel.sweep.chunks import Chunk
from perfmodel.sweep.files import about
from perfmodel.sweep.run import Consumer, Progress, Runner
from perfmodel.sweep.study import Study
from perfmodel.sweep.writers._sink import Sink
from perfmodel.sweep.writers.parquet import ParquetWriter, library

_PART = re.compile(r"part-[0-9]{8}\.parquet")


def part_path(folder: Path, index: int) -> Path:
    """The file of chunk ``index``."""
    return folder / f"part-{index:08}.parquet"


def prepare(folder: Path, study: Study, resume: bool) -> None:
    """Make ``folder`` ready; UsageError if it holds what is not to be carried on or is another study's."""
    library()
    try:
        folder.mkdir(exist_ok=True)
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UsageError(f"--output: {folder}: {error.strerror or error}", "name a folder that can be written") from None
    for path in found:
        if not _PART.fullmatch(path.name):
            raise UsageError(f"--output: {folder} holds {path.name}, which is no part of a sweep", "name an empty or a new folder")
        if not resume:
            path.unlink()
        elif _study_of(path) != study.fingerprint():
            raise UsageError(
                f"--resume: {path} is of another study, or another version", "give the same options as then, or another folder"
            )


def _study_of(path: Path) -> str | None:
    pa = library()
    try:
        metadata = pa.parquet.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return None
    found = re.search(rb'"study": "([0-9a-f]{16})"', metadata.get(b"perfmodel", b""))
    return found[1].decode() if found else None


def write_part(
    runner: Runner, study: Study, chunk: Chunk, folder: Path, consumers: Sequence[Consumer], tell: Progress | None = None
) -> int:
    """Evaluate ``chunk`` into its file; the number of its rows."""
    path = part_path(folder, chunk.index)
    table = runner.evaluate(chunk, consumers, tell)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        made = ParquetWriter(Sink(unfinished), runner.fields, about(study))
        made.write(table)
        made.close()
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise DataError(f"{path}: {error.strerror or error}", "the other files can be read; make room and go on with --resume") from None
    return table.rows


def fill(runner: Runner, study: Study, chunk: Chunk, folder: Path, consumers: Sequence[Consumer], tell: Progress | None = None) -> None:
    """Write ``chunk`` unless it is there; then let consumers see it all the same, but for what is computed row by row."""
    if not part_path(folder, chunk.index).exists():
        write_part(runner, study, chunk, folder, consumers, tell)
    elif not runner.grid.slow:
        runner.evaluate(chunk, consumers, tell)


def write_folder(runner: Runner, study: Study, folder: Path, consumers: Sequence[Consumer], tell: Progress | None, resume: bool) -> None:
    """Every chunk that ``folder`` does not hold yet."""
    prepare(folder, study, resume)
    for chunk in runner.chunks():
        fill(runner, study, chunk, folder, consumers, tell)
