"""How fast this package is here: rows of a sweep per second against a plain loop over the same formulas, memory, start-up; in ratios.

    python tools/bench.py
    python tools/bench.py --rows 20000000 --json

Ratios carry over to other machines better than rows per second do. Every row has the usual columns, which are all written to
memory, inputs too; a chunk's memory is used again by the next one, so the first chunk is computed once before the clock starts.
``held`` keeps all rows at once, in memory that is new to the process. Writing to files is not timed. Seconds are those of the
processor, of which one thread is used: NumPy's element-wise operations use no more.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perfmodel import __version__
from perfmodel.commands._command import Destination, say
from perfmodel.core.checks import positive_int
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.units import format_si, format_time
from perfmodel.kernels.attention.algorithms import names
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.report.document import Report, Table
from perfmodel.sweep.base import device_named
from perfmodel.sweep.evaluate import Runner
from perfmodel.sweep.grid import grid_of
from perfmodel.sweep.run import DEFAULT_MEMORY
from perfmodel.sweep.study import SweepStudy
from perfmodel.sweep.table import row_bytes

DEVICE = "nvidia-h200-sxm"
LOOPED = 300
"""Rows of the plain loop, of each kind."""
REPEATS, STARTS = 3, 5
"""Of each grid and of each process; the quickest counts."""
WIDE = {"n": "64:65536:+64", "heads": "1:64", "d": "32,64,96,128"}
"""Axes of a design-space question; the batch makes up the number of rows."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Rows per second of processor time of one grid, and of the plain loop over rows of it."""

    name: str
    rows: int
    rows_per_s: float
    loop_rows_per_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the loop."""
        return self.rows_per_s / self.loop_rows_per_s


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds of a whole process, the quickest of several, and relative to Python alone."""

    name: str
    seconds: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak of a process that sums up ``rows``, and what those rows would take."""

    rows: int
    peak_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Bench:
    """All of it."""

    speeds: Sequence[Speed]
    starts: Sequence[Start]
    memory: Memory


def bench(rows: int, say: Callable[[str], None]) -> Bench:
    """Measure with about ``rows`` rows per grid; ``say`` is told what is measured next."""
    speeds = []
    for causal in (False, True):
        for algorithm in names():
            name = f"{algorithm}, {'causal' if causal else 'not causal'}"
            say(name)
            sparse = {"sparsity": 0.25} if algorithm == "block-sparse" else {}
            speeds.append(_speed(name, {**WIDE, "algorithm": algorithm, "causal": causal, **sparse}, rows))
    for causal in (False, True):
        name = f"one long axis, {'causal' if causal else 'not causal'}"
        say(name)
        axes = {"n": f"1:{max(rows // 2, 1)}:+1", "d": 64, "algorithm": "standard,flash2", "causal": causal}
        speeds.append(_speed(name, axes, rows, batch=False))
    say("all rows held")
    speeds.append(_held(rows // 2))
    say("start-up")
    starts = _starts()
    say("memory")
    return Bench(speeds, starts, _memory(8 * rows))


def _study(axes: dict[str, Any], rows: int, *, batch: bool = True) -> SweepStudy:
    found = SweepStudy("attention", {**axes, "hardware": DEVICE})
    if not batch:
        return found
    each = grid_of(found).points
    return SweepStudy("attention", {**found.axes, "batch": f"1:{max(round(rows / each), 1)}:+1"})


def _speed(name: str, axes: dict[str, Any], rows: int, *, batch: bool = True) -> Speed:
    study = _study(axes, rows, batch=batch)
    grid = grid_of(study)
    runner = Runner(grid, grid.chunk_rows(DEFAULT_MEMORY))
    runner.evaluate(next(runner.chunks()))
    seconds = []
    for _ in range(REPEATS):
        begun = time.process_time()
        done = sum(runner.evaluate(chunk).rows for chunk in runner.chunks())
        seconds.append(time.process_time() - begun)
    return _against_loop(name, study, done, min(seconds))


def _held(rows: int) -> Speed:
    study = _study({**WIDE, "algorithm": "standard,flash2"}, rows)
    grid = grid_of(study)
    begun = time.process_time()
    runner = Runner(grid, grid.points)
    [chunk] = runner.chunks()
    done = runner.evaluate(chunk).rows
    return _against_loop("held, standard and flash2", study, done, time.process_time() - begun)


def _against_loop(name: str, study: SweepStudy, rows: int, seconds: float) -> Speed:
    grid, sample = grid_of(study), []
    draw = random.Random(0)
    for _ in range(LOOPED):
        numbers = {axis: int(draw.choice(values.tolist())) for axis, values in grid.numbers.items()}
        sample.append(
            {
                **numbers,
                "algorithm": [draw.choice(grid.compared)],
                "causal": study.axes.get("causal"),
                "sparsity": study.axes.get("sparsity"),
            }
        )
    return Speed(name, rows, rows / seconds, _loop(sample))


def _loop(sample: Sequence[dict[str, Any]]) -> float:
    """Rows per second, one after the other in Python: what a loop over ``perfmodel.attention`` does."""
    device = device_named(DEVICE)
    begun = time.process_time()
    for options in sample:
        total = AttentionQuestion().updated(options).compare(device).results[0].total
        _ = (
            total.flops,
            total.executed_flops,
            total.reads + total.writes,
            total.sram.total,
            total.dram.total,
            total.lower_s,
            total.roofline_s,
        )
    return len(sample) / (time.process_time() - begun)


def _starts() -> list[Start]:
    commands = {
        "python, nothing": ["-c", "pass"],
        "import numpy": ["-c", "import numpy"],
        "perfmodel --version": ["-m", "perfmodel", "--version"],
        "perfmodel attention": ["-m", "perfmodel", "attention", "--n", "4096", "--d", "64"],
        "perfmodel sweep, 18 rows": ["-m", "perfmodel", "sweep", "--n", "512:131072:x2", "--d", "64"],
    }
    quickest = {name: min(_seconds(words) for _ in range(STARTS)) for name, words in commands.items()}
    alone = next(iter(quickest.values()))
    return [Start(name, seconds, seconds / alone) for name, seconds in quickest.items()]


def _memory(rows: int) -> Memory:
    """A sweep that is summed up, in a process of its own."""
    study = _study({**WIDE, "algorithm": "standard,flash2"}, rows)
    grid = grid_of(study)
    words = [word for axis, value in study.axes.items() for word in (f"--{axis}", str(value))]
    code = "import sys; from perfmodel.cli import main; main(sys.argv[1:]); print(open('/proc/self/status').read())"
    told = subprocess.run([sys.executable, "-c", code, "sweep", *words], capture_output=True, text=True, check=True).stdout
    peak = 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", told)[0])
    return Memory(grid.points, peak, grid.points * row_bytes(grid.fields))


def _seconds(words: Sequence[str]) -> float:
    """Of a Python process from start to end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *words], capture_output=True, check=True)
    return time.perf_counter() - begun


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print, or write to files."""
    parser = argparse.ArgumentParser(prog="python tools/bench.py", description="How fast this package is here, in ratios.")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of each grid; by default 4000000")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--output", "-o", action="append", help="write the report to FILE: .html, .json, .md or .txt; repeatable")
    options = parser.parse_args(arguments)
    try:
        positive_int("rows", options.rows)
        to = Destination(options.json, options.output)
        to.check()
        to.emit(report(bench(options.rows, lambda what: say(f"measuring {what} ..."))))
    except PerfmodelError as error:
        parser.exit(error.exit_code, f"bench: {error}\n")


if __name__ == "__main__":
    main()
