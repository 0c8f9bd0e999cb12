"""``perfmodel model --phase train``: the JSON contract, the text, options that do not go together."""

from __future__ import annotations

import json

import pytest
from reports import data, text


@pytest.fixture
def run(run_full):
    """Tables and notes are in the output, whatever a screen shows first."""
    return run_full


SMALL = "model gpt2-medium --phase train --batch 8 --n 1024 --hardware h200"
SPREAD = "model llama-3-8b --phase train --batch 32 --n 4096 --micro-batch 1 --tp 2 --sp --pp 2 --dp 2 --zero 1 --system h200-x8"


@pytest.mark.parametrize("line", [SMALL, f"{SMALL} --precision bf16 --model-code huggingface --recompute full --no-flash", SPREAD])
def test_rows_add_up_to_totals(run, line):
    data = run(f"{line} --json").json
    assert data["schema"] == "perfmodel.model/1"
    assert data["inputs"]["phase"] == "train"
    totals = data["totals"]
    for key in ("roofline", "predicted"):
        assert totals["time_s"][key] == pytest.approx(sum(op["time_s"][key] for op in data["ops"]))
    assert 0 < totals["time_s"]["lower"] < sum(op["time_s"]["lower"] for op in data["ops"])
    assert totals["time_s"]["predicted"] == data["step_s"] == pytest.approx(sum(data["parts_s"].values()))
    for key in ("flops", "executed_flops"):
        assert totals[key] == pytest.approx(sum(op[key] for op in data["ops"]))
    assert sum(op["share"] for op in data["ops"]) == pytest.approx(1)
    assert totals["time_s"]["lower_warm"] <= totals["time_s"]["low"] <= data["step_s"] <= totals["time_s"]["high"]
    assert (data["low_s"], data["high_s"]) == (totals["time_s"]["low"], totals["time_s"]["high"])
    assert data["metric_units"]["low_s"] == data["metric_units"]["high_s"] == data["metric_units"]["step_s"]
    assert data["tokens_per_s"] == pytest.approx(data["inputs"]["batch"] * data["inputs"]["n"] / data["step_s"])
    assert data["times_from"] == "predicted"
    assert set(data["conventions"]) == {"palm", "megatron"}
    assert "on scores that the mask leaves" in data["flop_convention"]
    assert data["mfu"] < data["conventions"]["palm"]["mfu"] <= data["conventions"]["palm"]["hfu"]
    assert data["needed_flops"] <= data["gpus"] * totals["flops"]
    assert data["executed_flops"] <= data["gpus"] * totals["executed_flops"]
    if data["inputs"]["pipeline_parallel"] == 1:
        assert (data["needed_flops"], data["executed_flops"]) == (totals["flops"] * data["gpus"], totals["executed_flops"] * data["gpus"])
    assert 0 < data["mfu"] <= data["hfu"] < 1
    available = data["step_s"] * data["gpus"] * 989.4e12
    assert (data["mfu"], data["hfu"]) == pytest.approx((data["model_flops"] / available, data["executed_flops"] / available))


@pytest.mark.parametrize("model", ["gpt3-175b", "llama-3-8b"])
def test_a_long_causal_sequence_uses_no_more_than_the_peak(run, model):
    """By the conventions of publications, which count the masked half, it could."""
    data = run(f"model {model} --phase train --n 1000000 --json").json
    assert data["mfu"] <= data["hfu"] < 1
    assert data["conventions"]["palm"]["mfu"] > data["hfu"]
    out = run(f"model {model} --phase train --n 1000000").out
    assert f"MFU {data['mfu']:.1%}." in out
    assert f"HFU {data['hfu']:.1%}; MFU: FLOP on visible scores, HFU: executed." in out


def test_options_reach_the_model(run):
    plain = run(f"{SMALL} --json").json
    for more, key, value in (
        ("--recompute every:4", "recompute", "every:4"),
        ("--no-flash", "flash", False),
        ("--dropout", "dropout", True),
        ("--lora 8", "lora", 8),
        ("--optimizer sgd", "optimizer", "sgd"),
        ("--gradients fp32", "gradients", "fp32"),
        ("--dtype fp16", "dtype", "fp16"),
        ("--micro-batch 2", "micro_batch", 2),
        ("--model-code huggingface", "implementation", "huggingface"),
    ):
        data = run(f"{SMALL} {more} --json").json
        assert data["inputs"][key] == value
        assert data["step_s"] != plain["step_s"] or key == "dtype"
    assert run(f"{SMALL} --dtype fp32 --json").json["inputs"]["precision"] == "fp32"
    assert run(f"{SPREAD} --no-overlap --json").json["step_s"] > run(f"{SPREAD} --json").json["step_s"]


def test_a_search_tells_the_options_of_what_it_found(run):
    line = "model gpt2-medium --phase train --batch 16 --n 1024 --system h200-x8"
    found = data(f"{line} --search 8")
    best = found["layouts"][0]
    again = run(f"{line} {best['options']} --json").json
    assert again["step_s"] == pytest.approx(best["step_s"])
    assert again["memory"]["peak"] == best["memory"]["peak"] <= again["memory"]["capacity"]
    assert again["mfu"] == pytest.approx(best["mfu"])
    assert [layout["step_s"] for layout in found["layouts"]] == sorted(layout["step_s"] for layout in found["layouts"])
    assert "layouts timed in" in text(f"{line} --search 8", full=True)
    assert "none of" in run("model llama-3.1-405b --phase train --batch 8 --system h200-x8 --search 8").out


def test_a_system_of_ones_own(run, tmp_path):
    path = tmp_path / "mine.yaml"
    level = "levels: [{name: links, gpus: 16, bandwidth: {value: 100 GB/s, kind: datasheet, source: sheet}}]"
    path.write_text(f"name: my cluster\ndevice: nvidia-h200-sxm\ngpus: 16\nsources: {{sheet: a datasheet}}\n{level}\n")
    data = run(f"model llama-3-8b --phase train --batch 16 --n 512 --dp 16 --system {path} --json").json
    assert data["inputs"]["system"] == "my cluster"
    assert data["hardware"]["id"] == "nvidia-h200-sxm"
    path.write_text("name: my cluster\n")
    outcome = run(f"model llama-3-8b --phase train --dp 2 --batch 2 --system {path}")
    assert outcome.code == 1
    assert "line 1: device: this field is required" in outcome.err


def test_a_network_under_zero_has_a_note_and_no_interval(run):
    line = "model llama-3-8b --phase train --batch 16 --n 1024 --dp 16 --system dgx-h100 --zero"
    found = data(f"{line} 3")
    times = found["totals"]["time_s"]
    assert times["predicted"] == found["step_s"]
    assert times["low"] is times["high"] is found["low_s"] is found["high_s"] is None
    assert "(" not in found["verdict"][1], "the sentence has no interval either"
    out = text(f"{line} 3", full=True)
    assert "ZeRO 3 over a network is not validated" in out
    assert "times as long" in out
    assert data(f"{line} 1")["totals"]["time_s"]["low"] > 0
    assert "not validated" not in text(f"{line} 1", full=True)
    found = run("model llama-3-8b --phase train --batch 16 --n 1024 --system dgx-h100 --search 16")
    assert ("--zero 2" in found.out or "--zero 3" in found.out) is ("Not validated" in found.out)


def test_a_slower_node_takes_longer(run, tmp_path):
    path, steps = tmp_path / "mine.yaml", []
    for rate in (450, 45):
        level = f"levels: [{{name: links, gpus: 8, bandwidth: {{value: {rate} GB/s, kind: datasheet, source: sheet}}}}]"
        path.write_text(f"name: mine\ndevice: nvidia-h200-sxm\ngpus: 8\nsources: {{sheet: a datasheet}}\n{level}\n")
        steps.append(run(f"model llama-3-8b --phase train --batch 8 --n 1024 --tp 8 --system {path} --json").json["parts_s"])
    assert steps[1]["tensor parallel"] == pytest.approx(10 * steps[0]["tensor parallel"], rel=0.01)
    assert "Exchanges over links: NCCL as calibrated" in run(f"model llama-3-8b --phase train --batch 8 --tp 8 --system {path}").out


@pytest.mark.parametrize("more", ["", "--precision bf16", "--dtype bf16"])
def test_a_format_of_vector_units_is_one(run, more):
    assert run(f"model gpt2 --phase train --n 64 --hardware epyc {more} --json").json["inputs"]["dtype"] == "bf16"


def test_a_search_over_short_sequences_and_odd_numbers_of_gpus(run):
    line = "model gpt2 --phase train --hardware h200"
    assert run(f"{line} --batch 16 --n 512 --search 8 --json").json["layouts"]
    out = run(f"{line} --batch 64 --n 1024 --search 7").out
    assert "No layout divides 64 sequences" in out
    assert "fits" not in out


def test_one_gpu_needs_no_links_and_several_do(run):
    assert run("model gpt2 --phase train --hardware nvidia-t4 --json").code == 0
    outcome = run("model gpt2 --phase train --dp 2 --batch 2 --hardware nvidia-t4")
    assert outcome.code == 1
    assert "nvidia-t4 has no interconnect" in outcome.err
    assert (
        json.loads(run("model gpt2 --phase train --dp 2 --batch 2 --hardware h100-sxm --json").out)["inputs"]["system"] == "DGX H100 nodes"
    )
