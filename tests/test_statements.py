"""What the pages say of the project's own accuracy follows from its code and records."""

from __future__ import annotations

import ast
import json
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from each import each

from perfmodel.catalog import calibrated_devices, device_ids
from perfmodel.timing.base import find_model, model_names
from perfmodel.validation.records import as_record
from tools.measure.hardware import current_profile
from tools.measure.steps import measure
from tools.scores import tuned, wide_rows
from tools.scores.accuracy_parts import PAGE, PART, PARTS, STATES

ROOT = Path(__file__).parents[1]
MODELS = sorted(path for folder in ("timing/models", "transformer/time_models") for path in (ROOT / "perfmodel" / folder).glob("*.py"))
SLOW = ("wide", "first", "families", "borrowed")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PARTS])
def test_parts_from_the_code_are_current(name):
    shown = dict(PART.findall(PAGE.read_text(encoding="utf-8")))
    assert shown.keys() == PARTS.keys()
    assert shown[name] == PARTS[name](shown[name]), "refresh with: python -m tools.refresh.docs"


def test_a_third_of_the_borrowed_rows_are_current():
    shown = dict(PART.findall(PAGE.read_text(encoding="utf-8")))["borrowed"]
    drawn = [(wide_rows.group_of(as_record(raw)), raw) for raw in wide_rows.raws((wide_rows.BORROWED,))]
    kept = sorted({group for group, _ in drawn})[::3]
    judged = wide_rows.judged(raw for group, raw in drawn if group in kept)
    rows = wide_rows.lines({key: one for key, one in judged.items() if one.errors}, STATES)
    assert len(rows) > 5
    assert all(f"| {' | '.join(row)} |" in shown for row in rows), "refresh with: python -m tools.refresh.docs"


# Constants

DECLARED = {"MODEL", "_LISTED", "_EAGER"}
"""Names of models, whose numbers are no constants."""


def literals(node: ast.AST) -> list[float]:
    found = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, (int, float))]
    return [value for value in found if not isinstance(value, bool)]


def constants(tree: ast.Module) -> Iterator[str]:
    """Names that a module assigns numbers to; its models are declared as such."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        if names and node.value is not None and literals(node.value):
            yield from (name for name in names if name not in DECLARED)


UNITS = {0.0, 1.0, 1e-3, 1e-6, 1e-9, 1e-12}
INLINE = {
    "_fa3": {0.9},  # FlashAttention-3's own heuristics, hopper/heuristics.h and flash_prepare_scheduler.cu
    "_fa3_splits": {0.8, 0.85, 1.1},
    "seconds": {2.0},  # two points of a straight line (torch_training)
}
"""Numbers with a fraction inside functions, which a source gives."""


@each("path", MODELS)
def test_a_number_of_a_time_model_is_fitted_or_declared(path):
    """A constant says whether it was chosen on records or is known; none hides inside a function."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    assert set(constants(tree)) - set(tuned.marked(source, "tuned", "known")) == set()
    for function in (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))):
        inline = {value for value in literals(function) if isinstance(value, float)}
        assert inline <= UNITS | INLINE.get(function.name, set()), function.name


def test_a_constant_that_nobody_declared_is_found():
    assert list(constants(ast.parse("KNOB = 0.7\nA, B = 1, 2\nNAMES = ('a',)\n"))) == ["KNOB", "A", "B"]


def test_every_tuned_constant_has_a_meaning_and_is_listed():
    listed = dict(PART.findall(PAGE.read_text(encoding="utf-8")))["tuned"]
    for module, name in tuned.declared():
        assert tuned.meanings(tuned.modules()[module])[name]
        place = module.removeprefix("perfmodel.")
        assert f"`{place}.{name}`" in listed or f"`{place}." not in listed  # of a file that was added since, none is


def test_the_readme_points_to_the_constants():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    most = max(len(block.parameters) for device in calibrated_devices() for block in device.calibration)
    assert f"at most {most} fitted parameters per kernel and architecture" in text
    assert "constants in code that were chosen by measurements (docs/accuracy.md lists them)" in text


def test_the_pages_say_where_forward_counts_were_tested():
    """The records themselves are judged in test_l2: each forward, on whole tiles, within 0.05 %."""
    records = (ROOT / "tests" / "data" / "h200_attention_counters.jsonl").read_text(encoding="utf-8").splitlines()
    page, readme = (" ".join(path.read_text(encoding="utf-8").split()) for path in (PAGE, ROOT / "README.md"))
    assert f"counter of {len(records)} FlashAttention-2 and cuDNN kernels within 0.05 %, all on lengths that tiles divide" in page
    assert "`flash2` forward, where tiles divide the lengths, equals the L2-to-SM counter" in readme


# Assumptions


@pytest.mark.parametrize(
    "line", ["attention --n 1024 --d 64", "matmul --m 512 --n 512 --k 512", "model llama-3-8b --phase decode --kv-len 2048"]
)
def test_answers_say_what_their_predictions_assume(run, line):
    assert "Assumed: " in run(f"{line} --hardware h200 --full").out


def test_the_json_says_what_its_predictions_assume(run):
    [_, result] = json.loads(run("attention --n 1024 --d 64 --hardware h200 --json").out)["results"]
    assert result["prediction"]["assumes"] == find_model(result["prediction"]["model"]).assumes


def test_models_that_assume_a_layout_say_it():
    told = {name: find_model(name).assumes for name in model_names()}
    assert all(told.values())
    assert "[batch, length, heads, d]" in told["fa2-forward"]
    assert "a causal mask added as a tensor" in told["eager-attention"]
    assert "weight_copies" in told["gemm"]


# Whose measurements these are


def test_no_measuring_program_names_a_device():
    """A record is of the device that ran: its name comes from the machine, or from who asks."""
    known = set(device_ids())
    for path in (ROOT / "perfmodel" / "validation").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known), path


def test_a_step_is_of_the_device_that_ran_it():
    properties = types.SimpleNamespace(name="NVIDIA A100-SXM4-80GB", total_memory=80 << 30)
    cuda = types.SimpleNamespace(current_device=lambda: 0, get_device_properties=lambda index: properties)
    torch = types.SimpleNamespace(cuda=cuda, __version__="2.11.0")
    assert current_profile(torch) == "nvidia-a100-sxm-80gb"
    record = measure._record("transformer", "torch", {"model": "gpt2"}, [1.0, 2.0, 3.0], torch, "held out")
    assert record.hardware == "nvidia-a100-sxm-80gb"
