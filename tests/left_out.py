"""Predictions of a device by calibrations of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from perfmodel.core.hardware import Device
from perfmodel.timing.predict import Prediction, TimeRequest, predict
from perfmodel.validation.calibrate import calibrate, points
from perfmodel.validation.cross_device import half_widths, with_borrowed
from perfmodel.validation.records import Record, held_out


def leave_out(name: str, records: Iterable[Record], devices: Mapping[str, Device]) -> list[tuple[Record, Prediction]]:
    """Held-out records of device ``name``, predicted by calibrations that saw none of its records."""
    listed = list(records)
    bare = {key: replace(device, calibration=[]) for key, device in devices.items()}
    others = [record for record in listed if record.hardware != name]
    fits = calibrate(others, bare, "", lambda _: "", lambda text: None)
    halves = half_widths(points(others, bare), fits)
    fallbacks = [replace(bare[key], calibration=blocks) for key, blocks in with_borrowed(fits, halves).items()]
    found = []
    for own in points([r for r in listed if r.hardware == name], bare).values():
        for point in own:
            if held_out(point.record):
                made = predict(
                    TimeRequest(point.case, point.record.workload, point.record.dtype, bare[name], point.lower_s, lambda: fallbacks)
                )
                found.append((point.record, made))
    return found
