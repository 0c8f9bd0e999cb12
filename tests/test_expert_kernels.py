"""Which kernels run experts of each format, how well they are known, and how a router deals out tokens while serving."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tables import table

from perfmodel.catalog import calibrated_devices, find_device, find_engine, find_model
from perfmodel.core.arith import quantile
from perfmodel.core.dtypes import DTYPES
from perfmodel.serving.steps import step_times
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.routing import TYPICAL_IMBALANCE
from perfmodel.transformer.step import ModelPass, Split, formats
from perfmodel.validation.bounds import case_of
from perfmodel.validation.compare import RecordRow, compare_files
from perfmodel.validation.records import as_record, held_out, shipped_records

fallbacks = cache(calibrated_devices)
BF16 = DTYPES["bf16"]


def like(name: str, stored: str | None, **options):
    model, stored = served_as(find_model(name), stored)
    return model, ModelPass("decode", 8, 1, 1024, BF16, split=Split(tp=8), **formats(model, BF16, stored, None), **options)


@pytest.mark.parametrize(("name", "stored", "device", "engine", "kernel"), table("each_format_has_its_kernels"))
def test_each_format_has_its_kernels(name, stored, device, engine, kernel):
    model, step = like(name, stored, kernels=find_engine(engine).kernels, fused=True)
    found = run_pass(model, step, find_device(device), fallbacks)
    used = {row.prediction.calibration.implementation for row in found.rows if row.prediction and "experts" in row.op.name}
    assert used == {kernel}


def test_a_router_is_as_uneven_as_usual_while_serving():
    device, engine = find_device("h200"), find_engine("vllm")
    for name, given, kept in (("qwen3-235b-a22b", None, TYPICAL_IMBALANCE), ("qwen3-235b-a22b", 0.0, 0.0), ("llama-3.1-8b", None, 0.0)):
        model = find_model(name)
        step = ModelPass("decode", 1, 1, 1, BF16, split=Split(tp=4), imbalance=given)
        assert step_times(model, device, engine, step, fallbacks).base_pass.imbalance == kept


@pytest.mark.parametrize("tokens", [8, 16, 64])
def test_an_uneven_router_touches_fewer_experts(tokens):
    """Between one token and very many: those pick as many either way."""
    model, step = like("qwen3-235b-a22b", "fp8", kernels=find_engine("vllm").kernels, fused=True)
    device = find_device("h200")
    even, uneven = (run_pass(model, replace(step, batch=tokens, imbalance=one), device, fallbacks) for one in (0.0, TYPICAL_IMBALANCE))
    assert uneven.prediction[0] < even.prediction[0]


RAW = {
    "workload": "moe",
    "implementation": "marlin-moe",
    "hardware": "nvidia-h200-sxm",
    "dtype": "bf16",
    "pass": "forward",
    "shape": {"tokens": 8, "hidden": 64, "width": 32, "experts": 8, "experts_per_token": 2, "touched": 8, "weight_bits": 4.5},
    "time_s": {"median": 1e-5},
    "source": "none",
}


def test_a_record_says_how_many_bits_a_weight_has():
    assert case_of(as_record(RAW)).workload.weight_bytes == 8 * 3 * 64 * 32 * 4.5 / 8
    shape = {name: value for name, value in RAW["shape"].items() if name != "weight_bits"}
    assert case_of(as_record({**RAW, "dtype": "fp4", "shape": shape})).workload.dtype.name == "fp4"


@cache
def rows() -> list[RecordRow]:
    return [row for row in compare_files(shipped_records("public-moe-engines"), find_device) if held_out(row.record)]


def test_the_model_beats_no_bound_and_predicts_every_record():
    assert [row.reason for row in rows() if row.lower_s is None or row.prediction is None] == []
    assert not any(row.prediction.low < row.lower_s * (1 - 1e-12) for row in rows())


TARGETS = {
    "cutlass-moe": 0.07,
    "marlin-moe": 0.07,
    "sglang-triton-moe": 0.10,
    "triton-mxfp4-moe": 0.07,
    "trtllm-fp4-moe": 0.08,
    "trtllm-moe": 0.10,
    "trtllm-mxfp4-moe": 0.12,
    "vllm-fused-moe": 0.15,
}


@pytest.mark.parametrize("name", TARGETS)
def test_held_out_errors(name):
    found = [abs(row.error) for row in rows() if row.record.implementation == name]
    assert len(found) >= 50
    assert quantile(found, 0.5) <= TARGETS[name]
