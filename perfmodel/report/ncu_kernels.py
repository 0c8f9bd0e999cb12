"""Kernels profiled by Nsight Compute as points of a roofline, with advice on counters that the file lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.core.checks import flop_count
from perfmodel.core.dtypes import DTYPES, canonical
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_si
from perfmodel.program.ncu_points import COMMAND, FROM_REPORT, NO_TENSOR, NO_VECTOR, SECTIONS, KernelCount
from perfmodel.report.charts.schema import RooflinePoint
from perfmodel.report.roofline_chart import with_shares
from perfmodel.report.saved import Interval

UNKNOWN = "", ""
"""Unit and format of a kernel with unknown FLOP."""
GROUP = "Nsight Compute"
UNCOUNTED = "FLOP unknown: collect sm__ops_path_tensor_* and *_pred_on.sum (--ncu-command), or tell --flops."
"""Caption for charts with such kernels. The notes have the whole command."""


def with_flops(kernels: Sequence[KernelCount], name: str, text: str) -> list[KernelCount]:
    """``kernels``, of which those called ``name`` get the FLOP in ``text``, such as ``137.4GFLOP@fp16``."""
    count, _, dtype = text.partition("@")
    dtype = canonical(dtype or "fp32")
    if dtype not in DTYPES:
        raise UsageError(f"--flops {name}={text}: no format is called {dtype!r}", suggest(dtype, list(DTYPES)))
    flops = flop_count(f"flops {name}", count)
    matching = _kernels_called(kernels, name)
    if not matching:
        raise UsageError(f"--flops: no kernel is called {name!r}", suggest(name, [k.name for k in kernels]))
    unit = DTYPES[dtype].matmul_unit

    def told(kernel: KernelCount) -> KernelCount:
        missing = tuple(words for words in kernel.missing if "FLOP" not in words)
        return replace(kernel, flops={(unit, dtype): float(flops)}, missing=missing)

    return [told(kernel) if kernel in matching else kernel for kernel in kernels]


def _kernels_called(kernels: Sequence[KernelCount], name: str) -> list[KernelCount]:
    """Kernels with the ID ``#name``, else with exactly that name, else with it in their name."""
    if name.startswith("#"):
        return [kernel for kernel in kernels if name[1:] in map(str, kernel.runs)]
    exact = [kernel for kernel in kernels if kernel.name.split(" #")[0] == name]
    return exact or [kernel for kernel in kernels if name in kernel.name]


def points_of(kernels: Sequence[KernelCount], device: Device) -> list[RooflinePoint]:
    """A point per kernel with a duration; its roof is the largest term of the counts."""
    return with_shares([_point(kernel, device, kernel.time_s) for kernel in kernels if kernel.time_s])


def _point(kernel: KernelCount, device: Device, time_s: float) -> RooflinePoint:
    """The point of a kernel: its FLOP are those of the unit and format that take most of its time at their peak."""
    seconds: dict[tuple[str, str], float] = {}
    for (unit, dtype), flops in kernel.flops.items():
        peak = device.peaks_of(unit).get(dtype)
        if peak is not None:
            seconds[unit, dtype] = flops / float(peak.number)
    main = max(kernel.flops, key=lambda key: seconds.get(key, 0.0), default=UNKNOWN)
    if NO_VECTOR in kernel.missing and not any(kernel.flops.values()):
        main = UNKNOWN  # of one unit none are counted, of the other nothing is known
    without_peak, besides = list[str](), list[str]()
    for (unit, dtype), flops in kernel.flops.items():
        if flops and (unit, dtype) not in seconds:
            without_peak.append(f"the profile has no {unit} {dtype} peak for its {format_si(flops, 'FLOP')}")
        if flops and (unit, dtype) != main:
            besides.append(f"besides {format_si(flops, 'FLOP')} of {unit} {dtype}")
    missing = [f"not in the file: {', '.join(kernel.missing)}"] if kernel.missing else []
    terms: dict[str, float] = {}
    for name, moved in kernel.bytes.items():
        level = device.level(name)
        rate = level.bandwidth_bytes_per_s if level else None
        if rate and moved:
            terms[name] = moved / rate
    for (unit, _), unit_s in seconds.items():
        if unit_s:
            terms[unit] = terms.get(unit, 0.0) + unit_s
    unit, dtype = main
    return RooflinePoint(
        number=0,
        name=kernel.name,
        flops=_whole(kernel.flops.get(main, 0.0)),
        bytes={level: _whole(moved) for level, moved in kernel.bytes.items() if moved},
        dtype=dtype,
        unit=unit,
        group=GROUP,
        roofline_s=max(terms.values(), default=None),
        measured=Interval(time_s),
        terms=terms,
        note="; ".join([*missing, *without_peak, *besides]),
    )


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def known_flops(point: RooflinePoint) -> bool:
    """Whether the FLOP of a point are known, even if they are zero."""
    return point.group != GROUP or bool(point.dtype)


def certain(point: RooflinePoint) -> bool:
    """Whether FLOP of both units are known, and so the limiting roof."""
    return known_flops(point) and not (point.group == GROUP and any(word in point.note for word in (NO_VECTOR, NO_TENSOR)))


def advice(kernels: Sequence[KernelCount]) -> list[str]:
    """Notes on what to collect if the file lacks something."""
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
