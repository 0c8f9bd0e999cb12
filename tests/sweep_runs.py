"""One sweep of a few thousand rows in several chunks, run and interrupted in every way. For tests of files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfmodel.sweep.evaluate import Runner
from perfmodel.sweep.grid import Chunk
from perfmodel.sweep.parts import Output, interrupted_rows
from perfmodel.sweep.run import run_sweep
from perfmodel.sweep.study import SweepStudy

AXES = {"n": "64:6400:+64", "d": [64, 128], "batch": "1:20:+1", "algorithm": ["standard", "flash2"], "hardware": "h200"}
ROWS = 100 * 2 * 20 * 2
MEMORY = 1 << 19
"""So little that the rows make several chunks."""
STUDY = SweepStudy("attention", AXES).complete()
OTHER = SweepStudy("attention", {**AXES, "d": 64}).complete()


def to(path: Path, **more: Any) -> Output:
    return Output(path, path.suffix.removeprefix(".") or "parquet", folder=not path.suffix, **more)


def write(path: Path, *, resume: bool = False, memory: int = MEMORY, study: SweepStudy = STUDY) -> Any:
    return run_sweep(study, to(path, resume=resume), memory)


def rows_in(path: Path) -> int:
    """Of a file, or of the parts in a folder."""
    if path.is_dir():
        parts = sorted(path.glob("part-*"))
        return sum(map(rows_in, parts)) + (len(parts) - 1 if parts and parts[0].suffix == ".csv" else 0)  # one has a header
    if path.suffix == ".parquet":
        return int(pq.read_metadata(path).num_rows)
    return len(path.read_text().splitlines()) - (path.suffix == ".csv")


def unfinished(path: Path) -> Path:
    """The parts of what is to become ``path``."""
    found = interrupted_rows(path)
    assert found is not None
    return found


def parts_of(path: Path) -> list[Path]:
    """Whole parts of what is to become ``path``, none where nothing is."""
    place = interrupted_rows(path)
    return [] if place in (None, path) else sorted(place.glob("part-*"))


def content(path: Path) -> Any:
    """What a reader sees of a file or a folder."""
    if path.is_dir():
        return [(one.name, one.read_bytes()) for one in sorted(path.iterdir()) if not one.name.startswith(".")]
    return path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def at_chunk(monkeypatch: pytest.MonkeyPatch, index: int, act: Callable[[], Any]) -> None:
    """Let ``act`` happen before chunk ``index`` is evaluated, once."""
    plain, done = Runner.evaluate, []

    def evaluate(self: Runner, chunk: Chunk, *rest: Any) -> Any:
        if chunk.index == index and not done:
            done.append(index)
            act()
        return plain(self, chunk, *rest)

    monkeypatch.setattr(Runner, "evaluate", evaluate)


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int = 2, *, resume: bool = False, study: SweepStudy = STUDY) -> None:
    with monkeypatch.context() as patch:
        at_chunk(patch, chunk, interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(path, resume=resume, study=study)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
