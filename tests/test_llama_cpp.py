"""llama.cpp: sizes of GGUF files, public runs that no fit had, layers on the host and on several cards."""

from __future__ import annotations

import json

import pytest
from each import each

from perfmodel.catalog import find_model
from perfmodel.core.dtypes import DTYPES
from perfmodel.transformer.gguf import BLOCKS, MIXTURES, TYPES, in_gguf
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.parallel import weight_bytes
from perfmodel.transformer.step import DECODE, ModelPass, formats
from tools.scores import llama_cpp_runs as bench

GIB = 2**30
SCORES = json.loads((bench.DATA / "llama_cpp_scores.json").read_text())
PRINTED = {
    "llama-2-7b": {"Q4_0": 3.56, "Q4_1": 3.95, "Q8_0": 6.67, "F16": 12.55, "Q4_K_S": 3.59, "Q4_K_M": 3.80, "Q5_K_M": 4.45, "Q6_K": 5.15},
    "llama-3-8b": {"Q4_K_M": 4.58, "Q5_K_M": 5.33, "Q6_K": 6.14, "Q8_0": 7.95, "F16": 14.96},
    "llama-3-70b": {"Q4_K_M": 39.59, "F16": 131.42},
    "qwen3-8b": {"Q4_K_M": 4.68, "Q6_K": 6.26, "Q8_0": 8.11},
    "qwen3-32b": {"Q4_K_M": 18.40},
}
"""Sizes that llama-bench prints, GiB."""


def held(name: str, form: str) -> float:
    model, stored = served_as(find_model(name), form)
    step = ModelPass(DECODE, 1, 1, 1, DTYPES["fp16"], **formats(model, DTYPES["fp16"], stored, None))
    return float(weight_bytes(model, step)) / GIB


@each(("name", "form", "size"), [(name, form, size) for name, sizes in PRINTED.items() for form, size in sizes.items()])
def test_files_are_as_large_as_llama_bench_prints(name, form, size):
    assert held(name, form) == pytest.approx(size, abs=0.006)


@each(
    ("name", "form", "size"),
    [("gpt-oss-20b", "mxfp4_moe", 11.27), ("gpt-oss-120b", "mxfp4_moe", 59.02), ("qwen3-30b-a3b", "Q4_K_M", 17.35)],
)
def test_files_of_experts_are_within_one_percent(name, form, size):
    """Routers, norms and biases are counted as 16 bits where files have 32."""
    assert held(name, form) == pytest.approx(size, rel=0.01)


def test_a_block_is_its_bytes():
    for name, (inputs, size) in BLOCKS.items():
        assert TYPES[name].bytes(inputs, 3) == 3 * size


@each("mixture", list(MIXTURES))
def test_every_mixture_stores_every_matrix(mixture):
    for name in ("llama-3-8b", "mixtral-8x7b", "gpt2"):
        model = in_gguf(find_model(name), mixture)
        assert model.head_format is not None
        assert model.table_format is not None
        assert all(dict(layer.formats) for layer in model.layers)


def test_runs_of_devices_that_no_fit_had():
    """The scores are those of the preset as it is, and within what is asked: decode 10 %, prompts 20 %."""
    rows = [run for run in bench.runs() if run["device"] in bench.SPLIT["held_out"] and bench.is_current(run)]
    for backend in ("cuda", "metal"):
        found = bench.scored(run for run in rows if run["backend"] == backend)
        assert found == SCORES["current"][backend]
        assert found["tg"]["median"] < 0.1
        assert found["pp"]["median"] < 0.2
        assert 0.75 < found["tg"]["held"] < 0.95
        assert 0.75 < found["pp"]["held"] < 0.95
    assert not set(bench.SPLIT["fitted"]) & set(bench.SPLIT["held_out"])


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_no_run_beats_its_bound(every):
    fastest = {}
    for run in sorted(bench.runs(), key=lambda run: run["tokens_per_s"]):
        fastest[run["device"], run["model"], run["format"], run["test"], run["tokens"]] = run
    for run in list(fastest.values())[::every]:
        found = bench.times(run)
        least = sum(float(found.estimate(step).cost.lower_warm_s) for step in bench.steps(run))
        assert bench.measured_s(run) >= least, run


LOCAL = "serve llama-3-70b --engine llama.cpp --weights-dtype Q4_K_M --hardware rtx-4090 --json"


def test_fewer_layers_on_the_gpu_take_longer_and_less_memory(run):
    found = [run(f"{LOCAL} --gpu-layers {layers}").json for layers in (10, 20, 40)]
    assert sorted(found, key=lambda one: -one["tpot_s"]["mean"]) == found
    assert sorted(found, key=lambda one: one["memory"]["weights"]) == found
    assert found[0]["limited_by"] == "layers on the host"
    quicker = run(f"{LOCAL} --gpu-layers 10 --host-memory 120GB/s").json
    assert 0.5 < quicker["tpot_s"]["mean"] / found[0]["tpot_s"]["mean"] < 0.55


def test_layers_on_two_cards_run_in_turn(run):
    """A token takes as long as on one card; a longer prompt passes through both at a time."""
    line = "serve llama-3-8b --engine llama.cpp --weights-dtype Q8_0 --hardware rtx-4090 --isl 4096 --json"
    one, two = run(line).json, run(f"{line} --gpus 2").json
    assert two["inputs"]["pipeline_parallel"] == 2
    assert two["tpot_s"]["mean"] == pytest.approx(one["tpot_s"]["mean"], rel=0.02)
    assert 0.5 < two["ttft_s"]["mean"] / one["ttft_s"]["mean"] < 0.8


def test_a_mac_keeps_a_quarter_of_its_memory(run):
    found = run("serve llama-3-8b --engine llama.cpp --weights-dtype Q4_K_M --hardware m2-ultra --json").json
    assert found["memory"]["left_free"] == pytest.approx(192 * GIB / 4, rel=0.01)
