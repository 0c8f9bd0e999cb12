"""One new file of each kind, dropped in place: every command that should see it does, and no test that runs over what exists fails.

``data/adding`` has the files where they would go, a configuration of the architecture and measurements of the kernel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from each import each

from perfmodel import catalog

ADDED = Path(__file__).parent / "data" / "adding"
ROOT = Path(__file__).parents[1]
KINDS = ("kernels/attention/algorithms", "timing/models", "report/formats", "commands", "transformer/architectures")


@pytest.fixture(autouse=True)
def _in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders beside the package's own, and one of all profiles."""
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.chdir(mine)
    for name in ("config.json", "runs.jsonl"):
        shutil.copy(ADDED / name, mine)
    for kind in KINDS:
        package = import_module(f"perfmodel.{kind.replace('/', '.')}")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(ADDED / "perfmodel" / kind)])
    specs, own = catalog.data_folder("hardware_specs"), tmp_path / "data" / "hardware_specs"
    shutil.copytree(specs, own, copy_function=shutil.copy2)
    shutil.copytree(ADDED / "hardware_specs", own, dirs_exist_ok=True)
    configs = catalog.data_folder("configs")
    monkeypatch.setattr(catalog, "data_folder", lambda name: own if name == "hardware_specs" else configs)
    yield
    for name, module in list(sys.modules.items()):
        if str(ADDED) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


SEEN = {
    # an algorithm
    "attention --n 512 --d 64 --algorithm all": "four-pass",
    "attention --n 512 --d 64 --algorithm four-pass --pass both --explain all": "row sums D",
    "attention --help": "four-pass",
    "--complete attention --algorithm fou": "four-pass",
    "sweep --n 512,1024 --d 64 --algorithm all": "four-pass",
    "--complete sweep --algorithm fou": "four-pass",
    "compare standard four-pass --attention n=512,d=64 --hardware my-lab-card_2": "four-pass",
    "roofline --attention n=512,d=64,algorithm=four-pass": "four-pass, n 512 d 64",
    # a device
    "attention --n 512 --d 64 --hardware my-lab-card_2": "My Lab Card 2",
    "--complete attention --hardware my-lab": "my-lab-card_2",
    "hardware list --full": "my-lab-card_2",
    "hardware show my-lab-card_2": "695.8 GB/s",
    "hardware check my-lab-card_2": "my-lab-card_2",
    "sweep --n 512 --d 64 --hardware h200,my-lab-card_2": "my-lab-card_2",
    "roofline --hardware my-lab-card_2 --matmul 512x512x512": "My Lab Card 2",
    "compare nvidia-a10 my-lab-card_2 --matmul 512x512x512": "My Lab Card 2",
    "model gpt2 --phase decode --hardware my-lab-card_2": "My Lab Card 2",
    # a command
    "--help": "ridge ",
    "ridge --help": "--dtype",
    "ridge --hardware h200": "206",
    "ridge --hardware h200 --json": '"perfmodel.ridge/1"',
    "--complete rid": "ridge",
    "--complete ridge --h": "--hardware",
    # an architecture
    "model config.json --phase decode": "experts",
    "model config.json --phase prefill --n 512 --explain all": "experts",
    "model config.json --phase generate": ": first token ",
    "model config.json --phase train --n 512": "A step takes",
    "batch config.json": "per step",
    "kv-cache config.json --n 8192": "12,288 B",
    "memory config.json --batch 8 --n 512": "mine",
    "sweep model --model config.json --phase decode --kv-len 512,1024": "2 rows",
    # a kernel of one's own
    "--complete softmax --implementation my-": "my-softmax",
    # an exporter
    "softmax --help": ".tex",
}
"""Lines, and what of the new file they show."""


@pytest.mark.parametrize(("line", "word"), SEEN.items())
def test_commands_see_it(run, line: str, word: str) -> None:
    outcome = run(line)
    assert outcome.code == 0, outcome.err
    assert word in outcome.out


@each(
    "line",
    [
        "attention --n 512 --d 64", "matmul -m 64 -n 64 -k 64", "sweep --n 64 --d 64", "kv-cache config.json --n 64", "hardware list",
        "ridge", "roofline --matmul 512x512x512", "compare standard flash --attention n=512,d=64 --hardware h200",
        f"report {ADDED.parent / 'studies/small.yaml'}", "model config.json", "validate --records runs.jsonl",
    ],
)  # fmt: skip
def test_an_exporter_writes_what_every_command_finds(run, line: str) -> None:
    outcome = run(line, "-o", "made.tex")
    assert outcome.code == 0, outcome.err
    assert Path("made.tex").read_text().count(r"\begin{tabular}") == Path("made.tex").read_text().count(r"\end{tabular}") > 0


def test_a_kernel_of_ones_own_is_fitted_and_predicted(run) -> None:
    """Before the fit it is known and has no calibration; after it every command predicts it."""
    name = "my-softmax"
    assert f"no calibration of softmax/{name}" in run("validate --records runs.jsonl --full").out
    assert run("calibrate --from-records runs.jsonl -o mine.yaml").code == 0
    assert run("hardware check mine.yaml").code == 0
    [fitted] = [block for block in catalog.find_device("mine.yaml").calibration if block.implementation == name]
    assert (fitted.points, fitted.held_out) == (len(Path("runs.jsonl").read_text().splitlines()), 0)
    assert fitted.median_error is not None
    assert fitted.median_error < 0.05
    question = f"softmax --rows 8192 --cols 4096 --dtype bf16 --hardware mine.yaml --implementation {name}"
    assert 30e-6 < run(f"{question} --json").json["predicted"]["time_s"]["predicted"] < 40e-6
    assert f"predicted time of {name}" in run(question).out
    for line in ("validate --records runs.jsonl --hardware mine.yaml", "roofline --records runs.jsonl --hardware mine.yaml"):
        outcome = run(line)
        assert outcome.code == 0
        assert name in outcome.out
        assert "no calibration" not in outcome.out
        assert run(line, "-o", "made.json").code == 0
        assert " SAME of " in run("compare made.json made.json").out


TESTS = (
    "walks", "counts", "counts_more", "profiles", "chips", "report_formats", "docs", "docstrings", "architecture", "options",
    "command_line", "statements", "dependencies", "models", "weight_formats", "bad_input", "explain", "sweep_command", "sweep_points",
    "sweep_grid", "properties", "lower_bound", "laws", "metamorphic", "readme", "calibrate", "calibrations", "fuzz_commands",
    "fuzz_readers", "ops", "answers", "verdicts", "attention_command", "help", "engines", "other_makers", "hybrid_layers",
)  # fmt: skip
"""What runs over all algorithms, devices, formats, commands, models and architectures."""


@pytest.mark.slow
def test_no_other_test_fails(tmp_path: Path) -> None:
    """A copy of the tree with the seven files in it."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "adding", "test_adding.py"))
    for folder in ("perfmodel", "hardware_specs", "configs"):
        shutil.copytree(ADDED / folder, tree / folder, dirs_exist_ok=True)
    listed = [f"tests/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *listed]
    finished = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-4000:]
