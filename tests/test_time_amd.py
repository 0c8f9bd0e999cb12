"""Matrix products on AMD's CDNA: their formats, the plans of the model with figures by hand, and who borrows from whom."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.cost import READ, Tile
from perfmodel.core.dtypes import DTYPES, PRODUCTS, dtype_named
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.kernels.matmul import Matmul, flops, in_bytes, minimum_elements, scale_block
from perfmodel.timing.base import Case, calibrations, find_model, models_of
from perfmodel.timing.case_bounds import lower_bound_s
from perfmodel.timing.implementations import is_variant
from perfmodel.timing.models import amd_gemm
from perfmodel.timing.predict import BORROWED, CALIBRATED, Prediction, TimeRequest, predict
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.records import as_record

MI300X, MI355X = find_device("amd-mi300x"), find_device("amd-mi355x")
P = {
    "launch_us": 2.0,
    "multiply_share": 0.5,
    "load_share": 0.65,
    "slice_cycles": 100.0,
    "stored_bytes_per_cycle": 8.0,
    "dram_share": 0.74,
    "overlap": 3.0,
    "split_us": 2.0,
}


def product(m: int, n: int, k: int, dtype: str) -> Matmul:
    return Matmul(m, n, k, dtype=PRODUCTS[dtype])


# Formats


def test_bytes_of_formats() -> None:
    """4 bits and an 8-bit scale for 32 elements are 17/32 B; results have 16 bits; other formats are as they were."""
    assert PRODUCTS["mxfp4"].bytes == 17 / 32
    assert [(PRODUCTS[name].bytes, PRODUCTS[name].size, PRODUCTS[name].result_size) for name in ("int8", "mxfp4")] == [
        (1, 1, 2),
        (17 / 32, 1, 2),
    ]
    assert all(dtype.bytes == dtype.size == dtype.result_size for dtype in DTYPES.values())
    w = product(64, 128, 512, "mxfp4")
    assert in_bytes(w, minimum_elements(w)) == (64 * 512 + 512 * 128) * 17 // 32 + 2 * 64 * 128
    [kernel] = w.kernels(Tile(128, 128))
    assert kernel.bytes(READ) == (64 * 512 + 512 * 128) * 17 // 32


def test_nvfp4_is_multiplied_where_it_is(run) -> None:
    """4 bits and an 8-bit scale for 16 elements are 9/16 B; its peak is that of fp4, which AMD's is not."""
    assert PRODUCTS["nvfp4"].bytes == 9 / 16
    [result] = run("matmul -m 4096 -n 4096 -k 4096 --dtype nvfp4 --hardware b200 --json").json["results"]
    assert result["minimum_traffic"]["bytes"] == 2 * 4096**2 * 9 // 16 + 2 * 4096**2
    assert result["time_s"]["terms"]["tensor"] == pytest.approx(2 * 4096**3 / 9e15, rel=1e-4)
    for device in ("h200", "mi355x"):
        said = run(f"matmul -m 64 -n 64 -k 64 --dtype nvfp4 --hardware {device}").err
        assert "has no nvfp4 peak" in said
        assert "NVFP4 is multiplied by NVIDIA GPUs from Blackwell on, such as b200" in said
    assert "in nvfp4 16 elements share a scale" in run("matmul -m 64 -n 64 -k 65 --dtype nvfp4 --hardware b200").err


def test_scales_of_blocks_are_read() -> None:
    """1 x 128 of A: 300 x 8 scales; 128 x 128 of B: 8 x 3; 4 B each; only where the implementation has them."""
    assert [scale_block(name, dtype) for name, dtype in (("aiter-blockscale", "fp8"), ("aiter-blockscale", "mxfp4"), ("aiter", "fp8"))] == [
        128,
        0,
        0,
    ]
    plain = product(300, 300, 1000, "fp8")
    scaled = replace(plain, scale_block=128)
    reads = [w.kernels(Tile(128, 128))[0].bytes(READ) for w in (plain, scaled)]
    assert reads[1] - reads[0] == 4 * (300 * 8 + 8 * 3)
    assert in_bytes(scaled, 0) == 4 * (300 * 8 + 8 * 3)
    assert amd_gemm.moved_bytes(plain, "aiter-blockscale") == 2 * 300 * 1000 + 4 * (300 * 8 + 8 * 3) + 2 * 300 * 300


@pytest.mark.parametrize(
    ("device", "dtype", "per_clk", "count", "clock"),
    [(MI300X, "int8", 4096, 304, 2.1e9), (MI355X, "int8", 8192, 256, 2.4e9), (MI355X, "mxfp4", 16384, 256, 2.4e9)],
)
def test_bounds_by_the_peak_of_the_format(device: Device, dtype: str, per_clk: int, count: int, clock: float) -> None:
    w = product(8192, 8192, 8192, dtype)
    bound = lower_bound_s(Case(w, "aiter"), device)
    assert bound == pytest.approx(flops(w) / (per_clk * count * clock), rel=1e-4)
    raw = {
        "workload": "matmul",
        "implementation": "aiter",
        "hardware": device.id,
        "dtype": dtype,
        "shape": {"m": 8192, "n": 8192, "k": 8192},
    }
    assert evaluated(as_record({**raw, "time_s": {"median": 1.0}}), device)[1] == bound


def test_what_runs_in_no_such_format(run) -> None:
    """One message each: a device without the peak, a depth without whole blocks, a question that is no product."""
    for line, words in {
        "matmul -m 64 -n 64 -k 64 --dtype mxfp4 --hardware mi300x": ["amd-mi300x has no mxfp4 peak", "int8 (tensor)"],
        "matmul -m 64 -n 64 -k 65 --dtype mxfp4 --hardware mi355x": ["--k is 65: in mxfp4 32 elements share a scale", "multiple of 32"],
        "matmul -m 64 -n 64 -k 64 --dtype int9": ["unknown dtype 'int9'", "did you mean int8?"],
        "attention --n 64 --d 64 --dtype int8": ["unknown dtype 'int8'", "known: fp32, tf32, fp16, bf16, fp8"],
    }.items():
        outcome = run(line)
        assert outcome.code != 0
        assert all(word in outcome.err for word in words), line
    with pytest.raises(UsageError):
        dtype_named("mxfp4")
    data = run("matmul -m 4096 -n 4096 -k 4096 --dtype mxfp4 --hardware mi355x --json").json
    assert data["results"][0]["minimum_traffic"]["bytes"] == 4096**2 * (2 * 17 / 32 + 2)


# Model


def alone(w: Matmul, implementation: str, device: Device, br: int, bc: int) -> float:
    return amd_gemm.seconds(Case(w, implementation, launch={"br": br, "bc": bc}), device, P)


def test_one_turn_of_tiles_by_hand() -> None:
    """256 tiles on 256 compute units, bf16: each multiplies 2 x 256 x 256 x 4096 FLOP at half of 4096 a cycle, in 262,144 cycles; loads
    512 x 4096 x 2 B at 65 % of 39.3 TB/s / 256 in 42.03 us; stores 128 KiB at 8 B a cycle, in 16,384; 64 slices take 100 each.
    DRAM moves 96 MiB at 74 % of 8.192 TB/s in 16.61 us meanwhile.
    """
    w, cycle = product(4096, 4096, 4096, "bf16"), 1 / 2.4e9
    multiply, load = 2 * 256 * 256 * 4096 / (0.5 * 2516.6e12 / 256), 512 * 4096 * 2 / (0.65 * 39.3e12 / 256)
    assert multiply == pytest.approx(262144 * cycle, rel=1e-4)
    assert load == pytest.approx(42.03e-6, rel=1e-3)
    busy = math.hypot(multiply, load) + (16384 + 6400) * cycle
    dram = 96 * 2**20 / (0.74 * 8.192e12)
    assert alone(w, "aiter", MI355X, 256, 256) == pytest.approx(2e-6 + (busy**3 + dram**3) ** (1 / 3))


def test_tiles_and_occupancy() -> None:
    """LDS of 64 KiB holds slices of 128 B of one tile of 256 x 256, 160 KiB of two, but registers hold the sums of one alone."""
    assert amd_gemm.resident(256, 256, 64 * 1024, 131072) == amd_gemm.resident(256, 256, 160 * 1024, 131072) == 1
    assert [amd_gemm.resident(128, 128, size * 1024, 131072) for size in (64, 160)] == [2, 4]
    assert (128, 512) in amd_gemm.tiles("aiter-blockscale", "mxfp4")
    assert (256, 512) not in amd_gemm.tiles("aiter-blockscale", "mxfp4")
    assert max(amd_gemm.tiles("aiter-blockscale", "fp8")) == (128, 128)


def test_what_is_not_timed_is_never_fastest() -> None:
    """The plans left over hold the fastest of all, whatever the parameters."""
    rng = random.Random(0)
    for _ in range(60):
        device, dtype = rng.choice([(MI300X, "bf16"), (MI355X, "fp8"), (MI355X, "mxfp4")])
        name = "aiter-blockscale" if dtype == "mxfp4" else "aiter"
        w = product(*(rng.randint(1, 2 ** rng.randint(2, 13)) for _ in range(2)), 32 * rng.randint(1, 300), dtype)
        p = {key: value * 2 ** rng.uniform(-2, 1) for key, value in P.items()}
        every = [amd_gemm.fastest(Case(w, name, launch={"br": br, "bc": bc}), device, p)[0] for br, bc in amd_gemm.tiles(name, dtype)]
        assert amd_gemm.fastest(Case(w, name), device, p)[0] == pytest.approx(min(every), rel=1e-12)


# Who predicts what


@pytest.mark.parametrize(
    ("name", "implementation", "dtypes"),
    [
        ("amd-gemm", "aiter", {"bf16", "fp16"}),
        ("amd-gemm-fp8", "aiter", {"fp8"}),
        ("amd-gemm-int8", "aiter", {"int8"}),
        ("amd-gemm-blockscale", "aiter-blockscale", {"fp8"}),
        ("amd-gemm-mxfp4", "aiter-blockscale", {"mxfp4"}),
    ],
)
def test_each_format_has_a_model(name: str, implementation: str, dtypes: set[str]) -> None:
    model = find_model(name)
    assert {dtype for dtype in PRODUCTS if model.covers(Case(product(64, 64, 64, dtype), implementation))} == dtypes
    assert not model.covers(Case(product(64, 64, 64, min(dtypes)), implementation, "backward"))
    assert model in models_of()[implementation]
    assert model.starts().keys() == P.keys()


BLOCK = Calibration(
    "aiter", "matmul", "amd-gemm", ["bf16"], P, 100, 0.9, 1.1, "records", "2026-01-01", "x", borrowed_low=0.7, borrowed_high=1.4
)


def asked(implementation: str, device: Device, *others: Device) -> Prediction:
    w = product(4096, 4096, 4096, "bf16")
    return predict(TimeRequest(Case(w, implementation), "matmul", "bf16", device, 1e-9, lambda: others))


def test_other_libraries_borrow_from_aiter() -> None:
    """Products of hipBLASLt, HipKittens and PyTorch take AITER's time with the interval of another device; no NVIDIA device does."""
    own = replace(MI355X, calibration=[BLOCK])
    known = asked("aiter", own)
    assert (known.kind, known.high / known.seconds) == (CALIBRATED, pytest.approx(1.1))
    for name in ("hipblaslt", "hipkittens", "torch-matmul"):
        lent, far = asked(name, own), asked(name, replace(MI300X, calibration=[]), own)
        assert (lent.kind, lent.seconds, lent.high / lent.seconds) == (BORROWED, known.seconds, pytest.approx(1.4))
        assert far.kind == BORROWED
        assert far.seconds > known.seconds
        assert is_variant(name, "aiter")
    assert not calibrations(own, "attention", "bf16", Case(product(64, 64, 64, "bf16"), "hipkittens"))
    with pytest.raises(UnavailableError):
        asked("hipkittens", replace(find_device("nvidia-h200-sxm"), calibration=[]), own)
