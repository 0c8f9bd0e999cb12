"""Accuracy is kept for experts, compressed caches and fp8: shipped calibrations against public records that no fit saw."""

from __future__ import annotations

from functools import cache

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.arith import quantile
from perfmodel.validation.compare import RecordRow, compare_files
from perfmodel.validation.records import held_out, shipped_records

A100, H100, H200, B200 = "nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm", "nvidia-b200-sxm"
TABLES = ("public-moe", "public-latent-attention", "public-fp8-matmul", "public-fp8-cache")


@cache
def rows() -> list[RecordRow]:
    return list(compare_files(shipped_records(*TABLES), find_device))


def own(hardware: str, group: str) -> list[RecordRow]:
    """Held-out rows of a device and group."""
    return [row for row in rows() if (row.record.hardware, row.record.group) == (hardware, group) and held_out(row.record)]


MLA, LINEAR, CACHE = (
    "latent-attention/trtllm-mla/forward",
    "matmul/trtllm-fp8-linear/forward",
    "attention/vllm-flash-attn-fp8-cache/forward",
)
TRITON, TRTLLM = "moe/triton-moe/forward", "moe/trtllm-moe/forward"
TARGETS = [
    *((name, MLA, 0.10) for name in (A100, H100, H200, B200)),
    *((name, TRITON, 0.10) for name in (A100, H100, H200)),
    (B200, TRTLLM, 0.10),
    *((name, LINEAR, 0.07) for name in (H100, H200, B200)),
    *((name, CACHE, 0.10) for name in (H100, H200, B200)),
]
MISSED = {(B200, TRTLLM): "13.3 %: tiles of 8 to 16 rows stream slower than smaller ones, which the model does not know"}


@pytest.mark.parametrize(("hardware", "group", "median"), TARGETS, ids=str)
def test_held_out_errors(hardware, group, median, request):
    if (hardware, group) in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[hardware, group], strict=True))
    found = own(hardware, group)
    assert len(found) >= 35
    assert quantile([abs(row.error) for row in found], 0.5) <= median


def test_every_row_has_a_bound_that_it_keeps_and_a_prediction():
    assert len(rows()) <= 2000
    assert [row.reason for row in rows() if row.lower_s is None or row.prediction is None] == []
    assert not any(row.violates for row in rows())


def test_no_prediction_is_below_its_bound():
    assert all(row.prediction.low >= row.lower_s * (1 - 1e-12) for row in rows())


@each(("hardware", "group"), sorted({(hardware, group) for hardware, group, _ in TARGETS}))
def test_intervals_cover_most(hardware, group):
    found = own(hardware, group)
    assert 0.65 <= sum(bool(row.covered) for row in found) / len(found) <= 0.95


def test_experts_are_better_known_than_as_equal_matmuls():
    """The same layers as that many equal matmuls by cuBLAS: what is predicted where no experts are calibrated."""
    from perfmodel.kernels.matmul import Matmul
    from perfmodel.timing.base import Case
    from perfmodel.timing.predict import TimeRequest, predict

    device, worse = find_device(H100), []
    for row in own(H100, TRITON):
        w = row.case.workload
        if w.dtype.size == 2:
            rows_each = -(-w.rows // w.touched)
            up, down = ((2 * w.width, w.hidden), (w.hidden, w.width))
            made = sum(
                predict(TimeRequest(Case(Matmul(rows_each, n, k, w.touched), "cublas"), "matmul", "bf16", device, 0.0)).seconds
                for n, k in (up, down)
            )
            worse.append(abs(made / row.record.time_s.median - 1))
    assert quantile(worse, 0.5) > 1.5 * quantile([abs(row.error) for row in own(H100, TRITON)], 0.5)
