"""The sweep command and its benchmark: what they print, what they find, what they refuse."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from perfmodel.catalog import data_folder
from perfmodel.commands._progress import SweepProgress
from perfmodel.kernels.attention.algorithms import names
from perfmodel.sweep.study import WORKLOADS, read_study
from perfmodel.sweep.summary import front
from tools import bench


def test_the_best_row_of_each_choice_that_is_a_number_or_a_size(run: Any) -> None:
    line = "sweep --n 64,128 --d 64 --dropout 0,0.5 --sram 48KiB,96KiB --algorithm flash1 --json"
    found = run(line).json
    groups, rows = found["best"]["groups"], found["rows"]
    assert {row["sram_size_bytes"] for row in rows} == {49152, 98304}
    assert [row["dropout"] for row in groups] == [0, 0.5]
    for best in groups:
        assert best in rows
        assert best["roofline_s"] == min(row["roofline_s"] for row in rows if row["dropout"] == best["dropout"])


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


def test_a_folder_is_no_file(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    assert "is a folder" in run(f"sweep --n 64 --d 64 -o {tmp_path / 'a.csv'}").err


def test_rows_that_are_left_out_are_said(run: Any) -> None:
    out = run("sweep --n 64 --d 64 --hardware h200,gaudi3,mi300x --dtype bf16 --algorithm flash --full").out
    assert "2 rows; 1 without an answer." in out
    assert "no SRAM size per block" in out
    out = run("sweep --n 64 --d 64 --heads 5 --kv-heads 3,5 --full").out
    assert "Without an answer: 2 rows: kv_heads does not divide heads." in out
    out = run("sweep --n 64 --d 64 --where d<64").out
    assert "No row is left." in out


def test_rows_to_a_file_and_the_report_to_others(run: Any, tmp_path: Path) -> None:
    outcome = run(f"sweep --n 64 --d 64 -o {tmp_path / 'a.csv'} -o {tmp_path / 'a.json'} -o {tmp_path / 'a.md'}")
    assert (outcome.code, outcome.out) == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())["counts"]["rows"] == 2
    assert "a.csv" in (tmp_path / "a.md").read_text()
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 3


def test_progress_has_rate_and_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    progress = SweepProgress()
    tell = progress.expect(1000)
    for second, points in ((0.5, 100), (2.0, 100), (3.0, 100), (13.0, 100)):
        clock[0] = second
        tell(points)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["200 of 1,000 rows, 100 rows/s, 8 s left", "400 of 1,000 rows, 30.8 rows/s, 20 s left"]


def test_progress_on_a_terminal_is_a_bar_after_a_second(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = SweepProgress()
    tell = progress.expect(100)
    with progress:
        for second in (0.5, 2.0, 2.2, 3.0):
            clock[0] = second
            tell(10)
            assert (progress.rich is None) == (second < 1)  # no bar for what is done within a second
    assert "40 of 100 rows" in capsys.readouterr().err


@pytest.mark.slow
def test_a_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--rows", "20000", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "perfmodel.bench/1"
    assert all(one["ratio"] > 1 for one in found["speeds"])
    assert len(found["speeds"]) == 2 * len(names()) + 3
    assert found["starts"][0]["ratio"] == 1
    assert found["memory"]["peak_bytes"] > 10e6


def test_a_benchmark_needs_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--rows", "0"])
    out, err = capsys.readouterr()
    assert (out, "--rows" in err, "Traceback" in err) == ("", True, False)


def test_a_model_has_the_defaults_of_its_command(run: Any) -> None:
    for options in ("--phase generate --n 391", "--phase prefill", "--phase decode --kv-len 300", "--phase generate"):
        [row] = run(f"sweep model --model gpt2-xl {options} --json").json["rows"]
        alone = run(f"model gpt2-xl {options} --json").json
        told = ("phase", "kv_len", *(() if "decode" in options else ("n",)))  # of a decode step, the command tells the new token
        assert {name: row[name] for name in told} == {name: alone["inputs"][name] for name in told}
        assert row["flops"] == alone["totals"]["flops"]
    rows = run("sweep model --model gpt2-xl --phase all --json").json["rows"]
    assert [(row["phase"], row["n"], row["kv_len"]) for row in rows] == [
        ("prefill", 1024, 1024),
        ("decode", 1024, 1024),
        ("generate", 896, 1024),
    ]
    rows = run("sweep kv-cache --model gpt2-xl,llama-3-8b --json").json["rows"]
    assert [row["n"] for row in rows] == [1024, 8192]


def test_rows_of_models_that_fail_alike_are_counted_together(run: Any) -> None:
    found = run("sweep model --model gpt2-xl --phase generate --n 1:30 --kv-len 25 --columns seconds --json").json
    assert found["counts"]["rows"] == 24
    assert found["counts"]["left_out"] == {"--kv-len leaves nothing to generate after --n": 6}


def test_a_study_whose_ranges_look_like_numbers_of_other_bases(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("sweep:\n  axes: {n: 1:3, d: [64, 020], batch: 1:8:+7}\n")
    rows = run(f"sweep {path} --json").json["rows"]
    assert [sorted({row[name] for row in rows}) for name in ("n", "d", "batch")] == [[1, 2, 3], [20, 64], [1, 8]]


def test_every_axis_and_option_and_study_is_completed(run: Any) -> None:
    options = run("--complete", "sweep", "--n", "5", "--").out.split()
    assert {"--n", "--d", "--hardware", "--kv-heads", "--where", "--resume"} <= set(options)
    assert len(options) == len(set(options))
    assert run("--complete", "sweep", "").out.split() == [*WORKLOADS, "decode-time", "flash-crossover", "matmul-tiles"]


@pytest.mark.parametrize(
    ("axes", "other"),
    [
        ({"n": "128:8192:x2", "d": [32, 64, 128, 256, 512], "heads": 16, "hardware": ["v100", "h200"]}, "flash1"),
        ({"n": "16:300", "d": [64, 128, 256], "heads": 16}, "flash2"),
    ],
)
def test_where_it_pays_is_what_the_rows_say(axes: dict[str, Any], other: str) -> None:
    """In all, along every axis, and in which ranges of it, also where that goes back and forth."""
    comparison = run_json("sweep", axes, algorithm=f"standard,{other}")["comparison"]
    columns = perfmodel.sweep(**axes, algorithm=["standard", other])
    standard, flash = (columns["algorithm"] == name for name in ("standard", other))
    wins = columns["roofline_s"][flash] < columns["roofline_s"][standard]
    assert comparison["wins"][other] == {"wins": int(wins.sum()), "of": len(wins)}
    for entry in comparison["along"]:
        values = columns[entry["axis"]][flash]
        shares = {value: wins[values == value].mean() for value in np.unique(values)}
        assert (min(shares.values()), max(shares.values())) == pytest.approx((entry["least_share"], entry["most_share"]))
        for key, share in (("never_at", 0), ("always_at", 1)) if entry["axis"] != "hardware" else ():
            told = {value for value in shares if any(first <= value <= last for first, last in entry[key])}
            assert told == {value for value in shares if shares[value] == share}
            assert entry["axis"] != "n" or other != "flash2" or len(entry[key]) > 2


PAGE = (Path(__file__).parents[1] / "docs" / "sweeps.md").read_text()
ADDRESS = "tcp://localhost:8786"


@contextmanager
def scheduler(wanted: bool) -> Iterator[str]:
    """The address of a dask scheduler with a worker, if one is wanted."""
    if not wanted:
        yield ""
        return
    from distributed import LocalCluster

    settings: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**settings, protocol="tcp", silence_logs=60) as made:  # type: ignore[no-untyped-call]
        yield made.scheduler_address


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_the_page_on_sweeps_shows_works(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/sweeps.md, in its order, on what the commands before it left."""
    monkeypatch.chdir(tmp_path)
    [study] = re.findall(r"```yaml\n# (mine\.yaml\n.*?)```", PAGE, re.DOTALL)
    name, _, text = study.partition("\n")
    Path(name).write_text(text)
    lines = re.findall(r"^\$ perfmodel (.*)$", PAGE, re.MULTILINE)
    assert len(lines) == PAGE.count("$ perfmodel") > 15
    for line in lines:
        with scheduler(ADDRESS in line) as address:
            words = shlex.split(line.replace(ADDRESS, address))
            if "-" in words:  # rows are bytes: to a real stdout
                done = subprocess.run([sys.executable, "-m", "perfmodel", *words], capture_output=True, text=True, check=True)
                assert done.stdout.count("\n") == 4001
                continue
            outcome = run("", *words)
        assert outcome.code == 0, (line, outcome)
    for folder in ("rows", "cluster"):
        assert [path.name for path in Path(folder).iterdir()] == ["part-00000000.parquet"]
    assert Path("rows.csv").read_text().count("\n") == 4001
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("20 s ")


def test_a_row_without_a_prediction_is_neither_less_nor_more(run):
    line = "sweep attention --n 1024,4096 --d 64 --heads 16 --algorithm flash1,flash2 --hardware h100-sxm --minimize predicted_s"
    out = run(line).out
    assert "flash2" in out  # it alone is predicted: no kernel of flash1 is, unless it is named
    assert "has less predicted_s than flash1" not in out


def test_models_that_do_not_fit_are_marked(run, tmp_path):
    """As ``perfmodel model`` says of each; in the table, in the sentence on the best one, and in the file."""
    names, devices = ("llama-3-70b", "gpt2"), ("a100-sxm-80gb",)
    line = f"sweep model --model {','.join(names)} --hardware {','.join(devices)} --phase decode --kv-len 512 --batch 1,100000"
    found = run(f"{line} --json").json["rows"]
    for row in found:
        one = run(f"model {row['model']} --hardware {row['hardware']} --phase decode --kv-len 512 --batch {row['batch']} --json")
        assert row["fits"] == one.json["memory"]["fits"]
    assert 0 < sum(row["fits"] for row in found) < len(found)
    shown = run(f"{line} --full").out
    assert shown.count("  NO") >= sum(not row["fits"] for row in found)
    assert "times are those of a GPU with more memory" in shown
    alone = "sweep model --model llama-3-70b --hardware {} --kv-len 512 --phase decode --batch 1,2"
    assert "it does NOT FIT the memory" in run(alone.format("a100-sxm-80gb")).out
    assert "not fit" not in run(alone.format("mi300x")).out
    run(f"{line} -o {tmp_path}/rows.csv")
    with (tmp_path / "rows.csv").open(encoding="utf-8") as file:
        assert [int(row["fits"]) for row in csv.DictReader(file)] == [row["fits"] for row in found]
    assert len(run("", *line.split(), "--where", "fits == 1", "--json").json["rows"]) == sum(row["fits"] for row in found)


def test_ranges_where_it_pays_in_words(run: Any) -> None:
    [line] = [line for line in run("sweep --n 16:300 --d 64,128,256 --heads 16 --full").out.splitlines() if line.startswith("flash2  n ")]
    assert "16 to 26, 129 to 139, 257 to 292" in line
    assert " more up to 1," in run("sweep --n 16:1400:+3 --d 64,128,256 --heads 16 --full").out


def test_a_sweep_says_where_flash_attention_wins(run) -> None:
    said = run("sweep --n 1:8192:x2 --d 64 --heads 16 --batch 8 --hardware l4").out
    assert "Lower roof than standard: flash2 in 64% of the configurations, n 32 to 8,192." in said
    said = run("sweep --n 512:8192:x2 --d 64 --heads 16 --batch 8 --hardware l4").out
    assert "Lower roof than standard: flash2 in all of the configurations.\n" in said
