"""The time model of matrix multiplication: its limits by hand, what must grow, its choices and mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.models import gemm
from perfmodel.timing.models.gemm import LARGEST_TILE, copy_bytes, free_tiles
from perfmodel.timing.products import CallTimes, Costs, TilePlan, fastest, parts_of_k, plan_of, worth_timing

A100, H200 = find_device("nvidia-a100-sxm-80gb"), find_device("nvidia-h200-sxm")
MODEL = gemm.MODELS["gemm"]
STARTS = MODEL.starts()
SIZES = st.integers(1, 5000)


def time_of(m: int, n: int, k: int, device: Any = H200, cold: bool = True, launch: dict[str, int] | None = None, **changes: Any) -> float:
    shape = {name: changes.pop(name) for name in ("batch", "split_k", "dtype") if name in changes}
    case = Case(Matmul(m, n, k, **shape), "cublas", cache="clean" if cold else "warm", launch=launch or {})
    return MODEL.seconds(case, device, {**STARTS, **changes})


def test_the_model_is_found_and_has_few_parameters() -> None:
    assert find_model("gemm") is MODEL
    assert MODEL.covers(Case(Matmul(1, 1, 1), "cublas"))
    assert not MODEL.covers(Case(Matmul(1, 1, 1), "cublas", BACKWARD))
    assert not MODEL.covers(Case(Attention(1, 1, 1, 1), "fa2"))


# Rows that do not start on 16 bytes


@pytest.mark.parametrize(("n", "k", "size", "expected"), table("the_narrowest_row_sets_the_width_of_all_copies"))
def test_the_narrowest_row_sets_the_width_of_all_copies(n: int, k: int, size: int, expected: int) -> None:
    assert copy_bytes(n, k, size) == expected


@given(st.integers(64, 5000), st.integers(64, 600), st.integers(8, 600), st.sampled_from(["a100-sxm-80gb", "h200-sxm", "b200-sxm"]))
@settings(max_examples=60, deadline=None)
def test_aligned_rows_are_never_slower(m: int, octets_n: int, octets: int, name: str) -> None:
    """Four elements more per row add their share of the work at most."""
    device, n, k = find_device(f"nvidia-{name}"), 8 * octets_n, 8 * octets
    assert time_of(m, n, k, device) <= time_of(m, n, k - 4, device) * k / (k - 4)


# What the library may choose


@given(SIZES, SIZES)
def test_free_tiles_are_within_the_limits(m: int, n: int) -> None:
    found = free_tiles(m, n)
    assert len(set(found)) == len(found)
    assert all(br * bc <= LARGEST_TILE for br, bc in found)
    assert {(128, 256), (256, 128)} <= set(found) or min(m, n) <= 128


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 200))
def test_k_is_split_into_no_more_parts_than_fill_the_device_twice(blocks: int, most: int, room: int) -> None:
    found = parts_of_k(blocks, most, room)
    assert found == sorted(set(found))
    assert found[0] == 1
    assert all(parts <= most and parts * blocks <= 2 * room for parts in found[1:])


TILES = st.sampled_from([(128, 256), (128, 128), (64, 64), (32, 128)])


@given(SIZES, SIZES, SIZES, st.integers(1, 40), TILES, st.integers(1, 4), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_plans_hold_all_of_the_work(m: int, n: int, k: int, batch: int, tile: tuple[int, int], parts: int, resident: int) -> None:
    """The busiest multiprocessor does at least its share of the FLOP, of the stores and of the loads."""
    plan = plan_of((m, n, k, batch), tile, parts, resident=resident, slots=132, depth=64, sizes=(2, 2))
    assert plan.flops * 132 >= 2 * batch * m * n * k
    assert plan.stored * 132 >= 2 * batch * m * n
    assert plan.loaded * 132 >= 2 * batch * (m + n) * k
    assert plan.waits * resident * 64 * parts * 132 >= batch * k
    assert 0 <= plan.idle < 1


def test_the_time_of_a_plan_by_hand() -> None:
    """Work in three parts: multiplied in 8 s, loaded in 6, stored in 2, four waits of 0.5 s; DRAM takes 5 s."""
    plan, run = TilePlan(8, 6, 2, 4, 0.0, 3, 128, 128), CallTimes(launch=1.0, dram=5.0, half=0.2, norm=1.0, split=0.25, part=0.1)
    assert fastest([plan], [Costs(1.0, 1.0, 1.0, 0.5)], run)[0] == pytest.approx(1 + (8 + 2 + 2) + 5 + 0.25 + 3 * 0.1)
    assert fastest([plan], [Costs(1.0, 1.0, 1.0, 0.5, norm=2.0, start=0.5)], run)[0] == pytest.approx(1.5 + (10 + 2 + 2) + 5 + 0.55)
    idle = plan._replace(idle=0.5, parts=1)  # half of the multiprocessors draw (0.5 + 0.2) / (0.5 x 1.2) times as long
    assert fastest([idle], [Costs(1.0, 1.0, 1.0, 0.5)], run)[0] == pytest.approx(1 + 12 + 5 * 0.7 / 0.6)
    assert fastest([plan, idle._replace(idle=0.0, flops=9)], [Costs(1.0, 1.0, 1.0, 0.5)], run)[1].parts == 3


def test_the_work_of_a_plan_by_hand() -> None:
    """3 x 2 tiles of 3 products in two parts: 36 blocks, nine turns on four multiprocessors, five of two; 8 of 16 slices, 512 deep."""
    plan = plan_of((300, 200, 1000, 3), (128, 128), 2, resident=2, slots=4, depth=64, sizes=(2, 4))
    assert plan == TilePlan(9 * 2 * 128 * 128 * 512, 9 * 256 * 512 * 2, 9 * 128 * 128 * 4, 5 * 8, 0, 2, 128, 128)
    small = plan_of((100, 50, 40, 1), (128, 64), 1, slots=4, depth=64, sizes=(1, 2))
    assert small == TilePlan(2 * 128 * 64 * 40, 150 * 40, 2 * 100 * 50, 1, 0.75, 1, 128, 64), "loads and stores of what is there"
    assert plan_of((128, 128, 256, 1), (128, 128), 2, slots=4, depth=64, sizes=(2, 2)).idle == 0.5, "parts fill multiprocessors"


def test_a_plan_that_is_better_in_anything_is_worth_timing() -> None:
    plan = TilePlan(4, 4, 4, 4, 0.5, 4, 128, 128)
    worse = TilePlan(8, 8, 8, 8, 1.0, 8, 128, 128)
    assert worth_timing([worse, plan]) == (plan,)
    assert len(worth_timing([worse._replace(kind=1), plan])) == 2, "another kind may cost less"
    for name in TilePlan._fields[:6]:
        other = worse._replace(**{name: getattr(plan, name) / 4})
        assert set(worth_timing([plan, other])) == {plan, other}, name


LOGS = st.lists(st.floats(-6, 6), min_size=9, max_size=9)


@given(SIZES, SIZES, SIZES, st.integers(1, 40), LOGS, st.sampled_from([1.0, 3.0, 30.0]))
@settings(max_examples=100, deadline=None)
def test_a_plan_left_out_is_never_the_fastest(m: int, n: int, k: int, batch: int, logs: list[float], norm: float) -> None:
    """Whatever the parameters: the fastest of those worth timing is the fastest of all. Two kinds have two tiles each."""
    listed = [
        plan_of((m, n, k, batch), tile, parts, resident=resident, slots=132, depth=64, sizes=(2, 2), kind=index % 2)
        for index, (tile, resident) in enumerate({(256, 128): 1, (128, 128): 2, (64, 64): 4, (32, 128): 4}.items())
        for parts in (1, 2, 4, 8)
    ]
    flop, load, store, wait, launch, dram, half, split, part = (10.0**log for log in logs)
    costs = [Costs(flop * (1 + kind), load, store, wait) for kind in range(2)]
    run = CallTimes(launch, dram, half, norm, split, part)
    assert fastest(worth_timing(listed), costs, run)[0] == fastest(listed, costs, run)[0]


def test_a_given_tile_and_split_are_kept() -> None:
    free, given_tile = time_of(4096, 4096, 4096), time_of(4096, 4096, 4096, launch={"br": 64, "bc": 64})
    assert given_tile > 1.3 * free
    assert time_of(4096, 4096, 4096, split_k=4, split_us=1000.0) > 1e-3


# What must hold anywhere


@given(st.integers(2, 5000), st.integers(2, 5000), SIZES, st.sampled_from(["a100-sxm-80gb", "h200-sxm", "b200-sxm"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_more_work_or_slower_parts_never_save_time(m: int, n: int, k: int, name: str, cold: bool) -> None:
    """Depth, batch, a flushed cache and every parameter of cost are monotone; rows are not, as more tiles draw more bandwidth.

    A vector has a kernel of its own, which runs no batch. Depth is in one tile and as many parts: more of it may be split into more. It
    grows by 3, so that rows stay aligned as they are.
    """
    device = find_device(f"nvidia-{name}")
    here = time_of(m, n, k, device, cold)
    for parts in (1, 2):
        times = [time_of(m, n, depth, device, cold, launch={"br": 64, "bc": 64}, split_k=parts) for depth in (k, 3 * k)]
        assert times[0] <= times[1]
    assert time_of(m, n, k, device, cold, batch=3) >= here * (1 - 1e-12)
    assert time_of(m, n, k, device, True) >= time_of(m, n, k, device, False)
    for parameter in ("launch_us", "wait_cycles", "store_cost", "split_us", "throttle", "flop_per_loaded_byte", "half_bandwidth_share"):
        assert time_of(m, n, k, device, cold, **dict[str, Any]({parameter: 2 * STARTS[parameter]})) >= here * (1 - 1e-12)


def test_a_batch_fills_waves_like_one_tall_matrix() -> None:
    """48 products of 128 rows have the tiles of one with 6,144 rows when every tile has 128 rows."""
    tile: dict[str, Any] = {"launch": {"br": 128, "bc": 128}, "dram_share": 1e6}
    assert time_of(128, 4096, 64, batch=48, **tile) == time_of(128 * 48, 4096, 64, **tile)
    assert time_of(4096, 4096, 64, batch=64) > 50 * (time_of(4096, 4096, 64) - STARTS["launch_us"] * 1e-6)


def test_a_warm_run_reads_only_what_its_last_turn_has_pushed_out() -> None:
    def moved(m: int, n: int, k: int, cold: bool = False, **launch: int) -> float:
        return gemm.dram_bytes(Case(Matmul(m, n, k), "cublas", cache="clean" if cold else "warm", launch=launch), H200)

    everything = 2 * (1024 * 1024 * 3)
    assert moved(1024, 1024, 1024, cold=True) == everything
    assert moved(1024, 1024, 1024) == everything
    assert moved(1024, 1024, 1024, weight_copies=1) == 0
    assert moved(1024, 1024, 1024, weight_copies=50) == everything / 3
    assert moved(32768, 32768, 1024) == moved(32768, 32768, 1024, cold=True)


def test_a_device_without_a_number_says_which() -> None:
    no_clock = replace(H200, clocks=replace(H200.clocks, tensor=None, max=None))
    for device, missing in ((replace(H200, multiprocessors=None), "multiprocessors"), (no_clock, "tensor clock")):
        with pytest.raises(UnavailableError, match=f"nvidia-h200-sxm lacks {missing}"):
            time_of(64, 64, 64, device)
    with pytest.raises(UnavailableError, match="fp8"):
        time_of(64, 64, 64, A100, dtype=DTYPES["fp8"])
