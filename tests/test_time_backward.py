"""Backward passes of fused attention: launches beside those that a profiler showed (PyTorch 2.11 on an H200), and times by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import DIRTY, Case, model_of
from perfmodel.timing.launched import plan_of
from perfmodel.timing.models import efficient
from perfmodel.timing.models._attention_grid import AttentionLaunch, grid_of, key_tiles_visits

H200 = find_device("nvidia-h200-sxm")
FILL = 2048
"""Bytes that a block of PyTorch's fill kernel sets to zero."""


def attention(batch: int, heads: int, kv_heads: int, n: int, kv_len: int, d: int, causal: bool = False) -> Attention:
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len, "d": d, "dv": d}
    return Attention(**sizes, causal=causal, dtype=DTYPES["bf16"])


def case(w: Attention, implementation: str = "torch-sdpa-efficient") -> Case:
    return Case(w, implementation, BACKWARD)


def work_of(w: Attention) -> efficient._Backward:
    return efficient._backward(case(w), H200)


def summed(w: Attention) -> int:
    """Bytes of the sums of dK and dV over grouped heads."""
    return (w.group > 1) * (w.group + 1) * w.stored_kv_heads * w.kv_len * 2 * w.d * 2


@pytest.mark.parametrize(
    ("w", "blocks", "zeroing"),
    [
        (attention(8, 1, 1, 514, 514, 32), 9, 577),
        (attention(28, 15, 15, 128, 128, 64), 1, 0),  # 420 heads of two key tiles
        (attention(16, 8, 8, 512, 512, 64), 8, None),
        (attention(37, 9, 9, 4096, 2, 64), 1, 0),
        (attention(49, 1, 1, 1472, 1472, 112, True), 12, 18821),
        (attention(15, 2, 2, 1472, 1472, 192, True), 6, 28809),  # 200 // 30
        (attention(12, 7, 7, 147, 147, 256, True), 2, 21510),
        (attention(14, 29, 29, 1024, 1024, 224), 1, 0),
    ],
)
def test_blocks_of_a_head_and_bytes_zeroed_are_those_profiled(w: Attention, blocks: int, zeroing: int | None) -> None:
    """Grids of fmha_cutlassB and of the kernel before it; locks beside the sums of dQ are a few blocks of it."""
    assert efficient.blocks_of_head(w) == blocks == work_of(w).blocks
    if zeroing is not None:
        assert work_of(w).side_bytes - summed(w) == pytest.approx(FILL * zeroing, rel=2e-3, abs=4096)


@each("step", [1, 3, 20])
@each("window", [None, 1, 33, 700])
@each(("n", "kv_len"), [(500, 500), (130, 700), (700, 130)])
def test_key_tiles_in_turn_visit_what_each_of_them_does(n: int, kv_len: int, window: int | None, step: int) -> None:
    w, plan = replace(attention(1, 2, 1, n, kv_len, 64, True), window=window), AttentionLaunch(48, 32)
    each = [key_tiles_visits(w, plan, j, 10**6) for j in range(-(-kv_len // 32))]
    assert [key_tiles_visits(w, plan, first, step) for first in range(step)] == [sum(each[first::step]) for first in range(step)]


@pytest.mark.parametrize("d", [64, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_backward_passes_beyond_any_machine_word_are_predicted_at_once(d: int, causal: bool) -> None:
    huge = attention(10**15, 10**15, 10**15, 10**15, 10**15, d, causal)
    assert work_of(huge).work.grid.count == huge.query_heads * efficient.blocks_of_head(huge)
    for name in ("torch-sdpa-flash", "torch-sdpa-cudnn"):
        plan = plan_of(case(huge, name), H200)
        assert grid_of(huge, plan, BACKWARD, 132).count >= huge.query_heads * (10**15 // plan.bc)


def test_which_model_describes_a_backward_pass() -> None:
    w = attention(2, 8, 8, 512, 512, 192)
    found = {name: model_of(case(w, name)).name for name in ("torch-sdpa-efficient", "xformers", "torch-sdpa-flash", "torch-sdpa-cudnn")}
    assert list(found.values()) == ["efficient-backward", "efficient-backward", "fa2-backward", "cudnn-backward"]
    assert model_of(Case(w, "torch-sdpa-efficient", FORWARD)).name == "efficient-forward"
    assert model_of(replace(case(w), cache=DIRTY)).name == "efficient-backward"


@pytest.mark.parametrize(
    ("w", "blocks"),
    [
        (attention(1, 5, 1, 1024, 336, 128), 15),
        (attention(1, 22, 11, 187, 187, 40), 44),
        (attention(1, 6, 6, 16384, 32, 256), 12),  # wide heads: two key tiles where one would do
        (attention(2, 8, 2, 309, 309, 192), 96),
        (attention(1, 56, 7, 64, 64, 256, True), 112),
    ],
)
def test_cudnn_launches_the_blocks_profiled(w: Attention, blocks: int) -> None:
    assert grid_of(w, plan_of(case(w, "torch-sdpa-cudnn"), H200), BACKWARD, 132).count == blocks
