"""Measurements that a study asks for: chosen from the shipped ones or from a file, each beside the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.workload import Attention
from perfmodel.kernels.matmul import Matmul
from perfmodel.study.base import Scope
from perfmodel.study.workloads import shape_words
from perfmodel.validation.compare import Row, compare, device_or_error
from perfmodel.validation.records import Record, profiled, shipped_records
from perfmodel.validation.session import label
from perfmodel.validation.split import held_out

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class RecordChoice:
    """Which records: each condition that is given must hold. ``most``: at most so many, evenly from every group.

    ``shape``: values of shape keys, one or several. ``held_out``: only those that no fit saw.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
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
        """Whether ``record`` meets every condition; runs under a profiler have no time that counts."""
        for name in ("workload", "implementation", "direction", "dtype", "cache"):
            wanted = getattr(self, name)
            if wanted is not None and getattr(record, name) not in _listed(wanted):
                return False
        if self.held_out is not None and held_out(record) != self.held_out:
            return False
        return not profiled(record) and all(record.shape.get(key) in _listed(value) for key, value in self.shape.items())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def rows_of(choice: RecordChoice, scope: Scope) -> list[Row]:
    """The chosen records beside the model, in the order of their groups. UsageError if there are none."""
    if choice.most is not None and choice.most < 1:
        raise UsageError(f"most is {choice.most}", "give a whole number of at least 1")
    devices = _devices(choice, scope)
    groups: dict[tuple[str, str], list[tuple[dict[str, Any], Record]]] = {}
    seen: set[str] = set()
    for path in _paths(choice, scope, devices):
        found = [(raw, record) for raw, record in scope.records(path) if not devices or record.hardware in devices]
        seen |= {record.implementation for _, record in found}
        taken = [(raw, record) for raw, record in found if choice.takes(record)]
        if taken:
            scope.file(str(path))
        for raw, record in taken:
            groups.setdefault((record.hardware, record.group), []).append((raw, record))
    if not groups:
        wrong = next((name for name in _listed(choice.implementation or []) if name not in seen), None)
        fix = suggest(wrong, sorted(seen)) if wrong and seen else "take a condition out"
        raise UsageError(f"no record in {choice.file} meets the conditions", fix)
    return [
        compare(raw, record, device_or_error(record.hardware, scope.device), scope.fallback_devices)
        for raw, record in thinned(list(groups.values()), choice.most)
    ]


def devices_of(choice: RecordChoice, scope: Scope) -> list[str]:
    """Ids of the devices whose records meet the conditions."""
    devices = _devices(choice, scope)
    found = (record for path in _paths(choice, scope, devices) for _, record in scope.records(path) if choice.takes(record))
    return list(dict.fromkeys(record.hardware for record in found if not devices or record.hardware in devices))


def _devices(choice: RecordChoice, scope: Scope) -> list[str]:
    """Ids of the devices that ``choice`` names; none means all."""
    return [] if choice.hardware is None else [device.id for device in scope.devices(_listed(choice.hardware))]


def _paths(choice: RecordChoice, scope: Scope, devices: list[str]) -> list[Path]:
    if choice.file != SHIPPED:
        return [scope.file(choice.file)]
    return [path for path in shipped_records() if not devices or path.parent.name in devices]


def thinned(groups: list[list[Any]], most: int | None) -> list[Any]:
    """At most ``most`` of all, as evenly from every group as it goes, and evenly along each.

    >>> thinned([list(range(10)), [20]], 4)
    [0, 4, 9, 20]
    """
    whole = sum(map(len, groups))
    if most is None or whole <= most:
        return [one for group in groups for one in group]
    sizes = [0] * len(groups)
    while sum(sizes) < most:
        open_ = [place for place, group in enumerate(groups) if sizes[place] < len(group)]
        place = min(open_, key=lambda place: sizes[place])
        sizes[place] += 1
    return [one for group, size in zip(groups, sizes, strict=True) for one in _even(group, size)]


def _even(group: list[Any], size: int) -> list[Any]:
    if size < 2:
        return group[: size or 0]
    return [group[place * (len(group) - 1) // (size - 1)] for place in range(size)]


def row_name(row: Row) -> str:
    """Implementation, pass unless forward, and shape in a few words."""
    record, case = row.record, row.case
    direction = "" if record.direction == "forward" else f" {record.direction}"
    if case is not None and isinstance(case.workload, (Attention, Matmul)):
        return f"{record.implementation}{direction}, {shape_words(case.workload)}"
    return label(row)
