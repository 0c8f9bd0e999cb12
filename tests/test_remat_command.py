"""The remat command: its counts, timelines, options, JSON objects and refusals."""

from __future__ import annotations

import sys

import pytest
from fuzzing import answer
from test_architecture import loaded

from perfmodel.catalog import find_device
from perfmodel.remat.chain import LARGEST_CHAIN


@pytest.fixture
def run(run_full):
    """Tables and notes are in the output, whatever a screen shows first."""
    return run_full


def results(data):
    return {row["strategy"]: row for row in data["results"]}


def test_only_where_the_count_is_the_same_is_it_explained(run):
    assert "closures" not in run("remat --layers 10 --checkpoints 4").out
    assert "closures" not in run("remat --layers 10 --checkpoints 2,5").out
    assert "closures" not in run("remat --layers 10 --checkpoints 5 --backward 3").out


def test_memory_is_told_step_by_step(run):
    """Every action of the schedule in its order, with the cost when it ends and what is in memory meanwhile; its most is the peak."""
    outcome = run("remat --layers 5 --size 32MB --strategy keep-all")
    data = run("remat --layers 5 --size 32MB --strategy keep-all --json").json
    steps = data["timeline"]["steps"]
    assert [one["action"] for one in steps] == data["timeline"]["actions"]
    assert [one["memory"] / 32e6 for one in steps[:5]] == [2, 3, 4, 5, 6], "x0, and one value more with each layer"
    assert max(one["memory"] for one in steps) == data["results"][0]["peak"]
    assert steps[-1]["end"] == data["timeline"]["cost"] == 15
    assert "keep-all: memory step by step" in outcome.out
    assert ["3", "forward", "x2", "->", "x3", "3", "128", "MB"] in [line.split() for line in outcome.out.splitlines()]
    assert run("remat --layers 2000 --json").json["timeline"]["steps"] is None


def test_a_chain_of_linear_layers_in_fp64(run):
    """8 B per value, at the fp64 rate of the unit that multiplies: the L4's vector unit has 1/64 of its fp32 rate."""
    line = "remat --layers 5 --width 1000 --batch 4000 --strategy keep-all --json"
    chains = {dtype: run(f"{line} --dtype {dtype} --hardware l4").json["results"][0] for dtype in ("fp64", "fp32")}
    assert chains["fp64"]["peak"] == 2 * chains["fp32"]["peak"]
    fastest = find_device("l4").peaks.vector["fp64"].number
    assert chains["fp64"]["cost"] == pytest.approx(15 * 2 * 4000 * 1000**2 / fastest, rel=0.1)
    assert run(f"{line} --dtype float64 --hardware h200").json["results"][0]["cost"] < chains["fp64"]["cost"] / 50
    assert "--dtype fp64 is of the layers of --width" in run("remat gpt2 --dtype fp64").err


def test_the_timeline_is_drawn(run):
    """38 steps of one column, 8 values high: three values at the beginning, all of them at two moments."""
    lines = run("remat --layers 10 --checkpoints 5").out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("segments: memory over time, at most 8"))
    rows = [line.partition("│")[2] for line in lines[start + 2 : start + 10]]
    assert [line.split()[0] for line in lines[start + 2 : start + 10]] == [str(value) for value in range(8, 0, -1)]
    assert rows[-1] == "█" * 38
    height = [sum(row[column : column + 1] == "█" for row in rows) for column in range(38)]
    data = run("remat --layers 10 --checkpoints 5 --json").json["timeline"]
    assert (max(height), height[0], height.count(8)) == (8, 3, 2)
    assert (data["strategy"], data["cost"], max(data["memory"])) == ("segments", 38, 8)
    assert data["actions"][:3] == ["forward x0 -> x6", "forward x6 -> x10", "loss"]
    assert lines[start + 10].strip() == "└┬─────────┬───────────────────────────"
    assert lines[start + 11].split() == ["forward", "backward,", "rebuilding"]


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize(
    "line",
    [
        "remat --layers 10 --checkpoints 5",
        "remat --layers 1000 --checkpoints 100,500 --every 7 --slots 4",
        "remat --layers 12 --budget 6",
        "remat --layers 12 --size 1.5GB --budget 9GB",
        "remat llama-3-8b --n 4096 --hardware h200 --budget 6GB",
        "remat --layers 40 --size 32MB --autograd --relu",
        "remat --width 784,4096,10 --batch 512 --autograd",
    ],
)
def test_charts_fit_a_terminal(run, monkeypatch, line, width):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    from perfmodel.commands import _command
    from perfmodel.report.terminal import render

    monkeypatch.setattr(_command, "as_text", lambda report, as_json, full: render(report, width, color=False, full=full))
    lines = run(line).out.splitlines()
    assert max(map(len, lines)) <= width
    drawn = [text for text in lines if "█" in text]
    assert len(drawn) >= (1 if "--autograd" in line else 5)
    labels = [text.split()[0] for text in drawn]
    assert all(not label.startswith(("█", "▇")) for label in labels), "no bar is folded into a second line"


def test_a_budget(run):
    outcome = run("remat --layers 10 --budget 6")
    assert "Fits: 6 values of 6 values with optimal, the cheapest that fits." in outcome.out
    assert "It takes 36 steps, 20% more than with everything kept." in outcome.out
    assert "optimal: 36 = 30 + 6 steps, 6 values at the peak." in outcome.out
    assert "12 (too much)" in outcome.out
    data = run("remat --layers 10 --budget 6 --json").json
    assert [row["fits"] for row in data["results"]] == [row["peak"] <= 6 for row in data["results"]]
    assert data["curve"][0] == {"memory": 4, "cost": 66, "overhead": pytest.approx(1.2)}
    assert data["curve"][-1] == {"memory": 12, "cost": 30, "overhead": 0}
    short = run("remat --layers 10 --budget 3").out
    assert "Does not fit: no schedule takes 3 values or less." in short
    assert "The least is 4 values, with " in short
    assert "no schedule of the chain fits the memory" in run("remat --layers 10 --budget 3").out


def test_unequal_layers(run):
    data = run("remat --cost 1ms,2ms,3ms --size 1MB,2MB,3MB --json").json
    assert data["units"] == {"cost": "s", "size": "B"}
    assert data["inputs"]["layers"] == 3
    assert results(data)["keep-all"]["cost"] == pytest.approx(0.018)
    plain = results(run("remat --layers 3 --cost 1,2,3 --backward 1 --interior 2 --json").json)
    assert plain["keep-all"]["cost"] == 9
    assert plain["every-k"]["extra_steps"] == 2, "layers with an interior: segments of one, the last kept"


def test_linear_layers_have_times_and_choices(run):
    data = run("remat --layers 10 --width 1000 --batch 4000 --dtype bf16 --hardware h200 --json").json
    assert data["hardware"]["id"] == "nvidia-h200-sxm"
    assert data["units"] == {"cost": "s", "size": "B"}
    [tensor] = data["tensors"]
    assert (tensor["count"], tensor["bytes"], tensor["flop_per_byte"], tensor["verdict"]) == (9, 8_000_000, 1000, "store")
    recompute = run("recompute --bytes 8MB --flops 8e9 --dtype bf16 --hardware h200 --json").json["results"][0]
    assert tensor["recompute_s"] == recompute["recompute_s"]
    widths = run("remat --width 784,4096,10 --batch 512 --json").json
    assert widths["inputs"]["layers"] == 2


def test_layers_of_a_model(run):
    outcome = run("remat llama-3-8b --n 2048 --hardware h200 --checkpoints 7,15,23")
    assert "32 layers of llama-3-8b, 1 x 2,048 tokens, bf16" in outcome.out
    assert "perfmodel memory counts them" in outcome.out
    data = run("remat llama-3-8b --n 2048 --hardware h200 --checkpoints 7,15,23 --json").json
    found = results(data)
    assert found["segments"]["extra_steps"] == 32
    assert found["segments-last-kept"]["extra_steps"] == 24
    assert found["segments-last-kept"]["peak"] < found["keep-all"]["peak"] / 2


def test_explain(run):
    text = run("remat --layers 10 --checkpoints 5 --every 4 --explain all").out
    assert "floor(n * (n - 1) / 2) = floor(10 * (10 - 1) / 2) = 45" in text
    assert "(ceil(n / min(k, n)) - 1) * (min(k, n) - 1)" in text
    assert "r * n - C(s + r, s + 1)" in text
    assert "Griewank & Walther 2000" in text
    parts = run("remat --layers 10 --explain all --json").json["explanation"]
    assert {part["strategy"] for part in parts} == {"keep-all", "keep-none", "sqrt-n", "chen-recursive", "revolve"}


# Autograd


def test_autograd(run):
    outcome = run("remat --layers 5 --size 32MB --autograd")
    assert "Each layer leaves 32 MB, 64 MB with the gradient of its output." in outcome.out
    data = run("remat --layers 5 --size 32MB --autograd --json").json
    assert data["schema"] == "perfmodel.autograd/1"
    assert [size // 10**6 for size in data["forward"]["gradients_with_values"]] == [64, 128, 192, 256, 320]
    assert [size // 10**6 for size in data["forward"]["gradients_in_backward"]] == [32, 64, 96, 128, 160]
    assert data["operations"][0] == {
        "operation": "x1 = x0 W0",
        "keeps": "x0",
        "size": 32_000_000,
        "purpose": "dW0",
        "freed_by": "x1 = x0 W0",
    }
    relu = run("remat --width 784,4096,10 --batch 512 --autograd --relu").out
    assert "x1 = ReLU(z0)" in relu
    assert "kept already" in relu


# Speed and mistakes


def test_a_chain_ten_times_as_long_is_ten_times_the_work(run):
    """By calls of functions, which do not depend on how busy the machine is: a quadratic step would make it a hundred times."""

    def calls(layers: int) -> int:
        counted = 0

        def count(frame, event, argument):
            nonlocal counted
            counted += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            assert f"Everything kept: {3 * layers:,} steps" in run(f"remat --layers {layers}").out
        finally:
            sys.setprofile(before)
        return counted

    run("remat --layers 10")  # what is loaded once
    assert calls(5000) < 12 * calls(500)


def test_starts_without_numpy():
    modules = loaded("remat", "--layers", "10", "--checkpoints", "5")["modules"]
    assert isinstance(modules, list)
    assert {"numpy", "scipy", "numba"} & set(modules) == set()


def test_the_longest_chain_is_answered_and_a_longer_one_refused() -> None:
    code, _, err = answer(f"remat --layers {LARGEST_CHAIN} --checkpoints 5 --every 1 --explain all".split())
    assert (code, err) == (0, "")
    code, _, err = answer(f"remat --layers {LARGEST_CHAIN + 1}".split())
    assert code == 2
    assert f"from 1 to {LARGEST_CHAIN:,}" in err
