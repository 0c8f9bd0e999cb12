"""Whole steps: the shipped measurements are those that the program makes, and what it would run on a machine with GPUs."""

from __future__ import annotations

import json

import pytest
from tables import table

from perfmodel.catalog import find_device, find_model
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.validation.bounds import case_of, evaluated
from perfmodel.validation.cases import FIT, HELD_OUT
from perfmodel.validation.records import as_record, held_out, read_records, shipped_records
from tools.measure.steps.cases import DRAWN_APART, FITTED, MODELS, OPS, PARALLEL_MODELS, collective_sizes, step_cases
from tools.measure.steps.llama import Sizes
from tools.measure.training.cases import cases, profiled_cases, segment_counts


def key(shape, *more):
    return json.dumps({**shape}, sort_keys=True), *more


def shipped(name):
    return [record for path in shipped_records(name) if path.parent.name == "nvidia-h200-sxm" for _, record in read_records(path)]


def test_shipped_steps_are_the_cases():
    wanted = {key(case.shape, case.role) for name in MODELS for case in step_cases(name)}
    found = {key(r.shape, HELD_OUT if held_out(r) else FIT) for r in shipped("steps")}
    assert found == wanted
    assert len(wanted) == 68


def test_shipped_steps_of_several_gpus_are_cases_that_no_fit_sees():
    wanted = {key(case.shape) for name in PARALLEL_MODELS for case in step_cases(name, 2)}
    assert {key(r.shape) for r in shipped("steps-parallel")} == wanted
    assert len(wanted) == 47
    sizes = {(r.shape["op"], r.shape["bytes"]) for r in shipped("collectives")}
    assert sizes == {(op, size) for op in OPS for size in collective_sizes()}
    assert all(held_out(r) for name in ("steps-parallel", "collectives") for r in shipped(name))


@pytest.mark.parametrize("name", ["training", "chains", "attention-memory"])
def test_shipped_training_measurements_are_cases(name):
    wanted = {key(case.shape, case.workload, case.implementation, case.dtype, case.role) for case in cases()}
    found = [key(r.shape, r.workload, r.implementation, r.dtype, HELD_OUT if held_out(r) else FIT) for r in shipped(name)]
    assert set(found) <= wanted
    assert len(found) == len(set(found))
    assert {row[-1] for row in found} == {FIT, HELD_OUT}
    assert all(r.direction == "both" and r.memory["peak_bytes"] > 0 for r in shipped(name))


def test_nearly_every_training_case_was_measured():
    assert sum(len(shipped(name)) for name in ("training", "chains", "attention-memory")) >= 0.98 * len(list(cases()))
    assert {case.shape["model"] for case in profiled_cases()} == {"gpt2-medium"}
    assert segment_counts(16) == [1, 2, 4, 16]


def test_models_batches_and_lengths_are_apart():
    for phase in FITTED:
        assert not set(FITTED[phase]) & set(DRAWN_APART[phase])
    by_role = [{name for name, role in MODELS.items() if role == wanted} for wanted in (FIT, HELD_OUT)]
    assert by_role == [{"llama-3-8b", "llama-3.2-1b"}, {"llama-2-7b", "llama-2-13b"}]
    assert {(case.world, case.role) for case in step_cases("llama-3-8b", 4)} == {(4, HELD_OUT)}


def test_collective_sizes():
    sizes = collective_sizes()
    assert sizes == sorted(set(sizes))
    assert sum(size >= 1 << 20 for size in sizes) == 16
    assert "all_reduce" in OPS


def test_the_share_of_one_gpu():
    model = find_model("llama-3-8b")
    assert Sizes.of(model) == Sizes(32, 4096, 32, 8, 128, 14336, 128256)
    assert Sizes.of(model, 4) == Sizes(32, 4096, 8, 2, 128, 3584, 32064)
    for name in ("gpt2", "mixtral-8x7b", "deepseek-v3", "gemma-2-2b", "qwen2.5-72b"):
        with pytest.raises(UnavailableError, match=r"not a Llama-style model"):
            Sizes.of(find_model(name))


def record(**changes):
    shape = {"model": "llama-3-8b", "phase": "decode", "batch": 1, "kv_len": 2048, "tensor_parallel": 1}
    shape |= {"fused_elementwise": False, "cuda_graph": True} | changes
    raw = {"workload": "transformer", "implementation": "torch", "hardware": "nvidia-h200-sxm", "dtype": "bf16"}
    return as_record({**raw, "shape": {name: value for name, value in shape.items() if value is not None}, "time_s": {"median": 0.005}})


@pytest.mark.parametrize(("changes", "words"), table("a_step_that_says_too_little_is_not_evaluated"))
def test_a_step_that_says_too_little_is_not_evaluated(changes, words):
    with pytest.raises(PerfmodelError, match=words):
        case_of(record(**changes))


def test_the_bound_of_a_step_is_that_of_the_model_command(run):
    found = run("model llama-3-8b --phase decode --batch 1 --kv-len 2048 --dtype bf16 --hardware h200 --json").json
    _, lower, _ = evaluated(record(), find_device("h200"))
    assert lower == found["totals"]["time_s"]["lower_warm"]


def test_the_bound_of_a_collective():
    device = find_device("h200")
    raw = {"workload": "collective", "implementation": "nccl", "hardware": device.id, "dtype": "bf16", "time_s": {"median": 1.0}}
    shape = {"op": "all_gather", "world": 4, "bytes": 4 << 20}
    _, lower, _ = evaluated(as_record({**raw, "shape": shape}), device)
    assert lower == pytest.approx((3 << 20) / device.interconnect.bandwidth_per_direction.number)
    with pytest.raises(UnavailableError, match="no collective"):
        case_of(as_record({**raw, "shape": shape | {"op": "gossip"}}))
