"""What a borrowed calibration takes of the borrower's microbenchmarks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Device, Microbenchmark
from perfmodel.core.workload import Attention
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.models.pooled import as_probed
from perfmodel.timing.predict import Prediction, TimeRequest, predict
from perfmodel.timing.transfer import COPY, LAUNCH, MATMUL, carried_over
from perfmodel.validation.cuda import microbench
from perfmodel.validation.statistics import StoppingRule

H100, L40S = (replace(find_device(name), microbenchmarks=[], calibration=[]) for name in ("nvidia-h100-sxm-80gb", "nvidia-l40s"))
EDGE = 8192


def with_probes(device: Device, **values: str) -> Device:
    """``device`` with microbenchmarks: ``copy``, ``launch``, ``bf16``."""
    names = {"copy": COPY, "launch": LAUNCH, "bf16": MATMUL.format("bf16")}
    shape = dict.fromkeys("mnk", EDGE)
    return replace(
        device,
        microbenchmarks=[
            Microbenchmark(names[key], value, 0.0, 1, "", "", shape=shape if key == "bf16" else None) for key, value in values.items()
        ],
    )


def asked(device: Device, workload: Any, implementation: str, kind: str) -> Prediction:
    """The prediction of ``device`` without a calibration of its own."""
    return predict(TimeRequest(Case(workload, implementation), kind, "bf16", device, 0.0, calibrated_devices))


def product(edge: int) -> Matmul:
    return Matmul(edge, edge, edge, dtype=DTYPES["bf16"])


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0])
def test_a_product_takes_the_time_that_was_measured(share: float) -> None:
    """The clock is the one at which the time model gives what the probe took; a product of half its edge goes along."""
    plain = asked(L40S, product(EDGE), "cublas", "matmul")
    rate = 2 * EDGE**3 / (plain.seconds / share)
    probed = with_probes(L40S, bf16=f"{rate / 1e12:.6g} TFLOP/s")
    found = asked(probed, product(EDGE), "cublas", "matmul")
    assert found.seconds == pytest.approx(plain.seconds / share, rel=0.03)
    half, usual = (asked(device, product(EDGE // 2), "cublas", "matmul").seconds for device in (probed, L40S))
    assert half >= 0.99 * usual
    assert "matmul measured here" in found.provenance


def test_a_slow_product_tells_the_clock_of_attention_on_boards_short_of_watts_alone() -> None:
    w = Attention(16384, 16384, 128, 128, 4, 16, 16, DTYPES["bf16"])
    rich = replace(L40S, tdp=None)
    for board, slower in ((L40S, 180 / 90), (rich, 1.0)):
        fast, slow = (asked(with_probes(board, bf16=f"{rate} TFLOP/s"), w, "vllm-flash-attn", "attention").seconds for rate in (180, 90))
        assert slow / fast == pytest.approx(slower, rel=0.05)


def test_a_copy_beside_the_lenders_scales_the_bandwidth() -> None:
    [block] = [one for one in find_device(H100.id).calibration if one.model == "decode-fa3" and one.implementation == "vllm-flash-attn"]
    lender = with_probes(H100, copy="3.0 TB/s")
    share = 3.0e12 / (H100.dram.bandwidth_bytes_per_s or 1)
    bandwidth = L40S.dram.bandwidth_bytes_per_s or 0
    found = carried_over(with_probes(L40S, copy="400 GB/s"), lender, block)
    assert found.device.dram.bandwidth_bytes_per_s == pytest.approx(400e9 / share)
    assert (found.probes, found.narrowed) == (("launch", "copy"), True)
    assert carried_over(L40S, lender, block).device.dram.bandwidth_bytes_per_s == bandwidth


def test_starts_go_with_launches_and_waits_with_the_clock() -> None:
    """1.64 and 2.5 us are stated alike by both profiles; probes stand before them; the clocks are 2520 and 1980 MHz."""
    [block] = [one for one in find_device(H100.id).calibration if one.model == "decode-fa3" and one.implementation == "vllm-flash-attn"]
    start, wait = block.parameters["launch_us"], block.parameters["latency_us"]
    stated = carried_over(L40S, H100, block).parameters
    assert stated["launch_us"] == pytest.approx(start * 1.64 / 2.5)
    assert stated["latency_us"] == pytest.approx(wait * 1980 / 2520)
    timed = carried_over(with_probes(L40S, launch="3 us"), with_probes(H100, launch="2 us"), block).parameters
    assert timed["launch_us"] == pytest.approx(start * 1.5)
    unknown = carried_over(replace(L40S, launch_overhead=None), H100, block).parameters
    assert unknown["launch_us"] == pytest.approx(start * 1980 / 2520)


def test_a_pooled_share_goes_with_the_probe() -> None:
    """An L40S that reaches 181.025 TFLOP/s has half of its 362.05; others reach 0.8 in products and 0.4 in what is asked."""
    p = as_probed(
        {"compute_share": 0.4, "launch_us": 5.0},
        with_probes(L40S, bf16="181.025 TFLOP/s"),
        "bf16",
        {"compute_share": 0.8, "launch_us": 1.0},
    )
    assert p == pytest.approx({"compute_share": 0.25, "launch_us": 5.0})


def test_calibrate_times_products_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges 8192 in 16 bits and 4096 in fp32; two milliseconds each."""
    randn = lambda *shape, device, dtype: SimpleNamespace(shape=shape, dtype=dtype)  # noqa: E731
    matmul = SimpleNamespace(allow_tf32=True)
    torch = SimpleNamespace(
        randn=randn,
        bfloat16="bf16",
        float16="fp16",
        float32="fp32",
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)),
        cuda=SimpleNamespace(empty_cache=lambda: None),
    )
    timer = SimpleNamespace(times=lambda run, cache: [2e-3] * 3)
    monkeypatch.setattr("perfmodel.validation.libraries.load_torch", lambda: torch)
    monkeypatch.setattr("perfmodel.validation.libraries.measure.TorchTimer", lambda torch, rule: timer)
    found = list(microbench.PARTS["large products"](StoppingRule()))
    assert [(one.name, one.value, (one.shape or {})["m"]) for one in found] == [
        ("matmul bf16", 2 * 8192**3 / 2e-3, 8192),
        ("matmul fp16", 2 * 8192**3 / 2e-3, 8192),
        ("matmul fp32", 2 * 4096**3 / 2e-3, 4096),
    ]
    assert not matmul.allow_tf32
