"""Forward kernels of fused attention: crowded code, values left out, blocks side by side. Launches as profiled on an H200, PyTorch 2.11."""

from __future__ import annotations

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Attention
from perfmodel.timing.base import Case
from perfmodel.timing.engine import TileBlocks
from perfmodel.timing.launched import plan_of
from perfmodel.timing.models import fa2
from perfmodel.timing.models._attention_grid import AttentionLaunch, grid_of, work_of
from perfmodel.timing.models.decode import FA2

H200 = find_device("h200")


def attention(batch: int, heads: int, n: int, kv_len: int, d: int, causal: bool, kv_heads: int = 0) -> Attention:
    return Attention(n, kv_len, d, d, batch, heads, kv_heads or heads, DTYPES["bf16"], causal=causal)


def launched(implementation: str, w: Attention) -> tuple[AttentionLaunch, TileBlocks]:
    plan = plan_of(Case(w, implementation), H200)
    return plan, grid_of(w, plan, "forward", 132)


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
    backward = grid_of(w, plan, "backward", 132)
    assert (backward.count, max(backward.last)) == (132, 16)


def test_the_wide_memory_efficient_kernel_runs_four_blocks():
    """122 registers of 128 threads and 51,200 bytes of shared memory, as profiled: 4 by registers, 4 by shared memory."""
    plan, _ = launched("torch-sdpa-efficient", attention(2, 4, 1024, 1024, 192, False))
    assert plan.resident == 4 == 65536 // (128 * 128) == 232448 // (51200 + 1024)


def crowded(n: int, d: int, causal: bool = True) -> float:
    case = Case(attention(16, 16, n, n, d, causal), "torch-sdpa-flash")
    return fa2.crowded(case, work_of(case, H200, fa2.launch))


def test_code_for_odd_lengths_crowds_causal_blocks_that_come_past_their_first_tile() -> None:
    assert crowded(1024, 64) == crowded(1020, 96) == crowded(1020, 64, causal=False) == crowded(100, 64) == 0
    assert crowded(1020, 64) == pytest.approx(7 / 8)  # of eight row tiles the first has one tile of keys
    assert 0 < crowded(1020, 128) < 1


def test_blocks_beside_each_other_share_in_proportion() -> None:
    # alone 2, of four blocks 4: two take 2 + 2/3 of a full multiprocessor's share
    times = [TileBlocks((3,) * count, 0, 0, 1, 4).cycles(10.0, 7.0, 2.0) for count in (1, 2, 3, 4)]
    assert times == pytest.approx([7 + 30 * share for share in (2, 2 + 2 / 3, 2 + 4 / 3, 4)])


@pytest.mark.parametrize(("n", "kv_len", "d", "decode"), [(8, 8, 64, False), (8, 1104, 64, True), (1, 8, 64, True), (2, 129, 128, True)])
def test_few_queries_over_one_tile_of_keys_are_prefill(n, kv_len, d, decode):
    assert FA2.covers(Case(attention(2, 8, n, kv_len, d, False), "torch-sdpa-flash")) == decode
