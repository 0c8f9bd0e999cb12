"""How to make a report again: the command line, the version, and every device profile that it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from perfmodel import __version__
from perfmodel.core.errors import PerfmodelError
from perfmodel.report.document import ProfileUse, Provenance, Report


def made_by(report: Report, command: str, devices: Iterable[str]) -> Report:
    """``report`` with its provenance, if it has none yet. ``devices``: as asked for, by name or by the path of a profile."""
    if report.provenance is not None:
        return report
    found: dict[str, ProfileUse] = {}
    for name in [*devices, *_devices(report)]:
        use = _use(name)
        if use is not None:
            found.setdefault(use.id, use)
    return replace(report, provenance=Provenance(command, __version__, list(found.values())))


def _devices(report: Report) -> list[str]:
    """Ids of the devices that a report names."""
    named = [report.data.get(key) for key in ("hardware", "device")]
    several = [one for one in report.data.get("devices", ()) if isinstance(one, str)]
    return [one["id"] for one in named if isinstance(one, dict) and "id" in one] + [chart.device for chart in report.rooflines] + several


def _use(name: str) -> ProfileUse | None:
    """The profile that ``name`` means; None if it means none."""
    from perfmodel.catalog import find_device
    from perfmodel.report.roofline_chart import profile_use

    try:
        return profile_use(find_device(name), Path(name) if name.endswith((".yaml", ".yml")) else None)
    except PerfmodelError:
        return None
