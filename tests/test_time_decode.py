"""The time models of decode attention: how kernels cut the cache, how waves of blocks stream, limits and errors."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from tables import table

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.kernels.latent_decode import NarrowCacheAttention
from perfmodel.timing.base import Case, Model, model_of
from perfmodel.timing.engine import joined
from perfmodel.timing.models import decode
from perfmodel.timing.streaming import StreamLaunch, resident, streamed_seconds

A100, H100, H200, B200, L40S = map(
    find_device, ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm", "nvidia-b200-sxm", "nvidia-l40s")
)
PAGES = tuple(decode.MODELS.values())
FLASH, CUDNN, FA3, TRTLLM = decode.fa2_launch, decode.cudnn_launch, decode.fa3_launch, decode.trtllm_launch


def work(**changes: Any) -> Attention:
    sizes = {"batch": 8, "heads": 32, "kv_heads": 8, "n": 1, "kv_len": 4096, "d": 128, "dv": 128, "dtype": DTYPES["bf16"]}
    return Attention(**{**sizes, **changes})


def narrow(**changes: Any) -> NarrowCacheAttention:
    return replace(NarrowCacheAttention(1, 4096, 128, 128, 8, 32, 8, DTYPES["bf16"], packed=True), **changes)


def case(cold: bool = True, implementation: str = "vllm-flash-attn", **changes: Any) -> Case:
    return Case(work(**changes), implementation, cache="clean" if cold else "warm")


def seconds(
    device: Any, cold: bool = True, implementation: str = "vllm-flash-attn", p: dict[str, float] | None = None, **changes: Any
) -> float:
    asked = case(cold, implementation, **changes)
    model = model_of(asked, device)
    return model.seconds(asked, device, {**model.starts(), **(p or {})})


# Launches


def test_pages_of_flash_attention_2_split_a_packed_single_query() -> None:
    # 4 heads of 32 tiles on 216 places: 32 splits fill 59 % of a wave, the most there is
    plan = decode.fa2_paged(work(batch=4, heads=24, kv_heads=1), A100, 108)
    assert (plan.blocks, plan.splits, plan.tiles, plan.resident) == (128, 32, 1, 2)
    assert (plan.gaps, plan.moved_bytes) == (2, 2 * 4 * 24 * 128 * 2)


def test_pages_of_flash_attention_2_transpose_where_batch_and_kv_heads_are_several() -> None:
    plain, transposed = (decode.fa2_paged(work(batch=batch, kv_len=64, heads=16, kv_heads=2), A100, 108) for batch in (1, 2))
    assert (plain.gaps, plain.later_waits, plain.moved_bytes) == (1, 0, 2 * 16 * 128 * 2)
    assert (transposed.gaps, transposed.later_waits, transposed.moved_bytes) == (2, 2, 4 * 2 * 16 * 128 * 2)


def test_flash_attention_3_splits_by_tiles_per_multiprocessor() -> None:
    # 65,537 keys are 513 tiles; 513 * 1.1 / 132 = 4.3, so 5 tiles per block would give 103 splits: vLLM allows 32
    one = FA3(work(batch=1, heads=1, kv_heads=1, kv_len=65536), H100, 132)
    assert (one.splits, one.blocks, one.tiles) == (32, 32, 17)
    # 64 heads of 33 tiles: 17.6 per multiprocessor, 18 per block, 2 splits
    many = FA3(work(), H100, 132)
    assert (many.splits, many.blocks, many.tiles) == (2, 128, 17)
    assert FA3(work(batch=993, heads=1, kv_heads=1), H100, 132).splits == 1
    assert FA3(work(n=4, heads=1, kv_heads=1), H100, 132).blocks == FA3(work(heads=1, kv_heads=1), H100, 132).blocks


def test_tensorrt_fills_blackwell_at_most_once_and_hopper_eight_times() -> None:
    plan = TRTLLM(work(batch=16, heads=48, kv_heads=4, kv_len=16384), B200, 148)
    assert (plan.splits, plan.blocks) == (2, 128)
    short = TRTLLM(work(batch=1, heads=8, kv_heads=8, kv_len=500), B200, 148)
    assert short.splits == 1
    # 64 heads of 4,097 keys: 32 parts of 128, of which 8 * 132 / 64 = 16 are launched, four tiles of 64 each and one more
    assert (decode.xqa(work(), H100, 132).splits, decode.xqa(work(), H100, 132).tiles) == (16, 5)


def test_flash_of_torch_splits_a_packed_head_over_two_blocks_per_multiprocessor() -> None:
    # 32 heads of 64 tiles: 7 splits of at most 10 tiles fill 85 % of 264 places, 8 of 8 tiles 97 %: the fewest within 15 %
    plan = FLASH(work(batch=32, heads=8, kv_heads=1, kv_len=8192), H200, 132)
    assert (plan.blocks, plan.splits, plan.tiles, plan.resident, plan.gaps) == (224, 7, 10, 2, 1)
    assert plan.moved_bytes == 7 * 32 * 8 * 128 * 4, "outputs of all splits in fp32"


def test_flash_of_torch_pads_rows_and_head_dim_to_its_tile() -> None:
    # 64 rows by 128 keys: 4 * 128 FLOP per score at 4,096 a clock, one exponential at 16 a clock
    plan = FLASH(work(batch=1, kv_len=16384), H200, 132)
    assert (plan.tile_cycles, plan.wait_factors) == (pytest.approx(64 * 128 * (512 / 4096 + 1 / 16)), ())
    slimmer = FLASH(work(batch=1, kv_len=16384, d=80, dv=80), H200, 132)
    assert slimmer.tile_cycles == pytest.approx(64 * 128 * (384 / 4096 + 1 / 16))
    assert slimmer.wait_factors == slimmer.work_factors == ("narrow_factor",), "as its loads ask where heads end"


@pytest.mark.parametrize(("changes", "splits"), table("cudnn_splits_by_powers_of_two"))
def test_cudnn_splits_by_powers_of_two(changes: dict[str, int], splits: int) -> None:
    plan = CUDNN(work(**changes), H200, 132)
    assert (plan.splits, plan.blocks) == (splits, changes["batch"] * changes["kv_heads"] * splits)


@pytest.mark.parametrize(("changes", "grid", "keys", "held"), table("blocks_and_tiles_of_cudnn_as_profiled"))
def test_blocks_and_tiles_of_cudnn_as_profiled(changes: dict[str, int], grid: tuple[int, int, int], keys: int, held: int) -> None:
    plan = CUDNN(work(**changes, dv=changes["d"]), H200, 132)
    assert (plan.blocks, plan.resident) == (grid[0] * grid[1] * grid[2], held)
    assert plan.tiles == ceil(ceil(changes["kv_len"] / keys) / plan.splits)


def test_resident_blocks_are_bounded_by_registers_and_sram_and_never_none() -> None:
    kib = 1024
    assert [resident(sram * kib, H200, most) for sram, most in ((64, 2), (64, 4), (100, 4), (300, 4))] == [2, 3, 2, 1]


# Waves

P = {
    "launch_us": 5.0,
    "latency_us": 2.0,
    "dram_share": 0.9,
    "l2_bytes_per_clock": 40.0,
    "overlap": 3.0,
    "tile_waits": 0.4,
    "combine_waits": 1.5,
}
LATENCY = 2e-6


def streamed(stream: StreamLaunch, cold: bool = True, **changes: float) -> float:
    return streamed_seconds(case(cold), H200, stream, {**P, **changes}) - 5e-6


def test_one_wave_starts_overlaps_and_waits_for_its_first_tile() -> None:
    """Of 64 heads of 4,096 keys, 512 B each for K and V; a tile of 64 KiB is two waits of 0.4 latencies."""
    worked, whole = 10 * 0.8 * LATENCY, 64 * 4096 * 512 / (0.9 * 4.8e12)
    found = streamed(StreamLaunch(132, 1, 10, 65536))
    assert found == pytest.approx(LATENCY + joined(3.0, worked, whole) + min(worked, whole) / 10)


def test_later_waves_start_behind_the_streaming_of_others() -> None:
    one, three = (streamed(StreamLaunch(132 * waves, 1, 10, 65536)) for waves in (1, 3))
    worked, part = 10 * 0.8 * LATENCY, 64 * 4096 * 512 / (0.9 * 4.8e12) / 3
    assert three == pytest.approx(LATENCY + joined(3.0, worked, part) + min(worked, part) / 10 + 2 * joined(3.0, LATENCY + worked, part))
    assert three != pytest.approx(3 * one)


def test_blocks_of_one_multiprocessor_work_one_after_the_other() -> None:
    """A clock of 1,980 MHz; streaming and waits are nothing."""
    one, two, last = (
        streamed(StreamLaunch(blocks, 1, 5, 0, resident=2, tile_cycles=1980.0), latency_us=0.0, dram_share=1e9, overlap=50.0)
        for blocks in (132, 264, 396)
    )
    assert (one, two, last) == pytest.approx((5e-6, 10e-6, 15e-6), rel=1e-3)


def test_kernels_beside_take_launches_bytes_and_waits() -> None:
    alone = streamed(StreamLaunch(132, 1, 10, 65536))
    more = StreamLaunch(132, 4, 10, 65536, gaps=1, moved_bytes=4.32e6, later_waits=2)
    gap = H200.launch_overhead.graph.number if H200.launch_overhead and H200.launch_overhead.graph else 0.0
    assert streamed(more, split_waits=0.1) - alone == pytest.approx(gap + 1e-6 + (1.5 + 2 + 0.4) * LATENCY)


@pytest.mark.parametrize("model", PAGES, ids=lambda model: model.name)
def test_each_parameter_acts_in_its_direction(model: Model) -> None:
    """On its own device and first implementation; what counts there."""
    implementation, device = model.implementations[0], {"decode-fa2": A100, "decode-trtllm": B200}.get(model.name, H200)
    p = model.starts()
    for name in p:
        asked = case(name == "dram_share", implementation, kv_len=4096 if name == "split_waits" else 1024, batch=4, d=256, dv=256)
        change = model.seconds(asked, device, {**p, name: 1.5 * p[name]}) - model.seconds(asked, device, p)
        assert change <= 0 if name in ("dram_share", "l2_bytes_per_clock", "overlap") else change >= 0, name
        assert change or name in ("narrow_factor", "uneven_factor", "l2_bytes_per_clock"), name


# What is covered


@pytest.mark.parametrize("changes", [{"n": 17}, {"n": 8, "kv_len": 4}, {"window": 128}, {"dtype": DTYPES["fp32"]}, {"d": 512}])
def test_does_not_cover(changes: dict[str, Any]) -> None:
    assert not any(model.covers(case(**changes)) for model in PAGES)


@pytest.mark.parametrize(("name", "n", "covered"), [("flash", 16, True), ("flash", 17, False), ("cudnn", 1, True), ("cudnn", 2, False)])
def test_covers_few_queries_of_torch(name: str, n: int, covered: bool) -> None:
    model = {"flash": decode.FA2, "cudnn": decode.CUDNN}[name]
    assert model.covers(case(implementation=f"torch-sdpa-{name}", n=n)) == covered


@pytest.mark.parametrize("model", PAGES, ids=lambda model: model.name)
def test_covers_forward_and_the_caches_of_its_kernels(model: Model) -> None:
    name = model.implementations[-1]
    assert not model.covers(replace(case(implementation=name), direction=BACKWARD))
    assert model.covers(Case(narrow(), name)) == (model in (decode.FA3, decode.TRTLLM))
    assert not model.covers(Case(narrow(kv_bits=4), name))


def test_unknown_architectures_and_incomplete_profiles_are_reported() -> None:
    fa2, starts = decode.FA2, decode.FA2.starts()
    with pytest.raises(UnavailableError, match="no decode kernel of vllm-flash-attn is known for its architecture, Turing"):
        fa2.seconds(case(), find_device("nvidia-t4"), starts)
    with pytest.raises(UnavailableError, match="no decode kernel of torch-sdpa-cudnn is known"):
        decode.CUDNN.seconds(case(implementation="torch-sdpa-cudnn"), A100, decode.CUDNN.starts())
    with pytest.raises(UnavailableError, match="lacks FLOP or exponentials per clock"):
        FLASH(work(), replace(H200, peaks=replace(H200.peaks, exp=None)), 132)
    with pytest.raises(UnavailableError, match="cannot hold a tile of FlashAttention-2 with head dim 264"):
        FLASH(work(batch=64, d=264, dv=264), H200, 132)
    with pytest.raises(UnavailableError, match="nvidia-a100-sxm-80gb lacks multiprocessors"):
        fa2.seconds(case(), replace(A100, multiprocessors=None), starts)
    with pytest.raises(UnavailableError, match="no SRAM capacity"):
        fa2.seconds(case(), replace(A100, memory=A100.memory[1:]), starts)
