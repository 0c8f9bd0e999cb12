"""Steps of models on devices whose kernels nobody timed: their own maker's where there are any, else a guess that says so."""

from __future__ import annotations

import pytest

from perfmodel.catalog import calibrated_devices, find_device, find_engine
from perfmodel.core.dtypes import DTYPES
from perfmodel.kernels.collectives import ALL_REDUCE, Collective, least_bytes, link_bandwidth
from perfmodel.timing.base import Case
from perfmodel.timing.predict import CALIBRATED, Prediction, TimeRequest, predict

MI300, MI355, H200 = (find_device(name) for name in ("mi300x", "mi355x", "h200"))
MIB = 1 << 20
LLAMA = "llama-3.1-70b --hardware mi300x --gpus 8 --weights-dtype fp8"


@pytest.mark.parametrize(("world", "links"), [(1, 1), (2, 1), (4, 3), (8, 7), (16, 7)])
def test_a_group_in_a_mesh_has_the_links_between_its_devices(world: int, links: int) -> None:
    assert link_bandwidth(MI300, world) == pytest.approx(links * 64e9)
    assert link_bandwidth(H200, world) == link_bandwidth(H200) == pytest.approx(450e9)
    w = Collective(ALL_REDUCE, world, 8 * MIB, DTYPES["bf16"])
    assert w.estimate(MI300).needs.link_s == pytest.approx(least_bytes(w) / (links * 64e9))


def _all_reduce(device, world: int, size: int, dtype: str, name: str = "nccl") -> Prediction:
    case = Case(Collective(ALL_REDUCE, world, size, DTYPES[dtype]), name)
    return predict(TimeRequest(case, "collective", dtype, device, 0.0, calibrated_devices))


def test_nccl_is_rccl_on_amd() -> None:
    """84.8 and 91.1 us for 8 MiB among eight MI300X (rccl-tests)."""
    found = _all_reduce(MI300, 8, 8 * MIB, "bf16")
    assert found.kind == CALIBRATED
    assert found.seconds == pytest.approx(88e-6, rel=0.1)
    assert found.seconds == _all_reduce(MI300, 8, 8 * MIB, "fp32", "rccl").seconds
    assert _all_reduce(MI355, 8, 8 * MIB, "bf16").reference is not None


@pytest.mark.parametrize("device", [MI300, H200], ids=lambda device: device.id)
def test_of_a_collective_bytes_count_whatever_they_mean(device) -> None:
    assert len({_all_reduce(device, 8, MIB, dtype).seconds for dtype in ("fp8", "bf16", "fp32")}) == 1


def test_every_row_of_a_step_has_a_time_and_says_whose(run) -> None:
    asked = "model llama-3.1-70b --hardware mi300x --weights-dtype fp8 --tp 8 --phase decode --batch 64 --kv-len 1152"
    data = run(f"{asked} --json").json
    grounds = {op["name"]: op["prediction"] for op in data["ops"]}
    assert grounds["all-reduce"]["kind"] == CALIBRATED
    assert "pooled over" in grounds["attention"]["provenance"]
    assert "in place of" in grounds["down projection"]["provenance"]
    assert grounds["down projection"]["kind"] == "borrowed"
    times = data["totals"]["time_s"]
    assert times["lower"] < times["low"] < times["predicted"] < times["high"]
    assert "go by the interval" in run(f"{asked} --full").out


def test_intervals_of_a_served_guess_are_those_of_the_guess(run) -> None:
    """An engine's own widths were shown on devices whose kernels were timed."""
    low, high = find_engine("vllm").widths["dense"]["tpot"]
    shares = {}
    for device in ("mi300x", "h200"):
        found = run(f"serve {LLAMA.replace('mi300x', device)} --isl 128 --osl 2048 --concurrency 64 --json").json["tpot_s"]
        shares[device] = (found["low"] / found["mean"], found["high"] / found["mean"])
    assert shares["h200"] == pytest.approx((low, high))
    assert shares["mi300x"][0] <= low
    assert shares["mi300x"][1] > high


def test_an_engine_that_does_not_run_there_is_refused_and_not_searched(run) -> None:
    for line in (f"serve {LLAMA}", f"serve {LLAMA} --search", "model llama-3-8b --hardware mi300x", "batch llama-3-8b --hardware mi300x"):
        refused = run(f"{line} --engine tensorrt-llm")
        assert refused.code == 2
        assert "TensorRT-LLM runs on NVIDIA devices, not on amd-mi300x" in refused.err
    found = run(f"serve {LLAMA} --isl 128 --osl 8 --search --concurrency 8 --json").json
    assert {find_engine(point["engine"]).runs_on(MI300) for point in found["front"]} == {True}
