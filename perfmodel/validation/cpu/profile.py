"""A device profile of this machine's CPU, measured on the spot, even while other processes use the machine.

The time of a run is the CPU time of its busiest thread: what the wall clock would show on an idle machine. This holds for kernels whose
threads sleep while they wait (numba's ``workqueue`` layer) and share the work evenly. On systems without clocks per thread it is the wall
clock.

Bounds and predictions use different rates. Bounds use rates that are never beaten: the FMA peak is the best run of any number of threads,
scaled to all of them, and the nominal DRAM bandwidth is the best run of any read or copy beyond the caches, though the caches still served
a part of it. Predictions use medians: of exponentials, and of copies within and beyond the last-level cache.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numba
import numpy as np

from perfmodel.core.arith import ceil_div, quantile
from perfmodel.core.files import read_yaml
from perfmodel.core.hardware import Device
from perfmodel.core.sanity import validated
from perfmodel.validation.cpu import kernels
from perfmodel.validation.cpu.kernels import FMA_CHAIN, FMA_VALUES
from perfmodel.validation.statistics import StoppingRule, measure_times

PROFILE = Path(__file__).with_suffix(".yaml")
"""The profile as YAML, with a $name in place of each measured value."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
ASSUMED_LLC_BYTES = 32 << 20
"""Bytes of the last-level cache if the system does not report it; above most machines' caches, to be cautious."""
FMA_ROUNDS, EXP_VALUES, EXP_ROUNDS = 14_000, 1024, 500
CACHED_COPY, TWICE_COPY, DRAM_COPY = "copy of 0.5 times the cache", "copy of 2 times the cache", "copy of 4 times the cache"
"""Names of copies by bytes over the last-level cache: half of it gives the cache's bandwidth, four times of it DRAM's."""
READ = "read of twice the cache"
FMA, FMA_ALONE = "FMA, every core", "FMA, one core"
DRAM_COPY_SHARE = 4
REGION = "parallel region"
EXPONENTIALS = "exponentials"

TURN = StoppingRule(relative_error=0.0, least_runs=1, runs=100, budget_s=0.05, warm_up_runs=1, warm_up_s=0.0)
"""Rule for one turn: a loop or kernel runs repeatedly for about 0.05 s before the next one."""
RULE = StoppingRule(relative_error=0.02, least_runs=9, runs=100, budget_s=math.inf)
BUDGET_S = 0.6
"""Seconds of runs after which a loop or kernel gets no further turn, however few runs there are."""

Run = Callable[[], None]
Times = Mapping[str, Sequence[float]]
"""Seconds of each run, by name of the loop or kernel."""


class ThreadTimer:
    """Times a call by the CPU time of its busiest thread; the threads must have started before."""

    def seconds(self, launch: Run) -> float:
        """Seconds of ``launch``."""
        begin_of = {clock: time.clock_gettime(clock) for clock in thread_clocks()}
        wall_begin = time.perf_counter()
        launch()
        wall_s = time.perf_counter() - wall_begin
        return max((time.clock_gettime(clock) - begin for clock, begin in begin_of.items()), default=wall_s)


def thread_clocks() -> list[int]:
    """CPU-time clocks of this process's threads; empty if the system has no such clocks.

    Source: Linux, include/linux/posix-timers.h: a per-thread clock is the complement of its id, shifted by 3, with 4 for a thread and 2 for
    exact scheduler time.
    """
    try:
        return [(~int(thread) << 3) | 6 for thread in os.listdir("/proc/self/task")]
    except OSError:
        return []


def settled(times: Sequence[float]) -> bool:
    """Whether the median of ``times`` is known well enough, or their budget is spent."""
    return sum(times) >= BUDGET_S or RULE.enough(times, 0.0)


def in_turns(runs: Mapping[str, Run], done: Callable[[float], None]) -> dict[str, list[float]]:
    """Seconds of each of ``runs``, which take turns until all are settled, so that a slow spell of the machine affects all.

    ``done`` is called with the share that is settled.
    """

    def share_done(seconds: Sequence[float]) -> float:
        return 1.0 if settled(seconds) else min(sum(seconds) / BUDGET_S, 1.0)

    times: dict[str, list[float]] = {name: [] for name in runs}
    while unsettled := [name for name in runs if not settled(times[name])]:
        for name in unsettled:
            times[name] += measure_times(runs[name], ThreadTimer(), TURN)
            done(sum(map(share_done, times.values())) / len(times))
    return times


def processor_name() -> str:
    """Name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Software behind a measurement."""
    return {"python": platform.python_version(), "numba": numba.__version__, "numpy": np.__version__, "system": platform.platform()}


def in_words() -> str:
    """Versions of the software behind a measurement, in one line."""
    return ", ".join(f"{name} {value}" for name, value in versions().items())


class CacheBytes(NamedTuple):
    """Bytes of all last-level caches, and of all caches one level nearer to the cores if that is above the first level, else 0."""

    last_level: int
    private: int


def caches(cores: int, folder: Path = CACHES) -> CacheBytes:
    """Bytes of the caches that ``cores`` reach together, as the system reports them."""
    totals: dict[int, int] = {}
    for index in folder.glob("index*"):
        kind, level, size, sharing = ((index / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list"))
        if kind != "Instruction":
            totals[int(level)] = int(size.removesuffix("K")) * 1024 * ceil_div(cores, _core_count(sharing))
    if not totals:
        return CacheBytes(ASSUMED_LLC_BYTES, 0)
    last = max(totals)
    return CacheBytes(totals[last], totals.get(last - 1, 0) if last > 2 else 0)


def _core_count(cores: str) -> int:
    """Number of cores that a list such as ``0-3,8`` names."""
    spans = [part.split("-") for part in cores.split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def rate_loops(llc_bytes: int, cores: int) -> dict[str, tuple[Run, float]]:
    """Loops whose times make the profile, each with the work of a run in bytes, FLOP (of all cores) or exponentials."""
    elements = int(DRAM_COPY_SHARE * llc_bytes) // 8  # a copy has two arrays of 4 B elements
    source, target, sums = np.ones(elements, np.float32), np.zeros(elements, np.float32), np.zeros(cores, np.float32)
    fma_values, exp_values = np.ones((cores, FMA_VALUES), np.float32), np.ones((cores, EXP_VALUES), np.float32)
    a, b = np.float32(0.75), np.float32(0.25)
    flop = 2.0 * FMA_VALUES * FMA_CHAIN * FMA_ROUNDS * cores

    def copy(share: float) -> tuple[Run, float]:
        part = slice(int(llc_bytes * share) // 8)
        return lambda: kernels.copy(source[part], target[part], kernels.ONE, cores), 2 * source[part].nbytes

    def fma(rounds: int, threads: int) -> Run:
        return lambda: kernels.fma(fma_values, rounds, a, b, threads)

    return {
        CACHED_COPY: copy(0.5),
        TWICE_COPY: copy(2),
        DRAM_COPY: copy(DRAM_COPY_SHARE),
        READ: (lambda: kernels.read(source, sums, cores), source.nbytes),
        FMA: (fma(FMA_ROUNDS, cores), flop),
        FMA_ALONE: (fma(FMA_ROUNDS, 1), flop),
        REGION: (fma(0, cores), 0.0),
        EXPONENTIALS: (lambda: kernels.exponentials(exp_values, EXP_ROUNDS, a, b, cores), cores * EXP_VALUES * EXP_ROUNDS),
    }


def device(loops: Mapping[str, tuple[Run, float]], times: Times, caches: CacheBytes, cores: int) -> Device:
    """The profile with rates from ``loops`` that took ``times``."""
    work = {name: amount for name, (_, amount) in loops.items()}

    def best(*names: str) -> str:
        return f"{max(work[name] / min(times[name]) for name in names):.0f}"

    def median(name: str) -> str:
        return f"{work[name] / quantile(times[name], 0.5):.0f}"

    values: dict[str, str | int] = {
        "name": processor_name(),
        "architecture": platform.machine(),
        "date": date.today().isoformat(),
        "versions": in_words(),
        "system": str(CACHES) if any(CACHES.glob("index*")) else "assumed, as the system does not tell",
        "cores": cores,
        "llc": caches.last_level,
        "private": caches.private,
        "cached": median(CACHED_COPY),
        "streamed": median(DRAM_COPY),
        "in_dram": best(READ, TWICE_COPY, DRAM_COPY),
        "fma": best(FMA, FMA_ALONE),
        "exponentials": median(EXPONENTIALS),
        "region": f"{quantile(times[REGION], 0.5):.9f}",
    }
    raw = filled(read_yaml(PROFILE)[0], values)
    if not caches.private:
        raw["memory"] = [level for level in raw["memory"] if level["level"] != "l2"]
    return validated(raw)


def filled(part: Any, values: Mapping[str, str | int]) -> Any:
    """``part`` of a YAML document with ``values`` in place of their $names; a text that is nothing but a $name becomes the value itself.

    >>> filled({"value": "$cores", "notes": ["$cores threads"]}, {"cores": 2})
    {'value': 2, 'notes': ['2 threads']}
    """
    if isinstance(part, dict):
        return {key: filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    if part.startswith("$") and part[1:] in values:
        return values[part[1:]]
    return Template(part).substitute(values)
