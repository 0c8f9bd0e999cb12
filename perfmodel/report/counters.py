"""Kernels that a profiler counted, as a user's file lists them."""

from __future__ import annotations

from dataclasses import asdict

from perfmodel import __version__
from perfmodel.core.units import format_time
from perfmodel.report.document import Report, Table
from perfmodel.validation.cuda.ncu_csv import CountedKernel, counters, seconds

NAME_WIDTH = 60


def report(kernels: list[CountedKernel]) -> Report:
    """``kernels`` as a Report: bytes by level, and their rate where the file has durations."""
    names = sorted({name for kernel in kernels for name in counters([kernel])})
    rows = []
    for kernel in kernels:
        found, time = counters([kernel]), seconds([kernel])
        cells = [f"{found[name]:,}" if name in found else "-" for name in names]
        rows.append([kernel.name[:NAME_WIDTH], "-" if time is None else format_time(time), *cells])
    table = Table("", ["kernel", "time", *names], rows)
    data = {"schema": "perfmodel.counters/1", "version": __version__, "kernels": [asdict(kernel) for kernel in kernels]}
    verdict = [f"{len(kernels)} kernels; counters found: {', '.join(names) or 'none that this package reads'}."]
    return Report("kernels counted by Nsight Compute", verdict, [table], [], data)
