"""Fit calibrations of the device profiles anew to the shipped records: ``python -m tools.refresh.calibrations [IMPLEMENTATION ...]``.

Those of the implementations named, or all; intervals for other devices are of all kernels of a kind, named or not. A block whose figures
stay keeps its date. A block that today's records are too few to fit
keeps its parameters and its interval; its errors on held-out records are computed. No line of a calibration is written by hand.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache

from perfmodel.catalog import calibrated_devices, data_folder, device_ids, find_device
from perfmodel.core.errors import DataError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import find_model, model_names
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.validation import calibrate as fits
from perfmodel.validation import fit_points
from perfmodel.validation.calibration_run import RECORDS, Calibrated, CalibrationOptions, from_records
from perfmodel.validation.cross_device import kind_of, residuals, widths, with_borrowed
from perfmodel.validation.profile_text import flow
from perfmodel.validation.records import read_records, shipped_records

SECTION = re.compile(r"^calibration:\n(?:[ \-#].*\n|\n)*", re.MULTILINE)
SOURCES = re.compile(r"^sources:\n", re.MULTILINE)


def with_calibrations(text: str, blocks: Sequence[Calibration]) -> str:
    """The profile ``text`` with ``blocks`` for its calibration section; every other line stays as it is.

    DataError if the text has no ``sources:`` to name theirs in.
    """
    text = SECTION.sub("", text).rstrip() + "\n"
    if not SOURCES.search(text):
        raise DataError("the profile has no 'sources:' section", "give it one; calibrations name their source there")
    for key in sorted({block.source for block in blocks}):
        if not re.search(rf"^  {re.escape(key)}:", text, re.MULTILINE):
            text = SOURCES.sub(f"sources:\n  {key}: {json.dumps(RECORDS)}\n", text, count=1)
    if not blocks:
        return text
    return text + "\ncalibration:\n" + "".join(map(_block, blocks))


def _block(block: Calibration) -> str:
    """One list item in flow style, over a few lines."""
    head = ("implementation", "workload", "direction", "model", "dtypes")
    groups = [head, ("parameters",), tuple(f.name for f in fields(block) if f.name not in (*head, "parameters"))]
    lines = []
    for group in groups:
        pairs = [(name, getattr(block, name)) for name in group if getattr(block, name) is not None]
        lines.append(", ".join(f"{name}: {flow(value)}" for name, value in pairs))
    return "  - {" + ",\n     ".join(lines) + "}\n"


def blocks_of(
    found: Calibrated, grouped: Mapping[fit_points.FitKey, list[fit_points.FitPoint]], fallbacks: FallbackDevices = calibrated_devices
) -> list[Calibration]:
    """All blocks of a device, in the order of their names; those that the fit gives again as they were, none that no record belongs to.

    ``grouped``: points that judge blocks which were not fitted; without any these stay as they were. ``fallbacks`` lend parts of theirs.
    """
    fitted = set(map(fits.family_of, found.blocks))
    before = {fits.family_of(block): block for block in find_device(found.device.id).calibration}
    blocks = []
    for block in sorted((one for one in found.device.calibration if one.model in model_names()), key=fits.family_of):
        old = before.get(fits.family_of(block), block)
        new = block if fits.family_of(block) in fitted else judged(block, found, grouped, fallbacks) if grouped else old
        if new is not None:
            blocks.append(old if replace(new, date=old.date, source=old.source) == old else new)
    return blocks


def judged(
    block: Calibration, found: Calibrated, grouped: Mapping[fit_points.FitKey, list[fit_points.FitPoint]], fallbacks: FallbackDevices
) -> Calibration | None:
    """``block`` with the errors of its parameters on held-out records, the other calibrations of its device being the new ones.

    None where no record belongs to it: its model gave way to another one.
    """
    key = next((key for key in grouped if key.family == fits.family_of(block) and key.architecture == found.device.architecture), None)
    if key is None:
        return None
    own = [replace(point, device=found.device) for point in grouped[key] if point.device.id == found.device.id]
    own = fits.with_other_parts(own, block.model, fallbacks)
    new = fits.block_of(key, block.parameters, own, block.date, lambda _: block.versions)
    return replace(block, held_out_median_error=new.held_out_median_error, held_out_p90_error=new.held_out_p90_error)


def with_widths(every: Iterable[Calibrated], grouped: Mapping[fit_points.FitKey, list[fit_points.FitPoint]]) -> list[Calibrated]:
    """``every``, and the other devices that have kernels of the same kinds, with the intervals for other devices of a fit of all kernels.

    ``grouped``: points of all records.
    """
    known = {device.id: device for device in calibrated_devices()} | {each.device.id: each.device for each in every}
    kinds = {kind_of(fits.family_of(block)) for each in every for block in each.blocks}
    fitted = {
        (point.device.id, key.family)
        for key, own in grouped.items()
        if not fits.too_few((point.record for point in own), find_model(key[3]))
        for point in own
    }
    blocks = {name: [one for one in device.calibration if (name, fits.family_of(one)) in fitted] for name, device in known.items()}
    blocks = {name: own for name, own in blocks.items() if own}
    wide = with_borrowed(blocks, widths(residuals(grouped, blocks, known.values)))
    alike = {name: [one for one in own if kind_of(fits.family_of(one)) in kinds] for name, own in wide.items()}
    return [_with_blocks(known[name], own) for name, own in alike.items() if own]


def _with_blocks(device: Device, blocks: list[Calibration]) -> Calibrated:
    anew = {fits.family_of(block): block for block in blocks}
    return Calibrated(replace(device, calibration=[anew.get(fits.family_of(one), one) for one in device.calibration]), [], blocks)


def write(every: Iterable[Calibrated], implementations: Sequence[str] = ()) -> None:
    """Put the blocks of each device into its profile, those of ``implementations`` alone if there are any."""
    records = [record for path in shipped_records() for _, record in read_records(path)]
    devices = {name: find_device(name) for name in {record.hardware for record in records} & set(device_ids())}
    grouped = fits.points(records, devices)
    every = with_widths(list(every), grouped) if implementations else list(every)
    fallbacks = cache(lambda: [*(each.device for each in every), *calibrated_devices()])
    judging = {} if implementations else grouped
    for each in every:
        path = data_folder("hardware_specs") / f"{each.device.id}.yaml"
        path.write_text(with_calibrations(path.read_text(encoding="utf-8"), blocks_of(each, judging, fallbacks)), encoding="utf-8")


if __name__ == "__main__":
    options = CalibrationOptions(jobs=os.cpu_count() or 1)
    names = sys.argv[1:]
    write(from_records(shipped_records(), find_device, None, names, print, fallbacks=calibrated_devices, options=options), names)
