"""Fit the power of each device anew to the shipped records that have watts: ``python -m tools.refresh.power``.

No line of a ``power:`` section is written by hand. A fit whose figures stay keeps its date. Calibrations come first: steps take their
rows' shares of the time from them.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from datetime import date
from functools import cache

from perfmodel.catalog import calibrated_devices, data_folder, device_ids, find_device
from perfmodel.core.hardware import Device, PowerFit
from perfmodel.validation.calibration_run import RECORDS
from perfmodel.validation.profile_text import flow
from perfmodel.validation.records import Record, read_records, shipped_records
from tools.power_fit import chosen, points, step_points
from tools.scores import tabled_power

SECTION = re.compile(r"^power:\n(?:[ #].*\n)*\n?", re.MULTILINE)
TDP = re.compile(r"^tdp: .*\n", re.MULTILINE)
SOURCE, TABLES = "records", "power-tables"
"""Keys of a profile's sources."""


def section(fit: PowerFit) -> str:
    """The lines of ``power:``."""
    lines = [f"  {one.name}: {flow(getattr(fit, one.name))}" for one in fields(fit)]
    return "power:\n" + "\n".join(lines) + "\n"


def with_power(text: str, fit: PowerFit) -> str:
    """The profile ``text`` with ``fit`` after its ``tdp``; its source is among the sources."""
    text = SECTION.sub("", text)
    if not re.search(rf"^  {SOURCE}:", text, re.MULTILINE):
        text = re.sub(r"^sources:\n", f"sources:\n  {SOURCE}: {json.dumps(RECORDS)}\n", text, count=1, flags=re.MULTILINE)
    return TDP.sub(lambda found: f"{found.group()}\n{section(fit)}", text, count=1)


def fitted(device: Device, records: list[Record]) -> PowerFit | None:
    """Its power, as before where no figure changes; None without records that have watts."""
    its = [record for record in records if record.hardware == device.id]
    own, steps = points(its, device), step_points(its, device, cache(calibrated_devices))
    if not own:
        return None
    names = f"{len(own)} kernels that ran for seconds, perfmodel/validation/measured/{device.id}"
    new, old = chosen(own, device, steps, source=SOURCE, records=names, date=date.today().isoformat()), device.power
    return old if old is not None and replace(new, date=old.date) == old else new


def tabled(device: Device, like: PowerFit) -> PowerFit:
    """Its power by public tables, as before where no figure changes; without clocks in them, what depends on these is that of ``like``."""
    new, old = tabled_power.fit_anew(like, TABLES, date.today().isoformat()), device.power
    return old if old is not None and replace(new, date=old.date) == old else new


def write() -> None:
    """Put the fit of each device that has one into its profile."""
    fits: dict[str, PowerFit] = {}
    records = [record for path in shipped_records() for _, record in read_records(path) if record.power_w is not None]
    for name in sorted({record.hardware for record in records} & set(device_ids())):
        device = find_device(name)
        fit = fitted(device, records)
        if fit is not None:
            put(name, fit)
            fits[name] = fit
    put(tabled_power.DEVICE, tabled(find_device(tabled_power.DEVICE), fits[tabled_power.LIKE]))


def put(name: str, fit: PowerFit) -> None:
    """Write ``fit`` into the profile of that name."""
    path = data_folder("hardware_specs") / f"{name}.yaml"
    path.write_text(with_power(path.read_text(encoding="utf-8"), fit), encoding="utf-8")


if __name__ == "__main__":
    write()
