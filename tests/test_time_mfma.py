"""Attention on AMD GPUs: blocks, tiles and kernels beside the main one, by figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.engine import joined
from perfmodel.timing.implementations import kernel_name
from perfmodel.timing.models import mfma
from perfmodel.timing.models._attention_grid import grid_of_walk, keys_walk, rows_walk

MI355X, MI300X = find_device("amd-mi355x"), find_device("amd-mi300x")
UNIT = {"launch_us": 10.0, "block_cycles": 1e-9, "matmul": 1.0, "softmax": 1.0, "dram": 1.3, "masked": 0.5, "ck_step_cycles": 2700.0}
W = Attention(2048, 2048, 128, 128, 16, 16, 16, DTYPES["bf16"])
GROUPED = replace(W, heads=64, kv_heads=8)


def forward_s(implementation, w=W, device=MI355X, p=UNIT):
    return find_model("mfma-forward").seconds(Case(w, implementation), device, p)


def backward_s(implementation, w=W, device=MI355X):
    return find_model("mfma-backward").seconds(Case(w, implementation, BACKWARD), device, UNIT)


def blocks_of(w, implementation, direction, cus):
    """The grid on a device of so many CUs."""
    case = Case(w, implementation, direction)
    launch = mfma.launch_of(case, MI355X)
    rows = replace(w, packed=launch.packed)
    walk = (rows_walk if direction == FORWARD else keys_walk)(rows, launch)
    return grid_of_walk(mfma.in_pairs(walk) if mfma.has_tile_pairs(case) else walk, int(rows.row_heads), launch, cus)


def test_exponentials_are_a_quarter_of_the_vector_rate_and_twice_that_on_cdna4():
    assert MI300X.peaks.exp.number == pytest.approx(304 * 16 * 2.1e9, rel=1e-3)  # 4 SIMDs of 16 lanes, / 4
    assert MI355X.peaks.exp.number == pytest.approx(256 * 32 * 2.4e9, rel=1e-3)


def test_forward_by_hand():
    """8 row tiles of 256 x 256 heads = 2048 blocks, 8 a CU, of 32 key tiles each: 8.4 MFLOP and 16,384 exponentials."""
    flop = 4 * 256 * 64 * 128
    tile = max(flop / 4096, flop * 2 / (2 * 32 * 256)) + 256 * 64 / 32
    moved = 4 * 16 * 16 * 2048 * 128 * 2
    expected = 10e-6 + joined(1.5, 8 * 32 * tile / 2.4e9, 1.3 * moved / 8.192e12)
    assert forward_s("hipkittens") == pytest.approx(expected, rel=1e-5)
    assert forward_s("aiter") == pytest.approx(expected, rel=1e-5)


def test_causal_rows_are_paired_by_aiter_and_listed_by_hipkittens():
    """Of 1024 queries, four row tiles see 4, 8, 12 and 16 key tiles."""
    w = replace(W, n=1024, kv_len=1024, causal=True, batch=1, heads=2, kv_heads=2)
    found = {name: blocks_of(w, name, FORWARD, 256).last for name in ("hipkittens", "aiter")}
    assert found == {"hipkittens": (4, 4, 8, 8, 12, 12, 16, 16), "aiter": (20, 20, 20, 20)}


def test_backward_by_hand():
    """HipKittens: 8 key tiles of 256 x 256 heads = 8 blocks a CU of 32 steps of 64 queries; it moves Q, dO, K, V, dK, dV and dQ twice,
    then O, dO, and dQ twice: every tensor is 134 MB."""
    tensor = 16 * 16 * 2048 * 128 * 2
    tile = 10 * 64 * 256 * 128 / 4096 + 2 * 64 * 256 / 32  # P, then dS
    expected = 10e-6 + 8 * 32 * tile / 2.4e9 + 1.3 * (8 + 4) * tensor / 8.192e12
    assert backward_s("hipkittens") == pytest.approx(expected, rel=1e-5)


def test_the_longest_blocks_of_all_batches_come_first_while_keys_and_values_fit_the_last_cache():
    """2048 keys of 256 KV heads are 256 MiB of K and V, as the Infinity Cache is; 8 key tiles visit 32, 28 ... 4 tiles of queries."""
    blocks = {n: blocks_of(w, "hipkittens", BACKWARD, 1 << 20) for n, w in long_and_longer()}
    assert blocks[2048].last == tuple(each for each in range(32, 0, -4) for _ in range(256))
    assert blocks[4096].last[: 16 * 16 + 1] == (*(each for each in range(64, 0, -4) for _ in range(16)), 64)


def long_and_longer():
    return [(n, replace(W, n=n, kv_len=n, causal=True)) for n in (2048, 4096)]


def test_a_block_takes_all_query_heads_of_a_kv_head_in_hipkittens_alone():
    blocks = {name: blocks_of(GROUPED, name, BACKWARD, 256) for name in ("hipkittens", "aiter-4warps")}
    assert (blocks["hipkittens"].count, max(blocks["hipkittens"].last)) == (16 * 8 * 8, 8 * 32)
    assert (blocks["aiter-4warps"].count, max(blocks["aiter-4warps"].last)) == (16 * 64 * 8, 128)


def test_grouped_heads_of_aiter_took_another_kernel_backward():
    """Three to four times HipKittens' time, as published; single heads and AITER's assembly are not far from it."""
    assert 3 < backward_s("aiter", GROUPED) / backward_s("hipkittens", GROUPED) < 4
    assert backward_s("aiter") < 1.2 * backward_s("hipkittens")
    assert backward_s("aiter-4warps", GROUPED) < 1.3 * backward_s("hipkittens", GROUPED)
    assert kernel_name("aiter-8warps") == "aiter-4warps"


def test_all_of_it_is_read_from_the_profile():
    """The MI300X has 304 CUs of half the matmuls and half the exponentials at 2100 MHz; its 2048 blocks take 7 rounds for 8."""
    compute = {device.id: forward_s("hipkittens", replace(W, n=16384, kv_len=16384), device) - 10e-6 for device in (MI355X, MI300X)}
    assert compute[MI300X.id] / compute[MI355X.id] == pytest.approx(2 * 2400 / 2100 * 54 / 64, rel=0.01)  # ceil(16384 / 304) = 54


@pytest.mark.parametrize("change", [{"d": 192, "dv": 192}, {"window": 64}, {"kv_len": 4096}, {"dtype": DTYPES["fp8"]}, {"dropout": 0.1}])
def test_other_kernels_are_not_covered(change):
    w = replace(W, **change)
    assert not mfma.covers_forward(Case(w, "aiter"))
    assert not mfma.covers_backward(Case(w, "aiter", BACKWARD))


def test_no_nvidia_gpu_runs_them():
    with pytest.raises(UnavailableError, match="kernel for AMD GPUs"):
        forward_s("hipkittens", device=find_device("nvidia-h200-sxm"))
