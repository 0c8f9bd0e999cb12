"""The project's own CPU kernels: ``cpu-flash``, ``cpu-standard``, ``cpu-matmul`` and ``cpu-copy``, in fp32.

A parallel region costs its dispatch. In it every thread takes tiles in turn, and a tile costs its multiply-adds at a share of
the FMA peak plus its softmax, counted in exponentials. Where a kernel streams tensors (scores, copies), bytes over the bandwidth
of the level that holds them come on top. A store reads its line first, so it moves twice its bytes; the profile's bandwidths
are a copy's, which moves 3 bytes for every 2 it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.units import Quantity
from perfmodel.core.workload import FORWARD, Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, Model, lost_share, plain_attention
from perfmodel.timing.engine import makespan

IMPLEMENTATIONS = ("cpu-flash", "cpu-standard", "cpu-matmul", "cpu-copy")
TILE_ROWS, TILE_KEYS = 128, 64  # known
MATMUL_ROWS, MATMUL_COLUMNS = 64, 128  # known
CACHED, STREAMED = 0.75, 1.5  # tuned
"""Working set over last-level cache: up to the first, scans stay in the cache; from the second on, they find nothing there."""
MOVED_PER_COUNTED = 1.5  # known
"""Bytes that a copy moves over the bytes it counts: it reads source and target, and writes the target."""


@dataclass(frozen=True, slots=True)
class CpuRates:
    """``fma`` (FLOP/s) and ``exp`` (1/s) of one thread; of the device, B/s of copies (read + written) by memory level."""

    threads: int
    fma: float
    exp: float
    cache_bytes: float
    cache: float
    dram: float
    dispatch_s: float

    def stream_s(self, reads: float, writes: float, working_set: float) -> tuple[float, float]:
        """Seconds at copy speed, in DRAM and in the cache, of repeatedly scanned tensors of ``working_set`` bytes in all."""
        lost = lost_share(working_set / self.cache_bytes, CACHED, STREAMED)
        counted = (reads + 2 * writes) / MOVED_PER_COUNTED
        return counted * lost / self.dram, counted * (1 - lost) / self.cache


def rates_of(device: Device) -> CpuRates:
    """Sustained rates of ``device``; UnavailableError names what its profile lacks."""
    llc = device.level("llc")
    launch = device.launch_overhead
    threads = _number(device, device.multiprocessors, "multiprocessors")
    return CpuRates(
        threads=int(threads),
        fma=_number(device, device.peaks.vector.get("fp32"), "peaks.vector.fp32") / threads,
        exp=_number(device, device.peaks.exp, "peaks.exp") / threads,
        cache_bytes=_number(device, llc.capacity if llc else None, "memory.llc.capacity"),
        cache=_number(device, llc.measured_bandwidth if llc else None, "memory.llc.measured_bandwidth"),
        dram=_number(device, device.dram.measured_bandwidth, "memory.dram.measured_bandwidth"),
        dispatch_s=_number(device, launch.stream if launch else None, "launch_overhead.stream"),
    )


def _number(device: Device, quantity: Quantity | None, name: str) -> float:
    if quantity is None:
        raise UnavailableError(f"{device.id} has no {name}", "measure it with perfmodel validate --backend cpu")
    return quantity.number


def seen_keys(w: Attention, row: int) -> int:
    """Keys that query ``row`` sees.

    >>> [seen_keys(Attention(4, 6, 16, 16, causal=True), row) for row in (0, 3)]
    [3, 6]
    """
    return min(max(row + 1 + int(w.kv_len) - int(w.n), 0), int(w.kv_len)) if w.causal else int(w.kv_len)


class RowTile(NamedTuple):
    """A tile of query rows of a head: its rows, visible scores, and keys in the visited key tiles."""

    rows: int
    visible: int
    keys: int


def row_tiles(w: Attention) -> list[RowTile]:
    """The tiles of query rows of a head.

    >>> row_tiles(Attention(200, 200, 16, 16, causal=True))
    [RowTile(rows=128, visible=8256, keys=128), RowTile(rows=72, visible=11844, keys=200)]
    """
    tiles = []
    for first in range(0, w.n, TILE_ROWS):
        rows = min(TILE_ROWS, w.n - first)
        low, high = seen_keys(w, first), seen_keys(w, first + rows - 1)
        hidden = max(rows - high, 0) if w.causal else 0  # rows that see nothing
        visible = (low + high) * rows // 2 if not hidden else high * (high + 1) // 2
        tiles.append(RowTile(rows, visible, int(min(ceil_div(high, TILE_KEYS) * TILE_KEYS, w.kv_len))))
    return tiles


def _compute_s(rates: CpuRates, flop: float, exponentials: float, parameters: Mapping[str, float]) -> float:
    """Seconds of one thread for multiply-adds and scores of a softmax."""
    return flop / (rates.fma * parameters["fma_share"]) + exponentials * parameters["softmax_exps"] / rates.exp


def flash_s(w: Attention, rates: CpuRates, parameters: Mapping[str, float]) -> float:
    """Seconds of flash attention: tiles of all heads over the threads; Q, K, V and O stay in the caches."""
    tile_seconds = [_compute_s(rates, 2 * tile.rows * tile.keys * (w.d + w.dv), tile.visible, parameters) for tile in row_tiles(w)]
    return rates.dispatch_s + makespan([(each, w.query_heads) for each in tile_seconds], rates.threads)


def standard_s(w: Attention, rates: CpuRates, parameters: Mapping[str, float]) -> float:
    """Seconds of three regions, each a third of the softmax's cost: scores are computed; written to P; visible ones read and multiplied.

    S and P cost nothing more if they fit the cache, else they stream through DRAM on top.
    """
    size, tiles = w.dtype.size, row_tiles(w)
    scores, visible = w.n * w.kv_len, sum(tile.visible for tile in tiles)

    def product_s(width: int) -> float:
        flop = [2 * tile.rows * w.kv_len * width for tile in tiles]
        return makespan([(_compute_s(rates, each, 0, parameters), w.query_heads) for each in flop], rates.threads)

    compute_s = product_s(w.d) + product_s(w.dv)
    compute_s += _compute_s(rates, 0, (2 * scores + visible) / 3 * w.query_heads / rates.threads, parameters)
    reads, writes = w.query_heads * (visible + scores) * size, w.query_heads * 2 * scores * size
    dram_s, _ = rates.stream_s(reads, writes, 2 * w.query_heads * scores * size)
    return 3 * rates.dispatch_s + compute_s + parameters["streams_per_copy"] * dram_s


def matmul_s(w: Matmul, rates: CpuRates, parameters: Mapping[str, float]) -> float:
    """Seconds of a product: tiles of C over the threads."""
    classes = Counter(product(_tile_sizes(w.m, MATMUL_ROWS), _tile_sizes(w.n, MATMUL_COLUMNS)))
    costs = [(_compute_s(rates, 2 * rows * columns * w.k, 0, parameters), count) for (rows, columns), count in classes.items()]
    return rates.dispatch_s + makespan(costs, rates.threads)


def _tile_sizes(size: int, tile: int) -> list[int]:
    """Sizes of the tiles of ``size``."""
    return [min(tile, size - first) for first in range(0, size, tile)]


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one call of ``case``, run again and again on the same arrays; UnavailableError names what the profile lacks."""
    rates, w = rates_of(device), case.workload
    if case.implementation == "cpu-copy":
        return rates.dispatch_s + sum(rates.stream_s(w.read_bytes, w.write_bytes, w.read_bytes + w.write_bytes))
    if case.implementation == "cpu-matmul":
        return matmul_s(w, rates, parameters)
    if case.implementation == "cpu-flash":
        return flash_s(w, rates, parameters)
    return standard_s(w, rates, parameters)


def covers(case: Case) -> bool:
    """fp32, forward, on warm caches: copies, unbatched matmuls, attention without mask, dropout, window, blocks or separate scale."""
    w = case.workload
    if case.implementation not in IMPLEMENTATIONS or case.direction != FORWARD or case.flushed:
        return False
    if case.implementation == "cpu-copy":
        return isinstance(w, Stream) and w.op == "copy"
    if case.implementation == "cpu-matmul":
        return isinstance(w, Matmul) and w.dtype.name == "fp32" and w.batch == w.split_k == 1
    return plain_attention(case, "mask", "masked_fill", "dropout", "window", "sparsity", "unfused_scale") and w.dtype.name == "fp32"


MODEL = Model(
    name="cpu",
    declared="cpu",
    covers=covers,
    seconds=seconds,
    source="tiles and loops of perfmodel/validation/cpu/kernels.py",
    assumes="arrays that the run before has left in the caches",
)
