"""Measurement records that a study asks for, each with the model's values."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import Attention
from perfmodel.kernels.matmul import Matmul
from perfmodel.study.options import options_of
from perfmodel.study.schema import Options, Scope
from perfmodel.study.workloads import shape_words
from perfmodel.validation.compare import RecordRow, compare, device_or_error, label
from perfmodel.validation.records import Record, held_out, profiled, shipped_records

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class RecordChoice(Options):
    """A choice of records by conditions, all of which must hold. ``most``: largest number, taken evenly from every group.

    ``shape``: accepted values of shape keys. ``held_out``: only records that no fit saw.
    """

    OPTION_NAMES: ClassVar[dict[str, str]] = {"pass": "direction"}

    file: str = SHIPPED
    hardware: list[str] | str | None = None
    workload: list[str] | str | None = None
    implementation: list[str] | str | None = None
    direction: list[str] | str | None = None
    dtype: list[str] | str | None = None
    cache: str | None = None
    held_out: bool | None = None
    shape: dict[str, bool | int | str | list[bool | int | str]] = field(default_factory=dict)
    most: int | None = None

    def takes(self, record: Record) -> bool:
        """Whether ``record`` meets every condition. Runs under a profiler never do, as their times do not count."""
        for name in ("workload", "implementation", "direction", "dtype", "cache"):
            wanted = getattr(self, name)
            if wanted is not None and getattr(record, name) not in _listed(wanted):
                return False
        if self.held_out is not None and held_out(record) != self.held_out:
            return False
        return not profiled(record) and all(record.shape.get(key) in _listed(value) for key, value in self.shape.items())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def records_of(text: str) -> RecordChoice:
    """The choice in ``text``: a file or ``shipped``, and conditions, as in ``shipped hardware=h200 most=12``."""
    words = text.split()
    if words and "=" not in words[0]:
        words[0] = f"file={words[0]}"
    choice: RecordChoice = options_of("--records", words, RecordChoice)
    return choice


def rows_of(choice: RecordChoice, scope: Scope) -> list[RecordRow]:
    """The chosen records with the model's values, group by group. UsageError if there are none."""
    if choice.most is not None and choice.most < 1:
        raise UsageError(f"most is {choice.most}", "give a whole number of at least 1")
    stored_records = _records_of_devices(choice, scope)
    chosen = [stored for stored in stored_records if choice.takes(stored.record)]
    if not chosen:
        implementations = sorted({stored.record.implementation for stored in stored_records})
        unknown = [name for name in _listed(choice.implementation or []) if name not in implementations]
        fix = suggest(unknown[0], implementations) if unknown and implementations else "take a condition out"
        raise UsageError(f"no record in {choice.file} meets the conditions", fix)
    groups: dict[tuple[str, str], list[_StoredRecord]] = {}
    for stored in chosen:
        groups.setdefault((stored.record.hardware, stored.record.group), []).append(stored)
    for path in dict.fromkeys(stored.path for stored in chosen):
        scope.file(str(path))  # notes the file as an input of the study
    named_devices = {device.id: device for device in scope.devices(_listed(choice.hardware or []))}  # may be files with a shipped id
    rows = []
    for stored in thinned(list(groups.values()), choice.most):
        device_id = stored.record.hardware
        device = named_devices.get(device_id) or device_or_error(device_id, scope.device)
        rows.append(compare(stored.raw, stored.record, device, scope.fallbacks))
    return rows


def devices_of(choice: RecordChoice, scope: Scope) -> list[str]:
    """Ids of devices with records that meet the conditions."""
    chosen = [stored.record for stored in _records_of_devices(choice, scope) if choice.takes(stored.record)]
    return list(dict.fromkeys(record.hardware for record in chosen))


class _StoredRecord(NamedTuple):
    """A record, as it was read from ``path``. ``raw``: its JSON object."""

    path: Path
    raw: dict[str, Any]
    record: Record


def _records_of_devices(choice: RecordChoice, scope: Scope) -> list[_StoredRecord]:
    """All records of the devices that ``choice`` names, or of all devices if it names none."""
    devices = [] if choice.hardware is None else [device.id for device in scope.devices(_listed(choice.hardware))]
    if choice.file == SHIPPED:
        paths = [path for path in shipped_records() if not devices or path.parent.name in devices]
    else:
        paths = [scope.file(choice.file)]
    stored_records = [_StoredRecord(path, raw, record) for path in paths for raw, record in scope.records(path)]
    return [stored for stored in stored_records if not devices or stored.record.hardware in devices]


def thinned(groups: list[list[Any]], most: int | None) -> list[Any]:
    """At most ``most`` items, as evenly as possible from all groups, and evenly along each.

    >>> thinned([list(range(10)), [20]], 4)
    [0, 4, 9, 20]
    """
    total = sum(map(len, groups))
    if most is None or total <= most:
        return [item for group in groups for item in group]
    sizes = [0] * len(groups)
    while sum(sizes) < most:
        unfinished = [place for place, group in enumerate(groups) if sizes[place] < len(group)]
        smallest = min(unfinished, key=lambda place: sizes[place])
        sizes[smallest] += 1
    return [item for group, size in zip(groups, sizes, strict=True) for item in _even(group, size)]


def _even(group: list[Any], size: int) -> list[Any]:
    """``size`` items of ``group``, evenly spaced and with both ends."""
    if size < 2:
        return group[:size]
    return [group[place * (len(group) - 1) // (size - 1)] for place in range(size)]


def row_group(row: RecordRow) -> str:
    """Name of a record's group: implementation, and pass unless forward."""
    return f"{row.record.implementation} {row.record.direction}".removesuffix(" forward")


def row_name(row: RecordRow) -> str:
    """Name of a record: implementation, pass unless forward, and shape."""
    work = None if row.case is None else row.case.workload
    return f"{row_group(row)}, {shape_words(work)}" if isinstance(work, (Attention, Matmul)) else label(row.record)
