"""A device profile of this machine's CPU, measured on the spot.

Two figures per rate. What a bound divides by must never be beaten: the FMA peak is the best run of any number of threads,
scaled to all of them, and the nominal DRAM bandwidth the best run of any read or copy beyond the caches, of which part still
came out of them. What a prediction divides by is sustained: medians, of the copy at each level.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numba
import numpy as np

from perfmodel.core.hardware import Device
from perfmodel.core.sanity import validated
from perfmodel.validation.cpu import kernels as loops
from perfmodel.validation.cpu.kernels import FMA_CHAIN, FMA_VALUES
from perfmodel.validation.cpu.timer import Item

DEVICE_ID = "this-cpu"
"""Name under which this machine's records and profile go."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
ASSUMED_LLC_BYTES = 32 << 20
"""Where the system does not tell. Beyond the caches of most machines, so that streams are taken for cached, not for DRAM's."""
COPY_SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Bytes of both arrays over the last-level cache: the copy curve. 0.5 gives the cache's bandwidth, 4 DRAM's."""
CACHE_SHARE, DRAM_SHARE = 0.5, 4.0
FMA_ROUNDS, EXP_VALUES, EXP_ROUNDS = 14_000, 1024, 500
BUDGET_S = 0.4


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself."""
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
    """Data caches by level: bytes of one, and how many logical cores share it; empty where the system does not tell."""
    found = {}
    for index in sorted(folder.glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            size, sharing = (index / "size").read_text().strip(), (index / "shared_cpu_list").read_text().strip()
            found[int((index / "level").read_text())] = (int(size.removesuffix("K")) * 1024, _listed(sharing))
    return found


def _listed(cores: str) -> int:
    """How many cores a list such as ``0-3,8`` names."""
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


class Rates:
    """Items whose times make the profile. Arrays are made once, large enough for the largest copy."""

    def __init__(self) -> None:
        self.cores = threads()
        self.llc_bytes, self.private_bytes = shared_caches(cache_sizes(), self.cores)
        elements = int(self.llc_bytes * DRAM_SHARE) // 8
        self.source, self.target = np.ones(elements, np.float32), np.zeros(elements, np.float32)
        self.sums = np.zeros(self.cores, np.float32)
        self.values = np.ones((self.cores, EXP_VALUES), np.float32)
        self.copies = {share: self._item(f"copy of {share:g} times the cache", self._copy(share)) for share in COPY_SHARES}
        self.read = self._item("read of twice the cache", lambda: loops.read(self.source, self.sums, self.cores))
        self.fma = self._item("FMA, every core", self._fma(FMA_ROUNDS, self.cores))
        self.fma_alone = self._item("FMA, one core", self._fma(FMA_ROUNDS, 1))
        self.dispatch = self._item("parallel region", self._fma(0, self.cores))
        self.exponentials = self._item("exponentials", lambda: loops.exponentials(self.values, EXP_ROUNDS, self.cores))

    @staticmethod
    def _item(name: str, run: Callable[[], object]) -> Item:
        return Item(name, run, BUDGET_S)

    def _copy(self, share: float) -> Callable[[], object]:
        elements = int(self.llc_bytes * share) // 8
        source, target = self.source[:elements], self.target[:elements]
        return lambda: loops.copy(source, target, loops.ONE, self.cores)

    def _fma(self, rounds: int, cores: int) -> Callable[[], object]:
        return lambda: loops.fma(rounds, np.float32(0.75), np.float32(0.25), self.sums, cores)

    @property
    def items(self) -> list[Item]:
        """Everything to time."""
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
        read = self.source.nbytes / self.read.quantile(0)
        return max(read, *(self.copied_bytes_per_s(share, 0) for share in COPY_SHARES if share > 1))

    def exp_per_s(self) -> float:
        """Exponentials of every core."""
        return self.values.size * EXP_ROUNDS / self.exponentials.quantile(0.5)

    def curve(self) -> list[dict[str, float]]:
        """Copy bandwidth against size."""
        return [{"bytes": self.llc_bytes * share, "bytes_per_s": self.copied_bytes_per_s(share)} for share in COPY_SHARES]


def device(measured_rates: Rates) -> Device:
    """The profile; every rate measured."""
    sources = {"run": f"perfmodel validate --backend cpu, {date.today().isoformat()}, " + as_text(versions())}
    sources["system"] = f"{CACHES}" if cache_sizes() else "assumed, as the system does not tell"

    def measured(value: str | int, note: str | None = None) -> dict[str, Any]:
        return {"value": value, "kind": "measured", "source": "run", **({"note": note} if note else {})}

    def size(value: int) -> dict[str, Any]:
        return {"value": f"{value} B", "kind": "derived", "source": "system"}

    cached, streamed = measured_rates.copied_bytes_per_s(CACHE_SHARE), measured_rates.copied_bytes_per_s(DRAM_SHARE)
    l2 = {"level": "l2", "scope": "device", "name": "private caches, all cores", "capacity": size(measured_rates.private_bytes)}
    llc = {
        "level": "llc",
        "scope": "device",
        "name": "last-level cache",
        "capacity": size(measured_rates.llc_bytes),
        "measured_bandwidth": measured(f"{cached:.0f} B/s", "median copy, read + written"),
    }
    dram = {
        "level": "dram",
        "scope": "device",
        "name": "DRAM",
        "bandwidth": measured(f"{measured_rates.peak_dram_bytes_per_s():.0f} B/s", "best read or copy beyond the cache; for bounds"),
        "measured_bandwidth": measured(f"{streamed:.0f} B/s", "median copy, read + written"),
    }
    peak = measured(f"{measured_rates.peak_flop_per_s():.0f} FLOP/s", "best run; no kernel exceeds it")
    raw = {
        "schema_version": 1,
        "id": DEVICE_ID,
        "name": processor_name(),
        "vendor": "this machine",
        "architecture": platform.machine(),
        "sources": sources,
        "multiprocessors": measured(measured_rates.cores, "threads"),
        "limits": {"max_blocks_per_multiprocessor": measured(1, "a thread has one tile at a time")},
        "memory": [*([l2] if measured_rates.private_bytes else []), llc, dram],
        "peaks": {"vector": {"fp32": peak}, "exp": measured(f"{measured_rates.exp_per_s():.0f} OP/s", "median")},
        "launch_overhead": {"stream": measured(f"{measured_rates.dispatch.quantile(0.5):.9f} s", "median of an empty parallel region")},
    }
    return validated(raw)


def as_text(named: dict[str, str]) -> str:
    """Names and values in one line."""
    return ", ".join(f"{name} {value}" for name, value in named.items())
