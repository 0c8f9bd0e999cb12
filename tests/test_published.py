"""Measurements of papers, blogs and repositories as records: figures as printed, bounds, and what is calibrated on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.arith import quantile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Attention
from perfmodel.timing.base import Case, model_of
from perfmodel.timing.models import cudnn, triton_attention
from perfmodel.validation.compare import RecordRow, compare_files
from perfmodel.validation.records import held_out, shipped_records

PATHS = shipped_records("published")
GB200, B200, H100 = "nvidia-gb200", "nvidia-b200-sxm", "nvidia-h100-sxm-80gb"
A100_40, A100_80 = "nvidia-a100-sxm-40gb", "nvidia-a100-sxm-80gb"


@cache
def rows() -> list[RecordRow]:
    return compare_files(PATHS, find_device)


def test_devices_and_counts():
    counts = Counter(row.record.hardware for row in rows())
    assert counts == {
        A100_40: 83,
        A100_80: 111,
        H100: 230,
        B200: 193,
        GB200: 436,
        "nvidia-gb300": 86,
        "nvidia-h20-sxm-96gb": 24,
        "nvidia-h800-sxm-80gb": 29,
    }


def test_they_are_small():
    assert sum(path.stat().st_size for path in PATHS) < 400_000


def test_every_record_has_a_bound_and_keeps_it():
    assert all(row.lower_s is not None for row in rows()), {row.reason for row in rows()}
    assert [row.raw for row in rows() if row.violates] == []


def test_bounds_are_not_empty():
    """Of each kind of kernel, some come near enough to their bound for a slip of a factor of two to be seen."""
    nearest: Counter[str] = Counter()
    for row in rows():
        nearest[row.record.workload] = max(nearest[row.record.workload], row.share_of_bound)
    assert nearest["attention"] > 0.7
    assert nearest["matmul"] > 0.8
    assert nearest["norm"] > 0.4  # GB200's L2 keeps half of the largest


def test_sources_are_named():
    assert all(row.record.source for row in rows())
    assert all(row.record.cache is None for row in rows()), "none of them says whether caches were flushed"


def square(batch, heads, n, d, causal, **more):
    return {"batch": batch, "heads": heads, "kv_heads": heads, "n": n, "kv_len": n, "d": d, "causal": causal, **more}


MATMULS = 4  # FLOP per score and head dim of the two matmuls of a forward pass; half with a causal mask
PRINTED = [
    # seconds as the source prints them, or FLOP by its own convention over the FLOP/s that it prints
    (A100_80, "fa2", "both", "fp16", square(32, 32, 512, 64, False), 3.5 * MATMULS * 32 * 32 * 512**2 * 64 / 132e12),
    (H100, "fa3", "forward", "fp8", square(32, 8, 512, 256, True), MATMULS * 32 * 8 * 512**2 * 256 / 2 / 329e12),
    (B200, "triton-attention", "forward", "fp16", square(4, 32, 1024, 64, True), MATMULS * 4 * 32 * 1024**2 * 64 / 2 / 198.28e12),
    (A100_40, "fa1", "backward", "fp16", square(16, 8, 128, 64, False, dropout=0.1), 0.15e-3),
    (GB200, "cudnn-attention", "forward", "bf16", square(2, 128, 32768, 192, True, dv=128), 50.456e-3),
    (GB200, "cudnn-attention-mxfp8", "backward", "fp8", square(2, 128, 32768, 64, True, window=128), 108.37e-3),
    (H100, "tilelang", "forward", "fp16", {"m": 8192, "n": 8192, "k": 256}, 0.089056e-3),
    (A100_80, "bitblas-gemv", "forward", "fp16", {"m": 1, "n": 16384, "k": 16384}, 0.303e-3),
    (GB200, "cudnn-rms-norm", "forward", "bf16", {"rows": 16384, "cols": 4096, "kind": "rmsnorm"}, 2 * 16384 * 4096 * 2 / 6424.6e9),
    (GB200, "cudnn-rms-norm", "backward", "bf16", {"rows": 16384, "cols": 4096, "kind": "rmsnorm"}, 3 * 16384 * 4096 * 2 / 6187.3e9),
]


@each(("hardware", "implementation", "direction", "dtype", "shape", "time_s"), PRINTED)
def test_times_are_those_printed(hardware, implementation, direction, dtype, shape, time_s):
    wanted = (hardware, implementation, direction, dtype, shape)
    found = [
        row.record.time_s.median
        for row in rows()
        if (row.record.hardware, row.record.implementation, row.record.direction, row.record.dtype, row.record.shape) == wanted
    ]
    assert found == [pytest.approx(time_s, rel=1e-5)]


CALIBRATED = [
    (B200, "fa2", "forward"),
    (B200, "triton-attention", "forward"),
    (B200, "triton-tileir", "forward"),
    (GB200, "cudnn-attention", "forward"),
    (GB200, "cudnn-attention", "backward"),
    (GB200, "cudnn-attention-deterministic", "backward"),
    (GB200, "cudnn-attention-mxfp8", "forward"),
    (GB200, "cudnn-attention-mxfp8", "backward"),
    (GB200, "cudnn-attention-mxfp8-deterministic", "backward"),
]


@pytest.mark.parametrize(("hardware", "implementation", "direction"), CALIBRATED)
def test_held_out_errors(hardware, implementation, direction):
    errors = [
        abs(row.error)
        for row in rows()
        if (row.record.hardware, row.record.implementation, row.record.direction) == (hardware, implementation, direction)
        and row.error is not None
        and held_out(row.record)
    ]
    assert len(errors) >= 12
    assert quantile(errors, 0.5) <= 0.10
    assert quantile(errors, 0.9) <= 0.20


def case(n=2048, direction="forward", implementation="cudnn-attention", dtype="bf16", d=128, **more):
    return Case(Attention(n=n, kv_len=n, d=d, dv=128, heads=8, kv_heads=8, dtype=DTYPES[dtype], **more), implementation, direction, False)


def test_what_the_model_covers():
    covers = cudnn.covers_published
    assert covers(case())
    assert covers(case(direction="backward"))
    assert not covers(case(direction="both"))
    assert not covers(case(n=1))
    assert covers(case(d=192))
    assert not triton_attention.covers(case(d=192, implementation="triton-attention"))
    assert not covers(case(dropout=0.1))
    assert covers(case(direction="backward", causal=True, window=128))
    assert covers(case(dtype="fp8", causal=True, window=128))
    assert not covers(case(direction="backward", dtype="fp8", causal=True, window=128))


@pytest.mark.parametrize(("batch", "cold"), [(1, False), (64, True)])
def test_tensors_larger_than_the_caches_come_from_memory(batch, cold):
    device = find_device(GB200)
    one = case()
    one = replace(one, workload=replace(one.workload, batch=batch))
    model = model_of(one)
    times = {state: model.seconds(replace(one, cache=state), device, model.starts()) for state in ("clean", "")}
    assert (times[""] == times["clean"]) is cold
    assert times[""] <= times["clean"]
