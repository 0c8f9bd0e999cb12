"""Backward passes of fused attention: launches beside those that a profiler showed (PyTorch 2.11 on an H200), and times by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import DIRTY, Case, model_of
from perfmodel.timing.models import efficient_backward as efficient
from perfmodel.timing.models._flash_blocks import FlashPlan, key_tile_visits
from perfmodel.timing.models._flash_gradients import gradient_blocks, key_tiles_visits, main_bytes, side_bytes, sum_blocks
from perfmodel.timing.models._flash_plans import plan_of

H200 = find_device("nvidia-h200-sxm")
STARTS = efficient.MODEL.starts()
FILL = 2048
"""Bytes that a block of PyTorch's fill kernel sets to zero."""


def attention(batch: int, heads: int, kv_heads: int, n: int, kv_len: int, d: int, causal: bool = False) -> Attention:
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len, "d": d, "dv": d}
    return Attention(**sizes, causal=causal, dtype=DTYPES["bf16"])


def case(w: Attention, implementation: str = "torch-sdpa-efficient") -> Case:
    return Case(w, implementation, BACKWARD)


def work_of(w: Attention) -> efficient._Work:
    return efficient._work(case(w), H200)


@pytest.mark.parametrize(
    ("w", "blocks", "zeroing"),
    [
        (attention(8, 1, 1, 514, 514, 32), 9, 577),
        (attention(28, 15, 15, 128, 128, 64), 1, 0),  # 420 heads of two key tiles
        (attention(16, 8, 8, 512, 512, 64), 8, None),
        (attention(37, 9, 9, 4096, 2, 64), 1, 0),
        (attention(49, 1, 1, 1472, 1472, 112, True), 12, 18821),
        (attention(15, 2, 2, 1472, 1472, 192, True), 6, 28809),  # 200 // 30
        (attention(12, 7, 7, 147, 147, 256, True), 2, 21510),
        (attention(14, 29, 29, 1024, 1024, 224), 1, 0),
    ],
)
def test_blocks_of_a_head_and_bytes_zeroed_are_those_profiled(w: Attention, blocks: int, zeroing: int | None) -> None:
    """Grids of fmha_cutlassB and of the kernel before it; locks beside the sums of dQ are a few blocks of it."""
    assert efficient.splits(w) == blocks == work_of(w).splits
    if zeroing is not None:
        assert work_of(w).zeroed == pytest.approx(FILL * zeroing, rel=2e-3, abs=4096)


def test_blocks_take_key_tiles_in_turn() -> None:
    """Three key tiles of two row tiles, causal: blocks 0 and 2 make one, key tile 1 the other."""
    blocks, tiles = efficient._blocks(attention(1, 1, 1, 192, 192, 256, True), efficient._WIDE, 2, 132)
    assert tiles == 2 + 1 + 2
    assert (blocks.last, blocks.count, blocks.resident) == ((3, 2), 2, 1)


@each("step", [1, 3, 20])
@each("window", [None, 1, 33, 700])
@each(("n", "kv_len"), [(500, 500), (130, 700), (700, 130)])
def test_key_tiles_in_turn_visit_what_each_of_them_does(n: int, kv_len: int, window: int | None, step: int) -> None:
    w, plan = replace(attention(1, 2, 1, n, kv_len, 64, True), window=window), FlashPlan(48, 32)
    each = [key_tile_visits(w, plan, j) for j in range(-(-kv_len // 32))]
    assert [key_tiles_visits(w, plan, first, step) for first in range(step)] == [sum(each[first::step]) for first in range(step)]


@pytest.mark.parametrize("d", [64, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_backward_passes_beyond_any_machine_word_are_predicted_at_once(d: int, causal: bool) -> None:
    huge = attention(10**15, 10**15, 10**15, 10**15, 10**15, d, causal)
    assert work_of(huge).blocks.count == huge.query_heads * efficient.splits(huge)
    for name in ("torch-sdpa-flash", "torch-sdpa-cudnn"):
        plan = plan_of(case(huge, name), H200)
        assert gradient_blocks(huge, plan, 132).count >= huge.query_heads * (10**15 // plan.bc)


def test_a_head_takes_as_many_turns_as_it_has_key_tiles() -> None:
    """Nine heads of 307 key tiles and one row tile on 132 slots: two heads at most are at work, each head K - W turns after the one
    before, the last one K turns; a block works for one turn besides."""
    work = work_of(attention(3, 3, 3, 24, 39296, 80))
    turns = efficient._waiting_cycles(work, 9, 100.0, 0.0, 100.0) / 100
    assert work.splits == 307
    assert turns == pytest.approx((9 - 1) * (307 - 132 + 1) + 307 + 1)


def test_few_key_tiles_wait_for_no_turn() -> None:
    square, one = work_of(attention(1, 4, 4, 4096, 4096, 128)), work_of(attention(1, 4, 4, 4096, 64, 128))
    assert efficient._waiting_cycles(square, 4, 100.0, 0.0, 100.0) == 0  # as many rows as keys: all find a row tile
    assert efficient._waiting_cycles(square, 4, 100.0, 0.0, 300.0) > 0
    assert efficient._waiting_cycles(one, 4, 1.0, 0.0, 1e9) == 0  # one block is alone with its head's dQ


def test_row_sums_cost_by_rows_and_not_by_tiles() -> None:
    """A block sums O dO over all rows of its head: of 4,096 rows and head dim 64, 64 row tiles of four loads a thread."""
    one = case(attention(1, 1, 1, 4096, 64, 64))
    more = {**STARTS, "row_cycles": STARTS["row_cycles"] + 1.83e9}  # a second each
    gained = efficient.seconds(one, H200, more) - efficient.seconds(one, H200, STARTS)
    assert gained == pytest.approx(64 * 4, rel=1e-3)


@pytest.mark.parametrize("d", [32, 64, 96, 128, 160, 256])
def test_every_head_dim_has_a_time_that_grows(d: int) -> None:
    times = [efficient.seconds(case(attention(2, 8, 8, n, n, d)), H200, STARTS) for n in (16, 256, 2048)]
    assert times == sorted(times)
    assert times[0] > 0


def test_which_model_describes_a_backward_pass() -> None:
    w = attention(2, 8, 8, 512, 512, 192)
    found = {name: model_of(case(w, name)).name for name in ("torch-sdpa-efficient", "xformers", "torch-sdpa-flash", "torch-sdpa-cudnn")}
    assert list(found.values()) == ["efficient-backward", "efficient-backward", "flash-prefill", "flash-prefill"]
    assert model_of(Case(w, "torch-sdpa-efficient", FORWARD)).name == "flash-prefill"
    assert model_of(replace(case(w), cache=DIRTY)).name == "efficient-backward"


@pytest.mark.parametrize(
    ("w", "blocks"),
    [
        (attention(1, 5, 1, 1024, 336, 128), 15),
        (attention(1, 22, 11, 187, 187, 40), 44),
        (attention(1, 6, 6, 16384, 32, 256), 12),  # wide heads: two key tiles where one would do
        (attention(2, 8, 2, 309, 309, 192), 96),
        (attention(1, 56, 7, 64, 64, 256, True), 112),
    ],
)
def test_cudnn_launches_the_blocks_profiled(w: Attention, blocks: int) -> None:
    assert gradient_blocks(w, plan_of(case(w, "torch-sdpa-cudnn"), H200), 132).count == blocks


def test_sums_over_query_heads_have_the_blocks_profiled() -> None:
    """7,320 for each of dK and dV: 24 x 8 heads x 305 keys x 64, 512 outputs a block. cuDNN has kernels of its own."""
    w = attention(24, 24, 8, 305, 305, 64, True)
    assert sum_blocks(w, plan_of(case(w, "torch-sdpa-flash"), H200)) == 2 * 7320
    assert sum_blocks(replace(w, kv_heads=24), plan_of(case(w, "torch-sdpa-flash"), H200)) == 0
    assert sum_blocks(w, plan_of(case(w, "torch-sdpa-cudnn"), H200)) == 0


def test_bytes_of_grouped_heads() -> None:
    """In elements of two bytes of 4 query heads, 1 KV head, 256 tokens, head dim 64: each query head has a dK and a dV."""
    w, head = attention(1, 4, 1, 256, 256, 64), 256 * 64 * 2
    plan = plan_of(case(w, "torch-sdpa-flash"), H200)
    assert main_bytes(w, plan) == head * (4 * 2 + 2 + 4 * 2 + 4 * 2 * 2)  # Q, dO; K, V; dK, dV; dQ in fp32 read and written
    assert side_bytes(w, plan) == head * (4 * 2 + 4 * 2 * 2 + 4 + (4 + 1) * 2)  # O, dO; dQ in fp32 zeroed and read; dQ; dK, dV summed


def test_short_heads_zero_whole_row_tiles() -> None:
    """17 rows of head dim 56 are 128 rows of 64 in fp32 for FlashAttention-2."""
    w = attention(1, 1, 1, 17, 17, 56)
    plan = plan_of(case(w, "torch-sdpa-flash"), H200)
    assert side_bytes(w, plan) == 3 * 17 * 56 * 2 + 2 * 128 * 64 * 4
