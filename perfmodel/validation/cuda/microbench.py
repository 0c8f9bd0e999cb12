"""Microbenchmarks: bandwidths of the memory levels of this machine's GPU, rates of its units, and times of its launches.

A profile keeps measured values beside datasheet values, never in their place: ``ProbeResult.field`` names the profile's field for the
measured one, if it has any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from perfmodel.core.dtypes import canonical
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.timing.base import CLEAN
from perfmodel.timing.transfer import MATMUL
from perfmodel.validation.cuda import run
from perfmodel.validation.cuda.gpu import current_gpu, in_words, load_numba_cuda, open_gpu, small_grids
from perfmodel.validation.records import Seconds
from perfmodel.validation.statistics import StoppingRule, measure_times

RULE = StoppingRule(relative_error=0.005, least_runs=10, runs=50, budget_s=0.3)
QUICK_RULE = StoppingRule(relative_error=0.02, least_runs=5, runs=20, budget_s=0.05)
SMALLEST, LARGEST = 1 << 16, 1 << 32
"""Bytes of one array of the bandwidth curves."""
USED_SHARE = 0.9
"""Share of free memory that arrays may take."""
L2_READ_BYTES = 1 << 31
"""Bytes of one run of the L2 curve: so many that it takes long compared with a launch."""
BLOCKS_PER_SM = 8
FMA_ROUNDS, EXP_ROUNDS, SHARED_ROUNDS = 1 << 12, 1 << 9, 1 << 12
"""Rounds per thread: a few milliseconds on an H200."""
FLOP_PER_FMA = 2
PRODUCTS = {"bfloat16": 8192, "float16": 8192, "float32": 4096}
"""Edge of the square product in each of PyTorch's number formats."""
Part = Callable[[StoppingRule], Iterator["ProbeResult"]]
"""A group of microbenchmarks, which yields their results."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One result in base units (B/s, FLOP/s, OP/s, B, s); without a ``value``, ``reason`` says why.

    ``spread``: (p90 - p10) / median. ``size``: bytes of the array, on a curve over sizes. ``shape``: shape of a product.
    """

    name: str
    unit: str
    value: float | None
    spread: float = 0.0
    runs: int = 0
    size: int | None = None
    field: str | None = None
    reason: str = ""
    shape: dict[str, int] | None = None


def rate(name: str, unit: str, amount: float, times: Sequence[float], size: int | None = None, field: str | None = None) -> ProbeResult:
    """The rate of runs of ``amount`` each: ``amount`` over the median of their ``times``."""
    seconds = Seconds.of(times)
    return ProbeResult(name, unit, amount / seconds.median, seconds.noise, len(times), size, field)


def benchmark(progress: Callable[[str], None] = lambda text: None, rule: StoppingRule = RULE) -> list[ProbeResult]:
    """Results of all microbenchmarks on the current GPU; UnavailableError if there is none."""
    open_gpu()
    with small_grids():
        return run_parts(PARTS, progress, rule)


def run_parts(parts: Mapping[str, Part], progress: Callable[[str], None], rule: StoppingRule) -> list[ProbeResult]:
    """The results of all ``parts``; one that fails leaves its results so far and a result with the reason."""
    results: list[ProbeResult] = []
    for name, part in parts.items():
        progress(name)
        try:
            for result in part(rule):  # not a list of all: what came before a failure counts
                results.append(result)
        except Exception as error:  # also the driver's own: the other parts can still be measured
            results.append(ProbeResult(name, "", None, reason=in_words(error)))
    return results


def sizes(smallest: int, largest: int, steps: int = 1) -> list[int]:
    """Powers of two from ``smallest`` to ``largest``, each interval between them in ``steps`` equal steps.

    >>> sizes(4096, 16384), sizes(4096, 8192, 2)
    ([4096, 8192, 16384], [4096, 6144, 8192])
    """
    listed, power = [], smallest
    while power <= largest:
        listed += [power + power * step // steps for step in range(steps)]
        power *= 2
    return [size for size in listed if size <= largest]


def plateau(curve: Sequence[ProbeResult]) -> ProbeResult:
    """The highest bandwidth of ``curve``."""
    best = max(curve, key=lambda point: point.value or 0.0)
    return replace(best, name="L2 read, plateau", field="memory.l2.measured_bandwidth")


def apparent_size(curve: Sequence[ProbeResult]) -> ProbeResult:
    """The size at which bandwidth has fallen halfway, in logarithms, from the plateau to the bandwidth of the largest array.

    It is interpolated between two sizes of ``curve``; ``spread`` is the relative step between these.
    """
    points = [(point.size, point.value) for point in curve if point.size and point.value]
    top, low = max(value for _, value in points), points[-1][1]
    result = ProbeResult("L2, apparent size", "B", None, runs=sum(point.runs for point in curve))
    if top < 1.2 * low:
        return replace(result, reason="bandwidth does not fall with size: no step to see")
    halfway = math.sqrt(top * low)
    last_fast = max(number for number, (_, value) in enumerate(points) if value > halfway)
    (small, fast), (large, slow) = points[last_fast], points[last_fast + 1]
    share = math.log(fast / halfway) / math.log(fast / slow)
    return replace(result, value=small * (large / small) ** share, spread=large / small - 1)


# Memory


def _dram(rule: StoppingRule) -> Iterator[ProbeResult]:
    """Copy and read bandwidth by size, with a flushed L2; the largest array gives the device's."""
    from perfmodel.validation.kernels import probes

    cuda, gpu = load_numba_cuda(), current_gpu()
    timer = run.EventTimer(gpu)
    curves: dict[str, list[ProbeResult]] = {"DRAM copy": [], "DRAM read": []}
    blocks = BLOCKS_PER_SM * gpu.multiprocessors
    for size in sizes(SMALLEST, min(LARGEST, int(gpu.free_bytes * USED_SHARE / 2))):
        source, target = (cuda.device_array(size // 4, "float32") for _ in range(2))
        times = measure_times(probes.prepare_copy(source, target), timer, rule)
        curves["DRAM copy"].append(rate("DRAM copy", "B/s", 2 * size, times, size))
        times = measure_times(probes.prepare_read(source, target, blocks=blocks), timer, rule)
        curves["DRAM read"].append(rate("DRAM read", "B/s", size, times, size))
        del source, target
        cuda.current_context().deallocations.clear()
    for name, curve in curves.items():
        yield from curve
        field = "memory.dram.measured_bandwidth" if name == "DRAM copy" else None
        yield replace(curve[-1], name=f"{name}, largest", field=field)


def _l2(rule: StoppingRule) -> Iterator[ProbeResult]:
    """Read bandwidth by size with the array left in L2, its plateau, and the size up to which L2 seems to hold an array."""
    from perfmodel.validation.kernels import probes

    cuda, gpu = load_numba_cuda(), current_gpu()
    timer = run.EventTimer(gpu, cold=False)
    sums = cuda.device_array(1, "float32")
    curve = []
    for size in sizes(1 << 20, min(8 * gpu.l2_bytes, int(gpu.free_bytes * USED_SHARE)), 4):
        source = cuda.device_array(size // 16 * 4, "float32")
        passes = max(L2_READ_BYTES // size, 2)
        launch = probes.prepare_read(source, sums, passes, blocks=BLOCKS_PER_SM * gpu.multiprocessors)
        curve.append(rate("L2 read", "B/s", size * passes, measure_times(launch, timer, rule), size))
    yield from curve
    yield plateau(curve)
    yield apparent_size(curve)


# Units


def _units(rule: StoppingRule) -> Iterator[ProbeResult]:
    """Multiply-adds, exponentials, and reads of shared memory over the whole device."""
    from perfmodel.validation.kernels import probes

    cuda, gpu = load_numba_cuda(), current_gpu()
    timer = run.EventTimer(gpu, cold=False)
    sums, blocks = cuda.device_array(1, "float32"), BLOCKS_PER_SM * gpu.multiprocessors
    fma = FLOP_PER_FMA * probes.operations(blocks, FMA_ROUNDS)
    yield rate("fp32 FMA", "FLOP/s", fma, measure_times(probes.prepare_fma(sums, blocks, FMA_ROUNDS), timer, rule))
    exp = probes.operations(blocks, EXP_ROUNDS)
    yield rate("exp", "OP/s", exp, measure_times(probes.prepare_exp(sums, blocks, EXP_ROUNDS), timer, rule))
    shared = probes.shared_bytes(blocks, SHARED_ROUNDS)
    times = measure_times(probes.prepare_shared(sums, blocks, SHARED_ROUNDS), timer, rule)
    yield rate("shared memory read", "B/s", shared, times, field="memory.sram.measured_bandwidth")


def _launches(rule: StoppingRule) -> Iterator[ProbeResult]:
    """Time per empty kernel in a stream and in a graph, and the host's time per launch from Python."""
    stream = load_numba_cuda().stream()
    timer = run.QueueTimer(current_gpu(), stream)
    launch = run.empty_launches(stream)
    yield _per_launch("launch, host", run.host_times(launch, stream), None)
    yield _per_launch("launch, stream", measure_times(launch, timer, rule), "launch_overhead.stream")
    try:
        replay = run.captured(launch, stream)
        yield _per_launch("launch, graph", measure_times(replay, timer, rule), "launch_overhead.graph")
    except PerfmodelError as error:
        yield ProbeResult("launch, graph", "s", None, reason=error.message)


def _per_launch(name: str, times: Sequence[float], field: str | None) -> ProbeResult:
    """Seconds per empty kernel, from ``times`` of ``run.KERNELS`` launches."""
    seconds = Seconds.of(times)
    return ProbeResult(name, "s", seconds.median / run.KERNELS, seconds.noise, len(times), field=field)


def _products(rule: StoppingRule) -> Iterator[ProbeResult]:
    """Large products of the vendor's library, by PyTorch; UnavailableError without it."""
    from perfmodel.validation.libraries import load_torch
    from perfmodel.validation.libraries.measure import TorchTimer

    torch = load_torch()
    torch.backends.cuda.matmul.allow_tf32 = False
    timer = TorchTimer(torch, rule)
    for name, edge in PRODUCTS.items():
        a, b = (torch.randn(edge, edge, device="cuda", dtype=getattr(torch, name)) for _ in range(2))
        times = timer.times(lambda a=a, b=b: a @ b, CLEAN)  # type: ignore[misc]
        reached = rate(MATMUL.format(canonical(name)), "FLOP/s", FLOP_PER_FMA * edge**3, times)
        yield replace(reached, shape=dict.fromkeys("mnk", edge))
        del a, b
    torch.cuda.empty_cache()


PARTS: dict[str, Part] = {
    "memory bandwidth by size": _dram,
    "L2": _l2,
    "rates of units": _units,
    "launch overhead": _launches,
    "large products": _products,
}
