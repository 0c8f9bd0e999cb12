"""``perfmodel model`` and ``perfmodel batch``: published bounds, the JSON contract, mistakes of other tools, mistakes of users."""

from __future__ import annotations

import json

import pytest
from each import each
from fuzzing import calls
from test_explain import evaluate

from perfmodel.catalog import device_ids, find_device, find_model
from perfmodel.transformer.operation import HEAD_ROW


@pytest.fixture
def run(run_full):
    """Tables and notes are in the output, whatever a screen shows first."""
    return run_full


def rows(data) -> dict[str, dict]:
    return {op["name"]: op for op in data["ops"]}


# The object


@pytest.mark.parametrize("phase", ["prefill", "decode", "generate"])
def test_the_rows_add_up_to_the_totals(run, phase):
    data = run(f"model llama-3.2-1b --phase {phase} --n 64 --kv-len {64 + 16 * (phase == 'generate')} --graph --hardware h200 --json").json
    assert data["schema"] == "perfmodel.model/1"
    totals = data["totals"]
    for key in ("roofline", "no_overlap", "predicted"):
        assert totals["time_s"][key] == pytest.approx(sum(op["time_s"][key] for op in data["ops"]))
    assert 0 < totals["time_s"]["lower"] < sum(op["time_s"]["lower"] for op in data["ops"])
    assert totals["flops"] == sum(op["flops"] for op in data["ops"])
    assert sum(op["share"] for op in data["ops"]) == pytest.approx(1)
    assert (data["ttft_s"] is None, data["tpot_s"] is None) == (phase == "decode", phase == "prefill")
    assert data["times_from"] == "predicted"
    assert totals["time_s"]["lower"] <= totals["time_s"]["low"] <= totals["time_s"]["predicted"] <= totals["time_s"]["high"]
    memory = data["memory"]
    assert memory["total"] == memory["weights"] + memory["kv_cache"] + memory["activations"]
    assert data["parameters"]["total"] == 1235814400
    assert all(op["implementation"] and op["prediction"]["provenance"] for op in data["ops"])


NAMED_STEPS = {
    "--phase prefill --n 4096 --clock burst": ("torch-sdpa-flash", "fa2", "fa3", "torch-sdpa-cudnn", "torch-sdpa-efficient"),
    "--phase decode --kv-len 4096 --batch 8 --clock burst": ("torch-sdpa-flash", "torch-sdpa-cudnn"),
    "--phase generate --n 512 --kv-len 640 --clock burst": ("torch-sdpa-flash",),
    "--phase prefill --n 1024 --engine vllm --clock burst": ("torch-sdpa-flash", "torch-sdpa-cudnn"),
    "--phase train --batch 1 --n 2048": ("torch-sdpa-flash", "fa3", "torch-sdpa-cudnn"),
}


@each("step", NAMED_STEPS)
def test_a_named_kernel_runs_attention_and_nothing_else(run, step):
    """The kernel that is taken by default changes nothing when named; another one changes the rows of attention alone."""
    line = f"model llama-3-8b --hardware h200 {step} --json"
    plain = run(line).json
    chosen = {op["implementation"] for op in plain["ops"] if "attention" in op["name"]}
    for name in {*NAMED_STEPS[step], *(chosen if len(chosen) == 1 else ())}:
        found = run(f"{line} --implementation {name}").json
        assert found["inputs"]["kernels"]["attention"] == [name]
        for row, same in zip(found["ops"], plain["ops"], strict=True):
            if "attention" in row["name"]:
                assert row["implementation"] == name
                assert (row["time_s"]["predicted"] == same["time_s"]["predicted"]) or name != same["implementation"]
            else:
                assert {**row, "share": 0} == {**same, "share": 0}
        moved = sum(row["time_s"]["predicted"] - same["time_s"]["predicted"] for row, same in zip(found["ops"], plain["ops"], strict=True))
        assert found["totals"]["time_s"]["predicted"] - plain["totals"]["time_s"]["predicted"] == pytest.approx(moved, abs=1e-9)


def test_a_named_kernel_without_a_time_leaves_its_row_at_the_roof(run):
    found = run("model llama-3-8b --phase decode --kv-len 4096 --hardware h200 --implementation fa3 --json").json
    assert [op["name"] for op in found["ops"] if op["time_s"]["predicted"] is None] == ["attention"]
    assert found["times_from"] == "predicted and roofline"


def test_options_reach_the_model(run):
    base = "model llama-3-8b --phase decode --kv-len 512 --hardware h200 --json"
    plain = run(base).json
    assert run(f"{base} --eager").json["tpot_s"] > plain["tpot_s"]
    assert run(f"{base} --fused").json["totals"]["time_s"]["roofline"] < plain["totals"]["time_s"]["roofline"]
    assert run(f"{base} --weights-dtype int4").json["memory"]["weights"] * 4 == plain["memory"]["weights"]
    assert run(f"{base} --kv-dtype int8").json["memory"]["kv_cache"] * 2 == plain["memory"]["kv_cache"]
    without = run(f"{base} --no-kv-cache").json
    assert without["memory"]["kv_cache"] == 0
    assert without["totals"]["flops"] > 400 * plain["totals"]["flops"]
    several = run(f"{base} --tp 4").json
    assert several["inputs"]["tensor_parallel"] == 4
    assert rows(several)["all-reduce"]["count"] == 65
    assert several["model_flops"] == plain["totals"]["flops"] == plain["model_flops"]
    assert rows(several)["all-reduce"]["bound"] == "interconnect"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("model llama-3-8b --n 500000 --hardware h100-sxm", "--tp 2 would fit"),
        ("model llama-3.1-405b", "--tp 8 --pp 2 would fit"),
        ("kv-cache llama-3-8b --reserve 200GB --hardware h200", "Weights and reserve leave no room"),
        ("kv-cache llama-3.1-405b --hardware h200", "weights alone leave no room"),
        ("model llama-3.1-405b --tp 16 --hardware h200", "16 GPUs are more than the 8"),
    ],
)
def test_the_text_says_why(run, line, words):
    assert words in " ".join(run(line).out.split())


# Number formats of weights


def formats(run, weights, line="llama-3-70b --n 2048 --batch 4 --dtype bf16 --hardware h200 --fused"):
    return run(f"model {line} --weights-dtype {weights} --json").json


def matmuls(data):
    return [op for op in data["ops"] if op["group"] == "matmul"]


@each("weights", ["bf16", "fp8", "int8", "int4"])
@each(
    "line",
    [
        "llama-3-70b --n 2048 --batch 4 --dtype bf16 --hardware h200 --fused",
        "llama-3-70b --n 8192 --dtype bf16 --hardware h200",
        "mixtral-8x7b --n 8192 --batch 8 --dtype bf16 --hardware b200",
        "llama-3-8b --phase decode --batch 256 --kv-len 128 --dtype bf16 --kv-dtype fp8 --hardware h200",
    ],
)
def test_no_more_than_the_peaks_of_the_formats_that_rows_run_in(run, weights, line):
    data = formats(run, weights, line)
    assert 0 < data["mfu"] <= 1
    assert set(data["mfu_peaks"]) == {"bf16"} | ({"fp8"} if weights == "fp8" or "--kv-dtype fp8" in line else set())


def test_mfu_divides_by_the_time_at_the_peak_of_each_row(run):
    data = formats(run, "fp8")
    at_peak = sum(
        op["flops"] / data["mfu_peaks"]["fp8" if op["group"] == "matmul" and op["name"] != HEAD_ROW else "bf16"] for op in data["ops"]
    )
    assert data["mfu"] == pytest.approx(at_peak / data["ttft_s"])
    assert data["mfu_peaks"]["fp8"] == pytest.approx(2 * data["mfu_peaks"]["bf16"], rel=1e-3)
    out = run("model llama-3-70b --n 2048 --dtype bf16 --weights-dtype fp8 --hardware h200").out
    assert "of the fp8 and bf16 peaks" in out
    assert "(W8A8)" in out


def test_integer_weights_are_read_narrow_and_multiplied_wide(run):
    wide, narrow, float8 = (formats(run, name) for name in ("bf16", "int8", "fp8"))
    for one, other, rounded in zip(matmuls(wide), matmuls(narrow), matmuls(float8), strict=True):
        assert 2 * other["weight_bytes"] == one["weight_bytes"]
        if one["name"] == HEAD_ROW:  # usual fp8 checkpoints keep it wide
            assert rounded["weight_bytes"] == one["weight_bytes"]
            continue
        assert 0 <= rounded["weight_bytes"] - other["weight_bytes"] < 64 * rounded["count"], "a scale per matrix"
        assert other["implementation"] == "torch-matmul"
        assert other["time_s"]["lower"] <= other["time_s"]["predicted"]
        assert rounded["implementation"] == "trtllm-fp8-linear"
        assert rounded["time_s"]["lower"] <= other["time_s"]["lower"] <= one["time_s"]["lower"]
    largest = max(matmuls(narrow), key=lambda op: op["flops"])
    assert largest["time_s"]["lower"] == pytest.approx(largest["flops"] / 989.4e12 * 1830 / 1980, rel=0.01), "bound by bf16's peak"
    out = run("model llama-3-8b --weights-dtype int8 --hardware h200").out
    assert "int8 weights: they alone are narrower" in out
    assert "fp8" not in out


def test_what_is_not_fp8_is_not_called_so(run):
    """int8 on a device without fp8; int4 beside fp8 activations; an int4 cache."""
    assert all("fp8" not in op.get("not_predicted", op["prediction"]) for op in matmuls(formats(run, "int8", "llama-3-8b --phase decode")))
    assert all(op["implementation"] is None for op in matmuls(formats(run, "int4", "llama-3-8b --dtype fp8 --hardware h200")))
    for kv, name in (("int4", None), ("fp8", "vllm-flash-attn-fp8-cache")):
        data = run(f"model llama-3-8b --phase decode --kv-len 4096 --kv-dtype {kv} --hardware h200 --json").json
        assert rows(data)["attention"]["implementation"] == name
    assert "does not multiply fp8" in run("model llama-3-8b --phase decode --weights-dtype fp8").out


# The format that a model's file names


@pytest.fixture
def quantized(tmp_path):
    """Writes a config.json with that quantization_config and gives its path."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}

    def write(quantization, **outer):
        path = tmp_path / "config.json"
        config = {"model_type": "llama", **sizes, "quantization_config": quantization}
        path.write_text(json.dumps({**outer, "text_config": config} if outer else config))
        return path

    return write


@pytest.mark.parametrize(
    ("quantization", "form", "bits", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, "int4", 4.1875, "gptq, 4 bits, groups of 128"),
        ({"quant_method": "awq", "bits": 8}, "int8", 8.1875, "awq, 8 bits, groups of 128"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8, "fp8, blocks of 128 x 128"),
        ({"load_in_4bit": True, "load_in_8bit": False}, "int4", 4.5, "bitsandbytes, 4 bits"),
        (None, "fp16", 16, ""),
        ({}, "fp16", 16, ""),
    ],
)
def test_the_format_of_the_file_counts(run, quantized, quantization, form, bits, words):
    path = quantized(quantization)
    data = run(f"model {path} --n 32 --json").json
    tables = 2 * 1000 * 256
    matrices = (data["memory"]["weights"] - 2 * tables) / (data["parameters"]["total"] - tables)
    assert matrices == pytest.approx(bits / 8, rel=0.03)
    assert data["inputs"]["integer_weights"] == form.startswith("int")
    cache = run(f"kv-cache {path} --n 32 --json").json
    assert (cache["memory"]["weights_bytes"], cache["inputs"]["weights_dtype"]) == (data["memory"]["weights"], form)
    for line in (f"model {path} --n 32", f"batch {path} --kv-len 32", f"kv-cache {path} --n 32"):
        out = " ".join(run(line).out.split())
        assert f"stored as {words}: its matrices are counted so" in out or not words
        assert ("are stored as" in out) == bool(words)


def test_an_option_counts_more_than_the_file(run, quantized):
    path = quantized({"quant_method": "gptq", "bits": 4})
    data = run(f"model {path} --n 32 --weights-dtype bf16 --json").json
    assert data["memory"]["weights"] == 2 * data["parameters"]["total"]
    assert "for its weights" not in run(f"model {path} --n 32 --weights-dtype bf16").out
    assert "for its weights" not in run(f"kv-cache {path} --n 32 --weights-dtype bf16").out


def test_the_format_may_stand_inside_a_nest_or_beside_it(run, quantized):
    path = quantized({"quant_method": "fp8"}, model_type="some-vision-model")
    assert run(f"model {path} --n 32 --json").json["inputs"]["weights_from_file"] == "fp8"
    config = json.loads(path.read_text())
    config["quantization_config"] = config["text_config"].pop("quantization_config")
    path.write_text(json.dumps(config))
    assert run(f"model {path} --n 32 --json").json["inputs"]["weights_from_file"] == "fp8"


# Steps of which some rows have no prediction


PARTLY = (
    "deepseek-v3 --phase decode --kv-len 4096 --dtype fp8 --hardware h200 --tp 8 --batch 64",
    "llama-3-8b --phase generate --n 64 --kv-len 96 --kv-dtype int4 --hardware h200 --graph",
    "llama-3-8b --n 512 --kv-dtype int4",
)


@pytest.mark.parametrize("line", PARTLY)
def test_the_headline_is_the_sum_of_predictions_and_of_roofs_elsewhere(run, line):
    data = run(f"model {line} --json").json
    totals, ops = data["totals"]["time_s"], data["ops"]
    assert (totals["predicted"], data["times_from"]) == (None, "predicted and roofline")
    best = [op["time_s"]["predicted"] or op["time_s"]["roofline"] for op in ops]
    assert totals["at_least"] == pytest.approx(sum(best))
    assert totals["lower"] <= totals["at_least"]
    assert totals["at_least"] > sum(op["time_s"]["predicted"] or 0 for op in ops) > 0
    assert [op["share"] for op in ops] == pytest.approx([seconds / sum(best) for seconds in best])
    steps = data["inputs"]["kv_len"] - data["inputs"]["n"] - 1 if data["inputs"]["phase"] == "generate" else 1
    assert (data["ttft_s"] or 0) + steps * (data["tpot_s"] or 0) == pytest.approx(sum(best))
    assert data["mfu"] <= 1
    out = run(f"model {line}").out
    for words in ("at least", "Times: predicted; roof where nothing is calibrated.", "at most", "The roof stands for those rows"):
        assert words in out.replace("At most", "at most")


def test_batches_whose_steps_are_partly_predicted(run):
    line = "batch deepseek-v3 --kv-len 4096 --dtype fp8 --hardware h200 --tp 8"
    data = run(f"{line} --json").json
    step = run(f"model {PARTLY[0]} --json").json
    [same] = [point for point in data["results"] if point["batch"] == 64]
    assert same["tpot_s"] == same["time_s"]["at_least"] == pytest.approx(step["tpot_s"])
    for point in data["results"]:
        assert (point["times_from"], point["time_s"]["predicted"]) == ("predicted and roofline", None)
        assert point["time_s"]["lower"] <= point["tpot_s"]
        assert point["tokens_per_s"] == pytest.approx(point["batch"] / point["tpot_s"])
    out = run(line).out
    assert "tokens/s, at most" in out
    assert "per step, at least" in out
    assert "at least" not in run("batch llama-3-8b --hardware h200").out


# Explanations


EXPLAINED = (
    "llama-3-8b --phase decode --kv-len 300 --hardware h200",
    "llama-3-8b --n 300 --fused",
    "mixtral-8x7b --phase decode --batch 4 --kv-len 100 --tp 2 --hardware h200",
    "gemma-2-9b --phase generate --n 5000 --kv-len 5010",
    "deepseek-v2 --n 100 --ep 4 --pp 2 --hardware h200",
    "gpt2 --n 100 --weights-dtype int4",
    "llama-3-8b --n 2048 --weights-dtype fp8 --kv-dtype fp8 --hardware h200",
)


@pytest.mark.parametrize("line", EXPLAINED)
def test_explained_totals_are_the_totals_and_formulas_give_their_values(run, line):
    data = run(f"model {line} --json --explain all").json
    for part in data["explanation"]:
        steps = {step["name"]: step["value"] for step in part["steps"]}
        whole = {name: [step["value"] for step in part["steps"] if step["name"] == f"total {name}"] for name in ("lower bound", "roofline")}
        rows_of = [op["time_s"]["roofline"] for op in data["ops"] if op["phase"] == part["phase"]]
        runs = 1 if part["phase"] == "prefill" or data["inputs"]["phase"] == "decode" else 9
        assert whole["roofline"] == [pytest.approx(sum(rows_of) / runs, rel=2e-3 if runs > 1 else 1e-9)]
        if len(data["explanation"]) == 1:
            assert whole["lower bound"] == [pytest.approx(data["totals"]["time_s"]["lower"])]
        assert steps["h"] == find_model(data["inputs"]["model"]).hidden
        for step in part["steps"]:
            assert step["source"], step
            assert step["meaning"], step
            if step["formula"]:
                assert evaluate(step["numbers"]) == pytest.approx(step["value"], rel=2e-5, abs=1e-12), step


# Mistakes of other tools


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (place % 12 > 0)) for place, name in enumerate(device_ids())]
)
def test_no_device_makes_it_fail(run, name):
    """One tool crashes on one device; here each answers, in the first format it has, with bounds that hold."""
    device = find_device(name)
    dtype = next(d for d in ("fp16", "bf16", "fp32") if d in {**device.peaks_of("tensor"), **device.peaks_of("vector")})
    for line in (f"model llama-3.2-1b --phase decode --kv-len 512 --dtype {dtype}", f"batch llama-3.2-1b --dtype {dtype}"):
        outcome = run(f"{line} --hardware {name} --json")
        assert (outcome.code, outcome.err) == (0, "")
    data = run(f"model llama-3.2-1b --n 512 --dtype {dtype} --hardware {name} --json").json
    times = data["totals"]["time_s"]
    assert 0 < times["lower"] <= times["roofline"] * (1 + 1e-9)
    assert data["mfu"] < 1


def test_what_is_not_calibrated_says_so(run):
    """One tool applies a default efficiency in silence, another answers for a GPU it lacks with another one's numbers."""
    data = run("model llama-3-8b --phase decode --batch 8 --kv-len 1024 --hardware gaudi3 --json").json
    assert {(op["prediction"]["kind"], op["prediction"]["model"]) for op in data["ops"]} == {("borrowed", "pooled")}
    times = data["totals"]["time_s"]
    assert times["predicted"] / times["low"] > 1.4
    assert times["high"] / times["predicted"] > 2
    out = run("model llama-3-8b --hardware gaudi3").out
    assert "no kernel of this maker is calibrated" in out
    data = run("model llama-3-8b --hardware gaudi3 --tp 2 --json").json
    assert data["totals"]["time_s"]["predicted"] is None
    assert [op["name"] for op in data["ops"] if op["implementation"] is None] == ["all-reduce", "all-gather"]
    assert "No total is predicted" in run("model llama-3-8b --hardware gaudi3 --tp 2").out
    borrowed = run("model llama-3-8b --hardware h100-pcie --json").json
    assert {op["prediction"]["kind"] for op in borrowed["ops"]} == {"borrowed"}
    assert all("borrowed from nvidia-" in op["prediction"]["provenance"] for op in borrowed["ops"])


# A question is answered once, and a cheap one starts cheaply


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("model llama-3-8b --phase generate --n 64 --kv-len 128 --hardware h200", 800_000),
        ("roofline --matmul 4096x4096x4096 --hardware h200 -o roofline.html", 400_000),
    ],
)
def test_nothing_is_computed_again_and_again(run, tmp_path, monkeypatch, line, most):
    """Neither the FLOP and sums of a pass for each number that needs them, nor the width of a label for each place that it may take."""
    monkeypatch.chdir(tmp_path)
    run(line)  # loads the modules
    with calls(most):
        assert run(line).code == 0


def test_the_format_of_products_is_the_one_that_the_mfu_counts(run) -> None:
    """Q4_K products run in int8 where the device has it; the note said fp16 beside an MFU of the int8 peak."""
    line = "model llama-3.1-8b --weights-dtype Q4_K_M --phase decode --full --hardware"
    shown = run(f"{line} rtx-4070").out
    assert "q4_k weights: they alone are narrower; read as such, products may run in int8." in shown
    assert "MFU is of the int8 and fp16 peaks." in shown
    assert "perfmodel serve --engine llama.cpp has the times of llama.cpp's own." in shown
    assert "dequantised, and multiplied in fp16." in run(f"{line} m2-pro").out


def test_a_batch_that_fills_the_memory_says_that_engines_leave_some_free(run) -> None:
    line = "batch llama-3.1-70b --weights-dtype fp8 --kv-len 8k --tp 2 --hardware h100-sxm --full"
    assert "Nothing is held back as an engine does: --reserve 8GB would" in run(line).out
    assert "Nothing is held back" not in run(f"{line} --reserve 8GB").out
