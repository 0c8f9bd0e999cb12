"""Rows in files: what every format holds, full disks, memory, pipes and devices."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sweep_runs import AXES, ROWS, STUDY, names, parts_of, rows_in, to, write

import perfmodel
from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.parts import interrupted_rows
from perfmodel.sweep.run import run_sweep
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.table import Field, RowTable
from perfmodel.sweep.writers import formats
from perfmodel.sweep.writers.parquet import arrow_table, schema


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [dict(row) for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


@pytest.fixture(scope="module")
def columns() -> Any:
    return perfmodel.sweep(**AXES)


@pytest.mark.parametrize("form", formats())
def test_every_format_holds_every_row(tmp_path: Path, columns: Any, form: str) -> None:
    path = tmp_path / f"rows.{form}"
    result = write(path)
    found = read(path)
    assert len(found) == ROWS == columns.rows == result.counts.rows
    assert list(found[0]) == list(columns)
    assert interrupted_rows(path) is None
    # chunks of another size order rows otherwise: compare as sets of rows
    key = ("n", "d", "batch", "algorithm")
    expected = {tuple(str(columns[name][i]) for name in key): i for i in range(ROWS)}
    for row in found:
        index = expected.pop(tuple(str(row[name]) for name in key))
        for name in ("flops", "sram_bytes", "dram_bytes", "lower_s", "roofline_s"):
            assert float(row[name]) == columns[name][index]
    assert not expected


def test_what_parquet_says_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write(path)
    schema = pq.read_schema(path)
    assert schema.field("roofline_s").metadata == {b"unit": b"s"}
    assert (schema.field("n").type, schema.field("flops").type) == (pa.int64(), pa.float64())
    assert pa.types.is_dictionary(schema.field("algorithm").type)
    about = json.loads(schema.metadata[b"perfmodel"])
    assert (about["schema"], about["study"]) == ("perfmodel.sweep/1", STUDY.fingerprint())
    assert pq.ParquetFile(path).num_row_groups > 3


def test_parquet_takes_arrays_as_they_are() -> None:
    """As pyarrow would, every kind of column, with numbers missing and without; pandas is not loaded for it."""
    rows, rng = 1003, np.random.default_rng(1)
    fields = (Field("w", "", "name", ("é", "", "long word")), Field("f", "", "flag"), Field("n", "", "whole"), Field("c", "B", "count"))
    real = rng.random(rows)
    arrays = {
        "w": rng.integers(0, 3, rows).astype(np.int32),
        "f": rng.random(rows) < 0.5,
        "n": rng.integers(-5, 1 << 60, rows),
        "c": np.floor(real * 1e9),
        "r": np.where(real < 0.3, np.nan, real),
        "i": np.where(real < 0.3, np.inf, real),
    }
    table = RowTable((*fields, Field("r", "s", "number"), Field("i", "s", "number")), arrays, rows)
    for part in (table, table.part(5, 812), table.part(3, 3)):
        made = arrow_table(part, schema(part.fields, {}))
        made.validate(full=True)
        assert made["w"].to_pylist() == part.decoded("w").tolist()
        for name in "fnci":
            assert made[name].combine_chunks().equals(pa.array(part.arrays[name]))
        assert made["r"].combine_chunks().equals(pa.array(part.arrays["r"], from_pandas=True))
    code = "import sys; from perfmodel.cli import main; main(sys.argv[1:]); assert 'pyarrow' in sys.modules; print('pandas' in sys.modules)"
    line = "sweep --n 1:3 --d 64 --format parquet -o -"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, check=True)
    assert done.stdout.endswith(b"PAR1False\n")


def test_counts_are_whole_and_missing_numbers_are_empty(tmp_path: Path) -> None:
    axes = {"n": [1 << 30], "d": 64, "batch": [1, 1 << 20], "algorithm": "flash1", "hardware": "h200"}
    study = SweepStudy("attention", axes, columns=("flops", "roofline_s", "predicted_s")).complete()
    for form in formats():
        run_sweep(study, to(tmp_path / f"rows.{form}"))
    small, large = read(tmp_path / "rows.csv")
    assert small["flops"] == str(4 * 2**60 * 64 if 4 * 2**60 * 64 < 2**53 else float(4 * 2**60 * 64))
    assert float(large["flops"]) == 2**20 * float(small["flops"])
    assert small["predicted_s"] == ""
    for form in ("jsonl", "parquet"):
        assert [row["predicted_s"] for row in read(tmp_path / f"rows.{form}")] == [None, None]
    assert (tmp_path / "rows.csv").read_text().splitlines()[0] == "hardware,algorithm,n,d,batch,flops,roofline_s,predicted_s"


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from perfmodel.cli import main
sys.exit(main(sys.argv[2:]))
"""
LINE = "sweep --n 64:6400:+64 --d 64,128 --batch 1:10:+1 --causal both --hardware h200 --row-memory 1MiB"
FULL_ROWS = 100 * 2 * 10 * 2 * 2


@pytest.mark.parametrize(("form", "limit"), [("csv", 300_000), ("jsonl", 700_000), ("parquet", 100_000), ("csv", 10_000)])
def test_a_full_disk_is_a_clear_error_and_rows_that_read(tmp_path: Path, form: str, limit: int) -> None:
    """A limit on the size of files stands for a disk without room: writing fails in the same way, with another error number."""
    path = tmp_path / f"rows.{form}"
    line = [*LINE.split(), "-o", str(path)]
    full = subprocess.run([sys.executable, "-c", LIMITED, str(limit), *line], capture_output=True, text=True, check=False)
    assert (full.returncode, "Traceback" in full.stderr) == (1, False), full.stderr
    assert "File too large" in full.stderr
    assert "make room and go on with --resume" in full.stderr
    assert not path.exists()
    if limit == 10_000:  # no room for the first part
        assert list(tmp_path.iterdir()) == []
        return
    parts = parts_of(path)
    assert rows_in(parts[0].parent) == FULL_ROWS
    on = subprocess.run([sys.executable, "-m", "perfmodel", *line, "--resume"], capture_output=True, text=True, check=True)
    assert f"{FULL_ROWS:,} rows." in on.stdout
    assert rows_in(path) == FULL_ROWS


PEAK = """
import re, sys
from perfmodel.cli import main
main(sys.argv[1:])
print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)
"""


def peak_bytes(line: str) -> int:
    """Most memory that a command takes."""
    done = subprocess.run([sys.executable, "-c", PEAK, *line.split()], capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) * 1024


def test_memory_of_parquet(tmp_path: Path) -> None:
    """Ten times the rows take no more of it; most is that of NumPy and pyarrow, 80 MB."""
    line = f"sweep --n 1:20000 --d 64 --hardware h200 --row-memory 2MiB -o {tmp_path / 'rows.parquet'} --batch"
    small, large = (peak_bytes(f"{line} 1:{batches}:+1") for batches in (1, 10))
    assert large < small + 8e6
    assert large < 130e6


def test_memory_stays_flat(tmp_path: Path) -> None:
    """Twenty times the rows take no more memory: a few million points, with a limit on columns of 16 MiB."""
    axes = "--n 64:65536:+64 --heads 1:32 --d 64 --algorithm standard,flash2 --hardware h200"
    peaks = [peak_bytes(f"sweep {axes} --batch 1:{batches}:+1 --row-memory 16MiB") for batches in (2, 40)]
    assert peaks[1] < peaks[0] + 16e6
    assert peaks[1] < 150e6


@pytest.mark.slow
def test_a_billion_points_in_bounded_memory() -> None:
    line = "sweep --n 64:65536:+64 --heads 1:64 --d 32:256:+32 --batch 1:954:+1 --algorithm standard,flash2 --hardware h200"
    done = subprocess.run([sys.executable, "-c", PEAK, *line.split()], capture_output=True, text=True, check=True)
    assert "1,000,341,504 rows" in done.stdout
    assert int(done.stderr.split()[-1]) * 1024 < 1.5e9


def test_a_folder_of_parts(tmp_path: Path, columns: Any) -> None:
    folder = tmp_path / "rows"
    write(folder)
    found = names(folder)
    assert found == [f"part-{index:08}.parquet" for index in range(len(found))]
    assert len(found) > 3
    table = pq.read_table(folder)
    assert table.num_rows == ROWS
    assert np.sort(table["roofline_s"].to_numpy()).tolist() == np.sort(columns["roofline_s"]).tolist()


def test_without_pyarrow_parquet_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    outcome = run(f"sweep --n 64 --d 64 -o {tmp_path / 'rows.parquet'}")
    assert (outcome.code, "pip install 'perfmodel[parquet]'" in outcome.err) == (1, True)


def test_rows_to_a_pipe() -> None:
    line = "sweep --n 64:640:+64 --d 64 -o - --format"
    for form in ("csv", "jsonl"):
        done = subprocess.run([sys.executable, "-m", "perfmodel", *line.split(), form], capture_output=True, text=True, check=True)
        assert len(done.stdout.splitlines()) == 20 + (form == "csv")
        assert "Sweep over attention" in done.stderr
    done = subprocess.run([sys.executable, "-m", "perfmodel", *line.split(), "parquet"], capture_output=True, check=True)
    assert pq.read_table(pa.BufferReader(done.stdout)).num_rows == 20
    command = f"{sys.executable} -m perfmodel sweep --n 1:200000:+1 --d 64 -o - --format csv | head -c 100"
    closed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in closed.stderr
    full = subprocess.run(f"{sys.executable} -m perfmodel {line} csv > /dev/full", shell=True, capture_output=True, text=True, check=False)
    assert (full.returncode, "Traceback" in full.stderr) == (1, False)
    assert "No space left" in full.stderr


@pytest.mark.parametrize("form", formats())
def test_a_pipe_and_a_device(tmp_path: Path, form: str) -> None:
    pipe, null = tmp_path / f"pipe.{form}", tmp_path / f"null.{form}"
    os.mkfifo(pipe)
    with (tmp_path / "read").open("w+b") as read, subprocess.Popen(["cat", pipe], stdout=read) as reader:
        write(pipe)
        reader.wait(timeout=60)
        read.seek(0)
        found = read.read()
    write(tmp_path / f"rows.{form}")
    if form == "parquet":
        assert pq.read_table(pa.BufferReader(found)).num_rows == ROWS
    else:
        assert found == (tmp_path / f"rows.{form}").read_bytes()
    null.symlink_to(os.devnull)
    assert write(null).counts.rows == ROWS
    with pytest.raises(UsageError, match="no file that rows can be read back from"):
        write(null, resume=True)
    (tmp_path / "full.csv").symlink_to("/dev/full")
    with pytest.raises(DataError, match="No space left"):
        write(tmp_path / "full.csv")
    assert names(tmp_path) == sorted(["full.csv", f"null.{form}", f"pipe.{form}", "read", f"rows.{form}"])
