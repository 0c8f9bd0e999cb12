"""Collectives in two levels: hand-worked parts, and that they never beat one level of the same links."""

from __future__ import annotations

import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Collective, least_bytes
from perfmodel.timing.across_hosts import groups, inner_parts, outer_s, predict_across
from perfmodel.timing.base import Case
from perfmodel.timing.predict import TimeRequest, predict

H200, NVL72 = find_device("h200"), find_device("gb200")
BF16 = DTYPES["bf16"]


def test_an_all_reduce_is_three_steps():
    w = Collective(ALL_REDUCE, 16, 1 << 20, BF16)
    assert groups(H200, 16) == (8, 2)
    assert [(part.op, part.world, part.bytes) for part in inner_parts(w, 8)] == [(REDUCE_SCATTER, 8, 1 << 20), (ALL_GATHER, 8, 1 << 20)]
    part = (1 << 20) / 8
    assert outer_s(w, H200) == pytest.approx(2 * (9.6e-6 + part / 2 / 48.5e9))
    assert outer_s(Collective(ALL_REDUCE, 16, 1 << 20, BF16), NVL72) == pytest.approx(2 * (3.4e-6 + part / 2 / 630e9))


def test_what_an_all_reduce_does_between_hosts_comes_after_what_it_does_within_them():
    w = Collective(ALL_REDUCE, 16, 1 << 20, BF16)
    within = [predict(TimeRequest(Case(one, "nccl"), "collective", "bf16", H200, 0.0, calibrated_devices)) for one in inner_parts(w, 8)]
    whole = predict_across(w, ("nccl",), H200, 0.0, calibrated_devices).seconds
    assert whole == pytest.approx(sum(one.seconds for one in within) + outer_s(w, H200))


def test_an_all_to_all_sends_at_once():
    w = Collective(ALL_TO_ALL, 32, 1 << 20, BF16)
    assert inner_parts(w, 8)[0].bytes == (1 << 20) / 4
    assert outer_s(w, H200) == pytest.approx(9.6e-6 + 0.75 * (1 << 20) / 48.5e9)


@pytest.mark.parametrize("op", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
def test_more_hosts_are_never_faster_and_the_bound_holds(op):
    times = []
    for world in (16, 32, 64):
        w = Collective(op, world, 1 << 24, BF16)
        lower = float(least_bytes(w)) / 450e9
        found = predict_across(w, ("vllm-allreduce", "nccl"), H200, lower, calibrated_devices)
        assert lower <= found.low < found.seconds < found.high
        assert "groups of 8 GPUs" in found.provenance
        times.append(found.seconds)
    assert times == sorted(times)


def test_groups_that_do_not_divide():
    with pytest.raises(UnavailableError, match="groups of 8"):
        groups(H200, 12)


def test_steps_of_two_hosts_are_predicted(run):
    found = run("model llama-3-70b --phase decode --batch 8 --kv-len 2048 --tp 16 --dtype bf16 --hardware h200 --json").json
    row = next(op for op in found["ops"] if op["name"] == "all-reduce")
    assert row["time_s"]["low"] >= row["time_s"]["lower"]
