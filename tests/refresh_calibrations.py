"""Fit every calibration of the device profiles anew to the shipped records: ``python tests/refresh_calibrations.py``.

A block whose figures stay keeps its date. No line of a calibration is written by hand.
"""

from __future__ import annotations

import os
from dataclasses import replace

from perfmodel.catalog import calibrated_devices, data_folder, find_device
from perfmodel.hardware import Calibration
from perfmodel.validation.calibrate import family_of
from perfmodel.validation.calibration_run import Calibrated, How, from_records
from perfmodel.validation.profile_text import with_calibrations
from perfmodel.validation.records import shipped_records


def blocks_of(found: Calibrated) -> list[Calibration]:
    """All blocks of a device, in the order of their names; those that the fit gives again as they were."""
    before = {family_of(block): block for block in find_device(found.device.id).calibration}
    blocks = []
    for block in sorted(found.device.calibration, key=family_of):
        old = before.get(family_of(block), block)
        blocks.append(old if replace(block, date=old.date, source=old.source) == old else block)
    return blocks


if __name__ == "__main__":
    how = How(jobs=os.cpu_count() or 1)
    for each in from_records(shipped_records(), find_device, None, [], print, lenders=calibrated_devices, how=how):
        path = data_folder("hardware_specs") / f"{each.device.id}.yaml"
        path.write_text(with_calibrations(path.read_text(encoding="utf-8"), blocks_of(each)), encoding="utf-8")
