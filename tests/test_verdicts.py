"""The first sentence of every command: what is predicted or measured leads, a ratio of roofs is called one."""

from __future__ import annotations

import ast
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog import shipped_implementations
from perfmodel.report.answer import ROOFS_EVEN
from perfmodel.report.saved import Interval
from perfmodel.report.speedup import MEASURED, Side, interval_text, ratio, verdict_sentence
from perfmodel.sweep.base import fallbacks
from tools.commands import all_commands
from tools.refresh.docs import DOCS

PACKAGE = Path(__file__).parents[1] / "perfmodel"
QUESTIONS = {
    "attention": ["--n 4096 --d 64 --heads 16 --batch 8 --algorithm all", "--n 64 --d 64", "--n 1024 --d 512 --pass both --algorithm all"],
    "batch": ["llama-3-8b --kv-len 2048"],
    "compare": ["standard flash2 --attention 'n=4096 d=64 heads=16 batch=8'", "mi325x {} --model 'llama-3-8b decode'", "mi325x {}"],
    "fuse": ["--elements 1048576 --ops 30", "--example sin-cos"],
    "kv-cache": ["llama-3-8b --n 8192 --batch 16"],
    "serve": ["llama-3.1-8b --concurrency 16"],
    "matmul": ["-m 8192 -n 128 -k 8192", "-m 4096 -n 4096 -k 4096"],
    "memory": ["llama-3-8b --batch 8 --n 4096 --dp 8 --zero 3 --recompute full"],
    "mlp": ["--batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024"],
    "model": ["llama-3-8b --phase decode --batch 8 --kv-len 2048", "gpt2 --phase train --batch 8 --n 1024"],
    "recompute": ["--bytes 64MiB --flops 10GFLOP", "--bytes 1MiB --flops 10GFLOP"],
    "roofline": ["--attention 'n=4096 d=64 heads=16 batch=8' --matmul 8192x8192x8192 --model 'llama-3-8b decode'"],
    "softmax": ["--rows 4096 --cols 32768", "--rows 64 --cols 512", "--rows 64 --cols 400000"],
    "sweep": ["attention --n 512:4096:x2 --d 64,512 --algorithm standard,flash1,flash2 --columns roofline_s,predicted_s"],
}
"""By command; each runs where nothing is predicted and where most is."""
UNKNOWN = "mi325x"
"""A device without a calibration of its own."""
STUDIES = [f"report {name}" for name in ("standard-vs-flash", "a100-to-h200", "batch-saturation", "flashattention-fig2")]
NOT_ASKED = {"calibrate", "claims", "hardware list", "hardware show", "hardware check", "hardware add", "occupancy", "remat"}
NOT_ASKED |= {"trace", "validate"}
"""They measure, or hold no two times against each other."""
WAYS = re.compile(r"\b(?:faster|slower|wins?|speed-?up|gains)\b")
BY_ROOFS = re.compile(r"ratios? of roofs|at most|at least|ratio of bounds")
"""Of one roof and a time the gain is at most or at least so much; of two roofs it is their ratio."""


@pytest.fixture
def nothing_lent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No device has a calibration to borrow, so ``UNKNOWN`` has no predicted time."""
    shipped_implementations()  # of the shipped profiles, which engines name; kept from now on
    for module in ("perfmodel.catalog", "perfmodel.study.schema"):
        monkeypatch.setattr(f"{module}.calibrated_devices", list)
    fallbacks.cache_clear()
    yield
    fallbacks.cache_clear()


def sides(reference: float, other: float) -> tuple[Side, Side]:
    return Side("standard", reference), Side("flash2", other)


# The rule


times_s = st.floats(1e-6, 1.0)
widths = st.floats(1.0, 3.0)


@given(times_s, widths, widths, times_s, widths, widths)
def test_errors_of_a_ratio_are_independent_in_log_space(a: float, a_low: float, a_high: float, b: float, b_low: float, b_high: float):
    over, under = Interval(a, a / a_low, a * a_high), Interval(b, b / b_low, b * b_high)
    found, back = ratio(over, under), ratio(under, over)
    assert found.value == a / b
    assert math.log(found.value / found.low) ** 2 == pytest.approx(math.log(a_low) ** 2 + math.log(b_high) ** 2, abs=1e-9)
    assert math.log(found.high / found.value) ** 2 == pytest.approx(math.log(a_high) ** 2 + math.log(b_low) ** 2, abs=1e-9)
    assert (back.low, back.high) == (pytest.approx(1 / found.high), pytest.approx(1 / found.low))
    widest = (over.low / under.high, over.high / under.low)
    assert widest[0] * (1 - 1e-9) <= found.low <= found.value <= found.high <= widest[1] * (1 + 1e-9)
    assert ("either" in interval_text(found)) == (min(found.low, found.value) < 1 < found.high or found.low < 1 <= found.value)


def test_what_is_known_leads() -> None:
    known = Interval(2e-3, 1.5e-3, 2.5e-3)
    standard, flash = Side("standard", 3e-3, Interval(8e-3, 7e-3, 9e-3), by="torch-eager"), Side("flash2", 1e-3, known)
    both = verdict_sentence(standard, flash)
    assert both.startswith("flash2 is predicted 4x faster than standard (3.")
    assert both.endswith("2 ms against 8 ms by torch-eager; ratio of roofs 3x")
    seen = verdict_sentence(Side("standard", 3e-3, Interval(8e-3), MEASURED), Side("flash2", 1e-3, Interval(2e-3), MEASURED))
    assert seen == "flash2 is measured 4x faster than standard: 2 ms against 8 ms; ratio of roofs 3x"
    one = verdict_sentence(Side("standard", 3e-3), flash)
    assert one == (
        "flash2 is at least 1.5x faster than standard (roofs: 1 ms against 3 ms); only flash2 is predicted, 2 ms (1.5 to 2.5 ms)"
    )
    assert verdict_sentence(*sides(1e-3, 2e-3)).startswith("flash2 is 2x slower than standard by roofs (ratio of roofs: ")
    assert verdict_sentence(*sides(1e-3, 1e-3 * (1 + ROOFS_EVEN / 2))).startswith("flash2 is as fast as standard by roofs (ratio of")


# Attention


def test_passes_by_two_kernels_are_said_to_be_by_both(run) -> None:
    """Where one pass is calibrated here and the other borrowed, the sum is by both kernels, and borrowed."""
    line = "attention --n 2048 --d 64 --heads 8 --mask --pass both --hardware h100-sxm --algorithm standard"
    forward, backward, both = run(f"{line} --json").json["results"]
    assert forward["implementation"] != backward["implementation"]  # else the line no longer asks for what is tested
    assert both["implementation"] == f"{forward['implementation']} + {backward['implementation']}"
    assert "borrowed" in {one["prediction"]["kind"] for one in (forward, backward)}
    assert both["prediction"]["kind"] == "borrowed"
    told = run(f"{line} --full").out
    assert f" by {both['implementation']}" in told
    assert ";." not in told


# Every command


def test_every_command_is_asked() -> None:
    """Of those that the pages describe: one that was added since has no question here."""
    described = {name for name in all_commands() if f"\n## {name}\n" in (DOCS / "commands.md").read_text()}
    assert {*QUESTIONS, "report", *NOT_ASKED} == described


def lines(device: str) -> list[str]:
    found = [f"{name} {line.format(device)}" for name, asked in QUESTIONS.items() for line in asked]
    return [line if line.startswith("compare") and device in line else f"{line} --hardware {device}" for line in found]


def verdict_of(run, line: str) -> list[str]:
    words = shlex.split(line)
    outcome = run(f"{words[0]} --json", *words[1:])
    assert outcome.code == 0, (line, outcome.err)
    assert outcome.json["verdict"], line
    return outcome.json["verdict"]


@pytest.mark.usefixtures("nothing_lent")
@pytest.mark.parametrize("line", lines(UNKNOWN))
def test_without_predictions_every_gain_is_measured_or_a_ratio_of_roofs(run, line: str) -> None:
    for said in verdict_of(run, line):
        assert not re.search(r"\bis predicted|^Predicted", said), said  # else the line no longer asks for what is tested
        assert not re.search(r"\bat (?:most|least) [\d.,]+x", said), said
        for sentence in said.split(". "):
            assert not WAYS.search(sentence) or BY_ROOFS.search(sentence) or " is measured " in sentence, said


@each("line", [*lines("h200"), *STUDIES])
def test_every_gain_says_what_it_rests_on(run, line: str) -> None:
    for said in verdict_of(run, line):
        for sentence in said.split(". "):
            rests = BY_ROOFS.search(sentence) or re.search(r"\b(?:predicted|measured)\b", sentence)
            assert not WAYS.search(sentence) or rests, said


WRITTEN = re.compile(r"\{\}x? (?:faster|slower)\b|\bwins \{\}|does not win")


@pytest.mark.parametrize("folder", ["report", "study", "sweep", "commands"])
def test_one_module_writes_how_much_faster(folder: str) -> None:
    """Elsewhere no text puts a number before 'faster', unless as 'at most' of a roof."""
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr) and path.name != "speedup.py":
                words = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
                told = WRITTEN.search(words)
                assert told is None or "at most {}" in words or "refused" in ast.unparse(node), f"{path.name}: {words}"
