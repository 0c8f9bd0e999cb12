"""Two sweeps on one file or folder, and outputs that are links, pipes, devices or cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sweep_runs import AXES, ROWS, STUDY, at_chunk, content, interrupted, names, rows_in, wait_until, write

from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.parts import interrupted_rows
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.writers import formats

# Two runs at once


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "rows"])
@pytest.mark.parametrize("same", [False, True])
def test_two_runs_never_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, same: bool) -> None:
    """The one that ends first is as if it had been alone; the other one says why it does not go on, or does the same again."""
    alone, path, link = tmp_path / f"alone-{name}", tmp_path / name, tmp_path / f"link-{name}"
    other = STUDY if same else SweepStudy("attention", {**AXES, "d": 64}).complete()
    write(alone, study=other)
    link.symlink_to(path)

    def meet() -> None:
        if not same:
            with pytest.raises(UsageError, match="begun by another study"):
                write(link, resume=True, study=other)
        write(link, study=other)

    with monkeypatch.context() as patch:
        at_chunk(patch, 2, meet)
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


# Links, pipes, devices, folders that cannot be written


def test_a_link_stays_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, path = tmp_path / "link.parquet", tmp_path / "rows.parquet"
    link.symlink_to(path)
    interrupted(link, monkeypatch)
    assert interrupted_rows(link) is not None
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
        reader.wait(timeout=60)
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
