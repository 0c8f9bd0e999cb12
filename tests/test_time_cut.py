"""Kernels on a device whose tensor rate was cut (H20): what the cut slows down, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.architectures import tensor_share
from perfmodel.core.dtypes import DTYPES
from perfmodel.kernels.latent_decode import LatentDecode
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.models import xe_attention
from perfmodel.timing.models.gemm import fastest
from perfmodel.timing.predict import TimeRequest, predict
from perfmodel.timing.transfer import watts_per_clock
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.records import as_record

H20, H100, B60 = (find_device(name) for name in ("nvidia-h20-sxm-96gb", "nvidia-h100-sxm-80gb", "intel-arc-pro-b60"))
FP8 = DTYPES["fp8"]
BLOCKS = {name: prior.start for name, prior in find_model("fp8-block-scaled").priors().items()}


def test_only_a_cut_rate_is_a_share() -> None:
    assert tensor_share(H20) == pytest.approx(148e12 / (4096 * 78 * 1.83e9))
    assert tensor_share(H100) == tensor_share(find_device("nvidia-b200-sxm")) == tensor_share(B60) == 1
    assert watts_per_clock(H20) is None, "it draws less than its limit"


def test_block_scaled_products_have_one_tile() -> None:
    """Few rows cost as much as 128: 56 tiles of 128 columns on 78 multiprocessors, one each."""
    one, most = (fastest(Case(Matmul(m, 7168, 4096, dtype=FP8), "fp8-block-scaled"), H20, BLOCKS) for m in (16, 128))
    assert (one[1].br, one[1].bc, one[1].parts) == (128, 128, 1)
    assert one[1].flops == most[1].flops == 2 * 128 * 128 * 4096
    assert one[0] == pytest.approx(40.9e-6, rel=0.1), "zksainx/pipeweave: 40.9 us"


def test_a_cut_rate_does_not_slow_the_l2_or_throttle() -> None:
    loads = {**BLOCKS, "multiply_share": 1e6, "wait_cycles": 1e-9}
    large = Case(Matmul(16384, 8192, 8192, dtype=FP8), "fp8-block-scaled")
    whole = replace(H20, peaks=replace(H20.peaks, tensor={k: replace(q, number=4 * q.number) for k, q in H20.peaks.tensor.items()}))
    unthrottled = {**loads, "throttle": 1e-9}
    assert fastest(large, H20, loads)[0] == fastest(large, H20, unthrottled)[0]
    assert (
        fastest(large, whole, loads)[0]
        > fastest(large, whole, unthrottled)[0]
        == pytest.approx(fastest(large, H20, unthrottled)[0], rel=0.02)
    )


def test_flashmla_on_an_h20() -> None:
    """deepseek-ai/FlashMLA issue 30: 16 heads, and 64 with drafted tokens."""
    for heads, n, kv_len, ms in ((16, 1, 4096, 0.601), (16, 5, 4096, 1.168), (64, 6, 8192, 6.748)):
        w = LatentDecode(batch=128, heads=heads, n=n, kv_len=kv_len, kv_lora_rank=512, rope=64, appends=False, dtype=DTYPES["bf16"])
        found = predict(TimeRequest(Case(w, "flashmla"), "latent-attention", "bf16", H20, 0.0, calibrated_devices))
        assert found.seconds * 1e3 == pytest.approx(ms, rel=0.1)


@pytest.mark.parametrize(("n", "kv_len", "ms"), [(2048, 2048, 3.7375), (1, 8, 0.116)])
def test_attention_of_an_arc(n: int, kv_len: int, ms: float) -> None:
    batch, heads, kv_heads = (2, 96, 8) if n > 1 else (128, 48, 8)
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len, "d": 128, "causal": n > 1}
    line = {"workload": "attention", "implementation": xe_attention.VLLM_XPU, "hardware": B60.id, "dtype": "bf16", "pass": "forward"}
    case, lower, _ = evaluated(as_record({**line, "shape": shape, "time_s": {"median": ms * 1e-3}, "source": "aiconfigurator"}), B60)
    assert case is not None
    assert lower is not None
    found = predict(TimeRequest(case, "attention", "bf16", B60, lower))
    assert found.seconds * 1e3 == pytest.approx(ms, rel=0.2)
    assert lower <= found.low < found.high
