"""Measurements against the model: bound, prediction and error per record, and a summary per group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfmodelError, UnavailableError
from perfmodel.hardware import Device
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.records import Record, read_records

TOLERATED_NOISE = 1e-9
"""Relative: a measurement equal to its bound is no violation."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record beside the model. ``lower_s`` and ``predicted_s`` are None where ``reason`` says why there is none."""

    raw: dict[str, Any]
    record: Record
    lower_s: float | None
    predicted_s: float | None
    reason: str

    @property
    def violates(self) -> bool:
        """Whether the measurement beats the bound."""
        return self.lower_s is not None and self.record.time_s.median < self.lower_s * (1 - TOLERATED_NOISE)

    @property
    def error(self) -> float | None:
        """predicted / measured - 1."""
        return None if self.predicted_s is None else self.predicted_s / self.record.time_s.median - 1

    @property
    def share_of_bound(self) -> float | None:
        """Bound / measured: 1 is a kernel at its bound."""
        return None if self.lower_s is None else self.lower_s / self.record.time_s.median


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one workload, implementation and pass; ``hardware`` is empty where several devices are in it."""

    name: str
    hardware: str
    rows: list[Row] = field(default_factory=list)

    def quantile(self, share: float, of: Callable[[Row], float | None]) -> float | None:
        """The smallest value that at least ``share`` of the rows do not exceed; None without values."""
        values = sorted(value for value in map(of, self.rows) if value is not None)
        return values[min(len(values) - 1, max(0, -(-len(values) * round(share * 100) // 100) - 1))] if values else None

    @property
    def violations(self) -> int:
        """Rows that beat their bound."""
        return sum(row.violates for row in self.rows)

    @property
    def evaluated(self) -> int:
        """Rows that have a bound."""
        return sum(row.lower_s is not None for row in self.rows)


def compare_files(paths: Iterable[Path], find_device: Callable[[str], Device]) -> list[Row]:
    """Every record of ``paths`` beside the model; a record that cannot be evaluated is kept, with the reason."""
    devices: dict[str, Device | PerfmodelError] = {}
    rows = []
    for path in paths:
        for raw, record in read_records(path):
            if record.hardware not in devices:
                devices[record.hardware] = _device_or_error(record.hardware, find_device)
            device = devices[record.hardware]
            lower, reason = (None, device.message) if isinstance(device, PerfmodelError) else evaluated(record, device)
            rows.append(Row(raw, record, lower, None, reason or "not predicted, as this implementation is not calibrated"))
    return rows


def _device_or_error(name: str, find_device: Callable[[str], Device]) -> Device | PerfmodelError:
    if "/" in name or name.endswith((".yaml", ".yml")):  # a record names a device; it does not open files
        return UnavailableError(f"no device is called {name!r}")
    try:
        return find_device(name)
    except PerfmodelError as error:
        return error


def groups(rows: Iterable[Row], by_device: bool) -> list[Group]:
    """``rows`` by workload, implementation and pass, and by device if asked for, in the order of their first record."""
    found: dict[tuple[str, str], Group] = {}
    for row in rows:
        hardware = row.record.hardware if by_device else ""
        found.setdefault((hardware, row.record.group), Group(row.record.group, hardware)).rows.append(row)
    return list(found.values())
