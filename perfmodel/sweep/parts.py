"""Rows in files: a part for each chunk, joined once all parts are there.

A part gets its name only when it is complete, so ``--resume`` continues from the parts that exist. They are in a folder beside the target
file, or hidden in the target folder. The folder is named by study and rows per chunk, so a chunk always means the same rows there, a part
that is written again replaces an equal one, and two runs never mix. Until the end an older file or folder stays as it was.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.sweep.evaluate import Consumer, Runner
from perfmodel.sweep.grid import Chunk, SweepGrid
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.writers import find
from perfmodel.sweep.writers.parquet import library

SCHEMA = "perfmodel.sweep/1"
_PART = re.compile(r"part-[0-9]{8,}\.parquet")
_STAGED = re.compile(r"(?P<study>[0-9a-f]{16})-(?P<rows>[0-9]+)\.parts")


@dataclass(frozen=True, slots=True)
class Output:
    """Destination of rows. ``path`` None: stdout. ``form``: the format. ``folder``: one Parquet file per chunk. ``dask``: a scheduler."""

    path: Path | None
    form: str
    folder: bool = False
    resume: bool = False
    dask: str | None = None


def is_stream(output: Output) -> bool:
    """Whether rows go to standard output, or into a pipe or device."""
    path = output.path
    return path is None or (os.path.exists(path) and not os.path.isfile(path) and not output.folder)


def about(study: SweepStudy, rows_per_chunk: int) -> Mapping[str, Any]:
    """Metadata of a file of rows, for formats that can hold it."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "inputs": study.as_json(),
        "study": study.fingerprint(),
        "rows_per_chunk": rows_per_chunk,
    }


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts in the folder ``place``, of at most ``rows`` rows each, that become the file or folder ``target``.

    ``resume``: existing parts are not written again.
    """

    target: Path
    place: Path
    form: str
    study: SweepStudy
    rows: int
    resume: bool = False

    def path(self, index: int) -> Path:
        """The part of chunk ``index``."""
        return self.place / f"part-{index:08}.{self.form}"

    def write(self, runner: Runner, chunk: Chunk, consumer: Consumer) -> None:
        """Evaluate ``chunk`` into its part, unless that exists; ``consumer`` still sees it, except rows computed one by one."""
        path = self.path(chunk.index)
        is_written = self.resume and path.exists()
        if is_written and runner.grid.pointwise:
            return
        table = runner.evaluate(chunk, consumer)
        if is_written:
            return
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with unfinished.open("wb") as stream:
                new_writer, metadata = find(self.form), about(self.study, self.rows)
                with closing(new_writer(stream, runner.grid.fields, metadata, first=chunk.index == 0)) as writer:
                    writer.write(table)
            unfinished.replace(path)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def gone(self) -> DataError:
        """The error of a run whose parts another run has joined or removed."""
        fix = "let one run end before the next begins, or name another place"
        return DataError(f"{self.place} is gone: another run has written to {self.target}", fix)

    def finish(self, count: int) -> None:
        """Replaces ``target`` by all ``count`` parts, once they exist, and keeps its permissions."""
        parts = [self.path(index) for index in range(count)]
        if not all(path.exists() for path in parts):
            raise self.gone()
        if self.target.is_dir():
            for unfinished in self.target.glob(".part-*"):  # of a run that was killed
                unfinished.unlink()
            if self.place == self.target:
                return
            for old in self.target.glob("part-*"):
                old.unlink()
            for path in parts:
                path.replace(self.target / path.name)
        else:
            whole = self.place / f".{secrets.token_hex(4)}"
            with whole.open("wb") as stream:
                find(self.form).join(parts, stream)
            with suppress(FileNotFoundError):
                shutil.copymode(self.target, whole)
            whole.replace(self.target)
        _remove(self.place)


def _remove(place: Path) -> None:
    """Delete a folder of parts; renamed first, so that a run that still writes there fails at once."""
    removed = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):  # another run has just done so
        place.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _folder_of(target: Path) -> tuple[Path, str]:
    """The folder in which parts of ``target`` are staged, and how the names of their folders begin."""
    return (target, ".") if target.is_dir() else (target.parent, f"{target.name}.")


def _staged(target: Path) -> dict[Path, tuple[str, int]]:
    """Folders of parts that were to become ``target``, with their study and rows per chunk."""
    root, prefix = _folder_of(target)
    staged = {}
    for name in os.listdir(root):
        match = _STAGED.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        if match is not None:
            staged[root / name] = match["study"], int(match["rows"])
    return staged


def interrupted_rows(path: Path) -> Path | None:
    """Folder with the rows of an interrupted run whose output is the file or folder ``path``; None if there is none."""
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        return None
    folders = [*_staged(path), path] if path.is_dir() else [*_staged(path)]
    return next((folder for folder in folders if any(folder.glob("part-*"))), None)


@contextmanager
def opened(output: Output, study: SweepStudy, rows: int) -> Iterator[Parts]:
    """Parts to write of at most ``rows`` rows each, or of as many as existing parts have.

    UsageError, before any change, if there is no run of ``study`` to resume, or if a folder was not written by a sweep.
    """
    assert output.path is not None
    find(output.form).ready()
    try:
        parts = _parts(output, output.path, study, rows)
    except OSError as error:
        text = f"{output.path}: {error.strerror or error}"
        raise (UsageError(f"--output: {text}", "name a folder that can be written") if output.folder else DataError(text)) from None
    try:
        yield parts
    except FileNotFoundError:
        raise parts.gone() from None
    except OSError as error:
        text = f"{parts.target}: {error.strerror or error}"
        raise DataError(text, f"the parts in {parts.place} can be read; make room and go on with --resume") from None
    finally:
        if parts.place != parts.target:
            with suppress(OSError):
                parts.place.rmdir()  # nothing was written


def _parts(output: Output, target: Path, study: SweepStudy, rows: int) -> Parts:
    """Parts that become ``target``, in a new folder, or in the folder of the run that is resumed."""
    if output.folder:
        target.mkdir(exist_ok=True)
    target = Path(os.path.realpath(target))
    if target.is_symlink():  # even after ``realpath``: the link leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    existing_parts, staged = _read(target) if output.folder else [], _staged(target)
    root, prefix = _folder_of(target)
    place = root / f"{prefix}{study.fingerprint()}-{rows}.parts"
    if output.resume:
        of_this_study = [(path, staged_rows) for path, (fingerprint, staged_rows) in staged.items() if fingerprint == study.fingerprint()]
        if of_this_study:
            place, rows = of_this_study[0]
        elif staged:
            fix = "give the same options as then, or another place"
            raise UsageError(f"--resume: {target} was begun by another study, or another version", fix)
        elif existing_parts:
            place, rows = target, _rows_per_chunk(existing_parts, target, study)
        elif target.is_file():
            raise UsageError(f"--resume: {target} is whole, or was not begun by a sweep", "leave out --resume to write it anew")
    else:
        for path in {*staged} - {place}:
            _remove(path)
    place.mkdir(exist_ok=True)
    return Parts(target, place, output.form, study, rows, output.resume)


def _read(folder: Path) -> list[Mapping[str, Any]]:
    """Metadata of each file in ``folder``; UsageError if one was not written by a sweep."""
    listed = []
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if not _PART.fullmatch(path.name):
            raise UsageError(f"--output: {folder} holds {path.name}, which is no part of a sweep", "name an empty or a new folder")
        metadata = _metadata(path)
        if metadata.get("schema") != SCHEMA:
            fix = "move it away, or name an empty or a new folder"
            raise UsageError(f"--output: {path} is not from a sweep, or is damaged", fix)
        listed.append(metadata)
    return listed


def _metadata(path: Path) -> Mapping[str, Any]:
    """Metadata of a sweep's Parquet file; empty if it cannot be read."""
    pa = library()
    with suppress(pa.ArrowException, OSError, ValueError):
        metadata = json.loads((pa.parquet.read_schema(path).metadata or {}).get(b"perfmodel", b"{}"))
        return metadata if isinstance(metadata, dict) else {}
    return {}


def _rows_per_chunk(parts: Sequence[Mapping[str, Any]], target: Path, study: SweepStudy) -> int:
    """Rows per chunk of ``parts``; UsageError if a part is of another study, or they differ."""
    if any(part.get("study") != study.fingerprint() for part in parts):
        raise UsageError(f"--resume: {target} is of another study, or another version", "give the same options as then, or another folder")
    rows = parts[0].get("rows_per_chunk")
    if not isinstance(rows, int) or any(part.get("rows_per_chunk") != rows for part in parts):
        raise UsageError(f"--resume: files in {target} hold some rows twice or lack some", "leave out --resume to write them anew")
    return rows


def write_parts(grid: SweepGrid, output: Output, memory: int, consumer: Consumer) -> None:
    """Writes every chunk into its part, and joins the parts into the file or folder."""
    with opened(output, grid.study, grid.chunk_rows(memory)) as parts:
        runner, count = Runner(grid, parts.rows), 0
        for chunk in runner.chunks():
            parts.write(runner, chunk, consumer)
            count += 1
        parts.finish(count)


def write_stream(runner: Runner, output: Output, consumer: Consumer) -> None:
    """Writes every chunk to standard output, or into a pipe or device."""
    find(output.form).ready()
    if output.resume:
        raise UsageError(f"--resume: {output.path} is no file that rows can be read back from", "leave out --resume")
    try:
        with nullcontext(sys.stdout.buffer) if output.path is None else output.path.open("wb") as stream:
            writer = find(output.form)(stream, runner.grid.fields, about(runner.grid.study, runner.rows), first=True)
            for chunk in runner.chunks():
                writer.write(runner.evaluate(chunk, consumer))
            writer.close()
            stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if output.path is None:
            raise
        raise DataError(f"{output.path}: {error.strerror or error}") from None
