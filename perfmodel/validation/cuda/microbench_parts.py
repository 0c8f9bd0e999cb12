"""The parts of ``microbench``: each takes a stopping rule and yields results. They run on a GPU only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numba import cuda as _cuda

from perfmodel.core.errors import PerfmodelError
from perfmodel.validation.cuda import launches
from perfmodel.validation.cuda.events import EventTimer
from perfmodel.validation.cuda.gpu import current_gpu
from perfmodel.validation.cuda.microbench import Measured, Part, apparent_size, plateau, rate, sizes
from perfmodel.validation.cuda.timing import StoppingRule, Timing, measure_times
from perfmodel.validation.kernels import copy, probe_rates, probe_read

cuda: Any = _cuda
SMALLEST, LARGEST = 1 << 16, 1 << 32
"""Bytes of one array of the bandwidth curves."""
KEPT_FREE = 0.9
"""Share of free memory that arrays may take."""
L2_READ_BYTES = 1 << 31
"""Bytes of one run of the L2 curve: long against a launch."""
BLOCKS_PER_SM = 8
FMA_ROUNDS, EXP_ROUNDS, SHARED_ROUNDS = 1 << 12, 1 << 9, 1 << 12
"""Rounds per thread: a few milliseconds on an H200."""
FLOP_PER_FMA = 2


# Memory


def _dram(rule: StoppingRule) -> Iterator[Measured]:
    """Copy and read bandwidth by size, L2 flushed; the largest array stands for the device."""
    gpu = current_gpu()
    timer = EventTimer(gpu)
    curves: dict[str, list[Measured]] = {"DRAM copy": [], "DRAM read": []}
    blocks = BLOCKS_PER_SM * gpu.multiprocessors
    for size in sizes(SMALLEST, min(LARGEST, int(gpu.free_bytes * KEPT_FREE / 2))):
        source, target = (cuda.device_array(size // 4, "float32") for _ in range(2))
        timing = measure_times(copy.prepare(source, target), timer, rule)
        curves["DRAM copy"].append(rate("DRAM copy", "B/s", 2 * size, timing, size))
        timing = measure_times(probe_read.prepare(source, target, blocks=blocks), timer, rule)
        curves["DRAM read"].append(rate("DRAM read", "B/s", size, timing, size))
        del source, target
        cuda.current_context().deallocations.clear()
    for name, curve in curves.items():
        yield from curve
        yield replace(curve[-1], name=f"{name}, largest", field="memory.dram.measured_bandwidth" if name == "DRAM copy" else None)


def _l2(rule: StoppingRule) -> Iterator[Measured]:
    """Read bandwidth by size with the array left in L2, its plateau, and the size up to which L2 seems to hold an array."""
    gpu = current_gpu()
    timer = EventTimer(gpu, cold=False)
    sums = cuda.device_array(1, "float32")
    curve = []
    for size in sizes(1 << 20, min(8 * gpu.l2_bytes, int(gpu.free_bytes * KEPT_FREE)), 4):
        source = cuda.device_array(size // 16 * 4, "float32")
        passes = max(L2_READ_BYTES // size, 2)
        launch = probe_read.prepare(source, sums, passes, blocks=BLOCKS_PER_SM * gpu.multiprocessors)
        curve.append(rate("L2 read", "B/s", size * passes, measure_times(launch, timer, rule), size))
    yield from curve
    yield plateau(curve)
    yield apparent_size(curve)


# Units


def _units(rule: StoppingRule) -> Iterator[Measured]:
    """Multiply-adds, exponentials, and reads of shared memory over the whole device."""
    gpu = current_gpu()
    timer = EventTimer(gpu, cold=False)
    sums, blocks = cuda.device_array(1, "float32"), BLOCKS_PER_SM * gpu.multiprocessors
    fma = FLOP_PER_FMA * probe_rates.operations(blocks, FMA_ROUNDS)
    yield rate("fp32 FMA", "FLOP/s", fma, measure_times(probe_rates.prepare_fma(sums, blocks, FMA_ROUNDS), timer, rule))
    exp = probe_rates.operations(blocks, EXP_ROUNDS)
    yield rate("exp", "OP/s", exp, measure_times(probe_rates.prepare_exp(sums, blocks, EXP_ROUNDS), timer, rule))
    shared = probe_rates.shared_bytes(blocks, SHARED_ROUNDS)
    timing = measure_times(probe_rates.prepare_shared(sums, blocks, SHARED_ROUNDS), timer, rule)
    yield rate("shared memory read", "B/s", shared, timing, field="memory.sram.measured_bandwidth")


def _launches(rule: StoppingRule) -> Iterator[Measured]:
    """Time per empty kernel, from a stream and from a graph."""
    stream = cuda.stream()
    timer = launches.QueueTimer(current_gpu(), stream)
    launch = launches.empty_launches(stream)
    yield _per_launch("launch, stream", measure_times(launch, timer, rule), "launch_overhead.stream")
    try:
        replay = launches.captured(launch, stream)
        yield _per_launch("launch, graph", measure_times(replay, timer, rule), "launch_overhead.graph")
    except PerfmodelError as error:
        yield Measured("launch, graph", "s", None, reason=error.message)


def _per_launch(name: str, timing: Timing, field: str) -> Measured:
    return Measured(name, "s", timing.median / launches.KERNELS, timing.noise, timing.runs, field=field)


PARTS: dict[str, Part] = {
    "memory bandwidth by size": _dram,
    "L2": _l2,
    "rates of units": _units,
    "launch overhead": _launches,
}
