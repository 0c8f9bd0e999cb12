"""Kernels of published tables on devices that no table is of: what a rate of the device changes, whose parameters are taken, how wide."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import log

import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.engine import joined
from perfmodel.timing.intervals import SAME_ARCHITECTURE
from perfmodel.timing.predict import BORROWED, CALIBRATED, TimeRequest, predict
from perfmodel.validation.calibrate import _with_model_width
from perfmodel.validation.statistics import Residual

GB200, GB300, H100, H200 = (find_device(f"nvidia-{name}") for name in ("gb200", "gb300", "h100-sxm-80gb", "h200-sxm"))
LONG = 1 << 17


@cache
def fallbacks():
    return calibrated_devices()


def published_s(device, dtype="fp8", direction=BACKWARD, **p):
    """Of so many keys that blocks and bytes do not count."""
    w = Attention(LONG, LONG, 128, 128, 1, 16, 16, DTYPES[dtype])
    known = {"block_cycles": 1e-3, "matmul": 1.0, "softmax": 1.0, "dram": 1e-3}
    return find_model("cudnn-published").seconds(Case(w, "cudnn-attention-mxfp8", direction), device, {**known, **p})


def predicted(device, implementation, direction=FORWARD, dtype="bf16", n=4096):
    w = Attention(n, n, 128, 128, 4, 16, 16, DTYPES[dtype])
    return predict(TimeRequest(Case(w, implementation, direction), "attention", dtype, device, 0.0, fallbacks))


def test_only_exponentials_are_faster_where_exponentials_are():
    """A tile of 128 x 128 backward: 1280 cycles of matmuls; twice 32,768 of other work, of which 16,384 are exponentials."""
    ours, theirs = 65536 / 16, 16384 / 32 + 49152 / 16
    expected = ((1280**3 + theirs**3) / (1280**3 + ours**3)) ** (1 / 3)
    assert published_s(GB300, softmax=2.0) / published_s(GB200, softmax=2.0) == pytest.approx(expected, rel=0.01)


def test_all_of_a_forward_tile_with_one_exponential_per_score_is():
    """256 x 128: 1024 cycles of matmuls, whose reads take 512; 32,768 exponentials: 2048 cycles, and half of that."""
    expected = joined(3, 1024, 1024) / joined(3, 1024, 2048)
    assert published_s(GB300, direction=FORWARD) / published_s(GB200, direction=FORWARD) == pytest.approx(expected, rel=0.01)


def test_no_fit_can_do_without_the_matmuls():
    assert published_s(GB200, matmul=1e-6) == published_s(GB200, matmul=1.0) < published_s(GB200, matmul=1.5)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_cudnn_is_one_kernel_by_its_own_api_and_by_pytorch(direction):
    """In another version: as long, but less sure. Where it was timed by its own API, it is as sure as others."""
    ours, by_pytorch = (predicted(H200, name, direction) for name in ("cudnn-attention", "torch-sdpa-cudnn"))
    assert (ours.kind, ours.seconds) == (BORROWED, by_pytorch.seconds)
    assert ours.low < 0.8 * ours.seconds < by_pytorch.low
    assert predicted(GB200, "cudnn-attention", direction).kind == CALIBRATED


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_a_device_lends_its_kernel_to_one_byte_elements_before_others_do(direction):
    found = predicted(H200, "cudnn-attention", direction, "fp8")
    assert (found.kind, found.provenance) == (BORROWED, f"the kernel of torch-sdpa-cudnn, borrowed from {H200.id}: no calibration of fp8")
    two = predicted(H200, "torch-sdpa-cudnn", direction)
    assert two.seconds / 2 < found.seconds < two.seconds
    assert found.high / found.low > two.high / two.low


def test_where_it_was_timed_in_one_byte_that_is_taken():
    assert predicted(H100, "cudnn-attention", FORWARD, "fp8").kind == CALIBRATED
    assert "nvidia-h100-sxm-80gb" in predicted(H200, "fa3", FORWARD, "fp8").provenance  # no other kernel of it is in two bytes alike


def test_a_published_row_says_less_of_another_device_than_an_own_measurement():
    """Even of the same architecture: the interval is that of a kernel borrowed across architectures, by a copy measured there if one is."""
    for name, direction, dtype in (("fa3", BACKWARD, "fp16"), ("fa3", FORWARD, "fp8")):
        block = predicted(H200, name, direction, dtype).calibration
        assert find_model(block.model).from_tables
        assert block.probed_high > block.high**SAME_ARCHITECTURE
        for device, low, high in (
            (H200, block.probed_low, block.probed_high),
            (replace(H200, microbenchmarks=[]), block.borrowed_low, block.borrowed_high),
        ):
            found = predicted(device, name, direction, dtype)
            assert found.high / found.seconds == pytest.approx(high)
            assert found.low / found.seconds == pytest.approx(low)


@pytest.mark.parametrize(
    ("model", "shapes", "expected"), [("fa3-few", 4, (0.8, 1.25)), ("fa3-few", 10, (0.99, 1.01)), ("gemm", 4, (0.99, 1.01))]
)
def test_few_rows_of_a_table_are_as_sure_as_all_kernels_of_their_model(model, shapes, expected):
    block = replace(H100.calibration[0], model=model, low=0.99, high=1.01)
    own = [Residual(0.0, str(group)) for group in range(shapes)]
    alike = [Residual(sign * log(1.25), f"{group} {sign}") for sign in (-1, 1) for group in range(40)]
    found = _with_model_width(block, own, alike)
    assert (found.low, found.high) == pytest.approx(expected, rel=0.03)
