"""Sweeps that are killed, interrupted, refused or find no room: what was written before is still there, and nothing else is."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sweep_runs import AXES, ROWS, content, interrupted, names, rows_in, unfinished, wait_until, write

from perfmodel.commands._progress import SweepProgress
from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.parts import interrupted_rows
from perfmodel.sweep.run import Chunk, Runner
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.table import WHOLE, Field
from perfmodel.sweep.writers import find, formats
from perfmodel.sweep.writers.parquet import ParquetWriter

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def _interrupts_arrive() -> Iterator[None]:
    """In what a shell runs in the background they are ignored, and in all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


KILLED = """
import json, os, signal, sys
from pathlib import Path
import sweep_runs as tests
chunk, path, resume = sys.argv[1:]
plain = tests.Runner.evaluate
def evaluate(self, one, *rest):
    if one.index == int(chunk):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, one, *rest)
tests.Runner.evaluate = evaluate
tests.write(Path(path), resume=resume == "True")
"""


def killed(path: Path, chunk: int, *, resume: bool = False) -> None:
    line = [sys.executable, "-c", KILLED, str(chunk), str(path), str(resume)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL, done.stderr


# Killed, interrupted, out of room


@pytest.mark.parametrize("form", formats())
def test_killed_while_it_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    path, alone = tmp_path / f"rows.{form}", tmp_path / f"alone.{form}"
    write(alone)
    interrupted(path, monkeypatch)
    before = rows_in(unfinished(path))
    killed(path, 4, resume=True)
    assert rows_in(unfinished(path)) >= before > 0
    write(path, resume=True)
    assert content(path) == content(alone)
    assert names(tmp_path) == [alone.name, path.name]


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path) -> None:
    path, folder = tmp_path / "rows.parquet", tmp_path / "rows"
    other = SweepStudy("attention", {**AXES, "d": 64}).complete()
    killed(path, 3)
    killed(folder, 2)
    left = [place / ".part-00000002.parquet.0123abcd" for place in (unfinished(path), unfinished(folder), folder)]
    for one in left:
        one.write_bytes(b"PAR1")
    (folder / ".mine").touch()
    write(path, study=other)
    write(folder, resume=True)
    assert names(tmp_path) == ["rows", "rows.parquet"]
    assert ".mine" in names(folder)
    assert not any(one.exists() for one in left)
    assert rows_in(folder) == ROWS == 2 * rows_in(path)


def test_an_interrupted_part_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(self: Any, table: Any) -> None:
        raise KeyboardInterrupt

    for name in ("rows", "rows.parquet"):
        with monkeypatch.context() as patch:
            patch.setattr("perfmodel.sweep.writers.parquet.ParquetWriter.write", write_half)
            with pytest.raises(KeyboardInterrupt):
                write(tmp_path / name)
    assert (names(tmp_path), names(tmp_path / "rows")) == (["rows"], [])


def test_the_old_parts_stay_until_the_new_ones_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted, killed, carried on: a reader of the folder sees all rows of the old run, then all of the new one."""
    folder, other = tmp_path / "rows", SweepStudy("attention", {**AXES, "d": 64}).complete()

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    write(folder, study=other)
    old = files()
    interrupted(folder, monkeypatch, 0)
    assert (files(), names(folder)) == (old, sorted(old))
    interrupted(folder, monkeypatch, 2)
    assert files() == old
    killed(folder, 4)
    with pytest.raises(UsageError, match="another study"):
        write(folder, resume=True, study=other)
    killed(folder, 5, resume=True)
    assert files() == old
    write(folder, resume=True)
    assert rows_in(folder) == ROWS
    assert names(folder) == sorted(files())
    assert not set(files().values()) & set(old.values())


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Interrupted, killed, out of room, carried on and interrupted again; only the last run replaces it, with its permissions."""
    path = tmp_path / name
    path.write_bytes(b"what was there")
    path.chmod(0o640)
    interrupted(path, monkeypatch, 0)
    assert names(tmp_path) == [name]  # without a row nothing else stays
    interrupted(path, monkeypatch)
    interrupted(path, monkeypatch, 4, resume=True)
    with monkeypatch.context() as patch:
        full_from(patch, 5)
        with pytest.raises(DataError, match="No space left"):
            write(path, resume=True)
    killed(path, 5, resume=True)
    assert path.read_bytes() == b"what was there"
    write(path, resume=True)
    assert (rows_in(path), path.stat().st_mode & 0o777) == (ROWS, 0o640)
    assert names(tmp_path) == [name]
    with pytest.raises(UsageError, match="is whole"):
        write(path, resume=True)


def test_an_interrupt_claims_no_rows_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.csv").write_text("n,d")
    (tmp_path / "folder").mkdir()
    for name in ("rows.csv", "old.csv", "folder", "no-folder"):
        SweepProgress().interrupted(tmp_path / name)
        assert capsys.readouterr().err == "perfmodel: interrupted; no rows were written\n"


def full_from(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """The disk is full once chunk ``index`` is evaluated; -1: once all parts are put together."""
    plain = Runner.evaluate

    def evaluate(self: Runner, chunk: Chunk, *rest: Any) -> Any:
        if chunk.index == index:
            for name in formats():
                monkeypatch.setattr(find(name), "__init__", full(find(name).__init__))
        return plain(self, chunk, *rest)

    def full(plainly: Any) -> Any:
        def opened(*given: Any, **more: Any) -> None:
            plainly(*given, **more)
            raise FULL

        return opened

    monkeypatch.setattr(Runner, "evaluate", evaluate)
    if index < 0:
        for name in formats():
            monkeypatch.setattr(find(name), "join", full_join)


def full_join(paths: Any, stream: BinaryIO) -> None:
    stream.write(b"half")
    raise FULL


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows"])
@pytest.mark.parametrize("index", [4, -1])
def test_no_room_to_carry_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, index: int) -> None:
    """Neither for what follows, nor to put all of it together: the rows so far stay, and how to go on is told."""
    path = tmp_path / name
    interrupted(path, monkeypatch)
    place, before = unfinished(path), rows_in(unfinished(path))
    if name == "rows" and index < 0:
        return  # which takes no room
    with monkeypatch.context() as patch:
        full_from(patch, index)
        with pytest.raises(DataError, match=r"No space left on device\n.*can be read; make room and go on with --resume") as told:
            write(path, resume=True)
    assert str(place) in str(told.value)
    assert before < rows_in(place) <= ROWS
    assert (rows_in(place) == ROWS) == (index < 0)
    assert not list(place.glob(".part*"))
    write(path, resume=True)
    assert rows_in(path) == ROWS
    assert names(tmp_path) == [name]


# Folders


def test_a_folder_is_carried_on_in_chunks_as_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tmp_path / "alone"
    write(alone)
    for memory in (1 << 16, 1 << 30):
        folder = tmp_path / str(memory)
        interrupted(folder, monkeypatch)
        assert 0 < rows_in(unfinished(folder)) < ROWS
        result = write(folder, resume=True, memory=memory)
        assert (rows_in(folder), result.counts.rows) == (ROWS, ROWS)
        assert content(folder) == content(alone)
    other = tmp_path / "other"
    write(other, memory=1 << 30)
    next(folder.iterdir()).unlink()
    (other / "part-00000000.parquet").rename(folder / "part-00000099.parquet")
    with pytest.raises(UsageError, match="rows twice"):
        write(folder, resume=True)


def test_a_refused_folder_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    write(folder)
    whole = content(folder)
    mine = pa.table({"a": [1]})
    for name in ("schema.json", "part-00000000.parquet.old", "part-00000099.parquet", "zz"):
        (folder / "part-00000001.parquet").touch()
        pq.write_table(mine, folder / name)
        for resume in (False, True):
            with pytest.raises(UsageError, match=r"no part of a sweep|not from a sweep"):
                write(folder, resume=resume)
        (folder / name).unlink()
        assert content(folder) == whole
    (folder / "part-00000099.parquet").write_bytes(b"damaged")
    with pytest.raises(UsageError, match="not from a sweep, or is damaged"):
        write(folder)
    assert names(folder)[:-1] == [name for name, _ in whole]
    (folder / "part-00000099.parquet").unlink()
    other = SweepStudy("attention", {**AXES, "d": 64}).complete()
    write(folder, study=other)  # another sweep's parts are replaced, all of them
    assert rows_in(folder) == ROWS // 2


def test_a_signal_ends_a_run_between_chunks(tmp_path: Path) -> None:
    """Both signals, on files of both kinds; what is there can be read."""
    for sent, name in ((signal.SIGINT, "rows.parquet"), (signal.SIGTERM, "rows.csv"), (signal.SIGINT, "rows")):
        path = tmp_path / name
        line = f"sweep --n 1:1000000 --batch 1:200 --d 64 --row-memory 8MiB --hardware h200 -o {path}{'' if path.suffix else '/'}"
        with subprocess.Popen([sys.executable, "-m", "perfmodel", *line.split()], stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_until(lambda path=path: bulk(path) > 1_000_000)
                process.send_signal(sent)
                _, err = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 130
        assert "--resume" in err
        assert f"{unfinished(path)} holds the rows so far" in err
        assert "Traceback" not in err
        assert rows_in(unfinished(path)) > 0
        assert not path.is_file()
        assert not list(tmp_path.rglob(".part*"))


def bulk(path: Path) -> int:
    place = interrupted_rows(path)
    return 0 if place is None else sum(one.stat().st_size for one in place.glob("part*"))


def test_a_part_that_was_interrupted_is_dropped_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow ends a file when its writer goes: the stream is closed by then, and what is left has no place."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with (tmp_path / "part.parquet").open("wb") as stream:
        writer = ParquetWriter(stream, (Field("n", "", WHOLE),), {}, True)
    del writer
    assert said == []
