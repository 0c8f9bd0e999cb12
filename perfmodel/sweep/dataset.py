"""A sweep into a folder: one Parquet file per chunk, so that chunks can be written in any order, by any machine, more than once.

A file gets its name only when it is whole, and a chunk always means the same rows: written again, after a machine was lost, it takes
the place of an equal one. What a chunk means depends on how many rows it has at most, which every file says. Files of an earlier
run stay until the new ones, in a hidden folder beside them, are whole.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.files import SCHEMA, about
from perfmodel.sweep.lock import alone_in
from perfmodel.sweep.resume import STAGED, uninterrupted
from perfmodel.sweep.run import Chunk, Consumer, Progress, Runner
from perfmodel.sweep.study import Study
from perfmodel.sweep.table import RowTable
from perfmodel.sweep.writers._sink import Sink
from perfmodel.sweep.writers.parquet import ParquetWriter, library

_PART = re.compile(r"part-[0-9]{8,}\.parquet")
_UNFINISHED = re.compile(r"\.part-[0-9]{8,}\.parquet\.[0-9a-f]+")


def _place(folder: Path) -> Path:
    return staged if (staged := folder / STAGED).is_dir() else folder


def part_path(folder: Path, index: int) -> Path:
    """The file of chunk ``index``, while it is written."""
    return _place(folder) / f"part-{index:08}.parquet"


def whole_parts(folder: Path) -> int:
    """How many files of chunks this run and those that it carries on have written to ``folder``."""
    return sum(1 for _ in _place(folder).glob("part-*.parquet"))


@contextmanager
def prepared(folder: Path, study: Study, rows: int, resume: bool) -> Iterator[int]:
    """``folder`` ready, and no other run's meanwhile; the rows per chunk: those of the files to be carried on, or ``rows``.

    UsageError, and nothing is changed, if the folder holds what is not to be carried on or is no sweep's.
    """
    library()
    with ExitStack() as stack:
        try:
            folder.mkdir(exist_ok=True)
            stack.enter_context(alone_in(folder))
            old, staged = _parts(_shown(folder)), folder / STAGED
            if resume:
                rows = _rows_per_chunk(_parts(_shown(_place(folder))), study, rows)
            elif staged.is_dir():
                rmtree(staged)
            for path in [path for path in _place(folder).iterdir() if _UNFINISHED.fullmatch(path.name)]:
                path.unlink(missing_ok=True)
            if old and not resume:
                staged.mkdir()
        except OSError as error:
            raise UsageError(f"--output: {folder}: {error.strerror or error}", "name a folder that can be written") from None
        try:
            yield rows
        finally:
            with suppress(OSError):
                staged.rmdir()  # nothing was written
        if staged.is_dir():
            _take_over(folder, staged)


def _shown(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]


def _take_over(folder: Path, staged: Path) -> None:
    """The whole files of ``staged`` in the place of those of an earlier run; if this is cut short, the run can be carried on."""
    with uninterrupted():
        for path in folder.glob("part-*.parquet"):
            path.unlink()
        for path in sorted(staged.iterdir()):
            path.replace(folder / path.name)
        staged.rmdir()


def _parts(found: Sequence[Path]) -> dict[Path, Mapping[str, Any]]:
    """What each file says of itself; UsageError if one was not written by a sweep."""
    for path in found:
        if not _PART.fullmatch(path.name):
            raise UsageError(f"--output: {path.parent} holds {path.name}, which is no part of a sweep", "name an empty or a new folder")
    said = {path: _said(path) for path in found}
    for path, text in said.items():
        if text.get("schema") != SCHEMA:
            raise UsageError(f"--output: {path} is not from a sweep, or is damaged", "move it away, or name an empty or a new folder")
    return said


def _said(path: Path) -> Mapping[str, Any]:
    """The metadata of a file; none where it cannot be read."""
    pa = library()
    try:
        metadata = (path.is_file() and pa.parquet.read_schema(path).metadata) or {}
        found = json.loads(metadata.get(b"perfmodel", b"{}"))
    except (pa.ArrowException, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rows_per_chunk(parts: Mapping[Path, Mapping[str, Any]], study: Study, rows: int) -> int:
    """By which all ``parts`` were cut; ``rows`` if there are none. UsageError if they are not all of ``study``, or cut differently."""
    for path, text in parts.items():
        if text.get("study") != study.fingerprint() or not isinstance(text.get("rows_per_chunk"), int):
            raise UsageError(
                f"--resume: {path} is of another study, or another version", "give the same options as then, or another folder"
            )
    sizes = {text["rows_per_chunk"] for text in parts.values()}
    if len(sizes) > 1:
        folder = next(iter(parts)).parent
        raise UsageError(f"--resume: files in {folder} hold some rows twice or lack some", "leave out --resume to write them anew")
    return sizes.pop() if sizes else rows


def write_part(
    runner: Runner, study: Study, chunk: Chunk, folder: Path, consumers: Sequence[Consumer], tell: Progress | None = None
) -> int:
    """Evaluate ``chunk`` into its file; the number of its rows."""
    path = part_path(folder, chunk.index)
    table = runner.evaluate(chunk, consumers, tell)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(runner, study, table, unfinished)
        unfinished.replace(path)
    except BaseException as error:
        with uninterrupted():
            unfinished.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise DataError(f"{path}: {error.strerror or error}", "the other files can be read; make room and go on with --resume") from None
    return table.rows


def _write(runner: Runner, study: Study, table: RowTable, path: Path) -> None:
    made = ParquetWriter(Sink(path), runner.fields, about(study, runner.rows))
    try:
        made.write(table)
    except BaseException:
        with suppress(OSError):
            made.close()
        raise
    made.close()


def fill(runner: Runner, study: Study, chunk: Chunk, folder: Path, consumers: Sequence[Consumer], tell: Progress | None = None) -> None:
    """Write ``chunk`` unless it is there; then let consumers see it all the same, but for what is computed row by row."""
    if not part_path(folder, chunk.index).exists():
        write_part(runner, study, chunk, folder, consumers, tell)
    elif not runner.grid.slow:
        runner.evaluate(chunk, consumers, tell)


def write_folder(runner: Runner, study: Study, folder: Path, consumers: Sequence[Consumer], tell: Progress | None, resume: bool) -> None:
    """Every chunk that ``folder`` does not hold yet."""
    with prepared(folder, study, runner.rows, resume) as rows:
        runner = runner if rows == runner.rows else Runner(runner.grid, 0, rows=rows)
        for chunk in runner.chunks():
            fill(runner, study, chunk, folder, consumers, tell)
