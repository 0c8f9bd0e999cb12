"""Calibrations in profiles are what the shipped records and the code give: no figure is written by hand, or left from an older fit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from perfmodel.catalog import calibrated_devices, device_ids, find_device
from perfmodel.core import units
from perfmodel.core.hardware import Calibration
from perfmodel.timing.base import Model
from perfmodel.validation import calibrate as fits
from perfmodel.validation import fit_points
from perfmodel.validation.calibration_run import from_records, versions_of
from perfmodel.validation.cross_device import residuals, widths, with_borrowed
from perfmodel.validation.fit_points import FULL, Effort, FitPoint
from perfmodel.validation.records import read_records, shipped_records

TOO_FEW = {("nvidia-h200-sxm", "attention", "numba-standard", "forward", "numba-standard")}
"""Fitted before families counted in the place of shapes: records of more families would fit them anew."""
QUICK = ("eager-published", "fa1", "fa3-few", "numba-matmul", "numba-matmul-naive", "stream")
"""Models that are refitted here in less than a tenth of a second."""
FROM_RESIDUALS = ("low", "high", "median_error")
"""What residuals of refits tell."""
NAMES = ("workload", "implementation", "direction", "model")


def figures(device: str, blocks: Sequence[Calibration]) -> dict[tuple[str, ...], Any]:
    """Every figure of ``blocks``, by device, kernel and name."""
    known = [(block, {**asdict(block), **block.parameters}) for block in blocks]
    left_out = {*NAMES, "parameters", "source", "date"}
    return {
        (device, *(getattr(block, name) for name in NAMES), name): value
        for block, values in known
        for name, value in values.items()
        if name not in left_out
    }


SHIPPED = {device.id: device for device in calibrated_devices()}
STORED = {name: value for device in SHIPPED.values() for name, value in figures(device.id, device.calibration).items()}


def block_of(point: FitPoint) -> Calibration | None:
    """The calibration of ``point`` in its device's profile, if it has one."""
    model = fits.model_of(point.case, point.device)
    if point.device.id not in SHIPPED:
        return None
    wanted = (point.record.workload, fits._calibrated_name(point.case, model), point.case.direction, model.name)
    return next((block for block in SHIPPED[point.device.id].calibration if fits.family_of(block) == wanted), None)


REFITTED = fit_points.fitted


def stored_parameters(model: Model, known: Sequence[FitPoint], starts: Mapping[str, float] | None = None, effort: Effort = FULL) -> Any:
    """In the place of a fit: the parameters in the profile. Of quick models, the refits without a fold are made."""
    if starts is not None:
        return REFITTED(model, known, starts, effort) if model.name in QUICK else starts
    return next(block.parameters for block in map(block_of, known) if block is not None)


def left_out_growth(device: str, *kernel: str) -> float:
    """How much larger a residual is of a row that the fit did not see: n / (n - p) in least squares, two of two rows and one parameter."""
    block = next(one for one in SHIPPED[device].calibration if tuple(getattr(one, name) for name in NAMES) == kernel)
    free = block.points - len(block.parameters)
    return block.points / free if free > 0 else math.inf


@pytest.mark.slow
def test_figures_in_profiles_are_those_of_their_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points, versions, errors held out, what is borrowed, and of quick models the intervals.

    Of the others a test marked slow computes them; they are no narrower than in-sample ones, and not much wider.
    """
    records = [record for path in shipped_records() for _, record in read_records(path)]
    names = {record.hardware for record in records} & set(device_ids())
    grouped = fits.points(records, {name: find_device(name) for name in names})
    monkeypatch.setattr(fits, "points", lambda *_: {key: own for key, own in grouped.items() if block_of(own[0]) or block_of(own[-1])})
    monkeypatch.setattr(fit_points, "fitted", stored_parameters)
    devices = {point.device.id: point.device for own in grouped.values() for point in own}
    found = fits.calibrate([], devices, "", versions_of, lambda _: None, calibrated_devices)
    found = with_borrowed(found, widths(residuals(grouped, found, calibrated_devices)))
    computed = {name: value for device, blocks in found.items() for name, value in figures(device, blocks).items()}
    assert {name[:5] for name in STORED} - {name[:5] for name in computed} == TOO_FEW
    slow = {name for name in computed if name[-1] in FROM_RESIDUALS and name[4] not in QUICK}
    wrong = {name: (STORED.get(name), value) for name, value in computed.items() if name not in slow and value != STORED.get(name)}
    assert wrong == {}, "written by hand, or before the code changed: perfmodel calibrate --from-records shipped"
    for *kernel, _ in (name for name in slow if name[-1] == "low"):
        kept, inside = (math.log(of[*kernel, "high"] / of[*kernel, "low"]) for of in (STORED, computed))
        assert 0.9 * inside <= kept <= 2 * inside * left_out_growth(*kernel), kernel
        assert STORED[*kernel, "low"] < 1 < STORED[*kernel, "high"]


@pytest.mark.slow
def test_figures_in_profiles_are_those_of_a_new_fit() -> None:
    """Parameters, intervals and all: a quarter of an hour."""
    found = from_records(shipped_records(), find_device, None, [], lambda _: None, fallbacks=calibrated_devices)
    fitted = {name: value for each in found for name, value in figures(each.device.id, each.blocks).items()}
    assert {name: (STORED.get(name), value) for name, value in fitted.items() if value != STORED.get(name)} == {}


MICROBENCHMARKS = {"nvidia-h200-sxm": "a1c430f34fb3c1fd8c3ff9b51e9af585a35024280e09cfdecd981f6651a2b8a5"}
"""SHA-256 of what one run of ``perfmodel calibrate`` wrote; no record of it is kept, so that nothing can compute it again."""


def test_microbenchmarks_are_as_they_were_written() -> None:
    found = {}
    for name in device_ids():
        results = [asdict(result) for result in find_device(name).microbenchmarks if result.source == "microbenchmarks"]
        if results:
            assert {result.pop("shape") for result in results} == {None}
            found[name] = hashlib.sha256(repr(results).encode()).hexdigest()
    assert found == MICROBENCHMARKS


def test_microbenchmarks_agree_with_each_other_and_with_the_datasheet() -> None:
    device = find_device("nvidia-h200-sxm")
    results = [(result.name, units.parse_any(result.value)) for result in device.microbenchmarks]
    last, highest = dict(results), {name: max(value for other, value in results if other == name) for name, _ in results}
    assert last["DRAM copy, largest"] == last["DRAM copy"] <= last["DRAM read"] == last["DRAM read, largest"] <= 4.8e12
    assert highest["L2 read"] <= last["L2 read, plateau"]
    assert last["fp32 FMA"] <= 66.9e12
    assert last["exp"] <= 4.182e12
    assert last["shared memory read"] <= 33.45e12
    assert last["launch, graph"] < last["launch, stream"]
