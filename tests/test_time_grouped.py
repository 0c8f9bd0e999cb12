"""Grouped products of PyTorch: what the library launches, and the laws of their time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog import find_device
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.kernels.grouped_matmul import GroupedMatmul
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.case_bounds import lower_bound_s

H200 = find_device("nvidia-h200-sxm")
MODEL = find_model("grouped-matmul")
FREE = dict.fromkeys(("launch_us", "tile_cycles"), 1e-9) | dict.fromkeys(("multiply_share", "dram_share"), 1.0)


def time_of(w: GroupedMatmul, **parameters: float) -> float:
    return MODEL.seconds(Case(w, "torch-grouped-mm"), H200, FREE | parameters)


def test_a_full_round_of_tiles_takes_the_time_of_its_products():
    """66 clusters, two tiles of 128 x 256 at a time, at the peak; beside that, next to no bytes."""
    w = GroupedMatmul(tokens=66 * 512, top_k=1, experts=66, touched=66, n=256, k=1 << 16)
    multiplied = w.flops / H200.matmul_peak("bf16", "tensor").number
    assert time_of(w, dram_share=1e9) == pytest.approx(multiplied, rel=0.01)
    assert time_of(replace(w, tokens=66 * 300), dram_share=1e9) == pytest.approx(multiplied, rel=0.01), "tiles come in pairs"
    assert time_of(w, dram_share=1e9, tile_cycles=1830.0) == pytest.approx(multiplied + 2e-6, rel=0.01)


def test_few_rows_stream_the_matrices_that_they_touch():
    w = GroupedMatmul(tokens=1, top_k=8, experts=256, touched=8, n=2048, k=7168)
    assert time_of(w, multiply_share=1e9) == pytest.approx(8 * 2048 * 7168 * 2 / 4.8e12, rel=0.01)


@given(st.integers(1, 4096), st.sampled_from([1, 2, 8]), st.sampled_from([8, 64, 256]), st.integers(8, 8192), st.integers(8, 8192))
def test_no_prediction_is_below_its_bound_and_depth_costs_time(tokens, top_k, experts, n, k):
    w = GroupedMatmul(tokens, top_k, experts, min(experts, tokens * top_k), n, k)
    case = Case(w, "torch-grouped-mm")
    assert MODEL.seconds(case, H200, MODEL.starts()) >= lower_bound_s(case, H200)
    assert MODEL.seconds(case, H200, MODEL.starts()) < MODEL.seconds(Case(replace(w, k=2 * k), "torch-grouped-mm"), H200, MODEL.starts())


def test_devices_without_the_kernel_and_impossible_groups_are_refused():
    with pytest.raises(UnavailableError, match="group by group"):
        MODEL.seconds(Case(GroupedMatmul(8, 1, 2, 2, 64, 64), "torch-grouped-mm"), find_device("nvidia-a100-sxm-80gb"), FREE)
    with pytest.raises(UsageError, match="touched"):
        GroupedMatmul(2, 1, 8, 3, 64, 64).check()
