"""``perfmodel memory``: the JSON contract, the text, options, explanations, mistakes of users."""

from __future__ import annotations

import pytest
from each import each
from tables import table
from test_explain import evaluate

from perfmodel.catalog import find_device, find_model, model_names
from perfmodel.transformer.training.question import untrained


@pytest.fixture
def run(run_full):
    """Tables and notes are in the output, whatever a screen shows first."""
    return run_full


LINES = [
    "gpt2 --batch 8 --n 1024 --no-flash --dropout --hardware h200",
    "llama-3-8b --batch 16 --n 4096 --dp 8 --zero 3 --recompute full",
    "llama-3-8b --batch 8 --micro-batch 1 --n 2048 --tp 4 --sp --pp 2 --interleave 2 --gradients fp32 --recompute selective --no-flash",
    "mixtral-8x7b --batch 8 --n 512 --dp 8 --ep 4 --zero 1 --optimizer adam8bit --hardware h100-sxm",
    "deepseek-v2 --n 256 --tp 2 --lora 8 --lora-targets qv --precision bf16",
    "gpt2-medium --batch 4 --n 512 --implementation huggingface --precision bf16 --recompute every:5 --foreach --no-flash",
    "gemma-2-9b --n 8192 --cp 2 --precision fp32 --optimizer momentum --gradient-life kept",
    "gpt-oss-20b --n 300 --optimizer muon --gradient-life applied --gradients both",
]


@pytest.mark.parametrize("line", LINES)
def test_json(run, line):
    data = run(f"memory {line} --json").json
    assert data["schema"] == "perfmodel.memory/1"
    assert {"inputs", "hardware", "parameters", "bytes"} <= data.keys()
    bytes_, at_peak = data["bytes"], data["at_peak"]
    assert set(bytes_) == {"weights", "gradients", "optimizer", "activations", "peak"}
    assert bytes_["peak"] == sum(at_peak[part] for part in ("weights", "gradients", "optimizer", "activations"))
    assert bytes_["peak"] == max(moment["high_bytes"] for moment in data["timeline"])
    for group in ("weights", "gradients", "optimizer"):
        assert bytes_[group] == sum(part["bytes"] for part in data["state"] if part["group"] == group)
    assert all(row["total_bytes"] == row["bytes"] * row["count"] for row in data["kept"])
    assert data["memory"]["fits"] is (bytes_["peak"] <= data["memory"]["capacity_bytes"])
    assert [moment["phase"] for moment in data["timeline"]][-1] == "optimizer"
    assert data["inputs"]["model"] == line.split()[0]


def test_options_reach_the_model(run):
    def data(more: str = ""):
        return run(f"memory llama-3.2-1b --batch 8 --n 512 --json {more}").json

    base = data()
    p = base["parameters"]
    assert data("--precision bf16")["bytes"]["optimizer"] == 4 * p
    assert data("--gradients both")["bytes"]["gradients"] == 6 * p
    assert data("--optimizer sgd")["bytes"]["optimizer"] == 4 * p
    assert data("--dp 8 --zero 3")["bytes"]["weights"] == 2 * p // 8
    assert data("--recompute full")["bytes"]["activations"] < base["bytes"]["activations"] < data("--no-flash")["bytes"]["activations"]
    assert data("--no-flash --dropout")["bytes"]["activations"] > data("--no-flash")["bytes"]["activations"]
    assert data("--micro-batch 1")["timeline"][0]["start_bytes"] == 16 * p + 8 * 512
    assert data("--gradient-life kept")["timeline"][0]["start_bytes"] == 16 * p + 8 * 8 * 512
    assert data("--foreach")["timeline"][-1]["high_bytes"] == 20 * p + 8 * 8 * 512
    assert data("--tp 2")["gpus"] == 2
    assert data("--lora 4")["bytes"]["gradients"] < p / 50
    assert data("--implementation huggingface")["bytes"]["activations"] > base["bytes"]["activations"]


@each(("line", "words"), table("what_it_says"))
def test_what_it_says(run, line, words):
    assert words in run(f"memory {line} ").out


def test_a_device_without_capacity(run):
    assert "the profile of amd-epyc-9654 has no capacity." in run("memory gpt2 --hardware amd-epyc-9654").out
    data = run("memory gpt2 --hardware amd-epyc-9654 --json").json
    assert (data["max_micro_batch"], data["max_batch"], data["memory"]["fits"]) == (None, None, None)


@pytest.mark.parametrize("line", LINES)
def test_printed_formulas_give_the_printed_values(run, line):
    data = run(f"memory {line} --json --explain all").json
    [part] = data["explanation"]
    values = {step["name"]: step["value"] for step in part["steps"]}
    for step in part["steps"]:
        assert step["source"], step
        assert step["meaning"], step
        if step["formula"]:
            assert evaluate(step["numbers"]) == pytest.approx(step["value"], rel=2e-5), step
    assert values["peak"] == data["bytes"]["peak"]
    layers = [row for row in data["kept"] if row["where"].startswith("layer")]
    sums = [value for name, value in values.items() if name.startswith("one layer") and name.endswith(", kept")]
    by_kind = {
        where: sum(row["bytes"] for row in layers if row["where"] == where) for where in dict.fromkeys(row["where"] for row in layers)
    }
    assert sums == list(by_kind.values())
    literature = values[f"one layer by the literature, recompute {data['inputs']['recompute'].partition(':')[0].replace('every', 'full')}"]
    assert literature == pytest.approx(data["literature"]["layer"])
    for row in data["state"]:
        assert values[row["name"]] == row["bytes"]


@each("name", [name for name in model_names() if not untrained(find_model(name))])
def test_every_model(run, name):
    data = run(f"memory {name} --batch 2 --n 128 --hardware h200 --json").json
    assert data["bytes"]["peak"] >= data["bytes"]["weights"] + data["bytes"]["optimizer"]
    assert sum(row["count"] for row in data["kept"] if row["name"] == "layer input") == len(find_model(name).layers)
    assert data["memory"]["capacity_bytes"] == find_device("h200").dram.capacity.number
