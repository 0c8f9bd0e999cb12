"""Which kernels cuBLAS has for a product, beside what a profile of an H200 shows; their times by hand."""

from __future__ import annotations

from math import isclose, log2
from typing import Any

import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import find_device
from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import DTYPES
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.models import _gemm_blocks as blocks
from perfmodel.timing.models import _gemm_vector as vector
from perfmodel.timing.models import gemm
from perfmodel.timing.models._gemm_blocks import BlockCosts, BlockPlan, block_plans, busy_seconds, few_row_plan, parts_of_k
from perfmodel.timing.models._gemm_plans import Listed, listed_plans
from perfmodel.timing.models._gemm_tiles import stream_plans

H200 = find_device("nvidia-h200-sxm")
SLOTS = 132
REGISTERS, SRAM, RESERVED = 65536, 232448, 1024
SIZES = st.integers(1, 5000)


def listed(m: int, n: int, k: int, dtype: str, device: Any = H200, **shape: Any) -> Listed:
    return listed_plans(Case(Matmul(m, n, k, dtype=DTYPES[dtype], **shape), "torch-matmul"), device, SLOTS)


# What a profile shows


@each(
    ("table", "tile", "threads", "registers", "sram"),
    [
        (blocks.SIMT_TILES, (128, 128), 128, 255, 33792),
        (blocks.SIMT_TILES, (64, 64), 128, 128, 13056),
        (blocks.SIMT_TILES, (32, 64), 64, 102, 9984),
        (blocks.SIMT_TILES, (32, 32), 64, 80, 6912),
        (blocks.SINGLE_COPIES, (128, 128), 128, 254, 32768),
        (blocks.SINGLE_COPIES, (64, 64), 128, 96, 16384),
        (blocks.PAIR_COPIES, (256, 128), 256, 232, 147456),
        (blocks.WORD_COPIES, (128, 128), 128, 230, 98304),
        (blocks.WORD_COPIES, (64, 64), 128, 88, 49152),
        (blocks.WHOLE_COPIES, (64, 64), 128, 88, 49152),
    ],
)
def test_resident_blocks_are_those_that_registers_and_sram_hold(
    table: blocks.Tiles, tile: tuple[int, int], threads: int, registers: int, sram: int
) -> None:
    per_block = threads * (-(-registers // 8) * 8)
    assert table[tile] == min(REGISTERS // per_block, SRAM // (sram + RESERVED))


@pytest.mark.parametrize(
    ("dtype", "shape", "tile"),
    [
        ("fp32", (3840, 10240, 9224), (128, 128)),
        ("fp32", (4608, 1024, 296), (64, 64)),
        ("fp32", (8, 4096, 320), (8, 8)),
        ("bf16", (15024, 8192, 1739), (128, 128)),
        ("fp16", (160, 3392, 13310), (256, 128)),
        ("tf32", (6376, 6824, 262), (128, 128)),
        ("tf32", (160, 96, 512), (64, 64)),
    ],
)
def test_the_tile_that_ran_may_be_chosen(dtype: str, shape: tuple[int, int, int], tile: tuple[int, int]) -> None:
    assert tile in {(plan.br, plan.bc) for plan in listed(*shape, dtype).shared}


def test_format_alignment_and_rows_decide_on_the_kernels() -> None:
    assert listed(4096, 4096, 4096, "bf16").tiles
    assert not listed(4096, 4096, 4096, "bf16").shared
    assert not listed(4096, 4096, 4095, "bf16").tiles
    assert listed(4096, 4096, 4095, "bf16").width == 2
    assert not listed(4096, 4096, 4096, "fp32").tiles
    assert all(listed(4096, 4096, 4096, "tf32")[:2])
    for dtype, k in (("fp32", 4096), ("tf32", 4096), ("bf16", 4095)):
        assert listed(1, 4096, k, dtype)[:2] == ((), ())
    assert listed(1, 4096, 4096, "bf16").tiles
    assert listed(1, 4096, 4096, "fp32", batch=2).shared


def test_few_tiles_in_tf32_are_always_split() -> None:
    """48 x 80 x 128 runs in four parts, 1120 x 80 x 32 whole."""
    assert all(plan.parts > 1 for plan in listed(48, 80, 128, "tf32").shared)
    assert not listed(48, 80, 128, "tf32").tiles
    assert any(plan.parts == 1 for plan in listed(32, 1120, 80, "tf32").shared)


# Plans


def test_slices_are_dealt_out_where_a_second_wave_is_short() -> None:
    """1024 x 2416 x 16384 has 152 tiles of 128 x 128, 512 slices each: 590 for each of 132; 2048 x 1536 has 192, too many."""
    [dealt] = [plan for plan in stream_plans(1024, 2416, 16384, 1, 4, SLOTS) if plan.parts > 1 and (plan.br, plan.bc) == (128, 128)]
    assert dealt.steps == 590
    assert dealt.flops == pytest.approx(2 * 128 * 128 * 16384 * 152 / SLOTS, rel=2e-3)
    assert not [plan for plan in stream_plans(2048, 1536, 16384, 1, 4, SLOTS) if plan.parts > 1 and (plan.br, plan.bc) == (128, 128)]


@given(SIZES, SIZES, SIZES, st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_block_plans_hold_all_of_the_work(m: int, n: int, k: int, batch: int) -> None:
    tiles = tuple((*tile, resident) for tile, resident in blocks.SIMT_TILES.items())
    for plan in block_plans(m, n, k, batch, blocks.SIMT_DEPTH, SLOTS, tiles, None):
        assert plan.turns * SLOTS * plan.br * plan.bc * plan.steps * blocks.SIMT_DEPTH >= batch * m * n * k
        assert plan.turns >= plan.waves >= 1


@given(SIZES, SIZES, SIZES, st.lists(st.floats(-9, -1), min_size=4, max_size=4))
@settings(max_examples=50, deadline=None)
def test_a_block_plan_left_out_is_never_the_fastest(m: int, n: int, k: int, logs: list[float]) -> None:
    time = busy_seconds(BlockCosts(*(10.0**log for log in logs)))
    tiles = tuple((*tile, resident) for tile, resident in blocks.PAIR_COPIES.items())
    kept = min(map(time, block_plans(m, n, k, 1, 32, SLOTS, tiles, None)))
    for one in tiles:
        grid, slices = ceil_div(m, one[0]) * ceil_div(n, one[1]), ceil_div(k, 32)
        for parts in parts_of_k(grid, slices, one[2], SLOTS):
            turns = ceil_div(grid * parts, SLOTS)
            assert kept <= time(BlockPlan(turns, ceil_div(turns, one[2]), ceil_div(slices, parts), parts, one[0], one[1]))


def test_few_rows_stand_beside_eight_columns() -> None:
    """8 x 4096 x 320 runs in 512 blocks: four turns of 132, 40 slices."""
    assert few_row_plan(8, 4096, 320, SLOTS) == BlockPlan(4, 1, 40, 1, 8, 8)
    assert few_row_plan(11, 4096, 320, SLOTS) is few_row_plan(8, 512, 320, SLOTS) is few_row_plan(1, 4096, 320, SLOTS) is None


# Times


def test_blocks_share_the_units_and_hide_the_waits() -> None:
    """Free copies: 8 blocks of 2 resident take 8 products a slice, or 4 waits of one, whichever is longer."""
    plan = BlockPlan(8, 4, 10, 1, 64, 64)
    multiply, wait, tile = 1e-9 / 4096, 5e-9, 16e-9
    assert isclose(busy_seconds(BlockCosts(multiply, 0.0, 0.0, tile))(plan), 8 * 10 * 1e-9 + 8 * tile / 4)
    assert isclose(busy_seconds(BlockCosts(multiply, 0.0, wait, 0.0))(plan), 4 * 10 * 6e-9)


@pytest.mark.parametrize(("k", "width", "wait"), [(65540, 4, 300), (65537, 2, 1170)])
def test_narrow_copies_and_waits_set_the_pace(k: int, width: int, wait: int) -> None:
    """132 tiles of 128 x 128, one a multiprocessor: 256 rows of a slice of 32, 32 threads a copy, and the wait for them."""
    work = Case(Matmul(128 * 12, 128 * 11, k), "cublas", launch={"br": 128, "bc": 128})
    parameters = {parameter.name: 1e-12 for parameter in gemm.PARAMETERS} | {"dram_share": 1e6}
    copied, products = 256 * 2 / width * gemm.COPY_CYCLES, 2 * 128 * 128 * 32 * SLOTS * 1830e6 / (989.4e12 * gemm.MMA_SHARE)
    slice_cycles = (copied**blocks.ISSUE_OVERLAP + products**blocks.ISSUE_OVERLAP) ** (1 / blocks.ISSUE_OVERLAP) + wait
    assert isclose(gemm.seconds(work, H200, parameters), slice_cycles * (k / 32) / 1830e6, rel_tol=5e-3)


def test_a_vector_takes_the_bytes_of_its_matrix_and_the_sums_of_its_rows() -> None:
    """6375 rows of 8192 in fp32 took 53.8 us warm, launch apart."""
    size = 6375 * 8192 * 4
    found = vector.vector_seconds(6375, 8192, 4, size, 4.8e12)
    assert isclose(found, size / (0.86 * 4.8e12) + 0.6e-6 * log2(33))
    assert found == pytest.approx(53.8e-6, rel=0.05)
    assert vector.vector_seconds(6375, 8192, 4, 0.0, 4.8e12) < 0.6 * found


def test_a_vector_in_fp32_is_priced_by_its_own_launch() -> None:
    model = gemm.MODELS["gemm-fp32"]
    case = Case(Matmul(1, 6375, 8192, dtype=DTYPES["fp32"]), "torch-matmul")
    assert model.seconds(case, H200, model.starts()) == pytest.approx(60.3e-6, rel=0.1)


def test_results_of_8_bits_have_16() -> None:
    case = Case(Matmul(1024, 512, 256, dtype=DTYPES["fp8"]), "torch-scaled-mm")
    assert gemm.dram_bytes(case, H200) == 1024 * 256 + 512 * 256 + 2 * 1024 * 512
