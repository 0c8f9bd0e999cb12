"""Files that are written chunk by chunk, and carried on after an interruption.

Rows go to ``NAME.part.csv``, which takes the place of ``NAME.csv`` only when it is whole. Beside it stands a small file,
``NAME.csv.progress``: which study it is, how many chunks are whole and where the last one ends. It is taken away at the end.
What is written is cut back there before more is appended, so it does not matter what interrupted it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.files import read_text

_BYTES = 512
"""Size of a progress file, always: written over in place, it needs no more room on a full disk."""
STAGED = ".unfinished"
"""Where parts of a folder are written while those of an earlier run stand in it; readers of data sets pass over hidden folders."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``rows_per_chunk``: what chunks are cut by. The first ``chunks`` are whole, with ``rows`` rows; they end at byte ``position``."""

    study: str
    rows_per_chunk: int
    chunks: int = 0
    rows: int = 0
    position: int = 0


def progress_path(path: Path) -> Path:
    """The progress file of ``path``."""
    return path.with_name(path.name + ".progress")


def unfinished_path(path: Path) -> Path:
    """Where the rows of ``path`` are until all of them are there.

    >>> unfinished_path(Path("rows.csv")).name
    'rows.part.csv'
    """
    return path.with_name(f"{path.stem}.part{path.suffix}")


def note(path: Path, progress: Progress) -> None:
    """Write down how far ``path`` is."""
    text = json.dumps(asdict(progress)).encode().ljust(_BYTES - 1) + b"\n"
    place = progress_path(path)
    with open(place, "r+b" if place.exists() else "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def done(path: Path) -> None:
    """All rows are there: they take the place of what ``path`` was, with its permissions, and nothing is left to carry on."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copymode(path, unfinished_path(path))
    unfinished_path(path).replace(path)
    progress_path(path).unlink(missing_ok=True)


def forget(path: Path) -> None:
    """Nothing is worth carrying on."""
    unfinished_path(path).unlink(missing_ok=True)
    progress_path(path).unlink(missing_ok=True)


def noted(path: Path, study: str) -> Progress | None:
    """How far ``path`` is; None if it was neither begun nor is there. UsageError if it is another study's, or whole."""
    place, rows = progress_path(path), unfinished_path(path)
    if not rows.exists() or not place.exists() or not place.stat().st_size:
        if not path.exists():
            return None
        raise UsageError(f"--resume: {path} is whole, or was not begun by a sweep", "leave out --resume to write it anew")
    try:
        raw: dict[str, Any] = json.loads(read_text(place, _BYTES, ""))
        found = Progress(**{name: type(getattr(Progress("", 0), name))(raw[name]) for name in Progress.__slots__})
    except (DataError, ValueError, KeyError, TypeError):
        raise DataError(f"{place}: not the progress of a sweep", "leave out --resume to write the file anew") from None
    if found.study != study:
        raise UsageError(
            f"--resume: {path} was begun by another study, or another version", "give the same options as then, or another file"
        )
    if min(found.chunks, found.rows, found.position) < 0 or found.rows_per_chunk < 1:
        raise DataError(f"{place}: does not fit {rows}", "leave out --resume to write the file anew")
    if rows.stat().st_size < found.position:
        raise DataError(f"{rows}: shorter than its progress file says", "leave out --resume to write it anew")
    return found


def kept(path: Path) -> Path | None:
    """Where the rows of an interrupted run are that was to write to the file or folder ``path``; None if there are none."""
    if path.is_dir():
        place = staged if (staged := path / STAGED).is_dir() else path
        return place if any(place.glob("part-*")) else None
    path = Path(os.path.realpath(path))
    return unfinished_path(path) if progress_path(path).exists() else None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off what would interrupt until the end, so that a chunk and its progress are written together.

    By handlers, not by a mask: a mask holds for one thread, and libraries start others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {one: signal.signal(one, lambda number, frame: waiting.append(number)) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in waiting[:1]:
            signal.raise_signal(number)
