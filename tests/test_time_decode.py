"""The time model of decode attention: how kernels cut the cache, how a wave of blocks streams, limits and errors."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, hypot
from typing import Any

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.timing.base import WARM_LATENCY_S, Case
from perfmodel.timing.models import flash_decode as decode
from perfmodel.timing.models._decode_kernels import FLASH_NARROWER, SOFTMAX_CYCLES, Decode, cudnn, fa2, fa3, flash, resident, trtllm

A100, H100, H200, B200, L40S = map(
    find_device, ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm", "nvidia-b200-sxm", "nvidia-l40s")
)
DEVICES = pytest.mark.parametrize("device", [A100, H100, H200, B200, L40S], ids=lambda device: device.id)
STARTS = decode.MODELS["flash-decode"].starts()


def work(**changes: Any) -> Attention:
    sizes = {"batch": 8, "heads": 32, "kv_heads": 8, "n": 1, "kv_len": 4096, "d": 128, "dv": 128, "dtype": DTYPES["bf16"]}
    return Attention(**{**sizes, **changes})


def case(cold: bool = True, implementation: str = "vllm-flash-attn", **changes: Any) -> Case:
    return Case(work(**changes), implementation, cache="clean" if cold else "warm")


def seconds(device: Any, cold: bool = True, parameters: dict[str, float] | None = None, **changes: Any) -> float:
    return decode.seconds(case(cold, **changes), device, parameters or STARTS)


def test_flash_attention_2_splits_a_packed_single_query() -> None:
    # 4 heads of 32 tiles on 216 places: 32 splits fill 59 % of a wave, the most there is
    plan = fa2(work(batch=4, heads=24, kv_heads=1), A100, 108)
    assert (plan.blocks, plan.splits, plan.tiles, plan.resident) == (128, 32, 1, 2)
    assert (plan.combine_steps, plan.gaps, plan.copies) == (2, 2, 2)


def test_flash_attention_2_transposes_where_batch_and_kv_heads_are_several() -> None:
    plain, transposed = (fa2(work(batch=batch, kv_len=64, heads=16, kv_heads=2), A100, 108) for batch in (1, 2))
    assert (plain.gaps, plain.copies, plain.combine_steps) == (1, 2, 0)
    assert (transposed.gaps, transposed.copies, transposed.combine_steps) == (2, 4, 2)


def test_flash_attention_2_neither_packs_nor_splits_otherwise() -> None:
    one_head_each = fa2(work(heads=8), A100, 108)
    assert (one_head_each.blocks, one_head_each.splits, one_head_each.gaps, one_head_each.copies, one_head_each.rereads) == (64, 1, 0, 0, 1)
    few_queries = fa2(work(n=4), A100, 108)
    assert (few_queries.blocks, few_queries.splits, few_queries.rereads) == (256, 1, 4)


def test_flash_attention_2_resident_blocks_follow_sram() -> None:
    # d = 128: 64 + 2 * 128 rows of 256 B are 80 KiB, d = 256: 64 + 2 * 64 rows of 512 B are 96 KiB
    assert fa2(work(), A100, 108).resident == 2
    assert fa2(work(d=256, dv=256), A100, 108).resident == 1
    assert fa2(work(), L40S, 142).resident == 1


def test_flash_attention_3_splits_by_tiles_per_multiprocessor() -> None:
    # 65,537 keys are 513 tiles; 513 * 1.1 / 132 = 4.3, so 5 tiles per block would give 103 splits: vLLM allows 32
    one = fa3(work(batch=1, heads=1, kv_heads=1, kv_len=65536), H100, 132)
    assert (one.splits, one.blocks, one.tiles) == (32, 32, 17)
    # 64 heads of 33 tiles: 17.6 per multiprocessor, 18 per block, 2 splits
    many = fa3(work(), H100, 132)
    assert (many.splits, many.blocks, many.tiles, many.combine_steps) == (2, 128, 17, 1.0)
    assert fa3(work(batch=993, heads=1, kv_heads=1), H100, 132).splits == 1
    assert fa3(work(n=4, heads=1, kv_heads=1), H100, 132).blocks == fa3(work(heads=1, kv_heads=1), H100, 132).blocks


def test_flash_attention_3_looks_longer_for_its_next_block_with_few_heads() -> None:
    few, many = (fa3(work(batch=512, heads=heads, kv_heads=heads, kv_len=128), H100, 132).block_steps for heads in (1, 8))
    assert few == pytest.approx(1 + 0.3 * 132 / 31)
    assert many == pytest.approx(1 + 0.3 * 132 / 31 / 8)


def test_tensorrt_fills_the_device_at_most_once() -> None:
    plan = trtllm(work(batch=16, heads=48, kv_heads=4, kv_len=16384), B200, 148)
    assert (plan.splits, plan.blocks) == (2, 128)
    short = trtllm(work(batch=1, heads=8, kv_heads=8, kv_len=500), B200, 148)
    assert (short.splits, short.combine_steps) == (1, 0.0)


def test_flash_of_torch_splits_a_packed_head_over_two_blocks_per_multiprocessor() -> None:
    # 32 heads of 64 tiles: 7 splits of at most 10 tiles fill 85 % of 264 places, 8 of 8 tiles 97 %: the fewest within 15 %
    plan = flash(work(batch=32, heads=8, kv_heads=1, kv_len=8192), H200, 132)
    assert (plan.blocks, plan.splits, plan.tiles, plan.resident, plan.gaps, plan.copies) == (224, 7, 10, 2, 1, 0)


def test_flash_of_torch_without_splits_takes_the_prefill_tile() -> None:
    # 256 heads fill 97 % of 264 places; 128 x 64 tiles at head dim 128, 128 x 128 at 64
    assert (flash(work(batch=32), H200, 132).tiles, flash(work(batch=32, d=64, dv=64), H200, 132).tiles) == (64, 32)
    assert flash(work(batch=32), H200, 132).combine_steps == 0


def test_flash_of_torch_packs_only_a_single_query() -> None:
    single, several = (flash(work(batch=16, n=n, heads=64), H200, 132) for n in (1, 2))
    assert (single.blocks, single.rereads) == (16 * 8 * 2, 1)
    assert (several.blocks, several.rereads) == (16 * 64, 8)


def test_flash_of_torch_pads_rows_and_head_dim_to_its_tile() -> None:
    # 64 rows by 128 keys: 4 * 128 FLOP per score at 4,096 a clock, one exponential at 16 a clock
    plan = flash(work(batch=1, kv_len=16384), H200, 132)
    assert plan.tile_cycles == pytest.approx(64 * 128 * (512 / 4096 + SOFTMAX_CYCLES / 16))
    narrow = flash(work(batch=1, kv_len=16384, d=80, dv=80), H200, 132)
    work_cycles = 64 * 128 * (384 / 4096 + SOFTMAX_CYCLES / 16)
    assert narrow.tile_cycles == pytest.approx(FLASH_NARROWER * work_cycles), "as its loads ask where heads end"


def test_flash_of_torch_combines_splits_from_memory() -> None:
    # 16 rows of 96 columns on 128 threads are 12 elements each; 32 heads
    plan = flash(work(batch=1, kv_len=16384, d=80, dv=80), H200, 132)
    assert plan.partial_cycles == 280 + 25 * 12
    assert plan.partial_bytes == plan.splits * 32 * 96 * 4


@pytest.mark.parametrize(
    ("changes", "splits"),
    [
        ({"batch": 1, "kv_heads": 4, "kv_len": 63744}, 64),  # 66 would fill the device
        ({"batch": 9, "kv_heads": 4, "kv_len": 5248}, 4),  # 7 would
        ({"batch": 17, "kv_heads": 4, "kv_len": 20672}, 1),  # 3 would
        ({"batch": 2, "kv_heads": 4, "kv_len": 946}, 4),  # 7 whole tiles
        ({"batch": 2, "kv_heads": 8, "kv_len": 512}, 1),
    ],
)
def test_cudnn_splits_by_powers_of_two(changes: dict[str, int], splits: int) -> None:
    plan = cudnn(work(**changes), H200, 132)
    assert (plan.splits, plan.blocks) == (splits, changes["batch"] * changes["kv_heads"] * splits)


@pytest.mark.parametrize(
    ("changes", "grid", "keys", "resident"),
    [  # grids, tiles and registers of cuDNN 9.19 on an H200
        ({"kv_len": 128, "d": 56, "heads": 96, "kv_heads": 16, "batch": 254}, (1, 16, 254), 64, 3),
        ({"kv_len": 128, "d": 224, "heads": 8, "kv_heads": 2, "batch": 67}, (2, 2, 67), 64, 2),
        ({"kv_len": 256, "d": 40, "heads": 12, "kv_heads": 3, "batch": 9}, (1, 3, 9), 64, 3),
        ({"kv_len": 256, "d": 64, "heads": 288, "kv_heads": 24, "batch": 1}, (1, 24, 1), 128, 4),
        ({"kv_len": 192, "d": 192, "heads": 12, "kv_heads": 1, "batch": 158}, (2, 1, 158), 128, 2),
        ({"kv_len": 546, "d": 160, "heads": 48, "kv_heads": 6, "batch": 5}, (8, 6, 5), 128, 2),
        ({"kv_len": 32768, "d": 128, "heads": 4, "kv_heads": 1, "batch": 1}, (64, 1, 1), 128, 2),
    ],
)
def test_blocks_and_tiles_of_cudnn_as_profiled(changes: dict[str, int], grid: tuple[int, int, int], keys: int, resident: int) -> None:
    plan = cudnn(work(**changes, dv=changes["d"]), H200, 132)
    assert (plan.blocks, plan.resident) == (grid[0] * grid[1] * grid[2], resident)
    assert plan.tiles == ceil(ceil(changes["kv_len"] / keys) / plan.splits)


def test_cudnn_reads_the_cache_again_for_each_16_rows() -> None:
    plan = cudnn(work(batch=13, heads=71, kv_heads=1, kv_len=63840), H200, 132)
    assert (plan.blocks, plan.splits, plan.rereads) == (13 * 5 * 4, 4, 5)


def test_resident_blocks_are_bounded_by_registers_and_sram_and_never_none() -> None:
    kib = 1024
    assert [resident(sram * kib, H200, most) for sram, most in ((64, 2), (64, 4), (100, 4), (300, 4))] == [2, 3, 2, 1]


def test_pipelined_tiles_take_the_longer_of_work_and_streaming_and_one_tile_of_the_shorter() -> None:
    plan = Decode(blocks=4, splits=1, tiles=5, resident=2, block_steps=1, tile_steps=0, combine_steps=0, pipelined=True, tile_cycles=1)
    # two blocks on each of two multiprocessors: 5 * 2 * 3 s of work, 4 * 1 s of streaming, whose first tile takes 0.8 s
    assert decode.pipelined_s(plan, 2, 7.0, 1.0, 3.0) == pytest.approx(7 + 30 + 0.8, rel=1e-4)
    # alone on each: 15 s of work; 16 s of streaming add little more than the longer one
    assert decode.pipelined_s(plan, 4, 7.0, 4.0, 3.0) == pytest.approx(7 + (15**6 + 16**6) ** (1 / 6) + 3)


def test_blocks_of_a_last_wave_spread_over_the_multiprocessors() -> None:
    plan = Decode(blocks=6, splits=1, tiles=5, resident=2, block_steps=0, tile_steps=0, combine_steps=0, pipelined=True, tile_cycles=1)
    # two waves: two blocks of 5 * 3 s on each of two multiprocessors, then one
    assert decode.pipelined_s(plan, 2, 0.0, 1e-9, 3.0) == pytest.approx(30 + 15)


def test_a_case_of_flash_in_torch_by_hand() -> None:
    # 256 heads of 2 tiles of 128 x 64 (d = 128) on 264 places, two on a multiprocessor
    found = decode.seconds(case(implementation="torch-sdpa-flash", batch=32, kv_len=128), H200, STARTS)
    latency, streamed = STARTS["latency_us"] * 1e-6, 256 * 128 * 256 * 2 / (4.8e12 * STARTS["dram_share"])
    work_s, waits = 2 * 128 * 64 * (512 / 4096 + SOFTMAX_CYCLES / 16) / 1980e6, 0.55 + 0.72 * 64 * 128 * 2 / 32768
    worked = 2 * (work_s + waits * latency)
    overlapped = (worked**6 + streamed**6) ** (1 / 6) + min(worked, streamed) / 2
    assert found == pytest.approx(STARTS["launch_us"] * 1e-6 + latency + overlapped)


def test_a_case_of_cudnn_by_hand() -> None:
    # one head of 1,024 keys in 8 splits of a tile each; the graph gap of the H200 is 1.32 us
    found = decode.seconds(case(implementation="torch-sdpa-cudnn", batch=1, heads=1, kv_heads=1, kv_len=1024), H200, STARTS)
    latency, streamed = STARTS["latency_us"] * 1e-6, 1024 * 256 * 2 / (4.8e12 * STARTS["dram_share"])
    dram = 4.8e12 * STARTS["dram_share"]
    combined = 1.35 * latency + 1.32e-6 + 8 * 60 / 1980e6 + 8 * 128 * 4 / dram
    worked = 0.73 * latency + 16 * 128 * (2 * 256 * 2.4 / 4096 + 1 / 16) / 1980e6
    assert found == pytest.approx(STARTS["launch_us"] * 1e-6 + (worked**6 + streamed**6) ** (1 / 6) + streamed + combined)


def test_waves() -> None:
    plan = Decode(blocks=7, splits=1, tiles=2, resident=1, block_steps=1, tile_steps=0.5, combine_steps=0)
    first, later, last = 2 + hypot(2, 3 * 5), hypot(4, 3 * 5), hypot(4, 5)
    assert decode.streaming_s(plan, 3, 2.0, 5.0) == pytest.approx(first + later + last)
    assert decode.streaming_s(plan, 100, 2.0, 5.0) == pytest.approx(2 + hypot(2, 35))


def test_a_case_by_hand() -> None:
    # 64 heads of 16 KiB: 33 keys take one tile; nothing is split; one wave of 64 blocks streams 64 * 32 * 256 * 2 B
    found = seconds(H100, batch=8, heads=8, kv_heads=8, kv_len=32)
    latency, streamed = STARTS["latency_us"] * 1e-6, 64 * 32 * 256 * 2 / (3352.32e9 * STARTS["dram_share"])
    steps = 1 + 0.3 * 132 / (31 * 8)
    cold = WARM_LATENCY_S  # a flush delays first loads, and vLLM's kernels were timed warm
    assert found == pytest.approx(STARTS["launch_us"] * 1e-6 + cold + steps * latency + hypot(0.5 * latency, streamed))


@DEVICES
@pytest.mark.parametrize("key", ["batch", "kv_len"])
def test_more_work_takes_longer_over_doublings(device: Any, key: str) -> None:
    times = [seconds(device, **{key: 2**power}) for power in range(14, 20)]
    assert times == sorted(set(times))


@DEVICES
def test_long_caches_stream_at_the_share_of_dram(device: Any) -> None:
    size = 2 * 64 * 8 * 2**17 * 128 * 2
    floor = size / (device.dram.bandwidth.number * STARTS["dram_share"])
    assert floor < seconds(device, batch=64, kv_len=2**17) < 1.25 * floor


@DEVICES
def test_a_warm_cache_that_fits_l2_is_faster_and_a_large_one_is_not(device: Any) -> None:
    assert seconds(device, cold=False, batch=8, kv_len=512) < seconds(device, cold=True, batch=8, kv_len=512)
    assert seconds(device, cold=False, batch=64) == seconds(device, cold=True, batch=64)


@DEVICES
@pytest.mark.parametrize("name", list(STARTS))
def test_each_parameter_acts_in_its_direction(device: Any, name: str) -> None:
    raised, cold = {**STARTS, name: 1.5 * STARTS[name]}, name == "dram_share"
    change = seconds(device, cold, raised, kv_len=1024) - seconds(device, cold, kv_len=1024)
    assert change > 0 if name.endswith("_us") else change < 0


@pytest.mark.parametrize("implementation", ["torch-sdpa-flash", "torch-sdpa-cudnn"])
@pytest.mark.parametrize("key", ["batch", "kv_len"])
def test_more_work_takes_longer_in_torch_too(implementation: str, key: str) -> None:
    times = [decode.seconds(case(implementation=implementation, **{key: 2**power}), H200, STARTS) for power in range(12, 18)]
    assert times == sorted(set(times))


@pytest.mark.parametrize("changes", [{}, {"n": 16}, {"kv_len": 1}, {"causal": True}])
def test_covers(changes: dict[str, Any]) -> None:
    assert decode.covers(case(**changes))


@pytest.mark.parametrize("changes", [{"n": 17}, {"n": 8, "kv_len": 4}, {"window": 128}, {"dtype": DTYPES["fp32"]}, {"d": 512}])
def test_does_not_cover(changes: dict[str, Any]) -> None:
    assert not decode.covers(case(**changes))


@pytest.mark.parametrize(
    ("implementation", "n", "covered"), [("flash", 16, True), ("flash", 17, False), ("cudnn", 1, True), ("cudnn", 2, False)]
)
def test_covers_few_queries_of_torch(implementation: str, n: int, covered: bool) -> None:
    assert decode.covers(case(implementation=f"torch-sdpa-{implementation}", n=n)) == covered


@pytest.mark.parametrize("changes", [{"direction": BACKWARD}, {"implementation": "torch-eager"}])
def test_does_not_cover_other_passes_and_implementations(changes: dict[str, Any]) -> None:
    assert not decode.covers(replace(case(), **changes))


def test_unknown_architectures_and_incomplete_profiles_are_reported() -> None:
    with pytest.raises(UnavailableError, match="no decode kernel of vllm-flash-attn is known for its architecture, Turing"):
        decode.kernel_of("vllm-flash-attn", find_device("nvidia-t4"))
    with pytest.raises(UnavailableError, match="no decode kernel of torch-sdpa-cudnn is known"):
        decode.seconds(case(implementation="torch-sdpa-cudnn"), A100, STARTS)
    with pytest.raises(UnavailableError, match="lacks FLOP or exponentials per clock"):
        flash(work(), replace(H200, peaks=replace(H200.peaks, exp=None)), 132)
    with pytest.raises(UnavailableError, match="cannot hold a tile of FlashAttention-2 with head dim 264"):
        flash(work(batch=64, d=264, dv=264), H200, 132)
    with pytest.raises(UnavailableError, match="nvidia-a100-sxm-80gb lacks multiprocessors"):
        seconds(replace(A100, multiprocessors=None))
    with pytest.raises(UnavailableError, match="no SRAM capacity"):
        seconds(replace(A100, memory=A100.memory[1:]))
