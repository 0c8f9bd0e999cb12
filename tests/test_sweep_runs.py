"""Two sweeps on one file or folder, and outputs that are links, pipes, devices or cannot be written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sweep_runs import AXES, ROWS, STUDY, at_chunk, content, interrupted, names, rows_in, wait_until, write

from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.resume import progress_path, unfinished_path
from perfmodel.sweep.run_sweep import Search, complete
from perfmodel.sweep.study import Study
from perfmodel.sweep.writers import formats

# Two runs at once


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "rows"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, resume: bool) -> None:
    """By the same name and by a link; what the first one writes is as if it had been alone."""
    alone, path, link = tmp_path / f"alone-{name}", tmp_path / name, tmp_path / f"link-{name}"
    write(alone)
    link.symlink_to(path)
    other, _ = complete(Study("attention", {**AXES, "d": 64}), Search())
    met = []

    def meet() -> None:
        for place in (path, link):
            for study in (STUDY, other):
                with pytest.raises(UsageError, match="another run is writing"):
                    write(place, resume=resume, study=study)
                met.append(place)

    at_chunk(monkeypatch, 2, meet)
    write(path)
    assert len(met) == 4
    assert content(path) == content(alone)
    assert names(tmp_path) == sorted([f"alone-{name}", name, f"link-{name}"])
    write(link)  # once it has ended
    assert link.is_symlink()
    assert content(path) == content(alone)


def test_two_processes_at_once(tmp_path: Path) -> None:
    """The first one goes on for as long as it is let; the second says why it does not."""
    path = tmp_path / "rows.csv"
    line = f"sweep --n 1:5000000 --d 64 --memory 8MiB --hardware h200 -o {path}"
    long = [sys.executable, "-m", "perfmodel", *line.split()]
    with subprocess.Popen(long, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        try:
            part = unfinished_path(path)
            wait_until(lambda: part.exists() and part.stat().st_size > 1_000_000)
            second = subprocess.run(
                [*long[:3], "sweep", "--n", "1:3", "--d", "64", "-o", path], capture_output=True, text=True, check=False
            )
        finally:
            first.kill()
    assert (second.returncode, second.stderr.count("\n")) == (2, 2)
    assert f"another run is writing to {path}" in second.stderr
    assert b"\0" not in part.read_bytes()
    assert not path.exists()
    done = subprocess.run([*long[:3], "sweep", "--n", "1:3", "--d", "64", "-o", path], capture_output=True, text=True, check=False)
    assert (done.returncode, names(tmp_path)) == (0, ["rows.csv"]), done.stderr  # the lock has gone with its process


def test_a_file_that_another_run_has_just_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its progress file is taken away between opening and locking: the lock must be on the one that is there."""
    import fcntl

    path, plain, locked = tmp_path / "rows.csv", fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        if not locked:
            progress_path(path).unlink()
        locked.append(handle)
        plain(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    write(path)
    assert len(locked) == 2
    assert names(tmp_path) == ["rows.csv"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    for target, value in (("fcntl.flock", flock), ("perfmodel.sweep.lock.fcntl", None)):
        monkeypatch.setattr(target, value)
        for name in ("rows.csv", "rows"):
            write(tmp_path / name)
            assert rows_in(tmp_path / name) == ROWS


# Links, pipes, devices, folders that cannot be written


def test_a_link_stays_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, path = tmp_path / "link.parquet", tmp_path / "rows.parquet"
    link.symlink_to(path)
    interrupted(link, monkeypatch)
    assert progress_path(path).exists()
    write(link, resume=True)
    assert link.is_symlink()
    assert rows_in(path) == ROWS
    assert names(tmp_path) == ["link.parquet", "rows.parquet"]


@pytest.mark.parametrize("form", formats())
def test_a_pipe_and_a_device(tmp_path: Path, form: str) -> None:
    pipe, null = tmp_path / f"pipe.{form}", tmp_path / f"null.{form}"
    os.mkfifo(pipe)
    with (tmp_path / "read").open("w+b") as read, subprocess.Popen(["cat", pipe], stdout=read) as reader:
        write(pipe)
        reader.wait(timeout=20)
        read.seek(0)
        found = read.read()
    (tmp_path / "read").unlink()
    write(tmp_path / f"rows.{form}")
    if form == "parquet":
        assert pq.read_table(pa.BufferReader(found)).num_rows == ROWS
    else:
        assert found == (tmp_path / f"rows.{form}").read_bytes()
    null.symlink_to(os.devnull)
    assert write(null).counts.rows == ROWS
    with pytest.raises(UsageError, match="no file that rows can be read back from"):
        write(null, resume=True)
    assert names(tmp_path) == sorted([f"null.{form}", f"pipe.{form}", f"rows.{form}"])
    assert not progress_path(Path(os.devnull)).exists()


def test_a_full_device(tmp_path: Path) -> None:
    (tmp_path / "full.csv").symlink_to("/dev/full")
    with pytest.raises(DataError, match="No space left"):
        write(tmp_path / "full.csv")


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
