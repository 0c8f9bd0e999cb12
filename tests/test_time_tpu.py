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
from perfmodel.timing.models import tpu_attention, xla_matmul
from perfmodel.timing.select_kernel import TimeRequest, select_kernel

V6E = find_device("google-tpu-v6e")
OTHERS = [find_device(f"google-tpu-{name}") for name in ("v3", "v4", "v5e", "v5p", "v7")]
BF16 = DTYPES["bf16"]
PRODUCT = {"launch_us": 2.0, "hbm_share": 0.9, "peak_share": 0.9, "rows_share": 0.5}
PAGED = {"launch_us": 4.0, "visit_cycles": 500.0, "score_cycles": 15.0, "moved_share": 0.5, "vmem_share": 0.21}


def product(m: int, n: int = 4096, k: int = 4096, device: Device = V6E) -> float:
    return xla_matmul.seconds(Case(Matmul(m, n, k, dtype=BF16), "xla"), device, PRODUCT)


def decode(batch: int, kv_len: int, heads: int = 32, kv_heads: int = 8, n: int = 1, d: int = 128) -> Case:
    w = Attention(n, kv_len, d, d, batch, heads, kv_heads, BF16, causal=True, packed=True)
    return Case(w, "tpu-ragged-paged-attention")


def paged(case: Case, device: Device = V6E) -> float:
    return tpu_attention.seconds(case, device, PAGED)


# Products


# Attention


def test_a_decode_by_hand() -> None:
    # 128 sequences of 1024 keys: 2^17 x 4096 B of cache stay in HBM; 2^17 keys x 32 x 32 scores in registers of 1024
    vector_s = 2**17 * 15 / 1.75e9
    assert paged(decode(128, 1024)) == pytest.approx(4e-6 + 128 * 8 * 500 / 1.75e9 + vector_s)


def test_a_prefill_visits_the_keys_before_each_block() -> None:
    # 64 queries over 96 keys, causal: blocks of 32 see 64 and 96 keys
    assert tpu_attention.visits(decode(1, 96, n=64).workload) == (2, 160)
    assert tpu_attention.visits(replace(decode(1, 96, n=64).workload, causal=False)) == (2, 192)
    brute = sum(100 - 70 + min(70, 32 * (block + 1)) for block in range(3))
    assert tpu_attention.visits(decode(1, 100, n=70).workload) == (3, brute)


@pytest.mark.parametrize("change", [{"window": 64}, {"mask": True}, {"dropout": 0.1}, {"dtype": DTYPES["fp8"]}, {"dv": 64}])
def test_what_the_kernel_does_not_do_is_left_out(change: dict[str, object]) -> None:
    case = decode(1, 128)
    assert model_of(case).name == "tpu-attention"
    with pytest.raises(UnavailableError):
        model_of(replace(case, workload=replace(case.workload, **change)))


# On devices


def calibrated(device: Device) -> Device:
    def block(implementation: str, workload: str, model: str, parameters: dict[str, float]) -> Calibration:
        return Calibration(
            implementation, workload, model, ["bf16"], parameters, 9, 0.9, 1.1, "cloud", "", "", borrowed_low=0.5, borrowed_high=2.0
        )

    blocks = [block("xla", "matmul", "xla-matmul", PRODUCT), block("tpu-ragged-paged-attention", "attention", "tpu-attention", PAGED)]
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
