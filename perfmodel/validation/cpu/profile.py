"""A device profile of this machine's CPU, measured on the spot, on a machine that others use too.

A run lasts as long as its busiest thread computes: that is the wall clock of a machine with nothing else to do, without the
time in which the system gave the core to another process. It holds for kernels whose threads sleep while they wait (numba's
``workqueue`` layer) and share the work evenly. Where threads have no clocks of their own it is the wall clock.

Two figures per rate. What a bound divides by must never be beaten: the FMA peak is the best run of any number of threads,
scaled to all of them, and the nominal DRAM bandwidth the best run of any read or copy beyond the caches, of which part still
came out of them. What a prediction divides by is sustained: medians, of the copy at each level.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numba
import numpy as np

from perfmodel.core.arith import quantile
from perfmodel.core.hardware import Device
from perfmodel.core.sanity import validated
from perfmodel.validation.cpu import kernels as loops
from perfmodel.validation.cpu.kernels import FMA_CHAIN, FMA_VALUES
from perfmodel.validation.statistics import relative_error_of_median

DEVICE_ID = "this-cpu"
"""Name under which this machine's records and profile go."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
ASSUMED_LLC_BYTES = 32 << 20
"""Assumed if the system does not report it. Above most machines' caches, so that a stream in doubt counts as cached, not as DRAM."""
COPY_SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Bytes of both arrays over the last-level cache: the copy curve. 0.5 gives the cache's bandwidth, 4 DRAM's."""
CACHE_SHARE, DRAM_SHARE = 0.5, 4.0
FMA_ROUNDS, EXP_VALUES, EXP_ROUNDS = 14_000, 1024, 500
BUDGET_S = 0.4

VISIT_S = 0.05
"""An item is run again and again for about this long before the next one has its turn."""
FEWEST_RUNS, MOST_RUNS = 9, 100
RELATIVE_ERROR = 0.02
"""Standard error of the median at which an item is done."""


@dataclass(slots=True)
class Item:
    """A thing to time: ``run`` is called without arguments. ``budget_s``: it gets no further turn once its turns took this long."""

    name: str
    run: Callable[[], object]
    budget_s: float = 0.6
    seconds: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    spent_s: float = 0.0

    def visit(self) -> None:
        """Warm up once, then time runs for a while."""
        self.run()
        threads = thread_clocks()
        begin = now = time.perf_counter()
        while now - begin < VISIT_S and len(self.seconds) < MOST_RUNS:
            before, start = [time.clock_gettime(clock) for clock in threads], time.perf_counter()
            self.run()
            now = time.perf_counter()
            busy = [time.clock_gettime(clock) - was for clock, was in zip(threads, before, strict=True)]
            self.wall_s.append(now - start)
            self.seconds.append(max(busy, default=now - start))
        self.spent_s += time.perf_counter() - begin

    @property
    def done(self) -> bool:
        """Whether the median is known well enough, or the budget is spent."""
        if self.spent_s >= self.budget_s or len(self.seconds) >= MOST_RUNS:
            return True
        return len(self.seconds) >= FEWEST_RUNS and relative_error_of_median(self.seconds) < RELATIVE_ERROR

    def quantile(self, share: float) -> float:
        """Seconds that ``share`` of the runs stay below; 0.5 is the median."""
        return quantile(self.seconds, share)


def thread_clocks() -> list[int]:
    """CPU-time clocks of this process's threads; none where the system has no such clocks.

    Source: Linux, include/linux/posix-timers.h: a per-thread clock is the complement of its id, shifted by 3, with 4 for a
    thread and 2 for exact scheduler time.
    """
    try:
        return [(~int(thread) << 3) | 6 for thread in os.listdir("/proc/self/task")]
    except OSError:
        return []


def take_turns(items: Sequence[Item], keep: Callable[[Item], None] = lambda item: None) -> None:
    """Runs all items in turn until each is done, so that a slow spell of the machine affects all. ``keep`` is called after each run."""
    while waiting := [item for item in items if not item.done]:
        for item in waiting:
            item.visit()
            keep(item)


def sample(item: Item) -> dict[str, Any]:
    """Times of ``item`` so far, for ``take_up``."""
    return {"item": item.name, "seconds": item.seconds, "wall_s": item.wall_s, "spent_s": item.spent_s}


def take_up(items: Sequence[Item], samples: Sequence[Mapping[str, Any]]) -> None:
    """Give ``items`` what an interrupted run has timed of them; of several samples of one, the last counts."""
    by_name = {item.name: item for item in items}
    for known in samples:
        if known["item"] in by_name:
            item = by_name[known["item"]]
            item.seconds, item.wall_s, item.spent_s = list(known["seconds"]), list(known["wall_s"]), known["spent_s"]


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name that the processor gives itself."""
    try:
        lines = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0] if lines else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Software behind a measurement."""
    return {"python": platform.python_version(), "numba": numba.__version__, "numpy": np.__version__, "system": platform.platform()}


def threads() -> int:
    """Threads that every kernel uses: those of numba, one per core that this process may use."""
    return int(numba.get_num_threads())


def cache_sizes(folder: Path = CACHES) -> dict[int, tuple[int, int]]:
    """Data caches by level: (bytes of one cache, logical cores that share it); empty if the system does not report them."""
    caches = {}
    for index in sorted(folder.glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            size, sharing = (index / "size").read_text().strip(), (index / "shared_cpu_list").read_text().strip()
            caches[int((index / "level").read_text())] = (int(size.removesuffix("K")) * 1024, _listed(sharing))
    return caches


def _listed(cores: str) -> int:
    """Number of cores that a list such as ``0-3,8`` names."""
    spans = [part.split("-") for part in cores.split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def shared_caches(sizes: dict[int, tuple[int, int]], cores: int) -> tuple[int, int]:
    """Bytes of the last-level caches that ``cores`` reach together, and of all private caches one level up.

    >>> shared_caches({1: (32768, 1), 2: (1048576, 1), 3: (33554432, 2)}, 2)
    (33554432, 2097152)
    """
    totals = {level: size * -(-cores // sharing) for level, (size, sharing) in sizes.items()}
    if not totals:
        return ASSUMED_LLC_BYTES, 0
    last = max(totals)
    return totals[last], totals.get(last - 1, 0) if last > 2 else 0


class MeasuredRates:
    """Items whose times make the profile. Arrays are made once, large enough for the largest copy."""

    def __init__(self) -> None:
        cores = self.cores = threads()
        self.llc_bytes, self.private_bytes = shared_caches(cache_sizes(), cores)
        elements = int(self.llc_bytes * DRAM_SHARE) // 8
        source, target, sums = np.ones(elements, np.float32), np.zeros(elements, np.float32), np.zeros(cores, np.float32)
        values = np.ones((cores, EXP_VALUES), np.float32)

        def copy(share: float) -> Callable[[], object]:
            part = slice(int(self.llc_bytes * share) // 8)
            return lambda: loops.copy(source[part], target[part], loops.ONE, cores)

        def fma(rounds: int, cores: int) -> Callable[[], object]:
            return lambda: loops.fma(rounds, np.float32(0.75), np.float32(0.25), sums, cores)

        self.read_bytes = source.nbytes
        self.copies = {share: Item(f"copy of {share:g} times the cache", copy(share), BUDGET_S) for share in COPY_SHARES}
        self.read = Item("read of twice the cache", lambda: loops.read(source, sums, cores), BUDGET_S)
        self.fma = Item("FMA, every core", fma(FMA_ROUNDS, cores), BUDGET_S)
        self.fma_alone = Item("FMA, one core", fma(FMA_ROUNDS, 1), BUDGET_S)
        self.dispatch = Item("parallel region", fma(0, cores), BUDGET_S)
        self.exponentials = Item("exponentials", lambda: loops.exponentials(values, EXP_ROUNDS, cores), BUDGET_S)

    @property
    def items(self) -> list[Item]:
        """All items to time."""
        return [*self.copies.values(), self.read, self.fma, self.fma_alone, self.dispatch, self.exponentials]

    def copied_bytes_per_s(self, share: float, at: float = 0.5) -> float:
        """Read and written B/s of one copy, at a quantile of its times; 0 for the best."""
        return int(self.llc_bytes * share) // 8 * 8 / self.copies[share].quantile(at)

    def peak_flop_per_s(self) -> float:
        """FMA rate that nothing exceeds: best run, of every core or of one core times their number."""
        flop = 2.0 * FMA_VALUES * FMA_CHAIN * FMA_ROUNDS * self.cores
        return flop / min(self.fma.quantile(0), self.fma_alone.quantile(0))

    def peak_dram_bytes_per_s(self) -> float:
        """DRAM bandwidth that nothing exceeds: best run of a read or copy larger than the cache."""
        read = self.read_bytes / self.read.quantile(0)
        return max(read, *(self.copied_bytes_per_s(share, 0) for share in COPY_SHARES if share > 1))

    def exp_per_s(self) -> float:
        """Exponentials of every core."""
        return self.cores * EXP_VALUES * EXP_ROUNDS / self.exponentials.quantile(0.5)


def device(rates: MeasuredRates) -> Device:
    """The profile; every rate measured."""
    sources = {"run": f"perfmodel validate --backend cpu, {date.today().isoformat()}, " + as_text(versions())}
    sources["system"] = f"{CACHES}" if cache_sizes() else "assumed, as the system does not tell"

    def measured(value: str | int, note: str | None = None) -> dict[str, Any]:
        return {"value": value, "kind": "measured", "source": "run", **({"note": note} if note else {})}

    def size(value: int) -> dict[str, Any]:
        return {"value": f"{value} B", "kind": "derived", "source": "system"}

    cached, streamed = rates.copied_bytes_per_s(CACHE_SHARE), rates.copied_bytes_per_s(DRAM_SHARE)
    best = measured(f"{rates.peak_dram_bytes_per_s():.0f} B/s", "best read or copy beyond the cache; for bounds")
    sustained = [{"measured_bandwidth": measured(f"{rate:.0f} B/s", "median copy, read + written")} for rate in (cached, streamed)]
    levels = [
        {"level": "l2", "name": "private caches, all cores", "capacity": size(rates.private_bytes)},
        {"level": "llc", "name": "last-level cache", "capacity": size(rates.llc_bytes), **sustained[0]},
        {"level": "dram", "name": "DRAM", "bandwidth": best, **sustained[1]},
    ]
    memory = [{"scope": "device", **level} for level in levels if level["level"] != "l2" or rates.private_bytes]
    peak = measured(f"{rates.peak_flop_per_s():.0f} FLOP/s", "best run; no kernel exceeds it")
    raw = {
        "schema_version": 1,
        "id": DEVICE_ID,
        "name": processor_name(),
        "vendor": "this machine",
        "architecture": platform.machine(),
        "sources": sources,
        "multiprocessors": measured(rates.cores, "threads"),
        "limits": {"max_blocks_per_multiprocessor": measured(1, "a thread has one tile at a time")},
        "memory": memory,
        "peaks": {"vector": {"fp32": peak}, "exp": measured(f"{rates.exp_per_s():.0f} OP/s", "median")},
        "launch_overhead": {"stream": measured(f"{rates.dispatch.quantile(0.5):.9f} s", "median of an empty parallel region")},
    }
    return validated(raw)


def as_text(named: dict[str, str]) -> str:
    """Names and values in one line."""
    return ", ".join(f"{name} {value}" for name, value in named.items())
