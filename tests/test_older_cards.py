"""GeForce, T4 and L4: clocks above the advertised one, power limits, few threads, and kernels of older libraries; figures by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfmodel.catalog import device_ids, find_device
from perfmodel.core.checks import dtype_on
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import boost, clock_at_work
from perfmodel.core.units import parse_any
from perfmodel.core.workload import Stream
from perfmodel.kernels.matmul import Matmul, evaluate
from perfmodel.timing.base import Case, Model, find_model
from perfmodel.timing.engine import HARDEST, rates_of
from perfmodel.timing.models import gemm
from perfmodel.timing.models.softmax import resident_blocks

T4, L4, A100, RTX = map(find_device, ("nvidia-t4", "nvidia-l4", "nvidia-a100-pcie-40gb", "nvidia-rtx-3090"))
H200 = find_device("nvidia-h200-sxm")
GEMM, SIMT, SOFTMAX, NORM = map(find_model, ("gemm", "gemm-fp32", "softmax-rows", "norm-rows"))
FREE = 1e-12


def of(model: Model, workload: Any, device: Device, implementation: str, **given: float) -> float:
    """Seconds where all parameters but those ``given`` cost nothing: shares are large, costs small."""
    kept = {"l2_share": model.starts().get("l2_share", 1.0), "spill": 1.0, "overlap": HARDEST}
    free = {name: kept.get(name, 1e12 if name.endswith("share") else FREE) for name in model.starts()}
    return model.seconds(Case(workload, implementation, cache="clean" if model is SOFTMAX else "warm"), device, {**free, **given})


def test_cards_whose_highest_clock_is_far_above_the_advertised_one_run_faster() -> None:
    """2,100 MHz over 1,695 is 1.24 and 1,980 over 1,830 is 1.08; an H100 NVL has 1.155."""
    assert boost(RTX) == boost(find_device("rtx-4090")) == 1.08
    assert {boost(device) for device in (T4, L4, A100, H200, find_device("nvidia-h100-nvl-94gb"))} == {1.0}


def test_a_geforce_card_multiplies_above_its_peak() -> None:
    """82 tiles of 128 x 128 on 82 multiprocessors, 4,096 deep: 11.0 GFLOP at 1.08 x 71.2 TFLOP/s."""
    tiles = Case(Matmul(128 * 82, 128, 4096), "cublas", cache="warm", launch={"br": 128, "bc": 128})
    p = {**dict.fromkeys(GEMM.starts(), FREE), "dram_share": 1e12, "half_bandwidth_share": 1.0, "multiply_share": 1.0, "overlap": HARDEST}
    assert GEMM.seconds(tiles, RTX, p) == pytest.approx(2 * 82 * 128 * 128 * 4096 / (1.08 * 71.2e12), rel=0.01)


def test_fused_attention_takes_bytes_per_clock_of_the_clock_that_they_are_stated_at() -> None:
    """128 B per clock of any card, of a GeForce at the advertised clock; its clock at work is 1.08 times that."""
    rates = [rates_of(device, "bf16") for device in (RTX, find_device("rtx-4090"), H200)]
    assert [each.sram for each in rates] == pytest.approx([128, 128, 128], rel=1e-3)
    assert rates[0].clock_hz == pytest.approx(1.08 * 1695e6)


@pytest.mark.parametrize(
    ("device", "rate"),
    [
        (L4, 72 / 7.9e-12),  # 9.1 of 30.3 TFLOP/s
        (T4, 70 / 16.5e-12),  # 4.2 of 8.1
        (A100, 19.5e12),  # 250 W would do for 21.6
        (replace(L4, tdp=None), 30.3e12),
        (H200, 66.9e12),
    ],
)
def test_the_vector_unit_keeps_within_the_power_limit(device: Device, rate: float) -> None:
    """One tile of 128 x 128 on each multiprocessor, in a batch, 64 Ki deep: 2 mnk over what 72 W leave."""
    sms = int(device.multiprocessors.number) if device.multiprocessors else 0
    edge = 64 if device is T4 else 128
    work = Matmul(edge, 128, 1 << 16, batch=sms, dtype=DTYPES["fp32"])
    found = of(SIMT, work, device, "torch-matmul", multiply_share=1.0)
    if device is H200:
        rate = gemm.rates_of(device, DTYPES["fp32"]).matmul
    assert found == pytest.approx(2 * sms * edge * 128 * (1 << 16) / rate, rel=0.01)


def test_batches_in_fp32_run_one_tile_of_the_generation() -> None:
    def tiles(device: Device, m: int, batch: int = 20) -> set[tuple[int, int]]:
        work = Matmul(m, 384, 384, batch=batch, dtype=DTYPES["fp32"])
        return {(plan.br, plan.bc) for plan in gemm.listed_plans(work, device, 100, {})[1]}

    assert tiles(A100, 96) == tiles(L4, 384) == {(128, 128)}
    assert tiles(T4, 96) <= {(64, 128), (32, 128), (64, 64)}
    assert len(tiles(A100, 96, batch=1)) > 1


def test_blocks_of_a_multiprocessor_are_as_many_as_its_threads() -> None:
    assert [resident_blocks(device, 128) for device in (T4, L4, A100)] == [8, 12, 16]


def test_a_norm_reads_again_where_the_rows_of_all_threads_are_more_than_the_l2_holds() -> None:
    """T4: 320 rows at once; of 4 KiB they are 0.31 of 4 MiB, of 8 KiB 0.63: two passes and three."""
    short, long = (
        of(NORM, Stream("norm", 1 << 16, cols, dtype=DTYPES["fp32"]), T4, "torch-layer-norm", bandwidth_share=1.0, warp_share=FREE)
        for cols in (1024, 2048)
    )
    assert short == pytest.approx(2 * (1 << 16) * 4096 / T4.dram.bandwidth_bytes_per_s, rel=2e-3)
    assert long == pytest.approx(3 * (1 << 16) * 8192 / T4.dram.bandwidth_bytes_per_s, rel=2e-3)


def test_long_rows_of_softmax_are_read_three_times_by_older_builds() -> None:
    """T4: 80 blocks of 512 threads; rows of 16 KiB stay in the L2 (0.31 of it), of 64 KiB all three reads come from DRAM."""
    short, long = (
        of(SOFTMAX, Stream("softmax", 8192, cols, dtype=DTYPES["fp32"]), T4, "torch-softmax", bandwidth_share=1.0) for cols in (4096, 16384)
    )
    bandwidth = T4.dram.bandwidth_bytes_per_s
    assert short == pytest.approx(2 * 8192 * 16384 / bandwidth, rel=0.03)
    assert long == pytest.approx(4 * 8192 * 65536 / bandwidth, rel=1e-3)


def test_steps_of_single_elements_count_for_less_than_steps_of_vectors() -> None:
    """512 threads step by 2,048 elements: 4,096 are two whole steps; 3,072 one and two of single elements."""
    p = {"bandwidth_share": 1e12, "step_us": 1.0, "tail": 0.6}
    whole, ragged = (of(SOFTMAX, Stream("softmax", 1, cols, dtype=DTYPES["fp32"]), A100, "torch-softmax", **p) for cols in (4096, 3072))
    assert whole == pytest.approx(2e-6, rel=1e-3)
    assert ragged / whole == pytest.approx((1 + 2 * 0.6) / 2, rel=1e-3)


def test_a_product_that_was_timed_is_no_faster_than_its_roof() -> None:
    """An RTX 3090 and an RTX 5090 hold clocks beyond the advertised one, as their timed products show."""
    raised = {
        device.id: round(clock_at_work(device), 3) for device in map(find_device, device_ids()) if clock_at_work(device) > boost(device)
    }
    assert raised == {"nvidia-rtx-3090": 1.165, "nvidia-rtx-5090": 1.213}
    for name in raised:
        device = find_device(name)
        timed = {one.name: parse_any(one.value) for one in device.microbenchmarks if one.name.startswith("matmul ")}
        for called, rate in timed.items():
            roof = evaluate(Matmul(8192, 8192, 8192, dtype=dtype_on(called.split()[1], device)), device).total.terms
            assert 2 * 8192**3 / max(roof.get("tensor", 0), roof.get("vector", 0)) >= rate * (1 - 1e-9), called
