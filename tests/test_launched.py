"""Where a kernel is named, its traffic is that kernel's: held against counters of an H200, and against what must stay."""

from __future__ import annotations

import json
import types
from contextlib import nullcontext
from dataclasses import replace
from math import ceil, floor
from pathlib import Path

import pytest
from each import each

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.cost import READ, WRITE, Tile
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.evaluate import evaluate_tile
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.program.ncu_csv import CountedKernel
from perfmodel.timing.base import Case, models_of
from perfmodel.timing.implementations import algorithm_of
from perfmodel.timing.launched import implementation_kernels, kernels_of
from perfmodel.validation.libraries.kernels import find as find_library
from tools.measure.counted import apart, count
from tools.measure.counted import cases as counted_cases
from tools.measure.drawn import ALIKE, FAMILIES, WIDER, drawn
from tools.scores.accuracy_parts import counted_part
from tools.scores.counted import RECORDS, case_of, groups, worst

DOCS = Path(__file__).parents[1] / "docs" / "accuracy.md"
H200 = find_device("h200")
ALLOWED = {
    ("torch-sdpa-flash", "forward"): (0.0005, 0.03),
    ("torch-sdpa-flash", "backward"): (0.0025, 0.025),
    ("torch-sdpa-cudnn", "forward"): (0.0005, 0.0005),
    ("torch-sdpa-cudnn", "backward"): (0.0725, 0.001),
    ("torch-sdpa-efficient", "forward"): (0.04, 0.02),
    ("torch-eager", "forward"): (0.105, 0),
    ("torch-eager", "backward"): (0.055, 0),
}
"""Largest relative error of the L2-to-SM reads: on lengths that tiles divide, and on others."""


@pytest.mark.parametrize("group", ALLOWED, ids="/".join)
def test_reads_are_those_that_the_counter_saw(group):
    rows = groups()[group]
    for whole, allowed in zip((True, False), ALLOWED[group], strict=True):
        assert worst([row for row in rows if row.whole == whole]) <= allowed


MASKED = [json.loads(line) for line in (Path(__file__).parent / "data" / "h200_mask_counters.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_each_head_reads_an_additive_mask_and_dram_sees_it_once(direction):
    """Calls of the memory-efficient kernel with a mask against the same without: what the counters and the counts grow by.

    Not its backward pass over head dim 64, whose other loads change with the mask as well.
    """
    records = [record for record in MASKED if record["pass"] == direction and (direction == "forward" or record["shape"]["d"] == 64)]
    plain, masked = ([record for record in records if record["shape"]["mask"] == there] for there in (False, True))
    for without, record in zip(plain, masked, strict=True):
        grown = {key: record["counters"][key] - without["counters"][key] for key in record["counters"]}
        shape = {key: record["shape"][key] for key in ("batch", "heads", "n", "d")}
        totals = []
        for there in (True, False):
            request = AttentionQuestion(**shape, mask=there, algorithm="flash2", direction=direction)
            totals.append(request.compare(H200).results[0].total)
        assert totals[0].sram.read - totals[1].sram.read == pytest.approx(grown["l2_to_sm_bytes"], rel=0.065)
        assert totals[0].dram.read - totals[1].dram.read == pytest.approx(grown["dram_read_bytes"], rel=0.02)


def test_every_counted_group_is_judged_or_said_to_be_unknown():
    seen = {(record["implementation"], record["pass"]) for record in RECORDS}
    assert set(groups()) == set(ALLOWED)
    assert seen - set(ALLOWED) == {("torch-sdpa-efficient", "backward")}


def test_the_page_says_what_the_counters_say():
    assert counted_part() in DOCS.read_text()


def test_what_the_memory_efficient_backward_pass_loads_is_as_much_as_the_page_says():
    found = []
    for record in RECORDS:
        if (record["implementation"], record["pass"]) == ("torch-sdpa-efficient", "backward"):
            w = case_of(record).workload
            plain = AttentionQuestion(n=w.n, kv_len=w.kv_len, d=w.d, heads=w.heads, batch=w.batch, causal=w.causal, direction="backward")
            [result] = replace(plain, algorithm="flash2").compare(H200).results
            found.append(sum(kernel["l2_to_sm_bytes"] for kernel in record["kernels"]) / result.total.sram.read)
    assert (floor(min(found)), ceil(max(found))) == (3, 7)
    assert "loads three to seven times what the algorithm does" in " ".join(DOCS.read_text().split())


@pytest.mark.parametrize("causal", [False, True])
def test_no_block_of_flash_attention_2_reads_dq(causal):
    """dQ is added up by atomics: of three tensors per tile that the minimal count reads, two are left."""
    w = AttentionQuestion(n=65536, d=128, heads=4, causal=causal).workload()
    [_, main, *_], tile = kernels_of(Case(w, "torch-sdpa-flash", "backward"), H200)
    _, minimal = find("flash2").backward(w, tile)
    assert main.bytes(READ) / minimal.bytes(READ) == pytest.approx(2 / 3, rel=0.02)
    assert not [access for access in main.accesses if access.tensor.startswith("dQ") and access.kind == READ]


IMPLEMENTATIONS = [name for name, models in models_of().items() if any(model.launch for model in models)]
NAMED = [name for name in (*IMPLEMENTATIONS, "torch-eager") if name not in ("numba-flash-mma", "vllm-flash-attn")]


@each("shape", [{"n": 4096}, {"n": 3001, "causal": True}, {"n": 512, "kv_len": 4096, "heads": 16, "kv_heads": 4}])
@each("name", NAMED)
def test_counts_and_bounds_stay_the_algorithms(name, shape):
    request = AttentionQuestion(**{"d": 64, "heads": 16, "direction": "both", **shape})
    plain = request.compare(H200)
    named, notes = implementation_kernels(plain, name)
    for before, after in zip(plain.results, named.results, strict=True):
        if after.implementation is None:
            assert after == before or after.direction == "both" or notes
            continue
        assert after.implementation == name
        assert after.algorithm.name == algorithm_of(name)
        assert (after.total.lower_s, after.total.flops) == (before.total.lower_s, before.total.flops)
        for part in after.parts:  # with the kernel's tile, the algorithm's count is that of the same tile
            counted = evaluate_tile(part.algorithm, plain.workload, H200, part.direction, part.tile or Tile(1, 1)).total
            assert (part.total.reads, part.total.writes, part.total.access_bytes) == (counted.reads, counted.writes, counted.access_bytes)
        assert after.total.sram.read == sum(kernel.bytes(READ) for kernel, _ in after.kernels)
        assert after.total.sram.write == sum(kernel.bytes(WRITE) for kernel, _ in after.kernels)
        assert after.total.dram.total <= after.total.sram.total
        assert after.total.roofline_s <= after.total.no_overlap_s


@pytest.mark.parametrize(("name", "algorithm"), [("torch-eager", "standard"), ("torch-sdpa-flash", "flash2")])
def test_the_answer_says_whose_traffic_it_is(run, name, algorithm):
    line = "attention --n 4096 --d 64 --heads 16 --pass backward --hardware h200 --json"
    plain, named = (json.loads(run(line + more).out)["results"] for more in ("", f" --implementation {name}"))
    for before, after in zip(plain, named, strict=True):
        assert before["traffic_of"] == before["algorithm"]
        assert after["accesses"] == before["accesses"]
        if after["algorithm"] == algorithm:
            assert after["implementation"] == after["traffic_of"] == name
            assert after["traffic"]["sram"] != before["traffic"]["sram"]
            assert after["traffic"]["sram"]["read_bytes"] == sum(k["traffic"]["sram"]["read_bytes"] for k in after["kernels"])
        else:
            assert after["traffic"] == before["traffic"]
    assert f"those of {name}'s kernels" in run(line.replace("--json", f"--full --implementation {name}")).out


def test_what_is_not_known_is_said():
    found, notes = implementation_kernels(AttentionQuestion(n=1, kv_len=4096, d=64).compare(H200), "torch-sdpa-flash")
    assert [result.implementation for result in found.results] == [None, None]
    assert "is not known" in notes[0]


@each("name", IMPLEMENTATIONS)
def test_no_cuda_kernel_has_traffic_on_another_vendors_device(name):
    plain = AttentionQuestion(n=4096, d=64, direction="both", algorithm=["flash1", "flash2"], hardware="mi300x")
    found, notes = implementation_kernels(plain.compare(find_device("mi300x")), name)
    assert all(result.implementation is None for result in found.results if result.direction != "both")
    assert any("not known" in note for note in notes)


def test_eager_matmuls_take_the_tile_of_the_nearest_calibrated_device():
    bare = replace(H200, calibration=[])
    case = case_of(next(record for record in RECORDS if record["implementation"] == "torch-eager"))
    lent, _ = kernels_of(case, bare, lambda: [device for device in calibrated_devices() if device.id == H200.id])
    own, _ = kernels_of(case, H200)
    assert [kernel.bytes(READ) for kernel in lent] == [kernel.bytes(READ) for kernel in own]
    assert kernels_of(case, bare)[0]


# The programs that count and draw, without a GPU


def test_kernels_are_told_apart_by_the_marks():
    names = ["void cuda::spin_kernel(long)", "a", "b", "void cuda::spin_kernel(long)", "c"]
    found = apart([CountedKernel(0, "before", 1)] + [CountedKernel(i, name, i) for i, name in enumerate(names)])
    assert [[kernel.name for kernel in own] for own in found] == [["a", "b"], ["c"]]


def test_each_case_runs_once_between_its_marks(monkeypatch):
    calls = []
    runtime = types.SimpleNamespace(cudaProfilerStart=lambda: calls.append("start"), cudaProfilerStop=lambda: calls.append("stop"))
    cuda = types.SimpleNamespace(cudart=lambda: runtime, synchronize=lambda: None, _sleep=lambda cycles: calls.append("mark"))
    torch = types.SimpleNamespace(cuda=cuda, no_grad=nullcontext, enable_grad=nullcontext)
    prepared = types.SimpleNamespace(run=lambda: calls.append("run"))
    monkeypatch.setattr("tools.measure.counted.find", lambda case: lambda case, torch: prepared)
    count(next(counted_cases()), torch)
    assert calls == ["run", "start", "mark", "run", "stop"]


def test_drawn_cases_are_of_every_family_and_the_same_for_the_same_seed():
    first, second = ([case for case, _ in zip(drawn(7), range(4 * len(FAMILIES)), strict=False)] for _ in range(2))
    assert first == second
    assert {(case.workload, case.implementation, case.direction) for case in first} == {family[:3] for family in FAMILIES}
    assert all(callable(find_library(case)) for case in first)
    assert all(case.role.endswith("; held out") for case in first)
    assert {kind for case in first for kind in (ALIKE, WIDER) if kind in case.role} == {ALIKE, WIDER}
