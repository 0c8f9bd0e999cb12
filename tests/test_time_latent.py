"""Decode over a compressed or a narrow cache, and fp8 linear layers: workloads, bounds, time models, rows of a transformer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.catalog import find_model as find_transformer
from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.kernels.latent_decode import LatentDecode, flops
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.case_bounds import lower_bound_s
from perfmodel.timing.models import latent_attention
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.op import linear
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.step import decode, prefill
from perfmodel.validation.bounds import case_of
from perfmodel.validation.records import as_record

H200, A100, B200 = (find_device(name) for name in ("nvidia-h200-sxm", "nvidia-a100-sxm-80gb", "nvidia-b200-sxm"))
P = latent_attention.MODEL.starts()
W = LatentDecode(64, 128, 4096)


def time_of(w=W, device=H200, cold=False, **parameters):
    return latent_attention.seconds(Case(w, "trtllm-mla", cache="clean" if cold else "warm"), device, P | parameters)


def test_work_and_bytes_by_hand():
    one = LatentDecode(2, 3, 5, 8, 4)
    assert flops(one) == 2 * 3 * 5 * (2 * 12 + 2 * 8)
    assert one.cache_bytes == 2 * 5 * 12 * 2
    assert {a.tensor: a.compulsory * a.element_size for a in one.kernels(Tile(1, 1))[0].accesses} == {
        "Q": 2 * 3 * 12 * 2,
        "cache": 240,
        "O": 2 * 3 * 8 * 2,
    }
    assert flops(replace(one, n=2)) == 2 * 2 * 3 * (4 + 5) * 20


def test_8_bit_caches_are_half_as_long_and_multiply_faster():
    narrow = replace(W, kv_bits=8)
    assert narrow.cache_bytes * 2 == W.cache_bytes
    assert narrow.kernels(Tile(1, 1))[0].dtype.name == "fp8"
    assert lower_bound_s(Case(narrow, "trtllm-mla"), H200) < lower_bound_s(Case(W, "trtllm-mla"), H200)


def test_what_has_no_meaning():
    with pytest.raises(UsageError, match="kv-len"):
        replace(W, kv_len=0).check()


def test_kernels_that_other_rows_hold_are_left_out():
    assert time_of(replace(W, appends=False)) < time_of()


def test_a_device_that_does_not_multiply_8_bits():
    with pytest.raises(UnavailableError, match="8 bits"):
        time_of(replace(W, kv_bits=8), A100)


def test_coverage():
    covers = find_model("latent-attention").covers
    assert covers(Case(W, "trtllm-mla"))
    assert covers(Case(replace(W, n=4), "trtllm-mla"))  # drafted tokens are rows of the same tiles
    assert not covers(Case(replace(W, n=64), "trtllm-mla"))
    assert not covers(Case(replace(W, kv_bits=4), "trtllm-mla"))


# Linear layers in fp8


def test_fp8_linear_is_for_fp8_alone():
    covers = find_model("fp8-linear").covers
    assert covers(Case(Matmul(1, 2, 3, dtype=DTYPES["fp8"]), "trtllm-fp8-linear"))
    assert not covers(Case(Matmul(1, 2, 3), "trtllm-fp8-linear"))


def test_8_bit_weights_ask_for_fp8_linear():
    op = linear("x", decode(4, 10, weight_bits=8), 4, 64, 32)
    assert (op.timed.implementations, op.timed.workload.dtype.name, op.kernel.dtype.name) == (("trtllm-fp8-linear",), "fp8", "fp16")
    assert linear("x", decode(4, 10), 4, 64, 32).timed.implementations == ("torch-matmul", "cublas", "xla")


# Rows of a transformer

DEEPSEEK, LLAMA = find_transformer("deepseek-v3"), find_transformer("llama-3-8b")


def attention_of(model, step):
    return next(op for op in step_ops(model, step) if op.name == "attention")


def test_latent_rows_have_the_bytes_of_their_workload():
    op = attention_of(DEEPSEEK, decode(8, 4096, kv_bits=8))
    w = op.timed.workload
    assert (w.heads, w.kv_len, w.kv_lora_rank, w.rope, w.kv_bits, w.appends) == (128, 4096, 512, 64, 8, False)
    assert op.bytes_of("KV cache") == w.cache_bytes
    assert op.kernel.flops == flops(w)
    assert op.compute_dtype.name == "fp8"


def test_prefill_of_latent_attention_is_plain_attention():
    assert attention_of(DEEPSEEK, prefill(1, 512)).timed.kind == "attention"


def test_narrow_caches_of_grouped_attention():
    op = attention_of(LLAMA, decode(8, 4096, kv_bits=8))
    assert op.timed.workload.kv_bits == 8
    assert op.bytes_of("KV cache") == 8 * 8 * 4096 * 2 * 128
    timed = attention_of(LLAMA, prefill(1, 512, kv_bits=8)).timed  # its own K and V are as wide as Q
    assert (timed.obstacle, timed.similar) == ("", "attention over fp16, with a cache of 8 bits")
    assert "4-bit cache" in attention_of(LLAMA, decode(1, 512, kv_bits=4)).timed.obstacle


@each("device", [H200, B200, find_device("nvidia-h100-sxm-80gb")])
@each(("weight_bits", "kv_bits"), [(16, 16), (8, 16), (16, 8), (8, 8)])
def test_latent_attention_is_predicted_from_here(device, weight_bits, kv_bits):
    step = decode(16, 4096, weight_bits=weight_bits, kv_bits=kv_bits)
    row = next(row for row in run_pass(DEEPSEEK, step, device).rows if row.op.name == "attention")
    assert row.prediction.calibration.implementation == "trtllm-mla"
    assert row.prediction.kind == "calibrated"


def test_records_of_both_caches():
    raw = {"implementation": "x", "hardware": "nvidia-h200-sxm", "dtype": "bf16", "time_s": {"median": 1.0}}
    shape = {"batch": 2, "heads": 16, "n": 1, "kv_len": 64, "kv_lora_rank": 512, "rope": 64, "kv_bits": 8}
    assert case_of(as_record(raw | {"workload": "latent-attention", "shape": shape})).workload == LatentDecode(2, 16, 64, kv_bits=8)
    shape = {"batch": 2, "heads": 16, "kv_heads": 2, "n": 1, "kv_len": 64, "d": 64, "kv_bits": 8}
    assert case_of(as_record(raw | {"workload": "attention", "shape": shape})).workload.kv_bits == 8
    with pytest.raises(UnavailableError, match="lacks tokens"):
        case_of(as_record(raw | {"workload": "moe", "shape": {}}))


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-70b", "gpt-oss-120b"])
def test_drafted_tokens_read_the_cache_with_the_one_before_them(name):
    """Of one sequence in 8 heads or more a KV head: rows of the same tile, up to 64 of them."""
    model = find_transformer(name)
    one, four = (replace(decode(batch=8, kv_len=4096, fused=True), n=n) for n in (1, 4))

    def read(step):
        kernels = [op.kernel for op in step_ops(model, step) if op.name == "attention"]
        return sum(access.elements for kernel in kernels for access in kernel.accesses if access.tensor == "KV cache")

    assert read(one) > 0
    assert read(four) <= (4 if name == "deepseek-v3" else 1) * read(one) * 1.01
