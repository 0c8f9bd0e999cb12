"""What every kind of section shares: where it finds things, what it hands back, and what the report rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.files import sha256
from perfmodel.core.hardware import Device
from perfmodel.core.trace import FormulaStep
from perfmodel.report.charts.schema import Chart, Number, RooflinePoint
from perfmodel.report.document import DataTable, Formula, ProfileUse
from perfmodel.report.roofline_chart import formulas, profile_use
from perfmodel.timing.predict import FallbackDevices
from perfmodel.validation.records import Record, read_records

XY = list[tuple[Number, Number]]
"""Points of a line."""
MOST_FORMULAS = 220
"""Of a report: each takes some 160 B of a page and 300 B of JSON."""


@dataclass(frozen=True, slots=True)
class SectionResult:
    """A section, computed. ``verdict``: sentences, the first one first. Formulas of one ``group`` and name appear once."""

    verdict: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    data_tables: list[DataTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    formulas: list[Formula] = field(default_factory=list)


def together(parts: Sequence[SectionResult]) -> SectionResult:
    """``parts`` as one, such as those of several devices."""
    return SectionResult(*([one for part in parts for one in getattr(part, each.name)] for each in fields(SectionResult)))


@dataclass(slots=True)
class Scope:
    """Where a study looks and what it has used so far: profiles, input files, and numbers of points.

    ``folder``: of the study's file; names of files in it are relative to that. ``fallbacks``: those to borrow calibrations from.
    """

    folder: Path | None = None
    fallbacks: FallbackDevices = field(default_factory=lambda: cache(calibrated_devices))
    profiles: dict[str, ProfileUse] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    explained: dict[str, int] = field(default_factory=dict)
    _devices: dict[str, Device] = field(default_factory=dict)
    recorded: dict[Path, list[tuple[dict[str, Any], Record]]] = field(default_factory=dict)

    def device(self, name: str) -> Device:
        """The device that ``name`` means; the path of a profile is that of a file."""
        path = self._beside(name) if name.endswith((".yaml", ".yml")) else None
        found = self._devices.get(name) or find_device(name if path is None else str(path))
        self._devices[name] = found
        self.profiles.setdefault(found.id, profile_use(found, path))
        return found

    def devices(self, names: Sequence[str]) -> list[Device]:
        """Those devices, each once."""
        return list({device.id: device for device in map(self.device, names)}.values())

    def file(self, name: str) -> Path:
        """An input file: beside the study if it is there, else from where the program runs."""
        path = self._beside(name)
        if path.is_file():
            self.inputs[path.name] = sha256(path)
        return path

    def _beside(self, name: str) -> Path:
        beside = None if self.folder is None else self.folder / name
        return beside if beside is not None and beside.exists() else Path(name)

    def records(self, path: Path) -> list[tuple[dict[str, Any], Record]]:
        """Measurement records of ``path``, read once."""
        if path not in self.recorded:
            self.recorded[path] = list(read_records(path))
        return self.recorded[path]

    def explain(self, series: str, group: str, steps: Callable[[], Iterable[FormulaStep]]) -> list[Formula]:
        """Every number of an answer as its formula, once per ``series``: others differ in numbers alone. At most MOST_FORMULAS in all."""
        if series in self.explained or sum(self.explained.values()) >= MOST_FORMULAS:
            return []
        found = formulas(group, steps())
        if sum(self.explained.values()) + len(found) > MOST_FORMULAS:
            return []
        self.explained[series] = len(found)
        return found

    def numbered(self, points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
        """``points`` with the next numbers of the report."""
        return [replace(point, number=next(self.numbers)) for point in points]


def on(device: Device, several: bool, title: str = "") -> str:
    """What a sentence is about: its section, and the device where there are several."""
    words = [title] * bool(title) + [device.name] * several
    return f"{', '.join(words)}: " if words else ""
