"""Fused attention as PyTorch and this project's tensor-core kernel launch it: grids as profiled, rounds of blocks worked by hand."""

from dataclasses import replace

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, model_of
from perfmodel.timing.engine import TileBlocks
from perfmodel.timing.launched import plan_of
from perfmodel.timing.models import cudnn
from perfmodel.timing.models._attention_grid import AttentionLaunch, grid_of

H200, A100 = find_device("nvidia-h200-sxm"), find_device("nvidia-a100-sxm-80gb")


def seconds(case, device, **changed):
    return float(model_of(case, device).seconds(case, device, {**model_of(case, device).starts(), **changed}))


def attention(batch, heads, kv_heads, n, d, causal, kv_len=None):
    return Attention(n=n, kv_len=kv_len or n, d=d, dv=d, batch=batch, heads=heads, kv_heads=kv_heads, dtype=DTYPES["bf16"], causal=causal)


def blocks(implementation, w, direction=FORWARD):
    plan = plan_of(Case(w, implementation, direction), H200)
    return plan, grid_of(w, plan, direction, 132)


@pytest.mark.parametrize(
    ("shape", "grid"),  # PyTorch 2.11's profiler on an H200
    [
        ((2, 1, 1, 4096, 64, True), (64, 2, 2)),
        ((1, 8, 8, 256, 128, False), (4, 2, 8)),
        ((1, 4, 4, 640, 128, True), (10, 5, 4)),
        ((2, 1, 1, 640, 192, False), (10, 10, 2)),
        ((8, 1, 1, 2048, 192, False), (16, 8, 1)),
        ((1, 8, 8, 2048, 64, True), (16, 1, 8)),
        ((2, 64, 64, 128, 256, True), (2, 2, 64)),
    ],
)
def test_flash_splits_its_keys_as_profiled(shape, grid):
    plan, found = blocks("torch-sdpa-flash", attention(*shape))
    assert found.count == grid[0] * grid[1] * grid[2]
    assert plan.side_kernels == (plan.splits > 1)  # the one that combines them


def test_splits_are_cut_from_all_keys():
    w = attention(1, 1, 1, 64, 16, True)
    fixed = grid_of(w, AttentionLaunch(16, 16, splits=2, fixed_splits=True), FORWARD, 100).last
    assert fixed == (0, 1, 0, 2, 1, 2, 2, 2)  # row tile i sees i + 1 of four key tiles; last split first in the list's pairs
    assert grid_of(w, AttentionLaunch(16, 16, splits=2), FORWARD, 100).last != fixed


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


def test_equal_blocks_run_in_whole_rounds():
    few, more = TileBlocks((4,) * 5, 0, 0, 2, 1), TileBlocks((4,) * 6, 0, 0, 2, 1)
    assert few.cycles(10.0, 7.0, 1.0) == 3 * (7 + 40)  # three on one of two multiprocessors
    assert more.cycles(10.0, 7.0, 1.0) == 3 * (7 + 40)
    assert TileBlocks((4,) * 4, 0, 0, 2, 2).cycles(10.0, 7.0, 1.5) == 7 + 2 * 40
    assert TileBlocks((4,) * 2, 0, 0, 2, 2).cycles(10.0, 7.0, 1.5) == 7 + 1.5 * 40


def test_a_round_of_unequal_blocks():
    # the longest of both rounds, of 3 and of 5 tiles, share a multiprocessor: 3 tiles each at half speed, then 2 alone
    assert TileBlocks((1, 3, 5), 0, 0, 2, 2).cycles(10.0, 7.0, 1.5) == 7 + 3 * 2 * 10 + 2 * 15


def test_neighbours_hide_latency_as_far_as_one_fills_the_multiprocessor():
    many = TileBlocks((10,) * 400, 0, 0, 4, 2)
    hidden, halfway, exposed = (many.cycles(10.0, 50.0, alone) for alone in (1.0, 1.5, 2.0))
    assert hidden < halfway < exposed == pytest.approx(50 * (50 + 2 * 100), rel=1e-6)
    assert hidden > 50 * 2 * 100  # never below the work


def test_a_cold_cache_costs_time_and_a_warm_one_hides_the_shorter():
    w = attention(2, 64, 64, 128, 256, True)
    cold, warm = (seconds(Case(w, "torch-sdpa-cudnn", cache="clean" if flushed else "warm"), H200) for flushed in (True, False))
    assert cold > warm
    written = [seconds(Case(w, "vllm-flash-attn", cache="clean" if flushed else "warm"), H200) for flushed in (True, False)]
    assert written[0] == written[1]  # the call writes K and V itself, just before


@pytest.mark.parametrize(("group", "kernels"), [(1, 2), (4, 4)])
def test_grouped_heads_need_two_more_kernels_backward(group, kernels):
    case = Case(attention(1, 8, 8 // group, 1024, 64, True), "torch-sdpa-flash", BACKWARD)
    more = model_of(case, H200).starts()["side_block_cycles"] + 1.83e9  # a second each
    assert seconds(case, H200, side_block_cycles=more) - seconds(case, H200) == pytest.approx(kernels)


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
