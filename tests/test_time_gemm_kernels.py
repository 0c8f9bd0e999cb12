"""Which kernels cuBLAS has for a product, beside what a profile of an H200 shows; their times by hand."""

from __future__ import annotations

from math import isclose
from typing import Any

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.models import gemm
from perfmodel.timing.products import TilePlan

H200 = find_device("nvidia-h200-sxm")
SLOTS = 132
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


@pytest.mark.parametrize(
    ("dtype", "shape", "tile"),
    [
        ("fp32", (3840, 10240, 9224), (128, 128)),
        ("fp32", (4608, 1024, 296), (64, 64)),
        ("bf16", (15024, 8192, 1739), (128, 128)),
        ("fp16", (160, 3392, 13310), (256, 128)),
        ("tf32", (6376, 6824, 262), (128, 128)),
        ("tf32", (160, 96, 512), (64, 64)),
    ],
)
def test_the_tile_that_ran_may_be_chosen(dtype: str, shape: tuple[int, int, int], tile: tuple[int, int]) -> None:
    assert any(tile in kernels.tiles for kernels in listed(*shape, dtype)[0])


def test_format_alignment_and_rows_decide_on_the_kernels() -> None:
    def fed(m: int, n: int, k: int, dtype: str) -> list[tuple[int, int]]:
        """Bytes of a copy, and slices in SRAM where copies pass through threads, of each kind."""
        return [(kernels.width, kernels.stages) for kernels in listed(m, n, k, dtype)[0]]

    assert fed(4096, 4096, 4096, "bf16") == [(16, 0)]
    assert fed(4096, 4096, 4098, "bf16") == [(4, gemm.STAGES)]
    assert fed(4096, 4096, 4095, "bf16") == [(2, gemm.TWO_STAGES)]
    assert fed(4096, 4096, 4096, "fp32") == [(4, gemm.TWO_STAGES)]
    assert fed(4096, 4096, 4096, "tf32") == [(16, 0), (16, gemm.STAGES)]
    for dtype, k in (("fp32", 4096), ("tf32", 4096), ("bf16", 4095)):
        [plan] = listed(1, 4096, k, dtype)[1]
        assert (plan.flops, plan.stored) == (0, 0), "a vector: its bytes alone"
    assert all(plan.flops for plan in listed(1, 4096, 4096, "bf16")[1])
    assert all(plan.flops for plan in listed(1, 4096, 4096, "fp32", batch=2)[1])


def test_kernels_fed_by_tma_may_form_clusters() -> None:
    for dtype, k, fed in (("bf16", 4096, True), ("bf16", 4095, False), ("fp32", 4096, False)):
        w = Matmul(4096, 4096, k, dtype=DTYPES[dtype])
        assert gemm.fed_by_tma(w, H200, listed(4096, 4096, k, dtype)[1][0]) == fed


# Times


@pytest.mark.parametrize(("k", "width", "stages", "tile"), [(65540, 4, 3, (128, 256)), (65537, 2, 2, (128, 256))])
def test_narrow_copies_and_waits_set_the_pace(k: int, width: int, stages: int, tile: tuple[int, int]) -> None:
    """132 blocks, one on each multiprocessor: copies of a slice take so many times as long, and leave a latency open."""
    br, bc = tile
    work = Case(Matmul(br * 12, bc * 11, k), "cublas", launch={"br": br, "bc": bc})
    p = dict.fromkeys(gemm.MODELS["gemm"].starts(), 1e-12) | {"dram_share": 1e6, "overlap": 30.0, "multiply_share": 1e6}
    p |= {"flop_per_loaded_byte": 40.0, "latency_cycles": 1000.0}
    loaded_s = SLOTS * (br + bc) * k * 2 * 40.0 / 989.4e12 * 16 / width
    waits_s = -(-k // 32) * 1000 / (stages - 1) / 1830e6
    assert isclose(gemm.seconds(work, H200, p), loaded_s + waits_s, rel_tol=5e-3)


def test_a_vector_in_fp32_is_priced_by_its_bytes_and_its_own_launch() -> None:
    """6375 rows of 8192 took 60.3 us."""
    model = gemm.MODELS["gemm-fp32"]
    case = Case(Matmul(1, 6375, 8192, dtype=DTYPES["fp32"]), "torch-matmul")
    [block] = [one for one in H200.calibration if one.model == "gemm-fp32"]
    assert model.seconds(case, H200, block.parameters) == pytest.approx(60.3e-6, rel=0.1)


def test_results_of_8_bits_have_16() -> None:
    case = Case(Matmul(1024, 512, 256, dtype=DTYPES["fp8"]), "torch-scaled-mm")
    assert gemm.dram_bytes(case, H200) == 1024 * 256 + 512 * 256 + 2 * 1024 * 512


def test_eight_bit_kernels_by_narrow_copies_wait_as_others_do() -> None:
    """No record has any: a row of a multiple of four bytes is answered by what is known of whole copies."""
    model = gemm.MODELS["fp8-linear"]
    narrow, whole = (Case(Matmul(64, n, 4096, dtype=DTYPES["fp8"]), "trtllm-fp8-linear") for n in (8, 16))
    assert model.seconds(narrow, H200, model.starts()) > model.seconds(whole, H200, model.starts()) * 0.9
