"""Sweeps that are killed, interrupted, refused or find no room, and two at once: what was there stays until all of the new is there."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sweep_runs import OTHER, ROWS, STUDY, at_chunk, content, interrupted, names, parts_of, rows_in, to, unfinished, wait_until, write

from perfmodel.commands._progress import SweepProgress
from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.parts import interrupted_rows
from perfmodel.sweep.run import run_sweep
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.table import WHOLE, Field
from perfmodel.sweep.writers import find, formats
from perfmodel.sweep.writers.parquet import ParquetWriter

pytestmark = pytest.mark.usefixtures("interrupts_arrive")
NAMES = ["rows.csv", "rows.jsonl", "rows.parquet", "rows"]
NO_ROOM = r"No space left on device\n.*can be read; make room and go on with --resume"
KILLED = """
import os, signal, sys
from pathlib import Path
import pytest, sweep_runs as tests
chunk, path, resume = sys.argv[1:]
with pytest.MonkeyPatch.context() as patch:
    tests.at_chunk(patch, int(chunk), lambda: os.kill(os.getpid(), signal.SIGKILL))
    tests.write(Path(path), resume=resume == "True")
"""


def killed(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, *, resume: bool = False) -> None:
    line = [sys.executable, "-c", KILLED, str(chunk), str(path), str(resume)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL, done.stderr


def full(*_: Any, **more: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def without_room(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, *, resume: bool = False) -> None:
    """The disk is full from chunk ``chunk`` on."""
    with monkeypatch.context() as patch:
        at_chunk(patch, chunk, lambda: [patch.setattr(find(name), "write", full) for name in formats()])
        with pytest.raises(DataError, match=NO_ROOM):
            write(path, resume=resume)


EVENTS: list[Callable[..., None]] = [interrupted, killed, without_room]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_whatever_happens_on_the_way_the_end_is_that_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    """Until then what was there stays, rows so far can be read, and none is lost. A file keeps its permissions, a cut part goes."""
    alone, path, draw = tmp_path / f"alone-{name}", tmp_path / name, random.Random(f"{name} {seed}")
    result = write(alone)
    if path.suffix:
        path.write_bytes(b"what was there")
        path.chmod(0o640)
    else:
        write(path, study=OTHER)
    old, rows = content(path), 0
    for _ in range(4):
        draw.choice(EVENTS)(path, monkeypatch, draw.randrange(6), resume=rows > 0)
        parts = parts_of(path)
        assert content(path) == old
        before, rows = rows, rows_in(parts[0].parent) if parts else 0
        assert before <= rows < ROWS
        if path.suffix in (".csv", ".jsonl"):
            assert alone.read_bytes().startswith(b"".join(part.read_bytes() for part in parts))
        if parts:
            (parts[0].parent / f".{parts[0].name}.0123abcd").write_bytes(b"PAR1")  # as a killed process leaves it
    carried = write(path, resume=rows > 0, **({"memory": draw.choice([1 << 16, 1 << 30])} if rows else {}))  # chunks stay as begun
    assert content(path) == content(alone)
    assert (carried.counts, carried.summary.best) == (result.counts, result.summary.best)
    assert names(tmp_path) == sorted([alone.name, name])
    assert not path.suffix or path.stat().st_mode & 0o777 == 0o640


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = tmp_path / "rows.parquet", tmp_path / "rows"
    killed(path, monkeypatch, 3)
    killed(folder, monkeypatch, 2)
    (folder / ".part-00000002.parquet.0123abcd").write_bytes(b"PAR1")
    (folder / ".mine").touch()
    write(path, study=OTHER)
    write(folder, resume=True)
    assert names(tmp_path) == ["rows", "rows.parquet"]
    assert names(folder)[0] == ".mine"
    assert not list(folder.glob(".part*"))
    assert rows_in(folder) == ROWS == 2 * rows_in(path)


def test_an_interrupted_part_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(self: Any, table: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ParquetWriter, "write", write_half)
    for name in ("rows", "rows.parquet"):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / name)
    assert (names(tmp_path), names(tmp_path / "rows")) == (["rows"], [])


@pytest.mark.parametrize("name", NAMES[:3])
def test_no_room_to_put_the_parts_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def full_join(paths: Any, stream: BinaryIO) -> None:
        stream.write(b"half")
        full()

    path = tmp_path / name
    with monkeypatch.context() as patch:
        patch.setattr(find(path.suffix[1:]), "join", full_join)
        with pytest.raises(DataError, match=NO_ROOM) as told:
            write(path)
    assert str(unfinished(path)) in str(told.value)
    assert rows_in(unfinished(path)) == ROWS
    write(path, resume=True)
    assert rows_in(path) == ROWS


def test_an_interrupt_claims_no_rows_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.csv").write_text("n,d")
    (tmp_path / "folder").mkdir()
    for name in ("rows.csv", "old.csv", "folder", "no-folder"):
        SweepProgress().interrupted(tmp_path / name)
        assert capsys.readouterr().err == "perfmodel: interrupted; no rows were written\n"


@pytest.mark.parametrize("name", NAMES)
def test_only_what_was_begun_by_the_same_study_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / name
    write(path, resume=True)  # nothing there yet: from the start
    with pytest.raises(UsageError, match="is whole" if path.suffix else "another study"):
        write(path, resume=True, study=OTHER)
    interrupted(path, monkeypatch)
    with pytest.raises(UsageError, match="another study"):
        write(path, resume=True, study=OTHER)


def test_slow_rows_are_written_often_and_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {"n": "64:8192:+64", "d": 64, "heads": 16, "batch": [1, 2, 3, 4, 5], "hardware": "h200", "algorithm": "flash2"}
    study = SweepStudy("attention", axes, columns=("predicted_s", "roofline_s")).complete()
    path = tmp_path / "rows.csv"
    interrupted(path, monkeypatch, study=study)
    assert rows_in(unfinished(path)) == 512
    result = run_sweep(study, to(path, resume=True))
    assert (rows_in(path), result.counts.rows) == (640, 640 - 512)


def test_a_signal_ends_a_run_between_chunks(tmp_path: Path) -> None:
    """Both signals, on files of both kinds; what is there can be read."""
    for sent, name in ((signal.SIGINT, "rows.parquet"), (signal.SIGTERM, "rows.csv"), (signal.SIGINT, "rows")):
        path = tmp_path / name
        line = f"sweep --n 1:1000000 --batch 1:200 --d 64 --row-memory 8MiB --hardware h200 -o {path}{'' if path.suffix else '/'}"
        with subprocess.Popen([sys.executable, "-m", "perfmodel", *line.split()], stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_until(lambda path=path: sum(part.stat().st_size for part in parts_of(path)) > 1_000_000)
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


def test_a_part_that_was_interrupted_is_dropped_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow ends a file when its writer goes: the stream is closed by then, and what is left has no place."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with (tmp_path / "part.parquet").open("wb") as stream:
        writer = ParquetWriter(stream, (Field("n", "", WHOLE),), {}, True)
    del writer
    assert said == []


# Folders


def test_a_whole_folder_gets_lost_parts_back(tmp_path: Path) -> None:
    folder, other = tmp_path / "rows", tmp_path / "other"
    write(folder)
    whole = content(folder)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "part-00000002.parquet").unlink()
    assert write(folder, resume=True, memory=1 << 30).counts.rows == ROWS
    assert content(folder) == whole
    assert sum(times[path] != path.stat().st_mtime_ns for path in times) == 1
    write(other, memory=1 << 30)
    (other / "part-00000000.parquet").rename(folder / "part-00000099.parquet")
    with pytest.raises(UsageError, match="rows twice"):
        write(folder, resume=True)


def test_a_refused_folder_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    write(folder)
    whole = content(folder)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mine")
    for name, held in (("schema.json", b""), ("part-00000099.parquet", (tmp_path / "mine").read_bytes()), ("part-00000099.parquet", b"no")):
        (folder / name).write_bytes(held)
        for resume in (False, True):
            with pytest.raises(UsageError, match=r"no part of a sweep|not from a sweep, or is damaged"):
                write(folder, resume=resume)
        (folder / name).unlink()
        assert content(folder) == whole
    write(folder, study=OTHER)  # another sweep's parts are replaced, all of them
    assert rows_in(folder) == ROWS // 2


# Two runs at once


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("same", [False, True])
def test_two_runs_never_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, same: bool) -> None:
    """The one that ends first is as if it had been alone; the other one says why it does not go on. A link stays a link."""
    alone, path, link = tmp_path / f"alone-{name}", tmp_path / name, tmp_path / f"link-{name}"
    study = STUDY if same else OTHER
    write(alone, study=study)
    link.symlink_to(path)
    with monkeypatch.context() as patch:
        at_chunk(patch, 2, lambda: write(link, study=study))
        with pytest.raises(DataError, match=f"another run has written to {path}"):
            write(path)
    assert content(path) == content(alone)
    assert link.is_symlink()
    assert names(tmp_path) == sorted([f"alone-{name}", name, f"link-{name}"])
    assert not list(tmp_path.rglob(".*"))


def test_a_run_that_loses_at_its_very_end_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run puts the same parts together while this one does."""
    path, others = tmp_path / "rows.csv", [1]

    def copymode(*_: object) -> None:
        if others.pop() if others else 0:
            write(path)

    monkeypatch.setattr("perfmodel.sweep.parts.shutil.copymode", copymode)
    with pytest.raises(DataError, match=f"another run has written to {path}"):
        write(path)
    assert rows_in(path) == ROWS
    assert names(tmp_path) == ["rows.csv"]


def test_two_processes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    line = f"sweep --n 1:5000000 --d 64 --row-memory 8MiB --hardware h200 -o {path}"
    long = [sys.executable, "-m", "perfmodel", *line.split()]
    with subprocess.Popen(long, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
        try:
            wait_until(lambda: interrupted_rows(path) is not None)
            second = subprocess.run([*long[:3], "sweep", "--n", "1:3", "--d", "64", "-o", path], capture_output=True, check=False)
            _, told = first.communicate(timeout=60)
        finally:
            first.kill()
    assert (second.returncode, first.returncode) == (0, 1), told
    assert f"another run has written to {path}" in told
    assert "Traceback" not in told
    assert (names(tmp_path), rows_in(path)) == (["rows.csv"], 6)


# Names and folders that cannot be written


@pytest.mark.parametrize(("name", "words"), [("x" * 250 + ".csv", "File name too long"), ("loop.csv", "symbolic links")])
def test_names_that_cannot_be_written(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(DataError, match=words):
        write(tmp_path / name)
    assert names(tmp_path) == ["loop.csv"]


def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    write(tmp_path / "rows.csv")
    tmp_path.chmod(0o555)
    try:
        if os.geteuid() == 0:
            os.seteuid(65534)
        for name in ("new.csv", "rows.csv", "new"):
            with pytest.raises((DataError, UsageError), match="Permission denied"):
                write(tmp_path / name)
    finally:
        os.seteuid(os.getuid())
        tmp_path.chmod(0o755)
    assert names(tmp_path) == ["rows.csv"]
