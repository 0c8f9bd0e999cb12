"""Time models of the project's own kernels and of what they rest on: schedules, the fit, streams, softmax, eager attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.register_tiles import EDGES, Instructions, geometry, instructions
from perfmodel.timing.base import Case, Model, Prior, find_model, models_of
from perfmodel.timing.models import eager, numba_attention, numba_matmul
from perfmodel.timing.models import register_tiles as tiles
from perfmodel.timing.models.register_tiles import launches_seconds
from perfmodel.validation.fit_points import fit

SMS = 132
FLASH = tiles.MODEL.starts()
STREAM, SOFTMAX_ROWS, NORM_ROWS, GEMM, EAGER_ATTENTION = map(find_model, ("stream", "softmax-rows", "norm-rows", "gemm", "eager-attention"))


def block_of(model: Model, implementation: str, workload: str, dtype: str = "fp32") -> Calibration:
    return Calibration(implementation, workload, model.name, [dtype], model.starts(), 10, 0.9, 1.1, "records", "2026-01-01", "")


BARE = replace(find_device("nvidia-h200-sxm"), calibration=[])
H200 = replace(BARE, calibration=[block_of(tiles.MODEL, "numba-flash", "attention")])
UNCLOCKED = replace(H200, clocks=replace(H200.clocks, max=None))
CLOCK = H200.clocks.max.number if H200.clocks.max else math.nan
OWN: dict[str, Model] = {name: find_model(name) for name in ("numba-flash1", "numba-standard", "numba-matmul", "numba-matmul-naive")}


def attention(n: int, heads: int = 1, d: int = 64, kv_len: int | None = None, causal: bool = False) -> Attention:
    return Attention(n, kv_len or n, d, d, heads=heads, kv_heads=heads, dtype=DTYPES["fp32"], causal=causal)


def seconds(name: str, workload: Any, device: Device = H200, launch: dict[str, int] | None = None, **changes: float) -> float:
    model = tiles.MODEL if name == "numba-flash" else OWN[name]
    return model.seconds(Case(workload, name, launch=launch or {}), device, {**model.starts(), **changes})


def workload_of(name: str) -> Any:
    return Matmul(512, 512, 512, dtype=DTYPES["fp32"]) if "matmul" in name else attention(512, 8)


# The fit


def test_a_fit_never_ends_above_its_start_where_times_jump() -> None:
    """Times of whole waves: every slope is zero or a cliff."""
    sizes = [1.0, 3.0, 7.0, 20.0, 50.0]

    def waves(p: Mapping[str, float]) -> list[float]:
        return [math.ceil(size / p["slots"]) * p["wave"] for size in sizes]

    measured, start = waves({"slots": 4.0, "wave": 2.0}), {"slots": 5.5, "wave": 1.5}

    def misses(p: Mapping[str, float]) -> float:
        return sum(abs(math.log(a / b)) for a, b in zip(waves(p), measured, strict=True))

    assert misses(fit(waves, measured, {name: Prior(value) for name, value in start.items()})) <= misses(start)


def test_what_measurements_do_not_determine_stays_as_expected() -> None:
    """Of two parameters of which one sum counts, the one of the narrow prior stays; one that no time depends on does, too."""
    priors = {"a": Prior(1.0), "b": Prior(1.0, spread=0.01), "c": Prior(7.0)}
    found = fit(lambda p: [p["a"] + p["b"]] * 9, [3.0] * 9, priors)
    assert found == pytest.approx({"a": 2.0, "b": 1.0, "c": 7.0}, rel=0.02)


def test_fit_recovers_what_made_the_times_in_spite_of_an_outlier() -> None:
    sizes = [1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 300.0]
    measured = [3.0 + 0.25 * size for size in sizes]
    measured[3] *= 4
    found = fit(lambda p: [p["launch"] + p["slope"] * size for size in sizes], measured, {"launch": Prior(1.0), "slope": Prior(1.0)})
    assert found == pytest.approx({"launch": 3.0, "slope": 0.25}, rel=0.02)


# Register tiles


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(EDGES), st.sampled_from(EDGES), st.booleans())
def test_blocks_visit_the_key_tiles_that_a_row_of_theirs_sees(n: int, kv_len: int, br: int, bc: int, causal: bool) -> None:
    w = attention(n, kv_len=kv_len, causal=causal)
    seen = [{key // bc for row in rows_of(top, br, n) for key in keys_of(row, w)} for top in range(0, n, br)]
    assert tiles.tiles_by_block(w, br, bc) == [len(each) for each in (reversed(seen) if causal else seen)]


def rows_of(top: int, br: int, n: int) -> range:
    return range(top, min(n, top + br))


def keys_of(row: int, w: Attention) -> range:
    return range(max(0, row + 1 + int(w.kv_len) - int(w.n))) if w.causal else range(int(w.kv_len))


def test_one_block_takes_launch_and_tiles() -> None:
    work = instructions(geometry(64, 64, 64))
    expected = FLASH["launch_us"] * 1e-6 + 3 * tiles.tile_cycles(work, 1, FLASH) / CLOCK
    assert seconds("numba-flash", attention(64, kv_len=192)) == pytest.approx(expected)


@given(st.integers(1, 40), st.integers(64, 2000))
@settings(deadline=None, max_examples=40)
def test_more_heads_or_keys_never_take_less(heads: int, n: int) -> None:
    """Without a mask: longer blocks of unequal length can fall into a better order, Graham's anomaly."""
    time = seconds("numba-flash", attention(n, heads))
    assert seconds("numba-flash", attention(n, heads + SMS)) >= time
    assert seconds("numba-flash", attention(n, heads, kv_len=n + 64)) > time
    assert seconds("numba-flash", attention(n, heads, causal=True)) <= time * (1 + 1e-9)


def test_a_profile_without_a_clock_says_so() -> None:
    with pytest.raises(UnavailableError, match="lacks highest clock"):
        seconds("numba-flash", attention(64), UNCLOCKED)


# The other own kernels: what they share


@pytest.mark.parametrize("name", OWN)
def test_own_models_are_found_fitted_last_and_small(name: str) -> None:
    assert [model.name for model in models_of()[name]] == [OWN[name].name]
    assert OWN[name].composite
    assert len(OWN[name].parameters) <= 3
    assert OWN[name].covers(Case(workload_of(name), name))
    assert not OWN[name].covers(Case(workload_of(name), name, BACKWARD))
    assert not OWN[name].covers(Case(Stream("copy", 1, 1), name))


@pytest.mark.parametrize("name", OWN)
def test_own_models_need_numba_flash_and_a_clock(name: str) -> None:
    with pytest.raises(UnavailableError, match="no calibration of attention/numba-flash"):
        seconds(name, workload_of(name), BARE)
    with pytest.raises(UnavailableError, match="lacks highest clock"):
        seconds(name, workload_of(name), UNCLOCKED)


# numba-flash1


def test_flash1_is_slower_than_flash_and_faster_with_a_mask() -> None:
    time = seconds("numba-flash1", attention(2048, SMS))
    assert time > seconds("numba-flash", attention(2048, SMS))
    assert 0.5 * time < seconds("numba-flash1", attention(2048, SMS, causal=True)) < 0.6 * time


# numba-matmul


@pytest.mark.parametrize("tile", EDGES)
def test_stages_add_up_to_the_product(tile: int) -> None:
    layout = numba_matmul.layout_of(tile)
    work = numba_matmul.stage(layout, tile)
    assert layout.threads * work.multiply_adds == tile * tile * numba_matmul.DEPTH
    assert layout.threads * work.copies * 4 == 2 * tile * numba_matmul.DEPTH


def test_large_products_stay_below_the_peak_and_above_a_third_of_it() -> None:
    peak = 2 * 4096**3 / H200.peaks.vector["fp32"].number
    for tile in EDGES:
        assert peak < seconds("numba-matmul", Matmul(4096, 4096, 4096), launch={"br": tile}) < 3 * peak


# numba-standard


def test_standard_is_its_three_kernels() -> None:
    w, p = attention(1024, 8), OWN["numba-standard"].starts()
    products = numba_attention.scores_seconds(w, (128, 64), H200, FLASH, p) + numba_attention.outputs_seconds(w, 128, H200, FLASH)
    assert seconds("numba-standard", w) == pytest.approx(
        launches_seconds(3, H200, FLASH) + products + numba_attention.softmax_seconds(w, H200, p)
    )
    assert products > 4 * 8 * 1024**2 * 64 / H200.peaks.vector["fp32"].number


def test_a_tile_of_scores_takes_its_instructions() -> None:
    """128 x 64 scores of d 64 by 128 threads: 8 x 8 each, 64 multiply-adds and a store per score; Q and K are 192 rows of 256 B."""
    work = Instructions(multiply_adds=64 * 64, loads=16 * (8 + 8), scores=0, copies=192 * 16 / 128)
    expected = tiles.tile_cycles(work, 1, FLASH) + 64 * 10.0
    assert numba_attention.scores_seconds(attention(128, kv_len=64), (128, 64), H200, FLASH, {"store_cycles": 10.0}) == pytest.approx(
        expected / CLOCK
    )


def test_a_mask_costs_time_and_long_rows_leave_room_for_few() -> None:
    assert seconds("numba-standard", attention(2048, 8, causal=True)) > seconds("numba-standard", attention(2048, 8))
    p = OWN["numba-standard"].starts()
    short, long = (numba_attention.softmax_seconds(attention(n, 8, kv_len=kv), H200, p) for n, kv in ((8192, 2048), (1024, 16384)))
    assert long > 1.5 * short  # as many elements


def test_registers_of_one_kernel_do_not_speak_for_the_others() -> None:
    w = attention(1024, 8)
    assert seconds("numba-standard", w, launch={"registers": 255}) == seconds("numba-standard", w)


# Streams and softmax


def stream_s(w: Stream, device: Device = H200, **changes: float) -> float:
    return STREAM.seconds(Case(w, "torch-scale"), device, {**STREAM.starts(), **changes})


def test_streams_name_what_a_profile_lacks() -> None:
    slow = replace(H200.dram, bandwidth=None, measured_bandwidth=None)
    with pytest.raises(UnavailableError, match="no DRAM bandwidth"):
        stream_s(Stream("scale", 8, 8), replace(H200, memory=[*H200.memory[:-1], slow]))
    with pytest.raises(UnavailableError, match="lacks multiprocessors"):
        STREAM.seconds(Case(Stream("scale", 8, 8, shared=8), "torch-mask"), replace(H200, multiprocessors=None), STREAM.starts())


def test_streams_and_softmax_share_out_operations() -> None:
    softmax, norm = Case(Stream("softmax", 8, 8), "torch-softmax"), Case(Stream("norm", 8, 8), "torch-rms-norm")
    scale = Case(Stream("scale", 8, 8), "torch-scale")
    for model, own in ((STREAM, scale), (NORM_ROWS, norm), (SOFTMAX_ROWS, softmax)):
        assert [case for case in (scale, norm, softmax) if model.covers(case)] == [own]
    assert not SOFTMAX_ROWS.covers(replace(softmax, direction=BACKWARD))


def softmax_s(rows: int, cols: int, **changes: float) -> float:
    w = Stream("softmax", rows, cols)
    return SOFTMAX_ROWS.seconds(Case(w, "torch-softmax"), H200, {**SOFTMAX_ROWS.starts(), **changes})


def test_every_row_length_has_its_kernel() -> None:
    """Whose cycles count tells which kernel runs."""
    kernels = {2048: "element_cycles", 2049: "register_cycles", 6144: "register_cycles", 6145: "single_cycles", 9216: "single_cycles"}
    for cols, used in {**kernels, 9217: "step_us"}.items():
        base = softmax_s(4096, cols)
        for cost in ("element_cycles", "register_cycles", "step_us"):
            assert (softmax_s(4096, cols, **{cost: 300.0}) > 2 * base) == (cost == used), (cols, cost)
        assert (softmax_s(4096, cols, single_cycles=300.0) > 2 * base) == (2048 < cols <= 9216), "the first row is a block alone"


# Eager attention

PARTS = [
    block_of(GEMM, "torch-matmul", "matmul", "fp16"),
    block_of(SOFTMAX_ROWS, "torch-softmax", "softmax", "fp16"),
    *(block_of(STREAM, name, "scale", "fp16") for name in ("torch-scale", "torch-add", "torch-mask")),
]
EAGER = replace(BARE, calibration=PARTS)


def eager_s(w: Attention, direction: str = FORWARD, device: Device = EAGER, **changes: Any) -> float:
    return EAGER_ATTENTION.seconds(Case(w, "torch-eager", direction), device, {**EAGER_ATTENTION.starts(), **changes})


def half(n: int, heads: int, causal: bool = False) -> Attention:
    return replace(attention(n, heads, causal=causal), dtype=DTYPES["fp16"])


def test_eager_attention_is_the_sequence_that_a_profiler_shows() -> None:
    def sequence(w: Attention, direction: str = FORWARD) -> list[str]:
        return [case.implementation for _, case in eager.parts(Case(w, "torch-eager", direction), EAGER)]

    plain = ["torch-matmul", "torch-scale", "torch-softmax", "torch-matmul"]
    assert sequence(half(512, 8)) == plain
    assert sequence(half(512, 8, causal=True)) == [*plain[:2], "torch-mask", *plain[2:]]
    assert sequence(half(512, 1, causal=True)) == [*plain[:2], "torch-add", *plain[2:]]
    assert sequence(half(512, 8), BACKWARD).count("torch-matmul") == 4


def test_eager_attention_names_the_part_that_is_not_calibrated() -> None:
    for missing in ("torch-matmul", "torch-softmax", "torch-scale"):
        rest = [block for block in PARTS if block.implementation != missing]
        with pytest.raises(UnavailableError, match=f"no calibration of .*{missing}, a part of the sequence"):
            eager_s(half(512, 8), device=replace(EAGER, calibration=rest))


@pytest.mark.parametrize("changes", [{"window": 64, "causal": True}, {"dropout": 0.1}, {"kv_heads": 4}])
def test_eager_attention_covers_no_options(changes: dict[str, Any]) -> None:
    assert EAGER_ATTENTION.covers(Case(half(512, 8), "torch-eager"))
    assert not EAGER_ATTENTION.covers(Case(replace(half(512, 8), **changes), "torch-eager"))
