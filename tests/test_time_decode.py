"""The time model of decode attention: how kernels cut the cache, how a wave of blocks streams, limits and errors."""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import Any

import pytest

from perfmodel.catalog import find_device
from perfmodel.dtypes import DTYPES
from perfmodel.errors import UnavailableError
from perfmodel.timing.base import Case
from perfmodel.timing.models import decode
from perfmodel.timing.models._decode_kernels import Decode, fa2, fa3, kernel_of, trtllm
from perfmodel.workload import BACKWARD, Attention

A100, H100, H200, B200, L40S = map(
    find_device, ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm", "nvidia-b200-sxm", "nvidia-l40s")
)
DEVICES = pytest.mark.parametrize("device", [A100, H100, H200, B200, L40S], ids=lambda device: device.id)
STARTS = decode.MODEL.starts()


def work(**changes: Any) -> Attention:
    sizes = {"batch": 8, "heads": 32, "kv_heads": 8, "n": 1, "kv_len": 4096, "d": 128, "dv": 128, "dtype": DTYPES["bf16"]}
    return Attention(**{**sizes, **changes})


def case(cold: bool = True, **changes: Any) -> Case:
    return Case(work(**changes), "vllm-flash-attn", cold=cold)


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
    assert found == pytest.approx(STARTS["launch_us"] * 1e-6 + steps * latency + hypot(0.5 * latency, streamed))


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


@pytest.mark.parametrize("changes", [{}, {"n": 16}, {"kv_len": 1}, {"causal": True}])
def test_covers(changes: dict[str, Any]) -> None:
    assert decode.covers(case(**changes))


@pytest.mark.parametrize("changes", [{"n": 17}, {"n": 8, "kv_len": 4}, {"window": 128}, {"dtype": DTYPES["fp32"]}, {"d": 512}])
def test_does_not_cover(changes: dict[str, Any]) -> None:
    assert not decode.covers(case(**changes))


@pytest.mark.parametrize("changes", [{"direction": BACKWARD}, {"implementation": "torch-eager"}])
def test_does_not_cover_other_passes_and_implementations(changes: dict[str, Any]) -> None:
    assert not decode.covers(replace(case(), **changes))


def test_unknown_architectures_and_incomplete_profiles_are_reported() -> None:
    with pytest.raises(UnavailableError, match=r"no decode kernel is known for compute capability 12\.0"):
        kernel_of(find_device("nvidia-rtx-5090"))
    with pytest.raises(UnavailableError, match="nvidia-a100-sxm-80gb lacks one of"):
        seconds(replace(A100, multiprocessors=None))
    with pytest.raises(UnavailableError, match="no SRAM capacity"):
        seconds(replace(A100, memory=A100.memory[1:]))
