"""The time model of fused attention: layouts against loops over tiles, hand-worked times, what must be monotone, errors."""

from dataclasses import replace
from math import hypot

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.walk import visited_tiles
from perfmodel.timing.base import Case
from perfmodel.timing.models._flash_blocks import ROUNDS, FlashPlan, blocks_of
from perfmodel.timing.models._flash_plans import IMPLEMENTATIONS, plan_of
from perfmodel.timing.models.flash_prefill import MODEL, covers, seconds

A100, H100, B200 = (find_device(name) for name in ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-b200-sxm"))
STARTS = MODEL.starts()
IDEAL = {"launch_us": 1e-9, "block_cycles": 1e-9, "matmul": 1.0, "softmax": 1e-9, "alone": 1.0, "dram": 1e-9, "side_block_cycles": 1e-9}


def attention(n=1024, d=128, heads=8, kv_heads=8, batch=1, causal=True, kv_len=None, window=None):
    return Attention(
        n=n, kv_len=kv_len or n, d=d, dv=d, batch=batch, heads=heads, kv_heads=kv_heads, dtype=DTYPES["bf16"], causal=causal, window=window
    )


def sees(w, query, key):
    last = query + w.kv_len - w.n
    return not w.causal or (key <= last and (w.window is None or key > last - w.window))


def visits(w, plan, direction):
    """Tiles of each block of one walk, by looking at every score."""
    g = w.group if plan.packed else 1
    pairs = {(row // plan.br, key // plan.bc) for row in range(g * w.n) for key in range(w.kv_len) if sees(w, row // g, key)}
    along = -(-g * w.n // plan.br) if direction == FORWARD else -(-w.kv_len // plan.bc)
    return [sum(pair[direction == BACKWARD] == i for pair in pairs) for i in range(along)]


SMALL = [
    attention(n=40, heads=4, kv_heads=2),
    attention(n=33, kv_len=50, heads=2, kv_heads=2),
    attention(n=50, kv_len=33, heads=2, kv_heads=2),
    attention(n=40, heads=4, kv_heads=2, causal=False),
    attention(n=64, heads=2, kv_heads=1, window=20),
    attention(n=20, kv_len=90, heads=2, kv_heads=1, window=25),
]


@each("w", SMALL)
@each("direction", [FORWARD, BACKWARD])
@each("packed", [False, True])
@each("longest_first", [False, True])
def test_blocks_are_those_of_a_loop_over_all_scores(w, direction, packed, longest_first):
    plan = FlashPlan(16, 8, 16, packed=packed, longest_first=longest_first)
    of_walk = visits(w, plan, direction)
    walks = w.kv_heads if packed else w.heads
    assert list(blocks_of(w, plan, direction, 1000).last) == (of_walk[::-1] if longest_first else of_walk) * walks


def test_sections_advance_their_heads_together():
    w = attention(n=32, heads=3, kv_heads=3, batch=2)
    plan = FlashPlan(16, 16, longest_first=True, group=3, section=2)
    assert blocks_of(w, plan, FORWARD, 100).last == (2, 2, 1, 1, 2, 1) * 2


def test_splits_share_the_tiles_of_a_block():
    w = attention(n=16, kv_len=80, heads=1, kv_heads=1, causal=False)
    assert sorted(blocks_of(w, FlashPlan(16, 16, splits=2), FORWARD, 100).last) == [2, 3]


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_blocks_left_out_are_counted(direction):
    w, plan = attention(n=4096, heads=8, batch=16), FlashPlan(128, 64)
    blocks = blocks_of(w, plan, direction, 16)
    assert len(blocks.last) == ROUNDS * 16
    assert blocks.count == 8 * 16 * (4096 // (128 if direction == FORWARD else 64))
    assert blocks.early_tiles + sum(blocks.last) == 8 * 16 * visited_tiles(w, 128, 64)


@pytest.mark.parametrize(
    ("device", "d", "tile", "resident"),
    [
        (A100, 128, (64, 128), 2),
        (A100, 64, (64, 256), 2),
        (H100, 64, (192, 128), 1),
        (H100, 128, (128, 128), 1),
        (H100, 256, (128, 80), 1),
        (B200, 128, (256, 128), 1),
        (B200, 256, (128, 128), 1),
    ],
)
def test_vllm_tiles(device, d, tile, resident):
    plan = plan_of(Case(attention(d=d), "vllm-flash-attn"), device)
    assert ((plan.br, plan.bc), plan.resident, plan.writes_cache) == (tile, resident, True)


def test_vllm_on_hopper_packs_query_heads_and_splits_few_blocks():
    assert plan_of(Case(attention(heads=16, kv_heads=1), "vllm-flash-attn"), H100).packed
    few = plan_of(Case(attention(n=2048, d=64, heads=1, kv_heads=1), "vllm-flash-attn"), H100)
    assert few.splits == 8  # 11 blocks of 16 key tiles on 132 multiprocessors: two tiles each
    assert plan_of(Case(attention(n=2048, heads=64, kv_heads=64), "vllm-flash-attn"), H100).splits == 1


def test_flash_attention_2_keeps_two_blocks_of_four_warps():
    plan = plan_of(Case(attention(d=128, heads=64, kv_heads=64), "fa2"), A100)
    assert (plan.br, plan.bc, plan.fragment, plan.resident) == (128, 64, 32, 2)
    assert plan_of(Case(attention(d=256), "fa2"), A100).resident == 1


def test_given_tile_comes_first():
    plan = plan_of(Case(attention(heads=64, kv_heads=64), "fa2", launch={"br": 32}), A100)
    assert (plan.br, plan.bc) == (32, 64)


def test_a_full_device_runs_at_the_tensor_peak_less_the_feeding():
    w = attention(n=4096, d=128, heads=132, kv_heads=132, causal=False)  # 32 row tiles a head: 32 even rounds on 132 places
    flop = 4 * 132 * 4096 * 4096 * 128
    case = Case(w, "fa3", launch={"br": 128, "bc": 128})
    fed = hypot(1 / 4096, 2 / (2 * 64 * 128))  # wgmma: 64 rows for each two-byte element read at 128 B a cycle (33.45 TB/s, rounded)
    assert seconds(case, H100, IDEAL) == pytest.approx(flop * fed / (132 * 1.83e9), rel=1e-3)


def test_one_block_costs_its_latency_and_its_tiles():
    w = attention(n=128, kv_len=256, d=128, heads=1, kv_heads=1, causal=False)
    matmul = hypot(1 / 4096, 2 / (2 * 64 * 128)) * 4 * 128 * 128 * 128
    tile = ((STARTS["matmul"] * matmul) ** 3 + (STARTS["softmax"] * 128 * 128 / 16) ** 3) ** (1 / 3)
    cycles = STARTS["block_cycles"] + 2 * tile
    case = Case(w, "fa3", launch={"br": 128, "bc": 128})
    assert seconds(case, H100, STARTS) == pytest.approx(STARTS["launch_us"] * 1e-6 + cycles / 1.83e9, rel=1e-3)


def test_sizes_beyond_any_machine_word_are_predicted_at_once():
    huge = attention(n=10**15, heads=10**15, kv_heads=10**15, batch=10**15)
    assert all(seconds(Case(huge, name), H100, STARTS) > 1e40 for name in IMPLEMENTATIONS)


def test_two_resident_blocks_alone_on_their_multiprocessors_are_faster():
    def main(heads):
        case = Case(attention(n=128, kv_len=4096, heads=heads, kv_heads=heads, causal=False), "fa2")
        return seconds(case, A100, {**IDEAL, "alone": 1.25})

    assert main(216) == pytest.approx(main(108) * 2 / 1.25, rel=1e-6)


def test_backward_multiplies_five_matrices_to_the_forwards_two():
    w = attention(n=4096, heads=108, kv_heads=108, causal=False)
    tile = {"br": 128, "bc": 128}
    forward, backward = (seconds(Case(w, "torch-sdpa-cudnn", direction, launch=tile), H100, IDEAL) for direction in (FORWARD, BACKWARD))
    assert backward == pytest.approx(2.5 * forward, rel=1e-6)


def test_copying_k_and_v_into_the_cache_takes_the_larger_of_bytes_and_blocks():
    wide, narrow = attention(n=8192, heads=64, kv_heads=64, batch=4), attention(n=128, heads=4, kv_heads=4, batch=256)
    slow_dram, slow_blocks = {**STARTS, "dram": 2 * STARTS["dram"]}, {**STARTS, "side_block_cycles": 1e5}
    for w, slow in ((wide, slow_dram), (narrow, slow_blocks)):
        assert seconds(Case(w, "vllm-flash-attn"), A100, slow) > seconds(Case(w, "vllm-flash-attn"), A100, STARTS)
    assert seconds(Case(narrow, "fa2"), A100, slow_blocks) == seconds(Case(narrow, "fa2"), A100, STARTS)


def has_kernel(name, direction, device):
    try:
        plan_of(Case(attention(), name, direction), device)
    except UnavailableError:
        return False
    return covers(Case(attention(), name, direction))


PASSES = [
    (device, name, direction)
    for device in (A100, H100, B200)
    for name in IMPLEMENTATIONS
    for direction in (FORWARD, BACKWARD)
    if has_kernel(name, direction, device)
]


@each(("device", "implementation", "direction"), PASSES)
def test_more_work_never_takes_less_time(device, implementation, direction):
    """Masks cost time, too, which outweighs half the tiles in blocks of a few: 9.9 us with a causal mask, 9.3 without, measured of cuDNN
    on an H200 (8 x 8 heads of 128 tokens of 128 numbers)."""

    def time(w):
        return seconds(Case(w, implementation, direction), device, STARTS)

    small = attention(n=1024, d=64, heads=16, kv_heads=4, batch=4)
    long = replace(small, n=8192, kv_len=8192)
    for w, more in ((small, replace(small, batch=16)), (small, long), (long, replace(long, causal=False))):
        assert time(more) >= time(w) > STARTS["launch_us"] * 1e-6


@pytest.mark.parametrize("name", STARTS)
def test_every_parameter_counts_and_none_speeds_up(name):
    cases = [Case(attention(n=256, batch=64, kv_heads=2), "vllm-flash-attn"), Case(attention(n=128, heads=2, kv_heads=2), "fa2")]
    cases.append(Case(attention(n=64, batch=64, heads=64, kv_heads=64), "vllm-flash-attn"))
    before, after = ([seconds(case, A100, parameters) for case in cases] for parameters in (STARTS, {**STARTS, name: 1.2 * STARTS[name]}))
    assert all(b <= a for b, a in zip(before, after, strict=True))
    assert sum(before) < sum(after)


def test_covers_fused_attention_of_several_queries():
    w = attention()
    assert covers(Case(w, "fa2"))
    assert covers(Case(replace(w, n=1), "fa2", BACKWARD))
    assert not covers(Case(replace(w, n=1), "fa2"))
    assert not covers(Case(w, "cublas"))
    assert not covers(Case(w, "vllm-flash-attn", BACKWARD))
    assert not covers(Case(object(), "fa2"))


def test_errors_name_what_is_missing():
    bare = replace(H100, peaks=replace(H100.peaks, exp=None), multiprocessors=None)
    with pytest.raises(UnavailableError, match=r"exp peak, multiprocessors"):
        seconds(Case(attention(), "fa3"), bare, STARTS)
    with pytest.raises(UnavailableError, match="head dim 512"):
        seconds(Case(attention(d=512), "fa2"), A100, STARTS)


def test_the_implementation_packs_whatever_the_count_does():
    w = attention(heads=16, kv_heads=2)
    times = {seconds(Case(replace(w, packed=packed), "vllm-flash-attn"), H100, STARTS) for packed in (False, True)}
    assert len(times) == 1
