"""The report of a benchmark of this package, in ratios, which carry over to other machines better than rows per second do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfmodel import __version__
from perfmodel.core.units import format_si, format_time
from perfmodel.report.document import Report, Table
from perfmodel.sweep.bench import Bench


def report(found: Bench) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.bench/1."""
    speeds = [
        [
            one.name,
            f"{one.rows:,}",
            format_si(one.rows_per_s, "rows/s", 3),
            format_si(one.loop_rows_per_s, "rows/s", 3),
            f"{one.ratio:,.0f}x",
        ]
        for one in found.speeds
    ]
    starts = [[one.name, format_time(one.seconds, 3), f"{one.ratio:.1f}x"] for one in found.starts]
    memory = found.memory
    held = f"{memory.held_bytes / memory.peak_bytes:.1f}x"
    slowest = min(found.speeds, key=lambda one: one.ratio)
    return Report(
        "Benchmark of sweeps, per core",
        [
            f"At least {slowest.ratio:,.0f} times as fast as a plain loop over the same formulas ({slowest.name}).",
            f"{memory.rows:,} rows summed up in {format_si(memory.peak_bytes, 'B', 3)}; in memory at once they would take {held} as much.",
        ],
        [
            Table("attention, all columns of every row in memory", ["grid", "rows", "sweep", "plain loop", "ratio"], speeds),
            Table("start-up, the quickest of several", ["process", "time", "over python"], starts),
        ],
        [
            "Each row has FLOP, executed FLOP, accesses, SRAM and DRAM bytes, lower bound and roofline, and its inputs.",
            "Rows per second of processor time; files are not timed.",
        ],
        _data(found),
    )


def _data(found: Bench) -> dict[str, Any]:
    return {
        "schema": "perfmodel.bench/1",
        "version": __version__,
        "speeds": [{**asdict(one), "ratio": one.ratio} for one in found.speeds],
        "starts": [asdict(one) for one in found.starts],
        "memory": asdict(found.memory) | {"ratio": found.memory.held_bytes / found.memory.peak_bytes},
    }
