"""Measurement records that a study asks for, each with the model's values."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

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
    records = _records_of_devices(choice, scope)
    taken = [(path, raw, record) for path, raw, record in records if choice.takes(record)]
    if not taken:
        implementations = sorted({record.implementation for *_, record in records})
        wrong = next((name for name in _listed(choice.implementation or []) if name not in implementations), None)
        fix = suggest(wrong, implementations) if wrong and implementations else "take a condition out"
        raise UsageError(f"no record in {choice.file} meets the conditions", fix)
    groups: dict[tuple[str, str], list[tuple[dict[str, Any], Record]]] = {}
    for _, raw, record in taken:
        groups.setdefault((record.hardware, record.group), []).append((raw, record))
    for path in dict.fromkeys(path for path, *_ in taken):
        scope.file(str(path))
    chosen = thinned(list(groups.values()), choice.most)
    named = {device.id: device for device in scope.devices(_listed(choice.hardware or []))}  # of a file, before the shipped one of its id
    return [
        compare(raw, record, named.get(record.hardware) or device_or_error(record.hardware, scope.device), scope.fallbacks)
        for raw, record in chosen
    ]


def devices_of(choice: RecordChoice, scope: Scope) -> list[str]:
    """Ids of devices with records that meet the conditions."""
    return list(dict.fromkeys(record.hardware for *_, record in _records_of_devices(choice, scope) if choice.takes(record)))


def _records_of_devices(choice: RecordChoice, scope: Scope) -> list[tuple[Path, dict[str, Any], Record]]:
    """All records of the devices that ``choice`` names (all devices if none), each with its file."""
    devices = [device.id for device in scope.devices(_listed(choice.hardware))] if choice.hardware is not None else []
    shipped = choice.file == SHIPPED
    paths = [path for path in shipped_records() if not devices or path.parent.name in devices] if shipped else [scope.file(choice.file)]
    records = ((path, raw, record) for path in paths for raw, record in scope.records(path))
    return [(path, raw, record) for path, raw, record in records if not devices or record.hardware in devices]


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
        open_ = [place for place, group in enumerate(groups) if sizes[place] < len(group)]
        place = min(open_, key=lambda place: sizes[place])
        sizes[place] += 1
    return [item for group, size in zip(groups, sizes, strict=True) for item in _even(group, size)]


def _even(group: list[Any], size: int) -> list[Any]:
    if size < 2:
        return group[: size or 0]
    return [group[place * (len(group) - 1) // (size - 1)] for place in range(size)]


def row_group(row: RecordRow) -> str:
    """Name of a record's group: implementation, and pass unless forward."""
    return f"{row.record.implementation} {row.record.direction}".removesuffix(" forward")


def row_name(row: RecordRow) -> str:
    """Name of a record: implementation, pass unless forward, and shape."""
    work = None if row.case is None else row.case.workload
    return f"{row_group(row)}, {shape_words(work)}" if isinstance(work, (Attention, Matmul)) else label(row.record)
