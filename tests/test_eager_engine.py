"""The preset ``--engine transformers`` of ``perfmodel model``: options, a captured program as a pass, and captures of small models."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import perfmodel
from perfmodel.catalog import calibrated_devices, find_device, find_model, model_fields
from perfmodel.program.calls import Call, Operand
from perfmodel.program.capture import PLAN_S, REPEAT_S, Captured, captured, predicted_profile
from perfmodel.program.huggingface import captured_pass
from perfmodel.transformer.step import decode

ATTENDED = Operand((2, 8, 1, 64), "bf16", (512, 64, 64, 1))
KEYS = Operand((2, 8, 300, 64), "bf16", (153600, 19200, 64, 1))
ATTENTION = Call("aten::_cudnn_attention_forward", (ATTENDED, KEYS, KEYS, None, "False", "0", "False", "False", "0.125"))
PRODUCT = Call("aten::mm", (Operand((2, 512), "bf16", (512, 1)), Operand((512, 512), "bf16", (1, 512))))
STEP = Captured([PRODUCT, ATTENTION, PRODUCT, ATTENTION, Call("aten::unheard_of", (KEYS,))], 1 << 20, 1 << 19)
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 4096, "torch_dtype": "float32"}
MEASURED = Path(perfmodel.__file__).parent / "validation" / "measured" / "nvidia-h200-sxm" / "training.jsonl"
WORKSPACE = 32 << 20
"""Bytes that products take beside."""
ASK = "--engine transformers --hardware h200 --json"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--tp 2", "--tp does not go with --engine transformers"),
        ("--cuda-graph", "--cuda-graph does not go"),
        ("--weights-dtype int4", "--weights-dtype does not go"),
        ("--dtype fp8 --hardware h200", "fp32, bf16, fp16"),
        ("--explain all", "no formulas"),
        ("--phase train --zero 1", "--zero does not go"),
        ("--phase train --optimizer lion", "adamw"),
        ("--phase train --recompute every:2", "none or full"),
    ],
)
def test_what_does_not_apply_is_one_message(run: Any, options: str, words: str) -> None:
    found = run(f"model llama-3.1-8b --engine transformers {options}")
    assert found.code == 2
    assert words in found.err


def test_other_commands_say_where_it_is(run: Any) -> None:
    assert "perfmodel model alone" in run("serve llama-3.1-8b --engine transformers").err


def test_without_the_libraries_it_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = run("model llama-3.1-8b --engine transformers")
    assert found.code == 2
    assert "needs PyTorch and transformers" in found.err
    assert "pip install 'perfmodel[torch]' transformers" in found.err


def test_fields_are_those_of_the_language_model(tmp_path: Path) -> None:
    assert model_fields("llama-3.1-8b")["model_type"] == "llama"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}))
    assert model_fields(str(tmp_path)) == {"model_type": "gemma3_text"}


def test_plans_and_checkpoints_are_waited_for() -> None:
    device = find_device("h200")
    (plain, _), (planned, _), (repeated, (low, high)) = (
        predicted_profile(program, device, calibrated_devices)
        for program in (STEP, replace(STEP, planned=[1]), replace(STEP, repeated=[1, 3]))
    )
    assert planned.span_s - plain.span_s == pytest.approx(PLAN_S[1])
    assert repeated.span_s - plain.span_s == pytest.approx(2 * REPEAT_S[1])
    assert low < repeated.span_s - (REPEAT_S[1] - REPEAT_S[0]) * 2
    assert high > repeated.span_s + (REPEAT_S[2] - REPEAT_S[1]) * 2


def test_places_are_read_as_they_were_written(tmp_path: Path) -> None:
    program = replace(STEP, planned=[1], repeated=[2], backward_places=(2, 4))
    program.save(tmp_path / "step.json")
    assert captured(tmp_path / "step.json") == program


def test_a_captured_pass_is_the_profile_of_its_program() -> None:
    model, device = find_model("gpt2"), find_device("h200")
    found = captured_pass(model, decode(2, 300), replace(STEP, planned=[1]), device, calibrated_devices)
    profile, (low, high) = predicted_profile(STEP, device, calibrated_devices)
    assert found.prediction == pytest.approx((profile.span_s, low, high))
    assert found.launches == STEP.launches == 7
    assert [int(row.op.count) for row in found.rows] == [2, 2]
    assert found.unknown == ["aten::unheard_of is not in the table of operators"]
    assert found.busy_s + found.waits_s <= found.seconds
    assert all(row.cost.lower_s <= row.seconds for row in found.rows)


def _small(run: Any, path: Path, options: str) -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return run("", "model", str(path), *ASK.split(), *options.split()).json


def test_a_decode_step_is_captured(run: Any, small: Path) -> None:
    data = _small(run, small, "--phase decode --batch 4 --kv-len 300 --dtype bf16")
    time = data["totals"]["time_s"]
    assert time["lower"] < time["low"] < time["predicted"] < time["high"]
    assert data["tokens_per_s"] == pytest.approx(4 / time["predicted"])
    assert data["first_time_s"] == pytest.approx(time["predicted"] + PLAN_S[1])
    assert 0 < data["busy_share"] < 1
    assert data["waits_s"]["host"] < data["host"]["seconds"]
    assert sum(row["count"] for row in data["ops"] if row["name"] == "_cudnn_attention_forward") == 2
    assert sum(row["count"] for row in data["ops"] if row["name"] == "mm 256x512") == 4
    assert data["memory"]["activations"] - WORKSPACE < data["memory"]["weights"]  # in bf16, whatever the config says


def test_launches_take_what_the_host_is_said_to(run: Any, small: Path) -> None:
    slow, slower = (_small(run, small, f"--phase decode --kv-len 64 --host-us {each}") for each in (100, 200))
    assert slower["host"]["seconds"] == pytest.approx(2 * slow["host"]["seconds"])
    assert slower["totals"]["time_s"]["predicted"] == pytest.approx(2 * slow["totals"]["time_s"]["predicted"], rel=0.01)


def test_a_generation_is_a_prefill_and_decode_steps(run: Any, small: Path) -> None:
    data = _small(run, small, "--phase generate --n 128 --kv-len 160")
    assert data["ttft_s"] + 31 * data["tpot_s"] == pytest.approx(data["totals"]["time_s"]["predicted"])


def test_a_training_step_is_captured_in_parts(run: Any, small: Path) -> None:
    plain, again = (_small(run, small, f"--phase train --batch 8 --n 512 --recompute {kind}") for kind in ("none", "full"))
    assert plain["step_s"] == pytest.approx(sum(plain["parts_s"].values()))
    assert {"forward", "backward", "optimizer"} <= set(plain["parts_s"])
    assert again["parts_s"]["backward"] > plain["parts_s"]["backward"]
    assert again["parts_s"]["forward"] == pytest.approx(plain["parts_s"]["forward"], rel=0.05)
    assert again["memory"]["peak"] < plain["memory"]["peak"]
    assert plain["memory"]["weights"] == 4 * plain["parameters"]["total"]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_measured_steps_of_gpt2_are_held(run: Any, checkpointing: bool) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    records = map(json.loads, MEASURED.read_text().splitlines())
    wanted = {"model": "gpt2", "batch": 8, "n": 1024, "checkpointing": checkpointing, "attention": "sdpa"}
    record = next(record for record in records if wanted.items() <= record["shape"].items())
    kind = "full" if checkpointing else "none"
    line = f"model gpt2 {ASK} --phase train --batch 8 --n 1024 --precision bf16 --optimizer adamw --recompute {kind}"
    data = run(line).json
    time = data["totals"]["time_s"]
    assert time["low"] <= record["time_s"]["median"] <= time["high"]
    assert data["memory"]["peak"] == pytest.approx(record["memory"]["peak_bytes"], rel=0.02)


def test_what_transformers_has_no_class_for_is_one_message(run: Any, monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    transformers = pytest.importorskip("transformers")

    def unknown(kind: str, **_: Any) -> Any:
        raise ValueError(f"Unrecognized model identifier: {kind}\nand all that is known")

    monkeypatch.setattr(transformers.AutoConfig, "for_model", unknown)
    found = run("", "model", str(small), "--engine", "transformers")
    assert found.code == 2
    assert "builds no causal language model of llama" in found.err
    assert len(found.err.strip().splitlines()) == 2
