"""Forward kernels of fused attention: masks, code, values left out, blocks side by side. Launches as profiled on an H200, PyTorch 2.11."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Attention
from perfmodel.timing.base import Case
from perfmodel.timing.models import decode_fa2
from perfmodel.timing.models._flash_blocks import FlashPlan, TileBlocks, blocks_of, equal_cycles, interleaved_cycles
from perfmodel.timing.models._flash_forward import code_s, mask_latencies, masked, parts_of_tiles
from perfmodel.timing.models._flash_gradients import gradient_blocks
from perfmodel.timing.models._flash_plans import plan_of

H200 = find_device("h200")


def attention(batch: int, heads: int, n: int, kv_len: int, d: int, causal: bool, kv_heads: int = 0) -> Attention:
    return Attention(n, kv_len, d, d, batch, heads, kv_heads or heads, DTYPES["bf16"], causal=causal)


def launched(implementation: str, w: Attention) -> tuple[FlashPlan, TileBlocks]:
    plan = plan_of(Case(w, implementation), H200)
    return plan, blocks_of(w, plan, "forward", 132)


@pytest.mark.parametrize(
    ("implementation", "shape", "tile", "grid"),
    [
        ("torch-sdpa-flash", (15, 75, 32, 32, 192, True), (128, 64), 1 * 15 * 75),
        ("torch-sdpa-flash", (1, 11, 1024, 1024, 128, True), (64, 128), 16 * 3 * 11),  # split
        ("torch-sdpa-efficient", (45, 20, 109, 109, 224, True), (32, 128), 4 * 20 * 45),
        ("torch-sdpa-efficient", (16, 8, 2048, 2, 88, False), (64, 128), 32 * 8 * 16),
    ],
)
def test_tiles_and_grids_are_those_profiled(implementation, shape, tile, grid):
    plan, blocks = launched(implementation, attention(*shape))
    assert ((plan.br, plan.bc), blocks.count) == (tile, grid)


def test_flash_attention_1_has_a_block_for_each_head():
    """As many blocks as heads, each of all pairs of tiles; of fewer heads than multiprocessors, parts that fill the device."""
    for heads, count, tiles in ((132, 132, 10), (1024, 1024, 10), (64, 4 * 64, 1)):
        plan, blocks = launched("fa1", attention(1, heads, 1024, 1024, 64, True))
        assert (blocks.count, blocks.last[0]) == (count, tiles), heads
        assert blocks.early_tiles + blocks.last_tiles == heads * 10
    plan, _ = launched("fa1", w := attention(1, 132, 1024, 1024, 64, False))
    backward = gradient_blocks(w, plan, 132)
    assert (backward.count, backward.most) == (132, 16)


def test_the_wide_memory_efficient_kernel_runs_four_blocks():
    """122 registers of 128 threads and 51,200 bytes of shared memory, as profiled: 4 by registers, 4 by shared memory."""
    plan, _ = launched("torch-sdpa-efficient", attention(2, 4, 1024, 1024, 192, False))
    assert plan.resident == 4 == 65536 // (128 * 128) == 232448 // (51200 + 1024)


def test_blocks_of_one_tile_have_no_masks_to_pay():
    # 1, 2, 3 and 4 tiles, of which 2 are masked: 0, 1, 1 and 1 of the one tile after the first
    blocks = TileBlocks((1, 2, 3, 4), 0, 0, 4, 1)
    assert blocks.past_first(2) == 3 / 4
    assert blocks.past_first(3) == (0 + 1 + 2 + 2) / (2 * 4)
    plan = FlashPlan(128, 128, mask_block=0.5, crowded_block=1.0, masked_steps=2)
    assert mask_latencies(plan, blocks) == (0.5 + 1.0) * 3 / 4
    assert mask_latencies(plan, replace(blocks, sms=1)) == pytest.approx((0.5 + 1.75) * 3 / 4)  # four rounds
    assert mask_latencies(FlashPlan(128, 128, mask_block=0.5), blocks) == 0.5


def test_the_variant_of_odd_lengths_has_more_code():
    plans = {n: masked(attention(1, 8, n, n, 128, True), FlashPlan(128, 64)) for n in (1024, 1020)}
    blocks = TileBlocks((1, 2, 3), 0, 0, 132, 2)
    clean, dirty = (Case(attention(1, 8, 1020, 1020, 128, True), "torch-sdpa-flash", cache=state) for state in ("clean", "dirty"))
    assert code_s(clean, plans[1024], blocks) == code_s(dirty, plans[1020], blocks) == 0.0
    assert code_s(clean, plans[1020], blocks) > code_s(clean, plans[1020], TileBlocks((1, 2), 0, 0, 132, 2)) > 0
    assert plans[1020].masked_steps == 3  # two tiles of keys below a diagonal of 128 rows, and one more


def test_p_is_multiplied_by_the_values_that_exist():
    plan, blocks = launched("torch-sdpa-efficient", attention(16, 8, 2048, 2, 88, False))
    assert parts_of_tiles(attention(16, 8, 2048, 2, 88, False), plan, blocks) == (32 / 128, 0.0)
    w = attention(6, 13, 192, 192, 128, True)  # rows end at keys 64, 128 and 192: 1, 1 and 2 tiles of 128
    plan, blocks = launched("torch-sdpa-efficient", w)
    values, later = parts_of_tiles(w, plan, blocks)
    assert values == pytest.approx((64 + 128 + 192) / (128 * 4))
    assert later == pytest.approx(1 / 4)
    assert parts_of_tiles(w, *launched("torch-sdpa-flash", w)) == (1.0, 1.0)


def test_blocks_beside_each_other_share_in_proportion():
    # alone 2, of four blocks 4: two take 2 + 2/3 of a full multiprocessor's share
    times = [equal_cycles(TileBlocks((3,) * count, 0, 0, 1, 4), 10.0, 7.0, 2.0) for count in (1, 2, 3, 4)]
    assert times == pytest.approx([7 + 30 * share for share in (2, 2 + 2 / 3, 2 + 4 / 3, 4)])


def test_first_rounds_hide_nothing():
    two, many = (TileBlocks((3,) * count, 0, 0, 1, 2) for count in (4, 40))
    assert equal_cycles(two, 10.0, 7.0, 1.0) == 2 * (7 + 2 * 30)
    assert 20 * 2 * 30 < equal_cycles(many, 10.0, 7.0, 1.0) < 20 * (7 + 2 * 30)


def test_the_longest_blocks_meet():
    assert TileBlocks((1, 2, 3, 4), 0, 0, 2, 2).together == {(2, 4), (1, 3)}
    assert interleaved_cycles(TileBlocks((1, 2, 3, 4), 0, 0, 2, 2), 10.0, 7.0, 1.5) == 7 + 2 * 2 * 10 + 2 * 15


@pytest.mark.parametrize(("n", "kv_len", "d", "decode"), [(8, 8, 64, False), (8, 1104, 64, True), (1, 8, 64, True), (2, 129, 128, True)])
def test_few_queries_over_one_tile_of_keys_are_prefill(n, kv_len, d, decode):
    assert decode_fa2.MODEL.covers(Case(attention(2, 8, n, kv_len, d, False), "torch-sdpa-flash")) == decode
