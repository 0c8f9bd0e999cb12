"""The provenance of a report: the call, and the profiles that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.catalog import data_folder, find_device
from perfmodel.core.checks import sha256
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.report.document import ProfileUse, Provenance, Report


def with_provenance(report: Report, call: str, devices: Iterable[str]) -> Report:
    """``report`` with its provenance: ``call``, and the profiles of ``devices`` and of devices in the report."""
    if report.provenance is not None:
        return report
    names = list(devices)
    for key in ("hardware", "device"):
        entry = report.data.get(key)
        if isinstance(entry, dict) and "id" in entry:
            names.append(entry["id"])
    names += [chart.device for chart in report.rooflines]
    names += [entry for entry in report.data.get("devices", ()) if isinstance(entry, str)]
    profiles: dict[str, ProfileUse] = {}
    for profile in map(_profile, names):
        if profile is not None:
            profiles.setdefault(profile.id, profile)
    return replace(report, provenance=Provenance(call, __version__, list(profiles.values())))


def named_devices(options: Mapping[str, Any]) -> list[str]:
    """Names and paths of devices among the values of ``options``."""
    names: list[str] = []
    for option in ("hardware", "device", "devices"):
        value = options.get(option) or ()
        for text in [value] if isinstance(value, str) else value:
            names += text.split(",")
    return names


def _profile(name: str) -> ProfileUse | None:
    """The profile called ``name`` or at that path; None if there is none."""
    try:
        return profile_use(find_device(name), Path(name) if name.endswith((".yaml", ".yml")) else None)
    except PerfmodelError:
        return None


def profile_use(device: Device, path: Path | None = None) -> ProfileUse:
    """The use of a profile with the SHA-256 of its file; ``path``: for one that is not shipped."""
    file = path or data_folder("hardware_specs") / f"{device.id}.yaml"
    digest = sha256(file) if file.is_file() else ""
    return ProfileUse(device.id, digest, max((block.date for block in device.calibration), default=""))
