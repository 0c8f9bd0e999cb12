"""The time model of collectives: its two protocols, its limits, hand-worked cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.kernels.collectives import Collective
from perfmodel.timing.base import Case
from perfmodel.timing.models.nccl import MODEL
from perfmodel.timing.predict import TimeRequest, predict

DEVICE = replace(find_device("h200"), calibration=[])
P = {
    "start_us": 5.0,
    "step_us": 1.0,
    "pair_factor": 1.6,
    "flagged_share": 0.2,
    "flagged_pair_factor": 1.5,
    "chunk_us": 20.0,
    "chunked_share": 0.8,
    "copy_share": 0.5,
    "sharpness": 50.0,
    "crowd_factor": 0.5,
}


def seconds(op, world, size, **changes):
    return MODEL.seconds(Case(Collective(op, world, size, DTYPES["bf16"]), "nccl"), DEVICE, P | changes)


def test_what_it_covers():
    wide = Case(Collective("all_reduce", 16, 1024, DTYPES["bf16"]), "nccl")
    assert not MODEL.covers(wide)
    assert MODEL.covers(replace(wide, workload=replace(wide.workload, world=8)))
    with pytest.raises(UnavailableError, match="interconnect"):
        MODEL.seconds(wide, find_device("nvidia-t4"), P)


def test_cards_share_the_slots_of_their_host():
    large = {world: Collective("all_reduce", world, 1 << 28, DTYPES["bf16"]) for world in (2, 4, 8)}
    l40s, h200 = find_device("nvidia-l40s"), find_device("h200")
    for device, share in ((l40s, 0.5), (h200, 1.0)):
        times = {world: MODEL.seconds(Case(w, "nccl"), device, P) for world, w in large.items()}
        assert times[4] == pytest.approx(1.5 * times[2] / share, rel=0.02)
        assert times[8] == pytest.approx(1.75 * times[2] / share**2, rel=0.02)


def test_times_over_pcie_are_of_cards_without_another_link():
    """An RTX 4090 takes those of an L40S, an A10 too, though the A100 of its architecture has some; an A40 takes those of the A100."""
    case = Case(Collective("all_reduce", 2, 1 << 20, DTYPES["fp16"]), "nccl")
    lenders = {}
    for name in ("rtx-4090", "rtx-5090", "a10", "a40"):
        found = predict(TimeRequest(case, "collective", "fp16", find_device(name), 0.0, calibrated_devices))
        lenders[name] = found.reference.id
    assert [lenders[name] for name in ("rtx-4090", "rtx-5090")] == ["nvidia-l40s", "nvidia-rtx-pro-6000-blackwell"]
    assert lenders["a10"] in ("nvidia-l40s", "nvidia-rtx-pro-6000-blackwell")
    assert lenders["a40"] == "nvidia-a100-sxm-80gb"


def test_tensor_parallel_steps_are_predicted(run):
    found = run("model llama-3-70b --phase decode --batch 8 --kv-len 2048 --tp 4 --dtype bf16 --hardware h200 --json").json
    rows = {op["name"]: op for op in found["ops"]}
    assert rows["all-reduce"]["implementation"] == "nccl"
    assert rows["all-reduce"]["count"] == 161
    assert found["times_from"] == "predicted"
    assert all(op["time_s"]["predicted"] >= op["time_s"]["lower"] * (1 - 1e-12) for op in found["ops"])
