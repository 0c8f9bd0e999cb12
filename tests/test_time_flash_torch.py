"""Fused attention as PyTorch and this project's tensor-core kernel launch it: grids as profiled, rounds of blocks worked by hand."""

from dataclasses import replace

import pytest
from each import each
from tables import table

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, model_of
from perfmodel.timing.engine import TileBlocks
from perfmodel.timing.launched import kernels_of, plan_of
from perfmodel.timing.models import cudnn
from perfmodel.timing.models._attention_grid import grid_of
from perfmodel.timing.operand_copies import operand_copies
from perfmodel.timing.predict import TimeRequest, predict
from perfmodel.validation.bounds import case_of
from perfmodel.validation.records import as_record

H200, A100 = find_device("nvidia-h200-sxm"), find_device("nvidia-a100-sxm-80gb")


def seconds(case, device, **changed):
    return float(model_of(case, device).seconds(case, device, {**model_of(case, device).starts(), **changed}))


def attention(batch, heads, kv_heads, n, d, causal, kv_len=None):
    return Attention(n=n, kv_len=kv_len or n, d=d, dv=d, batch=batch, heads=heads, kv_heads=kv_heads, dtype=DTYPES["bf16"], causal=causal)


def blocks(implementation, w, direction=FORWARD):
    plan = plan_of(Case(w, implementation, direction), H200)
    return plan, grid_of(w, plan, direction, 132)


@pytest.mark.parametrize(("shape", "grid"), table("flash_splits_its_keys_as_profiled"))
def test_flash_splits_its_keys_as_profiled(shape, grid):
    plan, found = blocks("torch-sdpa-flash", attention(*shape))
    assert found.count == grid[0] * grid[1] * grid[2]
    assert plan.side_kernels == (plan.splits > 1)  # the one that combines them


@pytest.mark.parametrize(
    ("direction", "shape", "count"),
    [
        (FORWARD, (2, 1, 1, 4096, 64, True), 64),
        (FORWARD, (8, 8, 2, 128, 128, False), 64),
        (FORWARD, (1, 4, 4, 512, 192, False), 16),
        (BACKWARD, (2, 1, 1, 4096, 64, True), 64),
        (BACKWARD, (1, 4, 4, 640, 128, True), 20),
        (BACKWARD, (1, 4, 4, 512, 192, False), 32),
    ],
)
def test_cudnn_starts_the_blocks_profiled(direction, shape, count):
    assert blocks("torch-sdpa-cudnn", attention(*shape), direction)[1].count == count


def test_cudnn_compiles_few_head_dims():
    time_of = {d: seconds(Case(attention(8, 16, 16, 4096, d, False), "torch-sdpa-cudnn"), H200, dram=1e-9) for d in (96, 128)}
    assert time_of[96] == pytest.approx(time_of[128], rel=1e-9)


def test_keys_past_the_end_are_masked_in_every_tile():
    times = {
        n: [seconds(Case(attention(8, 16, 16, n, 64, False), "torch-sdpa-cudnn"), H200, padded=part) for part in (0, 1)]
        for n in (4096, 4100)
    }
    assert times[4096][0] == times[4096][1]
    assert times[4100][0] < times[4100][1]


def test_neighbours_hide_latency_as_far_as_one_fills_the_multiprocessor():
    many = TileBlocks((10,) * 400, 0, 0, 4, 2)
    hidden, halfway, exposed = (many.cycles(10.0, 50.0, alone) for alone in (1.0, 1.5, 2.0))
    assert hidden < halfway < exposed == pytest.approx(50 * (50 + 2 * 100), rel=1e-6)
    assert hidden > 50 * 2 * 100  # never below the work


def test_the_launch_sets_tile_and_residents_of_the_project_s_kernel():
    case = Case(
        attention(1, 8, 8, 1024, 64, True), "numba-flash-mma", launch={"br": 64, "bc": 128, "threads": 128, "shared_bytes": 150_000}
    )
    plan = plan_of(case, H200)
    assert (plan.br, plan.bc, plan.rows, plan.resident) == (64, 128, 16, 1)
    assert plan_of(replace(case, launch={}), H200).resident == 2


def test_passes_that_have_no_kernel_or_another_model():
    with pytest.raises(UnavailableError, match="no time model"):
        model_of(Case(attention(1, 8, 8, 1024, 64, True), "numba-flash-mma", BACKWARD))
    assert not cudnn.covers_backward(Case(attention(1, 8, 8, 1024, 64, True), "torch-sdpa-cudnn"))


def test_before_hopper_nothing_is_known_of_cudnn():
    with pytest.raises(UnavailableError, match=r"compute capability 8\.0"):
        plan_of(Case(attention(1, 8, 8, 1024, 128, True), "torch-sdpa-cudnn"), A100)


LAYOUT_CASES = [
    Attention(n=2048, kv_len=2048, d=64, dv=64, batch=4, heads=16, kv_heads=16, causal=True, packed=True),
    Attention(n=512, kv_len=1024, d=128, dv=128, batch=1, heads=8, kv_heads=2, packed=True),
]


@each("w", LAYOUT_CASES)
def test_only_the_kernel_that_copies_reads_the_layout(w):
    """Backward, PyTorch's FlashAttention-2 moves O and dO once more each way; nothing else changes with the layout."""
    contiguous = replace(w, layout="bhnd")
    for name in ("torch-sdpa-flash", "torch-sdpa-cudnn", "fa2"):
        for direction in ("forward", "backward"):
            plain, copied = (predict(TimeRequest(Case(v, name, direction), "attention", "fp16", H200, 0.0)) for v in (w, contiguous))
            kernels, more = (kernels_of(Case(v, name, direction), H200)[0] for v in (w, contiguous))
            moved = sum(kernel.bytes("read", "write") for kernel in more) - sum(kernel.bytes("read", "write") for kernel in kernels)
            if (name, direction) == ("torch-sdpa-flash", "backward"):
                assert moved == 4 * w.batch * w.heads * w.n * w.dv * 2
                assert copied.seconds - plain.seconds >= moved / H200.dram.bandwidth_bytes_per_s / 2
                assert plain.low < copied.low <= copied.seconds <= copied.high
            else:
                assert moved == 0
                assert (copied.seconds, copied.low, copied.high) == (plain.seconds, plain.low, plain.high)


@each("sizes", [{"heads": 1, "kv_heads": 1}, {"n": 1}])
def test_layouts_that_are_the_same_are_not_copied(sizes):
    w = replace(LAYOUT_CASES[0], **sizes, causal=False, layout="bhnd")
    assert operand_copies(Case(w, "torch-sdpa-flash", "backward")) == []


def test_a_record_says_its_layout():
    raw = {"workload": "attention", "implementation": "torch-sdpa-flash", "hardware": H200.id, "dtype": "fp16", "pass": "backward"}
    shape = {"batch": 4, "heads": 16, "kv_heads": 16, "n": 2048, "kv_len": 2048, "d": 64}
    time = {"median": 1e-3, "p10": 1e-3, "p90": 1e-3}
    for layout, copies in ({}, 0), ({"layout": "bnhd"}, 0), ({"layout": "bhnd"}, 2):
        assert len(operand_copies(case_of(as_record({**raw, "shape": {**shape, **layout}, "time_s": time})))) == copies
    with pytest.raises(PerfmodelError, match="layout"):
        case_of(as_record({**raw, "shape": {**shape, "layout": "hbnd"}, "time_s": time}))
