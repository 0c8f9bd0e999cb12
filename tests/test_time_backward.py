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
from perfmodel.timing.models._attention_grid import AttentionLaunch, grid_of, key_tiles_visits, main_bytes, side_bytes

H200 = find_device("nvidia-h200-sxm")
MODEL = efficient.MODELS["efficient-backward"]
STARTS = MODEL.starts()
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
    assert efficient.splits(w) == blocks == work_of(w).parts
    if zeroing is not None:
        assert work_of(w).beside - summed(w) == pytest.approx(FILL * zeroing, rel=2e-3, abs=4096)


def test_blocks_take_key_tiles_in_turn() -> None:
    """70 heads of two blocks for 132 slots; three key tiles of two row tiles, causal: key tiles 0 and 2 make one block, 1 the other."""
    found = work_of(attention(70, 1, 1, 192, 192, 256, True))
    assert (found.work.grid.last[-2:], found.work.grid.count, found.tiles) == ((3, 2), 2 * 70, (2 + 1 + 2) / 2)


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
    assert work_of(huge).work.grid.count == huge.query_heads * efficient.splits(huge)
    for name in ("torch-sdpa-flash", "torch-sdpa-cudnn"):
        plan = plan_of(case(huge, name), H200)
        assert grid_of(huge, plan, BACKWARD, 132).count >= huge.query_heads * (10**15 // plan.bc)


def test_a_head_takes_as_many_turns_as_it_has_key_tiles() -> None:
    """307 key tiles and one row tile on 132 slots: heads follow each other, each of 307 turns, whatever a block does besides."""
    found = work_of(attention(3, 3, 3, 24, 39296, 80))
    assert (found.parts, found.rows) == (307, 1)
    assert efficient.waiting_cycles(307, 1, 1.0, 9.0, 100.0, 0.0, 100.0) == 9 * 307 * 100


def test_few_key_tiles_wait_for_no_turn() -> None:
    square = {"parts": 32, "rows": 32, "tiles": 32.0, "heads_in_turn": 4.0, "tile": 100.0, "block": 0.0}
    assert efficient.waiting_cycles(**square, turn=100.0) == 0  # as many rows as keys: all find a row tile
    assert efficient.waiting_cycles(**square, turn=300.0) > 0
    assert efficient.waiting_cycles(**{**square, "parts": 1}, turn=1e9) == 0  # one block is alone with its head's dQ


def test_row_sums_cost_by_rows_and_not_by_tiles() -> None:
    """A block sums O dO over all rows of its head: of 4,096 rows and head dim 256, 32 row tiles of sixteen loads a thread."""
    one = case(attention(1, 1, 1, 4096, 64, 256))
    more = {**STARTS, "row_cycles": STARTS["row_cycles"] + 1.83e9}  # a second each
    gained = MODEL.seconds(one, H200, more) - MODEL.seconds(one, H200, STARTS)
    assert gained == pytest.approx(32 * 16, rel=1e-3)


@pytest.mark.parametrize("d", [32, 64, 96, 128, 160, 256])
def test_every_head_dim_has_a_time_that_grows(d: int) -> None:
    times = [MODEL.seconds(case(attention(2, 8, 8, n, n, d)), H200, STARTS) for n in (16, 256, 2048)]
    assert times == sorted(times)
    assert times[0] > 0


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


def test_bytes_of_grouped_heads() -> None:
    """In elements of two bytes of 4 query heads, 1 KV head, 256 tokens, head dim 64: each query head has a dK and a dV."""
    w, head = attention(1, 4, 1, 256, 256, 64), 256 * 64 * 2
    plan = plan_of(case(w, "torch-sdpa-flash"), H200)
    assert main_bytes(w, BACKWARD) == head * (4 * 2 + 2 + 4 * 2 + 4 * 2 * 2)  # Q, dO; K, V; dK, dV; dQ in fp32 read and written
    assert side_bytes(w, plan, BACKWARD) == head * (
        4 * 2 + 4 * 2 * 2 + 4 + (4 + 1) * 2
    )  # O, dO; dQ in fp32 zeroed and read; dQ; dK, dV summed


def test_short_heads_zero_whole_row_tiles() -> None:
    """17 rows of head dim 56 are 128 rows of 64 in fp32 for FlashAttention-2."""
    w = attention(1, 1, 1, 17, 17, 56)
    plan = plan_of(case(w, "torch-sdpa-flash"), H200)
    assert side_bytes(w, plan, BACKWARD) == 3 * 17 * 56 * 2 + 2 * 128 * 64 * 4
