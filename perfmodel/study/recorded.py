"""Measurements that a study asks for: records, each beside the model, and kernels that Nsight Compute counted, as points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from perfmodel.core.checks import flop_count
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_si
from perfmodel.core.workload import Attention
from perfmodel.kernels.matmul import Matmul
from perfmodel.report.charts.schema import Interval, RooflinePoint
from perfmodel.report.roofline_chart import multicasts, with_shares
from perfmodel.study.schema import Options, Scope
from perfmodel.study.workloads import options_of, shape_words
from perfmodel.validation.compare import RecordRow, compare, device_or_error, label
from perfmodel.validation.ncu_points import COMMAND, FROM_REPORT, NO_TENSOR, NO_VECTOR, SECTIONS, KernelCount, read_kernels
from perfmodel.validation.records import Record, held_out, profiled, shipped_records

SHIPPED = "shipped"
UNNUMBERED = 0
UNKNOWN = "", ""
"""Unit and format of a kernel whose FLOP nothing tells."""
GROUP = "Nsight Compute"
UNCOUNTED = "FLOP unknown: collect sm__ops_path_tensor_* and *_pred_on.sum (--ncu-command), or tell --flops."
"""A line under the picture: where those kernels are. The notes have the whole command."""


@dataclass(frozen=True, slots=True)
class RecordChoice(Options):
    """Which records: each condition that is given must hold. ``most``: at most so many, evenly from every group.

    ``shape``: values of shape keys, one or several. ``held_out``: only those that no fit saw.
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


def records_of(text: str) -> RecordChoice:
    """``shipped hardware=h200 most=12``: a file, or the shipped ones, and conditions."""
    words = text.split()
    if words and "=" not in words[0]:
        words[0] = f"file={words[0]}"
    choice: RecordChoice = options_of("--records", words, RecordChoice)
    return choice


def rows_of(choice: RecordChoice, scope: Scope) -> list[RecordRow]:
    """The chosen records beside the model, in the order of their groups. UsageError if there are none."""
    if choice.most is not None and choice.most < 1:
        raise UsageError(f"most is {choice.most}", "give a whole number of at least 1")
    found = _of_devices(choice, scope)
    taken = [(path, raw, record) for path, raw, record in found if choice.takes(record)]
    if not taken:
        seen = sorted({record.implementation for *_, record in found})
        wrong = next((name for name in _listed(choice.implementation or []) if name not in seen), None)
        fix = suggest(wrong, seen) if wrong and seen else "take a condition out"
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
    """Ids of the devices whose records meet the conditions."""
    return list(dict.fromkeys(record.hardware for *_, record in _of_devices(choice, scope) if choice.takes(record)))


def _of_devices(choice: RecordChoice, scope: Scope) -> list[tuple[Path, dict[str, Any], Record]]:
    """Records of the devices that ``choice`` names, whatever its other conditions, each with its file; no name means all devices."""
    devices = [device.id for device in scope.devices(_listed(choice.hardware))] if choice.hardware is not None else []
    shipped = choice.file == SHIPPED
    paths = [path for path in shipped_records() if not devices or path.parent.name in devices] if shipped else [scope.file(choice.file)]
    found = ((path, raw, record) for path in paths for raw, record in scope.records(path))
    return [(path, raw, record) for path, raw, record in found if not devices or record.hardware in devices]


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


def row_group(row: RecordRow) -> str:
    """Implementation, and pass unless forward."""
    return f"{row.record.implementation} {row.record.direction}".removesuffix(" forward")


def row_name(row: RecordRow) -> str:
    """Implementation, pass unless forward, and shape in a few words."""
    work = None if row.case is None else row.case.workload
    return f"{row_group(row)}, {shape_words(work)}" if isinstance(work, (Attention, Matmul)) else label(row.record)


# Kernels that Nsight Compute counted


@dataclass(frozen=True, slots=True)
class NcuFile(Options):
    """What ``ncu --csv`` wrote. ``flops``: FLOP of kernels that the file does not count, by a part of their name or by #ID.

    A count is written as ``137.4GFLOP``, with ``@fp16`` behind it for its format (fp32 by default).
    """

    file: str
    flops: dict[str, str] = field(default_factory=dict)


def kernels_of(asked: NcuFile, scope: Scope) -> list[KernelCount]:
    """The kernels of the file, with the FLOP that were given."""
    found = read_kernels(scope.file(asked.file))
    for name, text in asked.flops.items():
        found = _with_flops(found, name, text)
    return found


def _with_flops(kernels: Sequence[KernelCount], name: str, text: str) -> list[KernelCount]:
    count, _, dtype = text.partition("@")
    dtype = dtype or "fp32"
    if dtype not in DTYPES:
        raise UsageError(f"--flops {name}={text}: no format is called {dtype!r}", suggest(dtype, list(DTYPES)))
    flops = flop_count(f"flops {name}", count)
    found = _kernels_called(kernels, name)
    if not found:
        raise UsageError(f"--flops: no kernel is called {name!r}", suggest(name, [k.name for k in kernels]))
    unit = DTYPES[dtype].matmul_unit
    return [
        replace(k, flops={(unit, dtype): float(flops)}, missing=tuple(w for w in k.missing if "FLOP" not in w)) if k in found else k
        for k in kernels
    ]


def _kernels_called(kernels: Sequence[KernelCount], name: str) -> list[KernelCount]:
    """Kernels with the ID ``#name``, of exactly that name, or with it in their name."""
    if name.startswith("#"):
        return [k for k in kernels if name[1:] in map(str, k.runs)]
    return [k for k in kernels if k.name.split(" #")[0] == name] or [k for k in kernels if name in k.name]


def points_of(kernels: Sequence[KernelCount], device: Device) -> list[RooflinePoint]:
    """A point per kernel that has a duration; its roof is the largest term of what was counted."""
    return with_shares([_point(kernel, device, kernel.time_s) for kernel in kernels if kernel.time_s])


def _point(kernel: KernelCount, device: Device, time_s: float) -> RooflinePoint:
    peaks = {(unit, dtype): device.peaks_of(unit).get(dtype) for unit, dtype in kernel.flops}
    seconds = {key: flops / float(peak.number) for key, flops in kernel.flops.items() if (peak := peaks[key]) is not None}
    main = max(kernel.flops, key=lambda key: seconds.get(key, 0.0), default=UNKNOWN)
    if NO_VECTOR in kernel.missing and not any(kernel.flops.values()):
        main = UNKNOWN  # of one unit none are counted, of the other nothing is known
    unit, dtype = main
    counted = {f"{key[0]} {key[1]}": (key, format_si(flops, "FLOP")) for key, flops in kernel.flops.items() if flops}
    notes = [f"not in the file: {', '.join(kernel.missing)}"] * bool(kernel.missing)
    notes += [f"the profile has no {name} peak for its {flops}" for name, (key, flops) in counted.items() if key not in seconds]
    notes += [f"besides {flops} of {name}" for name, (key, flops) in counted.items() if key != main]
    terms = _memory_terms(kernel, device)
    for (name, _), spent in seconds.items():
        if spent:
            terms[name] = terms.get(name, 0.0) + spent
    return RooflinePoint(
        number=UNNUMBERED,
        name=kernel.name,
        flops=_whole(kernel.flops.get(main, 0.0)),
        bytes={level: _whole(moved) for level, moved in kernel.bytes.items() if moved},
        dtype=dtype,
        unit=unit,
        group=GROUP,
        roofline_s=max(terms.values(), default=None),
        measured=Interval(time_s),
        terms=terms,
        note="; ".join(notes),
        soft="l2" if unit == "tensor" and multicasts(device) else "",
    )


def _memory_terms(kernel: KernelCount, device: Device) -> dict[str, float]:
    levels = {name: device.level(name) for name in kernel.bytes}
    rates = {name: level.bandwidth_bytes_per_s for name, level in levels.items() if level is not None}
    return {name: kernel.bytes[name] / rate for name, rate in rates.items() if rate and kernel.bytes[name]}


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def known_flops(point: RooflinePoint) -> bool:
    """Whether FLOP were counted or given, if only that there are none."""
    return point.group != GROUP or bool(point.dtype)


def certain(point: RooflinePoint) -> bool:
    """Whether FLOP of both units are known, so that its limiting roof is."""
    return known_flops(point) and not (point.group == GROUP and any(word in point.note for word in (NO_VECTOR, NO_TENSOR)))


def advice(kernels: Sequence[KernelCount]) -> list[str]:
    """What to collect where the file lacks something; empty if it lacks nothing."""
    missing = dict.fromkeys(word for kernel in kernels for word in kernel.missing)
    if not missing:
        return []
    counts = {word: sum(word in kernel.missing for kernel in kernels) for word in missing}
    listed = ", ".join(f"{word} ({count} of {len(kernels)} kernels)" for word, count in counts.items())
    return [
        f"Not in the file: {listed}. Collect it with: {COMMAND}",
        f"A report made with --set full, or with sections {', '.join(SECTIONS)}, has durations, DRAM bytes and FLOP: {FROM_REPORT}",
        "FLOP that no counter tells can be given: --flops KERNEL=137.4GFLOP@fp16.",
    ]
