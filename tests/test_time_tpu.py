"""Time models of TPU kernels: by hand, on a device that lends and one that borrows, and what follows from their structure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.roofline import estimate
from perfmodel.core.workload import Attention
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, model_of
from perfmodel.timing.case_bounds import kernels_of, lower_bound_s
from perfmodel.timing.models import tpu
from perfmodel.timing.select_kernel import TimeRequest, select_kernel

V6E = find_device("google-tpu-v6e")
OTHERS = [find_device(f"google-tpu-{name}") for name in ("v3", "v4", "v5e", "v5p", "v7")]
BF16 = DTYPES["bf16"]
PRODUCT = {"launch_us": 2.0, "hbm_share": 0.9, "peak_share": 0.9, "rows_share": 0.5}
PAGED = {"launch_us": 4.0, "visit_cycles": 500.0, "score_cycles": 15.0, "moved_share": 0.5, "vmem_share": 0.21}


def product(m: int, n: int = 4096, k: int = 4096, device: Device = V6E) -> float:
    return tpu.matmul_seconds(Case(Matmul(m, n, k, dtype=BF16), "xla"), device, PRODUCT)


def decode(batch: int, kv_len: int, heads: int = 32, kv_heads: int = 8, n: int = 1, d: int = 128) -> Case:
    w = Attention(n, kv_len, d, d, batch, heads, kv_heads, BF16, causal=True, packed=True)
    return Case(w, "tpu-ragged-paged-attention")


def paged(case: Case, device: Device = V6E) -> float:
    return tpu.attention_seconds(case, device, PAGED)


# Products


def test_a_narrow_product_streams_its_weights() -> None:
    # x and y 65,536 B each, W 33,554,432 B; 1638 GB/s
    assert product(8) == pytest.approx(2e-6 + 65_536 / 0.819e12 + 33_619_968 / 1.4742e12)


def test_a_wide_product_is_the_peak() -> None:
    # 2 x 4096^3 FLOP at 0.9 x 918 TFLOP/s, x of 33,554,432 B before
    assert product(4096) == pytest.approx(2e-6 + 33_554_432 / 0.819e12 + 2 * 4096**3 / 826.2e12)


def test_whole_squares_are_multiplied() -> None:
    assert tpu.padded_flops(Matmul(9, 300, 100), 256) == 2 * 16 * 512 * 256
    assert tpu.padded_flops(Matmul(9, 300, 100, batch=3), 128) == 3 * 2 * 16 * 384 * 128
    # one column more is 256 more
    assert product(4096, n=4097) - product(4096) == pytest.approx(2 * 4096 * 256 * 4096 / 826.2e12)


# Attention


def test_a_decode_by_hand() -> None:
    # 128 sequences of 1024 keys: 2^17 x 4096 B of cache stay in HBM; 2^17 keys x 32 x 32 scores in registers of 1024
    vector_s = 2**17 * 15 / 1.75e9
    assert paged(decode(128, 1024)) == pytest.approx(4e-6 + 128 * 8 * 500 / 1.75e9 + vector_s)


def test_a_short_cache_is_moved_to_vmem_first() -> None:
    # 6880 keys of 4096 B are the last within 0.21 of 128 MiB
    kept, moved = paged(decode(1, 6882)), paged(decode(1, 6880))
    assert moved - kept == pytest.approx(6880 * 4096 / 0.819e12 - 2 * 15 / 1.75e9)


def test_a_prefill_visits_the_keys_before_each_block() -> None:
    # 64 queries over 96 keys, causal: blocks of 32 see 64 and 96 keys
    assert tpu.visits(decode(1, 96, n=64).workload) == (2, 64, 96)
    assert tpu.visits(replace(decode(1, 96, n=64).workload, causal=False)) == (2, 192, 0)
    came = sum(min(70, 32 * (block + 1)) for block in range(3))
    assert tpu.visits(decode(1, 100, n=70).workload) == (3, 3 * 30, came)


def test_keys_that_came_with_the_queries_cost_less() -> None:
    cases = decode(1, 1024, n=1024), decode(1, 2048, n=1024)
    cheaper = [paged(case) - tpu.attention_seconds(case, V6E, {**PAGED, "came_share": 0.5}) for case in cases]
    _, _, came = tpu.visits(cases[0].workload)
    registers = came * 16 * 8 / 128  # 32 tokens of 4 heads in groups of 8 rows, 8 KV heads, lanes
    assert cheaper == pytest.approx([registers * 0.5 * 15 / 1.75e9] * 2)


def test_a_decode_pays_for_a_block_of_queries() -> None:
    assert paged(decode(1, 8192, n=32)) == paged(decode(1, 8192))


def test_many_kv_heads_wait_for_pages() -> None:
    # 32 KV heads: 16 KiB a key at 1638 GB/s take longer than its 15 cycles
    case = decode(8, 2048, kv_heads=32)
    assert paged(case) == pytest.approx(4e-6 + 8 * 32 * 500 / 1.75e9 + 8 * 2048 * 16384 / 1.638e12)


@pytest.mark.parametrize("change", [{"window": 64}, {"mask": True}, {"dropout": 0.1}, {"dtype": DTYPES["fp8"]}, {"dv": 64}])
def test_what_the_kernel_does_not_do_is_left_out(change: dict[str, object]) -> None:
    case = decode(1, 128)
    assert model_of(case).name == "tpu-decode"
    assert model_of(decode(1, 128, n=2)).name == "tpu-attention"
    with pytest.raises(UnavailableError):
        model_of(replace(case, workload=replace(case.workload, **change)))


# On devices


def calibrated(device: Device) -> Device:
    def block(implementation: str, workload: str, model: str, parameters: dict[str, float]) -> Calibration:
        return Calibration(
            implementation, workload, model, ["bf16"], parameters, 9, 0.9, 1.1, "cloud", "", "", borrowed_low=0.5, borrowed_high=2.0
        )

    blocks = [block("xla", "matmul", "xla-matmul", PRODUCT), block("tpu-ragged-paged-attention", "attention", "tpu-decode", PAGED)]
    return replace(device, calibration=blocks)


CASES = {"matmul": Case(Matmul(512, 4096, 4096, dtype=BF16), ""), "attention": replace(decode(8, 4096), implementation="")}


@each("kind", CASES)
@each("device", OTHERS)
def test_other_tpus_borrow(kind: str, device: Device) -> None:
    case = CASES[kind]
    lender = calibrated(V6E)
    found = select_kernel(TimeRequest(case, kind, "bf16", device, lower_bound_s(case, device), lambda: [lender]))
    assert found.kind == "borrowed"
    assert "google-tpu-v6e" in found.provenance
    assert found.seconds > found.low >= lower_bound_s(case, device)
    own = select_kernel(TimeRequest(case, kind, "bf16", lender, lower_bound_s(case, V6E)))
    assert own.kind == "calibrated"
    slower = V6E.clocks.tensor.number / device.clocks.tensor.number
    expected = product(512, device=device) if kind == "matmul" else 4e-6 + (own.seconds - 4e-6) * slower
    assert found.seconds == pytest.approx(expected)


@pytest.mark.parametrize("device", [V6E, *OTHERS], ids=lambda device: device.id)
def test_a_clock_and_its_peak_agree(device: Device) -> None:
    # FLOP per clock of all systolic units: a whole number of squares, each 2 x edge^2
    squares = device.peaks.tensor["bf16"].number / device.clocks.tensor.number / (2 * device.matrix_edge.number**2)
    assert squares == pytest.approx(round(squares), rel=0.01)


def test_operands_of_a_product_pass_dram_once() -> None:
    [kernel] = kernels_of(Case(Matmul(2048, 4096, 4096, dtype=BF16), "xla"), V6E)
    assert estimate(kernel, V6E).dram.total == 2 * (2 * 2048 * 4096 + 4096**2)
    assert estimate(kernel, replace(V6E, matrix_edge=None)).dram.total == estimate(kernel, V6E).dram.total
