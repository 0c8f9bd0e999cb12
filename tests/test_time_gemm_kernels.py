"""Which kernels cuBLAS has for a product, beside what a profile of an H200 shows; their times by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.models import gemm
from perfmodel.timing.products import TilePlan

H200, A100, L4 = map(find_device, ("nvidia-h200-sxm", "nvidia-a100-sxm-80gb", "nvidia-l4"))
SLOTS = 132
BY_HAND: dict[str, Any] = {
    "launch_us": 2.0,
    "flop_per_loaded_byte": 50.0,
    "store_cost": 3.0,
    "wait_cycles": 40.0,
    "split_us": 4.0,
    "part_us": 1.0,
}
REGISTERS, SRAM, RESERVED = 65536, 232448, 1024


def listed(m: int, n: int, k: int, dtype: str, **shape: Any) -> tuple[list[gemm.Kernels], tuple[TilePlan, ...]]:
    return gemm.listed_plans(Matmul(m, n, k, dtype=DTYPES[dtype], **shape), H200, SLOTS, {})


# What a profile shows


@each(
    ("table", "tile", "threads", "registers", "sram"),
    [
        (gemm.SIMT, (128, 128), 128, 255, 33792),
        (gemm.SIMT, (64, 64), 128, 128, 13056),
        (gemm.SIMT, (32, 64), 64, 102, 9984),
        (gemm.SIMT, (32, 32), 64, 80, 6912),
        (gemm.SINGLES, (128, 128), 128, 254, 32768),
        (gemm.SINGLES, (64, 64), 128, 96, 16384),
        (gemm.PAIRS, (256, 128), 256, 232, 147456),
        (gemm.WORDS, (128, 128), 128, 230, 98304),
        (gemm.WORDS, (64, 64), 128, 88, 49152),
        (gemm.WHOLE, (64, 64), 128, 88, 49152),
    ],
)
def test_resident_blocks_are_those_that_registers_and_sram_hold(
    table: gemm.Tiles, tile: tuple[int, int], threads: int, registers: int, sram: int
) -> None:
    per_block = threads * (-(-registers // 8) * 8)
    assert table[tile] == min(REGISTERS // per_block, SRAM // (sram + RESERVED))


HALF_AS_LARGE = pytest.mark.xfail(strict=True, reason="128 x 256 loads less, and does the rest as well")


@pytest.mark.parametrize(
    ("dtype", "shape", "tile"),
    [
        ("fp32", (3840, 10240, 9224), (128, 128)),
        ("fp32", (4608, 1024, 296), (64, 64)),
        pytest.param("bf16", (15024, 8192, 1739), (128, 128), marks=HALF_AS_LARGE),
        ("fp16", (160, 3392, 13310), (256, 128)),
        ("tf32", (6376, 6824, 262), (128, 128)),
        ("tf32", (160, 96, 512), (64, 64)),
    ],
)
def test_the_tile_that_ran_may_be_chosen(dtype: str, shape: tuple[int, int, int], tile: tuple[int, int]) -> None:
    assert tile in {(plan.br, plan.bc) for plan in listed(*shape, dtype)[1]}


def test_tiles_of_a_table_are_resident_as_registers_or_sram_hold() -> None:
    """65,536 registers, two for each sum, hold two tiles of 128 x 128; two slices of 64 x 64 are 32 KiB, of 163 or 99."""
    assert [gemm.resident((128, 128), device) for device in (H200, A100, L4)] == [2, 2, 1]
    assert [gemm.resident((64, 64), device) for device in (A100, L4)] == [5, 3]
    assert [(192, 128) in gemm.kernels_of(Matmul(4096, 4096, 4096), device)[0].tiles for device in (A100, L4)] == [False, True]
    [plan] = gemm.listed_plans(Matmul(64 * SLOTS * 4, 64, 80, dtype=DTYPES["fp32"]), H200, SLOTS, {"br": 64, "bc": 64})[1]
    assert plan.waits == 10, "four blocks wait together for each of ten slices, in a given tile too"


@each(("dtype", "k"), [("fp32", 65536), ("bf16", 65535), ("bf16", 65538), ("tf32", 65536), ("bf16", 640), ("bf16", 650), ("fp32", 40)])
def test_k_is_split_until_resident_blocks_fill_the_device_twice(dtype: str, k: int) -> None:
    """Each part has as many slices as SRAM holds, where copies pass through threads."""
    found = [(gemm.kernels_of(Matmul(640, 64, k, dtype=DTYPES[dtype]), H200)[plan.kind], plan) for plan in listed(640, 64, k, dtype)[1]]
    for kernels, plan in found:
        blocks = -(-640 // plan.br) * -(-64 // plan.bc)
        assert plan.parts == 1 or plan.parts * blocks <= 2 * SLOTS * kernels.tiles[plan.br, plan.bc]
        assert plan.parts == 1 or plan.parts * max(kernels.stages, 1) <= -(-k // kernels.depth)
        assert plan.parts <= kernels.most_parts
    assert any(plan.parts > 1 for _, plan in found)
    assert (dtype, k) != ("fp32", 65536) or (39, 32, 32) in {(plan.parts, plan.br, plan.bc) for _, plan in found}, "1,560 blocks of 1,584"


def test_format_alignment_and_rows_decide_on_the_kernels() -> None:
    def fed(m: int, n: int, k: int, dtype: str) -> list[tuple[int, int]]:
        """Bytes of a copy, and slices in SRAM where copies pass through threads, of each kind."""
        return [(kernels.width, kernels.stages) for kernels in listed(m, n, k, dtype)[0]]

    assert fed(4096, 4096, 4096, "bf16") == [(16, 0)]
    assert fed(4096, 4096, 4098, "bf16") == [(4, gemm.STAGES)]
    assert fed(4096, 4096, 4095, "bf16") == [(2, gemm.TWO_STAGES)]
    assert fed(4096, 4096, 4096, "fp32") == [(4, gemm.TWO_STAGES)]
    assert fed(4096, 4096, 4096, "tf32") == [(16, 0), (16, gemm.STAGES)]
    rows = [("bf16", 4098, gemm.PAIRS), ("tf32", 4098, gemm.WORDS), ("tf32", 4096, gemm.XMMA_TILES), ("bf16", 4095, gemm.SINGLES)]
    assert all([*listed(4096, 4096, k, dtype)[0][0].tiles] == [*tiles] for dtype, k, tiles in rows)
    for dtype, k, width in (("fp32", 4096, 16), ("tf32", 4096, 16), ("tf32", 4095, 16), ("bf16", 4095, 2)):
        kernels, [plan] = listed(1, 4096, k, dtype)
        assert (plan.flops, plan.stored, kernels[plan.kind].width) == (0, 0, width), "a vector: its bytes alone"
    assert all(plan.flops and plan.parts == 4 for plan in listed(1, 4096, 4096, "fp32", split_k=4)[1])
    assert all(plan.flops for plan in listed(1, 4096, 4096, "bf16")[1])
    assert all(plan.flops for plan in listed(1, 4096, 4096, "fp32", batch=2)[1])


def test_kernels_fed_by_tma_may_form_clusters() -> None:
    for m, dtype, k, fed in (
        (4096, "bf16", 4096, True),
        (4096, "bf16", 4095, False),
        (4096, "fp32", 4096, False),
        (1, "tf32", 4096, False),
    ):
        w = Matmul(m, 4096, k, dtype=DTYPES[dtype])
        assert gemm.fed_by_tma(w, H200, listed(m, 4096, k, dtype)[1][0]) == fed


def test_the_plan_of_a_vector_by_hand() -> None:
    """6,375 rows by eight are seven for each of 132; as few rows as multiprocessors are read in two parts of k."""
    assert gemm.vector_plan(Matmul(1, 6375, 8192, dtype=DTYPES["fp32"]), SLOTS) == (0, 6375 * 8192 * 4 / SLOTS, 0, 7, 0, 1, 1, 8, 0)
    assert [gemm.vector_plan(Matmul(n, 1, 64), SLOTS).parts for n in (SLOTS, SLOTS + 1)] == [2, 1]


# Times


def of(
    dtype: str, shape: tuple[int, int, int], device: Any = H200, tile: tuple[int, int] | None = None, model: str = "", **given: float
) -> float:
    """Seconds where everything but what is ``given`` is free."""
    p = dict.fromkeys(gemm.MODELS[model or "gemm"].starts(), 1e-12) | dict.fromkeys(("dram_share", "multiply_share", "quantize_share"), 1e9)
    launch, split = ({"br": tile[0], "bc": tile[1]} if tile else {}), int(given.pop("split_k", 1))
    case = Case(Matmul(*shape, dtype=DTYPES[dtype], split_k=split), "torch-matmul", launch=launch)
    return gemm.MODELS[model or "gemm"].seconds(case, device, p | {"overlap": 50.0} | given)


def test_the_time_of_a_product_by_hand() -> None:
    """264 blocks in two parts of 32 slices, two on each multiprocessor: its loads, stores of 3 times their time, 64 waits, two parts."""
    m, n = 128 * 12, 128 * 11
    found = of("bf16", (m, n, 4096), tile=(128, 128), split_k=2, **BY_HAND)
    load_s, parts_s = SLOTS * 50 / 989.4e12, 4e-6 + 2 * (1e-6 + 2 * m * n * 4 / 4.8e12)
    expected = 2e-6 + load_s * (2 * 256 * 2048 * 2 + 3 * 2 * 128 * 128 * 2) + 64 * 40 / 1830e6 + parts_s
    assert found == pytest.approx(expected, rel=1e-3)
    stored = [of("fp8", (m, n, 128), tile=(128, 128), flop_per_loaded_byte=50.0, store_cost=cost) for cost in (1.0, 2.0)]
    assert stored[1] - stored[0] == pytest.approx(load_s * 128 * 128 * 2, rel=1e-3), "results of 8 bits have 16"
    waits_s = of("bf16", (128 * 82, 128, 4096), find_device("nvidia-rtx-3090"), (128, 128), wait_cycles=1000.0)
    assert waits_s == pytest.approx(64 * 1000 / (1.08 * 1695e6), rel=1e-3), "at the clock at work"


def test_results_of_8_bits_have_16() -> None:
    case = Case(Matmul(1024, 512, 256, dtype=DTYPES["fp8"]), "torch-scaled-mm")
    assert gemm.dram_bytes(case, H200) == 1024 * 256 + 512 * 256 + 2 * 1024 * 512
    narrow = replace(case, workload=replace(case.workload, dtype=DTYPES["bf16"], stored=0.5))
    assert gemm.dram_bytes(narrow, H200) == 2 * 1024 * 256 + 512 * 256 / 2 + 2 * 1024 * 512, "B as it is stored"
