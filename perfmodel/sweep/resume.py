"""Files that are written chunk by chunk, and carried on after an interruption.

Beside the file stands a small one, ``FILE.progress``: which study it is, how many chunks are whole and where the last one ends. It is
taken away at the end. What is written is cut back there before more is appended, so it does not matter what interrupted it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import DataError, UsageError
from perfmodel.files import read_text

_BYTES = 512
"""Size of a progress file, always: written over in place, it needs no more room on a full disk."""


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


def note(path: Path, progress: Progress) -> None:
    """Write down how far ``path`` is."""
    text = json.dumps(asdict(progress)).encode().ljust(_BYTES - 1) + b"\n"
    place = progress_path(path)
    with open(place, "r+b" if place.exists() else "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def done(path: Path) -> None:
    """The file is whole: nothing is left to carry on."""
    progress_path(path).unlink(missing_ok=True)


def noted(path: Path, study: str) -> Progress | None:
    """How far ``path`` is; None if there is neither file. UsageError if it is another study's, or whole. An empty file notes nothing."""
    place = progress_path(path)
    begun = place.exists() and place.stat().st_size > 0
    if not path.exists() and not begun:
        return None
    if not begun:
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
    if min(found.chunks, found.rows, found.position) < 0 or found.rows_per_chunk < 1 or not path.exists():
        raise DataError(f"{place}: does not fit {path}", "leave out --resume to write the file anew")
    if path.stat().st_size < found.position:
        raise DataError(f"{path}: shorter than its progress file says", "leave out --resume to write it anew")
    return found


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
