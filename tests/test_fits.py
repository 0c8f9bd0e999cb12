"""Fits by hand: what a fit may see, what its intervals are made of, and which measurements count."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.hardware import Calibration, Clocks, Device
from perfmodel.timing.base import Case, Model, Parameter, Prior, find_model
from perfmodel.validation.bounds import case_of, evaluated
from perfmodel.validation.calibrate import calibrate, family_of, points
from perfmodel.validation.compare import RecordRow
from perfmodel.validation.cross_device import residuals, widths
from perfmodel.validation.fit_points import FitKey, FitPoint, cross_residuals, fitted
from perfmodel.validation.records import FITTED, HELD_OUT, Record, Seconds
from perfmodel.validation.statistics import Residual, interval

A100, H100, H200 = (find_device(f"nvidia-{name}") for name in ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm"))
CONSTANT = Model("constant", (Parameter("a", "seconds", Prior(1.0)),), lambda case: True, lambda case, device, p: p["a"], "a test")


def copy(size: int, seconds: float, device: Device = H200, source: str = FITTED) -> Record:
    return Record("copy", "numba-copy", device.id, "fp32", {"bytes": size}, Seconds(seconds), cache="cold", source=source)


def point(record: Record, device: Device = H200, lower_s: float = 0.0) -> FitPoint:
    return FitPoint(record, case_of(record), device, lower_s)


def test_residuals_are_of_fits_without_the_point() -> None:
    """Three measurements of one shape take 8 s, one each of two others 1 s. A fit to all says 8 s, one without the three 1 s."""
    known = [point(copy(size, seconds)) for size, seconds in ((1, 8.0), (1, 8.0), (1, 8.0), (2, 1.0), (3, 1.0))]
    assert fitted(CONSTANT, known)["a"] == pytest.approx(8, rel=0.01)
    for start in (1.0, 3.0, 8.0):
        assert cross_residuals(CONSTANT, known, {"a": start}) == pytest.approx([math.log(8)] * 3 + [-math.log(8)] * 2, abs=0.01)


def test_an_interval_is_a_little_wider_than_80_percent() -> None:
    residuals = [Residual(i / 1000, str(i)) for i in range(-50, 51)]
    assert interval(residuals) == (round(math.exp(-0.042), 4), round(math.exp(0.042), 4))


def test_a_measurement_that_beats_its_bound_is_no_noise_and_fits_nothing() -> None:
    record = copy(1 << 30, 1.0)
    lower = evaluated(record, H200)[1]
    assert lower is not None
    shares = (0.5, 0.98, 0.999, 1.001, 2.0)
    beside = [replace(record, time_s=Seconds(share * lower)) for share in shares]
    assert [RecordRow({}, one, lower, None, "").violates for one in beside] == [True, True, True, False, False]
    [kept] = points(beside, {H200.id: H200}).values()
    assert [one.record for one in kept] == beside[3:]


def test_the_width_of_a_borrowed_interval_is_of_fitted_rows() -> None:
    """Of two devices, all of |log error| of rows that a fit may see, by the other architecture's parameters: 80 % x (1 + 1/2) are more."""
    model = find_model("stream")
    p = dict.fromkeys(model.starts(), 1.0)
    block = Calibration("numba-copy", "copy", "stream", ["fp32"], p, 1, 0.9, 1.1, "records", "", "")

    def rows(device: Device) -> list[FitPoint]:
        listed = []
        for index in range(11):
            for source, error in ((FITTED, index / 10), (HELD_OUT, 5.0)):
                one = point(copy((index + 1) << 20, 1.0, device, source), device)
                time = model.seconds(one.case, device, p) * math.exp(error)
                listed.append(replace(one, record=replace(one.record, time_s=Seconds(time))))
        return listed

    grouped = {FitKey("copy", "numba-copy", "forward", "stream", device.architecture): rows(device) for device in (A100, H100)}
    a100, h100 = (replace(device, clocks=Clocks(), launch_overhead=None, microbenchmarks=[]) for device in (A100, H100))
    grouped = {key: [replace(one, device=a100 if one.device.id == A100.id else h100) for one in own] for key, own in grouped.items()}
    found = widths(residuals(grouped, {A100.id: [block], H100.id: [block]}, tuple))
    assert found["copy", False] == found["copy", True] == found["", False] == pytest.approx(1.0)


def test_whole_training_steps_calibrate() -> None:
    """A record of both passes of one step is a case without passes: its calibration is found by the name that its fit had."""
    shape = {"phase": "train", "attention": "sdpa", "checkpointing": False, "tensor_parallel": 1, "fused_elementwise": False}
    steps = [
        Record(
            "transformer",
            "huggingface",
            H200.id,
            "bf16",
            {**shape, "model": model, "n": 512, "batch": batch, "cuda_graph": False},
            Seconds(time * (1 + batch)),
            "both",
            source=FITTED,
            environment={"sdpa_backend": "FLASH_ATTENTION"},
        )
        for model, time in (("gpt2", 0.1), ("gpt2-medium", 0.2))
        for batch in range(1, 6)
    ]
    [block] = calibrate(steps, {H200.id: H200}, "", lambda _: "", lambda _: None)[H200.id]
    assert (block.implementation, block.direction, block.points) == ("huggingface", "forward", 10)
    [(key, own)] = points(steps, {H200.id: H200}).items()
    assert key.family == family_of(block)
    elsewhere = {
        key._replace(architecture="another"): [replace(one, device=replace(H200, id="other", architecture="another")) for one in own]
    }
    halves = widths(residuals({key: own, **elsewhere}, {H200.id: [block], "other": [block]}, tuple))
    assert halves["transformer", False] > 0


def test_a_dropout_is_a_share_of_the_scores_and_counts() -> None:
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "n": 64, "kv_len": 64, "d": 64}

    def case(dropout: object) -> Case | None:
        record = Record("attention", "torch-sdpa-flash", H200.id, "bf16", {**sizes, "dropout": dropout}, Seconds(1.0))  # type: ignore[dict-item]
        return evaluated(record, H200)[0]

    assert [made and made.workload.dropout for made in map(case, (0.0, 0.1))] == [0.0, 0.1]
    assert [case(wrong) for wrong in (1.5, -0.1, "0.1", True)] == [None] * 4
