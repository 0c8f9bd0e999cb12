"""The sweep and bench commands: what they print, what they find, what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from perfmodel.catalog import data_folder
from perfmodel.commands._progress import Teller
from perfmodel.sweep.search import front
from perfmodel.sweep.study import read_study


def test_the_json_object(run: Any) -> None:
    found = run("sweep --n 512:2048:x2 --d 64 --heads 8,16 --kv-heads heads/4 --hardware h200 --json").json
    assert found["schema"] == "perfmodel.sweep/1"
    assert found["inputs"]["axes"]["n"] == "512:2048:x2"
    assert [column["name"] for column in found["columns"]] == list(found["rows"][0])
    assert {"name": "roofline_s", "unit": "s", "meaning": "roof: all terms overlap"} in found["columns"]
    assert len(found["rows"]) == 12 == found["counts"]["rows"]
    assert found["comparison"]["wins"] == {"flash2": {"wins": 6, "of": 6}}
    first = found["rows"][0]
    alone = run(f"attention --n {first['n']} --d 64 --heads {first['heads']} --kv-heads {first['kv_heads']} --hardware h200 --json").json
    assert first["flops"] == alone["results"][0]["flops"]
    assert first["roofline_s"] == alone["results"][0]["time_s"]["roofline"]
    many = run("sweep --n 1:20000:+1 --d 64 --json").json
    assert many["rows"] is None
    assert many["counts"]["rows"] == 40000


def test_the_summary(run: Any) -> None:
    out = run("sweep --n 128:8192:x2 --d 32,128,512 --heads 16 --hardware v100,h200 --algorithm standard,flash1,flash2").out
    assert "Sweep over attention: 126 rows (2 x hardware, 3 x algorithm, 7 x n, 3 x d)" in out
    assert "flash2 has less roofline_s than standard in" in out
    assert "where less roofline_s than standard" in out
    [line] = [line for line in out.splitlines() if line.startswith("flash1  d ")]
    assert "everywhere" not in line
    assert "0% to" in line


def test_where_it_pays_is_what_the_rows_say() -> None:
    axes = {"n": "128:8192:x2", "d": [32, 64, 128, 256, 512], "heads": 16, "hardware": ["v100", "h200"]}
    done = run_json("sweep", axes, algorithm="standard,flash1")
    columns = perfmodel.sweep(**axes, algorithm=["standard", "flash1"])
    standard, flash = (columns["algorithm"] == name for name in ("standard", "flash1"))
    wins = columns["roofline_s"][flash] < columns["roofline_s"][standard]
    assert (columns["d"][flash] == columns["d"][standard]).all()
    assert done["comparison"]["wins"]["flash1"] == {"wins": int(wins.sum()), "of": len(wins)}
    for entry in done["comparison"]["along"]:
        values = columns[entry["axis"]][flash]
        shares = {value: wins[values == value].mean() for value in np.unique(values)}
        assert min(shares.values()) == pytest.approx(entry["least_share"])
        assert max(shares.values()) == pytest.approx(entry["most_share"])
        if entry["axis"] == "d":
            low, high = entry["never"]
            assert all(shares[value] == 0 for value in shares if low <= value <= high)


def run_json(command: str, axes: dict[str, Any], **more: str) -> Any:
    words = [*command.split(), "--json"]
    for name, value in {**axes, **more}.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{name.replace('_', '-')}", text]
    done = subprocess.run([sys.executable, "-m", "perfmodel", *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_search_finds_the_least_and_the_front() -> None:
    axes = {"m": "64:4096:x2", "n": "512:4096:x2", "k": 1024, "tile_m": [32, 64, 128], "hardware": ["h200", "l40s"]}
    words = {"minimize": "time", "subject_to": "memory < 20 MB and m * n >= 262144", "pareto": "io,time", "top": "7"}
    found = run_json("sweep matmul", axes, **words)
    columns = perfmodel.sweep("matmul", columns=["sram_bytes", "roofline_s", "memory_bytes"], **axes)
    keep = (columns["memory_bytes"] < 20e6) & (columns["m"] * columns["n"] >= 262144)
    assert found["counts"] == {"rows": int(keep.sum()), "points": len(keep), "excluded": int((~keep).sum()), "left_out": {}}
    least = np.sort(columns["roofline_s"][keep])[:7]
    assert [row["roofline_s"] for row in found["minimize"]["rows"]] == least.tolist()
    x, y = columns["sram_bytes"][keep], columns["roofline_s"][keep]
    unbeaten = {(a, b) for a, b in zip(x, y, strict=True) if not ((x <= a) & (y <= b) & ((x < a) | (y < b))).any()}
    assert {(row["sram_bytes"], row["roofline_s"]) for row in found["pareto"]["rows"]} == unbeaten


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_a_front_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    x, y = (np.array([point[axis] for point in points], float) for axis in (0, 1))
    found = [(x[i], y[i]) for i in front(x, y)]
    beaten = {p for p in points if any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points)}
    assert found == sorted({(float(a), float(b)) for a, b in points if (a, b) not in beaten})


def test_options_come_before_what_the_study_says(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("sweep:\n  axes: {n: 64, d: [64, 128], hardware: h200}\n  columns: [roofline_s]\n  where: d < 100\n")
    found = run(f"sweep {path} --n 128,256 --json").json
    assert sorted({row["n"] for row in found["rows"]}) == [128, 256]
    assert {row["d"] for row in found["rows"]} == {64}
    assert list(found["rows"][0]) == ["hardware", "algorithm", "n", "d", "roofline_s"]


def test_switches_and_repeated_options(run: Any) -> None:
    found = run("sweep --n=64 --n 128 --d 64 --causal --no-mask --algorithm flash --algorithm standard --hardware h200 --json").json
    assert {(row["n"], row["causal"], row["mask"], row["algorithm"]) for row in found["rows"]} == {
        (n, True, False, algorithm) for n in (64, 128) for algorithm in ("flash2", "standard")
    }
    assert len(run("sweep --n 64 --d 64 --causal both --json").json["rows"]) == 4


@pytest.mark.parametrize("path", sorted((data_folder("configs") / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies_answer(run: Any, path: Path) -> None:
    outcome = run(f"sweep {path.stem} --json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["counts"]["rows"] > 0
    assert outcome.json["counts"]["left_out"] == {}
    assert read_study(path.stem).axes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sweep", ["--n is missing"]),
        ("sweep nothing", ["no study or workload is called 'nothing'", "attention"]),
        ("sweep nowhere.yaml", ["nowhere.yaml"]),
        ("sweep --n 64", ["--d is missing"]),
        ("sweep --n 64 --d 64 --foo 3", ["--foo", "no such option"]),
        ("sweep --n 64 --d", ["--d needs a value"]),
        ("sweep attention 64", ["64", "no such option"]),
        ("sweep --n 64 --d 64 --columns flop", ["no column 'flop'", "flops"]),
        ("sweep --n 64 --d 64 --minimize tme", ["--minimize", "did you mean time?"]),
        ("sweep --n 64 --d 64 --pareto time", ["--pareto takes two columns"]),
        ("sweep --n 64 --d 64 --pareto time,tme", ["--pareto", "'tme'"]),
        ("sweep --n 64 --d 64 --minimize time --top 0", ["--top is 0"]),
        ("sweep --n 64 --d 64 --where n<", ["--where", "missing"]),
        ("sweep --n 64 --d 64 --memory 1KiB", ["--memory"]),
        ("sweep --n 64 --d 64 --memory lots", ["--memory"]),
        ("sweep --n 64 --d 64 --resume", ["--resume", "-o rows.parquet"]),
        ("sweep --n 64 --d 64 --dask tcp://x:1", ["--dask", "-o rows.parquet"]),
        ("sweep --n 64 --d 64 --format csv", ["--format"]),
        ("sweep --n 64 --d 64 -o a.csv -o b.csv", ["one place"]),
        ("sweep --n 64 --d 64 -o a.csv --format jsonl", ["does not fit"]),
        ("sweep --n 64 --d 64 -o - --format xml", ["no format 'xml'"]),
        ("sweep --n 64 --d 64 -o - --format csv --resume", ["need a file"]),
        ("sweep --n 64 --d 64 -o a.csv --dask tcp://x:1", ["folder of Parquet files"]),
        ("sweep --n 64 --d 64 -o no/where/a.csv", ["no folder no/where"]),
        ("sweep --n 64 --d 64 -o a.pdf", ["'.pdf'"]),
        ("sweep --n 64 --d 64 --packed maybe", ["true, false or both"]),
        ("bench --rows 0", ["--rows"]),
    ],
)
def test_one_message_with_place_and_fix(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(line)
    assert outcome.code in (1, 2), outcome
    assert outcome.out == ""
    for word in words:
        assert word in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    assert "is a folder" in run(f"sweep --n 64 --d 64 -o {tmp_path / 'a.csv'}").err


def test_rows_that_are_left_out_are_said(run: Any) -> None:
    out = run("sweep --n 64 --d 64 --hardware h200,trainium2,tpu-v3 --dtype bf16 --algorithm flash").out
    assert "1 rows; 2 without an answer." in out
    assert "no SRAM size per block" in out
    out = run("sweep --n 64 --d 64 --heads 5 --kv-heads 3").out
    assert "No row is left." in out
    assert "kv_heads does not divide heads" in out


def test_rows_to_a_file_and_the_report_to_others(run: Any, tmp_path: Path) -> None:
    outcome = run(f"sweep --n 64 --d 64 -o {tmp_path / 'a.csv'} -o {tmp_path / 'a.json'} -o {tmp_path / 'a.md'}")
    assert (outcome.code, outcome.out) == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())["counts"]["rows"] == 2
    assert "a.csv" in (tmp_path / "a.md").read_text()
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 3


def test_help_lists_axes_and_columns_without_numpy(run: Any) -> None:
    code = "import sys\nfrom perfmodel.cli import main\nmain(['sweep', '--help'])\nprint(sorted({'numpy', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    for word in ("--minimize", "kv-heads", "roofline_s", "time = roofline_s", "max_context", "tokens_per_s"):
        assert word in done.stdout
    assert run("sweep --help").out in done.stdout


def test_a_sweep_loads_no_more_than_numpy() -> None:
    code = (
        "import sys\nfrom perfmodel.cli import main\nmain(['sweep', '--n', '64', '--d', '64'])\nprint(sorted({MODULES} & set(sys.modules)))"
    )
    heavy = "'numba', 'pyarrow', 'pandas', 'distributed', 'pydantic', 'rich.table', 'matplotlib'"
    done = subprocess.run([sys.executable, "-c", code.replace("MODULES", heavy)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_progress_has_rate_and_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    teller = Teller()
    tell = teller.expect(1000)
    for second, points in ((0.5, 100), (2.0, 100), (3.0, 100), (13.0, 100)):
        clock[0] = second
        tell(points)
    teller.done()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["200 of 1,000 rows, 100 rows/s, 8 s left", "400 of 1,000 rows, 30.8 rows/s, 20 s left"]


def test_progress_on_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    teller = Teller()
    tell = teller.expect(100)
    for second in (2.0, 2.2, 3.0):
        clock[0] = second
        tell(10)
    teller.done()
    err = capsys.readouterr().err
    assert (err.count("\r"), err.count("\n")) == (3, 0)
    assert err.endswith("\r\x1b[K")


def test_a_benchmark(run: Any) -> None:
    found = run("bench --rows 20000 --json").json
    assert found["schema"] == "perfmodel.bench/1"
    assert all(one["ratio"] > 1 for one in found["speeds"])
    assert len(found["speeds"]) == 2 * 6 + 3
    assert found["starts"][0]["ratio"] == 1
    assert found["memory"]["peak_bytes"] > 10e6
