"""Kernels that Nsight Compute counted, as points at their measured intensity and rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.checks import flop_count
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_si
from perfmodel.report.charts.schema import Interval, Point
from perfmodel.report.roofline_chart import multicasts, with_shares
from perfmodel.study.base import Scope
from perfmodel.study.schema import Options
from perfmodel.validation.ncu_points import COMMAND, FROM_REPORT, NO_TENSOR, NO_VECTOR, SECTIONS, KernelCount, read_kernels

UNNUMBERED = 0
UNKNOWN = "", ""
"""Unit and format of a kernel whose FLOP nothing tells."""
GROUP = "Nsight Compute"
UNCOUNTED = "FLOP unknown: collect sm__ops_path_tensor_* and *_pred_on.sum (--ncu-command), or tell --flops."
"""A line under the picture: where those kernels are. The notes have the whole command."""


@dataclass(frozen=True, slots=True)
class NcuFile(Options):
    """What ``ncu --csv`` wrote. ``flops``: FLOP of kernels that the file does not count, by a part of their name or by #ID.

    A count is written as ``137.4GFLOP``, with ``@fp16`` behind it for its format (fp32 by default).
    """

    file: str
    flops: dict[str, str] = field(default_factory=dict)


def kernels_of(asked: NcuFile, scope: Scope) -> list[KernelCount]:
    """The kernels of the file, with the FLOP that were told."""
    found = read_kernels(scope.file(asked.file))
    for name, text in asked.flops.items():
        found = _told(found, name, text)
    return found


def _told(kernels: Sequence[KernelCount], name: str, text: str) -> list[KernelCount]:
    count, _, dtype = text.partition("@")
    dtype = dtype or "fp32"
    if dtype not in DTYPES:
        raise UsageError(f"--flops {name}={text}: no format is called {dtype!r}", suggest(dtype, list(DTYPES)))
    flops = flop_count(f"flops {name}", count)
    meant = _meant(kernels, name)
    if not meant:
        raise UsageError(f"--flops: no kernel is called {name!r}", suggest(name, [k.name for k in kernels]))
    unit = DTYPES[dtype].matmul_unit
    return [
        replace(k, flops={(unit, dtype): float(flops)}, missing=tuple(w for w in k.missing if "FLOP" not in w)) if k in meant else k
        for k in kernels
    ]


def _meant(kernels: Sequence[KernelCount], name: str) -> list[KernelCount]:
    """Kernels with the ID ``#name``, of exactly that name, or with it in their name."""
    if name.startswith("#"):
        return [k for k in kernels if name[1:] in map(str, k.runs)]
    return [k for k in kernels if k.name.split(" #")[0] == name] or [k for k in kernels if name in k.name]


def points_of(kernels: Sequence[KernelCount], device: Device) -> list[Point]:
    """A point per kernel that has a duration; its roof is the largest term of what was counted."""
    return with_shares([_point(kernel, device, kernel.time_s) for kernel in kernels if kernel.time_s])


def _point(kernel: KernelCount, device: Device, time_s: float) -> Point:
    by_unit: dict[str, float] = {}
    notes = list(kernel.missing and [f"not in the file: {', '.join(kernel.missing)}"])
    for (unit, dtype), flops in kernel.flops.items():
        peak = device.peaks_of(unit).get(dtype)
        if peak is not None:
            by_unit[unit] = by_unit.get(unit, 0.0) + flops / float(peak.number)
        elif flops:
            notes.append(f"the profile has no {unit} {dtype} peak for its {format_si(flops, 'FLOP')}")
    terms = {**_memory_terms(kernel, device), **{unit: seconds for unit, seconds in by_unit.items() if seconds}}
    (unit, dtype), flops = _main(kernel, device)
    rest = {f"{u} {d}": count for (u, d), count in kernel.flops.items() if (u, d) != (unit, dtype) and count}
    notes += [f"besides {format_si(count, 'FLOP')} of {name}" for name, count in rest.items()]
    return Point(
        number=UNNUMBERED,
        name=kernel.name,
        flops=_whole(flops),
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


def known_flops(point: Point) -> bool:
    """Whether FLOP were counted or told, if only that there are none."""
    return point.group != GROUP or bool(point.dtype)


def certain(point: Point) -> bool:
    """Whether FLOP of both units are known, so that its limiting roof is."""
    return known_flops(point) and not (point.group == GROUP and any(word in point.note for word in (NO_VECTOR, NO_TENSOR)))


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _memory_terms(kernel: KernelCount, device: Device) -> dict[str, float]:
    found = {}
    for name, moved in kernel.bytes.items():
        level = device.level(name)
        rate = None if level is None else level.bandwidth_bytes_per_s
        if rate and moved:
            found[name] = moved / rate
    return found


def _main(kernel: KernelCount, device: Device) -> tuple[tuple[str, str], float]:
    """Unit and format whose FLOP take longest at the peak; neither where none are counted, of one unit with the other's unknown."""
    if NO_VECTOR in kernel.missing and not any(kernel.flops.values()):
        return UNKNOWN, 0.0

    def seconds(key: tuple[str, str]) -> float:
        peak = device.peaks_of(key[0]).get(key[1])
        return 0.0 if peak is None else kernel.flops[key] / float(peak.number)

    key = max(kernel.flops, key=seconds, default=UNKNOWN)
    return key, kernel.flops.get(key, 0.0)


def advice(kernels: Sequence[KernelCount]) -> list[str]:
    """What to collect where the file lacks something; empty if it lacks nothing."""
    missing = dict.fromkeys(word for kernel in kernels for word in kernel.missing)
    if not missing:
        return []
    counts = {word: sum(word in kernel.missing for kernel in kernels) for word in missing}
    said = ", ".join(f"{word} ({count} of {len(kernels)} kernels)" for word, count in counts.items())
    return [
        f"Not in the file: {said}. Collect it with: {COMMAND}",
        f"A report made with --set full, or with sections {', '.join(SECTIONS)}, has durations, DRAM bytes and FLOP: {FROM_REPORT}",
        "FLOP that no counter tells can be given: --flops KERNEL=137.4GFLOP@fp16.",
    ]
