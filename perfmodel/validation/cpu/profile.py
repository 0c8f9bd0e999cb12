"""A device profile of this machine's CPU, measured on the spot, even if others use the machine.

The time of a run is the CPU time of its busiest thread: the wall clock of an idle machine, without the time that the system gives to other
processes. This holds for kernels whose threads sleep while they wait (numba's ``workqueue`` layer) and share the work evenly. On systems
without clocks per thread it is the wall clock. There are two values per rate. Bounds use one that is never beaten: the FMA peak is the best
run of any number of threads, scaled to all of them, and the nominal DRAM bandwidth is the best run of any read or copy beyond the caches,
though the caches still served a part of it. Predictions use a sustained one: medians, for each level of the copy.
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
from typing import Any

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
"""The profile, with names for what is measured."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
ASSUMED_LLC_BYTES = 32 << 20
"""Bytes of the last-level cache if the system does not report it; above most machines' caches, to be cautious."""
FMA_ROUNDS, EXP_VALUES, EXP_ROUNDS = 14_000, 1024, 500
CACHED_COPY, TWICE_COPY, DRAM_COPY = (f"copy of {share:g} times the cache" for share in (0.5, 2, 4))
"""Names of copies by bytes over the last-level cache: half of it gives the cache's bandwidth, four times of it DRAM's."""
READ, FMA, FMA_ALONE, REGION, EXPONENTIALS = (
    "read of twice the cache",
    "FMA, every core",
    "FMA, one core",
    "parallel region",
    "exponentials",
)

VISIT = StoppingRule(relative_error=0.0, least_runs=1, runs=100, budget_s=0.05, warm_up_runs=1, warm_up_s=0.0)
"""Rule for one turn: a loop or kernel runs repeatedly for about this long before the next one."""
RULE = StoppingRule(relative_error=0.02, least_runs=9, runs=100, budget_s=math.inf)
BUDGET_S = 0.6
"""Seconds of runs after which a loop or kernel gets no further turn, however few runs there are."""

Run = Callable[[], None]
Times = Mapping[str, Sequence[float]]


class ThreadTimer:
    """Times a call by the CPU time of its busiest thread; the threads must have started before."""

    def seconds(self, launch: Run) -> float:
        """Seconds of ``launch``."""
        clocks = thread_clocks()
        before, start = [time.clock_gettime(clock) for clock in clocks], time.perf_counter()
        launch()
        wall_s = time.perf_counter() - start
        return max((time.clock_gettime(clock) - was for clock, was in zip(clocks, before, strict=True)), default=wall_s)


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
    times: dict[str, list[float]] = {name: [] for name in runs}
    while waiting := [name for name in runs if not settled(times[name])]:
        for name in waiting:
            times[name] += measure_times(runs[name], ThreadTimer(), VISIT)
            done(sum(min(sum(listed) / BUDGET_S, 1.0) if not settled(listed) else 1.0 for listed in times.values()) / len(times))
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


def caches(cores: int, folder: Path = CACHES) -> tuple[int, int]:
    """Bytes of the last-level caches that ``cores`` reach together, and of all private caches one level up."""
    totals: dict[int, int] = {}
    for index in folder.glob("index*"):
        kind, level, size, sharing = ((index / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list"))
        if kind != "Instruction":
            totals[int(level)] = int(size.removesuffix("K")) * 1024 * ceil_div(cores, _core_count(sharing))
    if not totals:
        return ASSUMED_LLC_BYTES, 0
    last = max(totals)
    return totals[last], totals.get(last - 1, 0) if last > 2 else 0


def _core_count(cores: str) -> int:
    """Number of cores that a list such as ``0-3,8`` names."""
    spans = [part.split("-") for part in cores.split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def rate_loops(llc_bytes: int, cores: int) -> dict[str, tuple[Run, float]]:
    """Loops whose times make the profile, and the work of a run of each in bytes, FLOP (of all cores) or exponentials."""
    elements = llc_bytes * 4 // 8
    source, target, sums = np.ones(elements, np.float32), np.zeros(elements, np.float32), np.zeros(cores, np.float32)
    x, values = (np.ones((cores, count), np.float32) for count in (FMA_VALUES, EXP_VALUES))
    a, b = np.float32(0.75), np.float32(0.25)
    flop = 2.0 * FMA_VALUES * FMA_CHAIN * FMA_ROUNDS * cores

    def copy(share: float) -> tuple[Run, float]:
        part = slice(int(llc_bytes * share) // 8)
        return lambda: kernels.copy(source[part], target[part], kernels.ONE, cores), 2 * source[part].nbytes

    def fma(rounds: int, threads: int) -> Run:
        return lambda: kernels.fma(x, rounds, a, b, threads)

    return {
        **{name: copy(share) for name, share in ((CACHED_COPY, 0.5), (TWICE_COPY, 2), (DRAM_COPY, 4))},
        READ: (lambda: kernels.read(source, sums, cores), source.nbytes),
        FMA: (fma(FMA_ROUNDS, cores), flop),
        FMA_ALONE: (fma(FMA_ROUNDS, 1), flop),
        REGION: (fma(0, cores), 0.0),
        EXPONENTIALS: (lambda: kernels.exponentials(values, EXP_ROUNDS, a, b, cores), cores * EXP_VALUES * EXP_ROUNDS),
    }


def device(loops: Mapping[str, tuple[Run, float]], times: Times, caches: tuple[int, int], cores: int) -> Device:
    """The profile with rates from ``loops`` that took ``times``. ``caches``: bytes of last-level and of private caches."""

    def best(*names: str) -> str:
        return f"{max(loops[name][1] / min(times[name]) for name in names):.0f}"

    def middle(name: str) -> str:
        return f"{loops[name][1] / quantile(times[name], 0.5):.0f}"

    values: dict[str, str | int] = {
        "name": processor_name(),
        "architecture": platform.machine(),
        "date": date.today().isoformat(),
        "versions": in_words(),
        "system": str(CACHES) if any(CACHES.glob("index*")) else "assumed, as the system does not tell",
        "cores": cores,
        "llc": caches[0],
        "private": caches[1],
        "cached": middle(CACHED_COPY),
        "streamed": middle(DRAM_COPY),
        "in_dram": best(READ, TWICE_COPY, DRAM_COPY),
        "fma": best(FMA, FMA_ALONE),
        "exponentials": middle(EXPONENTIALS),
        "region": f"{quantile(times[REGION], 0.5):.9f}",
    }
    raw = filled(read_yaml(PROFILE)[0], values)
    return validated({**raw, "memory": [level for level in raw["memory"] if level["level"] != "l2" or caches[1]]})


def filled(part: Any, values: Mapping[str, str | int]) -> Any:
    """``part`` of a YAML document with ``values`` in place of their $names; a text that is only a name becomes the value itself.

    >>> filled({"value": "$cores", "notes": ["$cores threads"]}, {"cores": 2})
    {'value': 2, 'notes': ['2 threads']}
    """
    if isinstance(part, dict):
        return {key: filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    return values[part[1:]] if part[:1] == "$" and part[1:] in values else Template(part).substitute(values)
