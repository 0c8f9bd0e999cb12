"""Files from strangers: whatever their names, keys and notes hold, nothing steers the terminal, and no path breaks an answer."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz_seeds import ROOT, records, sparse_device
from fuzzing import ESCAPES, answer, check, guard
from tables import table

from perfmodel.core.files import read_yaml

STEER = "".join(ESCAPES)
GRID = ["sweep", "--n", "64,128", "--d", "64", "--hardware"]


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def spoilt(tree: Any) -> Iterator[Any]:
    """``tree`` with ``STEER`` in one text or one key, for every place."""
    if isinstance(tree, str):
        yield tree + STEER
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield {(name + STEER if name == key else name): held for name, held in tree.items()}
            yield from ({**tree, key: other} for other in spoilt(value))
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from ([*tree[:place], other, *tree[place + 1 :]] for other in spoilt(value))


def asked(*args: str) -> tuple[int, str, str]:
    told = answer(list(args))
    check(list(args), *told)
    return told


def test_a_profile_that_is_vetted_steers_no_terminal() -> None:
    path, sound = Path("stranger.yaml"), 0
    for tree in spoilt(sparse_device()):
        path.write_text(json.dumps(tree))
        code = asked("hardware", "check", str(path))[0]
        sound += code == 0
        if code == 0:
            asked("hardware", "show", str(path))
    assert sound > 5  # names and sources may be anything


@pytest.mark.parametrize(
    "line",
    [
        "validate --records {} --json",
        "validate --records {}",
        "calibrate --from-records {}",
        "sweep {}",
        "attention --config {}",
        "model {}",
    ],
)
def test_a_file_that_is_wrong_steers_no_terminal(line: str) -> None:
    for name, text in (("a.yaml", json.dumps({STEER: 1})), (f"b{STEER}.yaml".replace("/", ""), "{}"), ("c.yaml", STEER)):
        Path(name).write_text(text)
        code, _, err = asked(*(word.replace("{}", name) for word in line.split()))
        assert code in (1, 2)
        assert err


def test_an_option_that_is_wrong_steers_no_terminal() -> None:
    for line in ([STEER], ["attention", f"--{STEER}"], ["attention", "--n", STEER], ["hardware", "show", STEER], ["sweep", "--n", STEER]):
        assert asked(*line)[0] in (1, 2)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "folder", "stdout"])
def test_a_profile_whose_path_is_not_utf8_is_swept(form: str) -> None:
    name = os.fsdecode(b"pro\xfffile\x1b.yaml")
    Path(name).write_text((ROOT / "hardware_specs" / "nvidia-h200-sxm.yaml").read_text())
    shown = "pro\\udcfffile\\x1b.yaml"
    if form == "stdout":
        told = asked(*GRID, name, "-o", "-", "--format", "csv")
        rows = list(csv.DictReader(told[1].splitlines()))
    else:
        path = Path("rows/" if form == "folder" else f"rows.{form}")
        told = asked(*GRID, name, "-o", f"{path}/" if form == "folder" else str(path))
        if form in ("parquet", "folder"):
            rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
        elif form == "jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            rows = list(csv.DictReader(path.read_text().splitlines()))
    assert told[0] == 0
    assert len(rows) == 4
    assert {row["hardware"] for row in rows} == {shown}


@pytest.mark.parametrize("line", table("a_pipe_is_refused_with_one_message"))
def test_a_pipe_is_refused_with_one_message(line: str) -> None:
    os.mkfifo("pipe.json")
    os.mkfifo("pipe.yaml")
    name = "pipe.yaml" if line.startswith(("sweep", "report", "hardware")) else "pipe.json"
    with guard():
        code, out, err = asked(*line.replace("{}", name).split())
    assert (code, out) == (1, "")
    assert err.startswith(f"perfmodel: {name}: not a regular file\n")


@pytest.mark.parametrize("text", ["[]", "{", '{"software": 1, "files": "mine: "}', '{"software": {}, "software": {}}'])
def test_a_file_of_software_that_is_wrong_is_named(text: str) -> None:
    Path("mine-environment.json").write_text(text)
    Path("mine-1.jsonl").write_text(json.dumps(records()[0]) + "\n")
    code, _, err = asked("validate", "--records", "mine-1.jsonl")
    assert code == 1
    assert "mine-environment.json" in err


def test_yaml_that_the_tests_spoil_is_yaml() -> None:
    """JSON writes every character as an escape that YAML reads back."""
    assert yaml.safe_load(json.dumps({STEER: STEER})) == {STEER: STEER}


def damaged(tree: Any, *place: Any, value: Any) -> Any:
    """``tree`` with ``value`` at ``place``."""
    copy = json.loads(json.dumps(tree))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy


NORM = {
    **{"workload": "norm", "implementation": "cudnn-rms-norm", "hardware": "nvidia-gb300", "dtype": "bf16"},
    **{"shape": {"rows": 1, "cols": 4096, "kind": "rmsnorm"}, "time_s": {"median": 4.15567e-05}},
}
"""One row of so few bytes that its roof is 0 s."""


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (NORM, 0),
        (damaged(NORM, "shape", "cols", value=10**400), 1),
        (damaged(NORM, "hardware", value="x" * 100_000), 1),
        (damaged(records()[0], "launch", value={"br": 10**60, "bc": 10**400}), 1),
    ],
)
def test_a_damaged_record_is_drawn_or_refused(record: Any, code: int) -> None:
    Path("x.jsonl").write_text(json.dumps(record))
    for line in ("roofline --records x.jsonl", "roofline --records x.jsonl --json"):
        assert asked(*line.split())[0] == code


@pytest.mark.parametrize("value", [0, -1, 5e-324, 1e308, 10**400, float("nan")])
@pytest.mark.parametrize("key", ["low", "high", "predicted"])
def test_a_damaged_answer_is_refused(key: str, value: float) -> None:
    sound = json.loads(asked("matmul", "-m", "512", "-n", "512", "-k", "512", "--hardware", "h200", "--json")[1])
    Path("sound.json").write_text(json.dumps(sound))
    Path("x.json").write_text(json.dumps(damaged(sound, "results", 0, "time_s", key, value=value)))
    code, out, err = asked("compare", "sound.json", "x.json", "--fail-on", "slower")
    assert (code, out) == (1, "")
    assert "x.json: " in err


def test_damaged_numbers_of_other_files_are_refused() -> None:
    profile = read_yaml(ROOT / "hardware_specs" / "nvidia-h200-sxm.yaml")[0]
    config = {"model_type": "llama", "num_hidden_layers": 1, "layer_types": [["full_attention"]]}
    files = {
        "a.yaml": (damaged(profile, "calibration", 0, "parameters", "launch_us", value=1e308), "matmul -m 64 -n 64 -k 64 --hardware {}"),
        "b.yaml": (damaged(profile, "calibration", 0, "held_out_median_error", value=float("inf")), "hardware show {}"),
        "c.yaml": (damaged(profile, "limits", "warp_size", "value", value=10**400), "roofline --matmul 64x64x64 --hardware {}"),
        "d.json": (config, "model {} --n 64"),
    }
    for name, (tree, line) in files.items():
        Path(name).write_text(json.dumps(tree) if name.endswith("json") else yaml.safe_dump(tree))
        assert asked(*line.replace("{}", name).split())[0] == 1, name
