"""Time of matrix multiplication by a tuned library (cuBLAS and its like): the fastest of its tiles and splits of k.

A block walks k in slices; a slice takes the longer of its multiplication and its load from the L2, and a fixed step. Blocks run in
waves of one per multiprocessor. DRAM traffic overlaps with them, though not perfectly. Split k adds the sum of the parts.
The tensor unit runs at the datasheet's clock, and slower the longer a kernel draws full power.
Where rows of A, B or C do not start on 16 bytes, older kernels run, and their narrow copies set the pace.

Libraries carry a table of compiled tiles and a heuristic that picks the fastest; the model does the same with its own times.
Sources of the tiles: CUTLASS documentation, efficient GEMM (tiles from 64 x 64 to 256 x 128, split-k for small grids); PTX ISA,
``wgmma`` and ``tcgen05.mma`` (from compute capability 9.0 on, one side of a tile is free in steps of 8 or 16).

A linear layer in fp8 on 16-bit activations: kernels find the scale of x and round it, then the matmul runs in fp8, its result 16-bit;
what 16-bit inputs and results move beside it is added.
Source: NVIDIA TensorRT-LLM, tensorrt_llm/_torch/modules/linear.py (dynamic scale per tensor, matmul by cuBLAS).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

from perfmodel.core.arith import ceil_div
from perfmodel.core.cache import SCAN_IS_LOST, SCAN_SURVIVES
from perfmodel.core.dtypes import ACTIVATION_SIZE
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Rates, rates_of
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.tile import ACCUMULATOR_SIZE
from perfmodel.timing.base import ALONE, Case, Model, Parameter, lost_share, numbers_of, once_per_case

SLICE_BYTES = 128  # known
"""Depth of a slice of k: one row of the swizzle pattern of TMA and of CUTLASS tiles."""
MMA_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))  # known
"""Compiled tiles where a warp holds its share of C in registers (compute capability below 9.0, and copies below 16 bytes)."""
ROWS = (256, 128, 64)  # known
"""Sides that the matrix instruction fixes from 9.0 on; the other side is free."""
WIDTHS = (256, 192, 128, 64)  # known
"""Free sides that any length may use."""
WIDTH_STEP = 16  # known
SIMT_EDGES, FEW_ROWS = (128, 64, 32), (1,)  # tuned
"""Edges of tiles on the vector unit; rows or columns that kernels for few of them hold."""
LARGEST_TILE = 256 * 128  # known
"""Elements of C: fp32 accumulators of a whole register file, or of the tensor memory half by half."""
WIDE_COPY, NARROW_COPY = 16, 4  # known
"""Bytes that a thread copies to SRAM at once: where every row starts on 16 bytes, and at most elsewhere."""
WARP_THREADS = 32  # known
LARGEST = 1e9  # known
"""Upper limit of every parameter, so that a fit that diverges stays finite."""
EVEN_PARTS = (1, 2, 3, 4)  # tuned
"""A free side may also cut a short length into this many even parts."""
LARGEST_SPLIT = 16  # tuned
"""Most parts of k that are tried."""
SPLIT_WAVES = 2  # tuned
"""Splitting k stops once the grid fills the device this often."""
STORE_COST = 3.0  # tuned
"""A byte stored costs this many loaded ones: no multicast, and the write goes through to the L2."""
OVERLAP = 3.0  # tuned
"""Norm that joins two overlapping times: 1 would add them up, infinity hide the shorter one."""
THROTTLE_FROM_S, THROTTLE_SPAN = 300e-6, 3.0  # tuned
"""Length of kernel from which a power limit lowers the clock, and e-folds of length until it has settled."""
COPY_CYCLES, NARROW_STORE_COST = 10.0, 2.0  # tuned
"""Cycles of a multiprocessor for one copy of a warp below 16 bytes a thread, whatever its width; copies that a store is worth.

A store passes through SRAM on its way. Set on the 20 unaligned products that fits may see of an H200; cross-validation among
them picks 9.5 to 10.5 and 1.5 to 2. No tile multiplies for longer than it copies at that pace, not at the rate of mma.sync either.
"""
SPLIT_US = 2.5  # tuned
"""``split_us`` in fp8: the value from which fits of ``gemm`` start, as the eighth fitted parameter prices the rounding."""

PARAMETERS = (
    Parameter("launch_us", "one kernel of one wave, first loads and last stores included, without its work", 2.5),
    Parameter("flop_per_loaded_byte", "16-bit matmul FLOP in the time one byte comes from the L2", 60.0),
    Parameter("wave_cycles", "start and end of a block, for each wave after the first", 1000.0),
    Parameter("slice_cycles", "step of a block beyond the work of its slice", 60.0),
    Parameter("dram_share", "share of the DRAM bandwidth that all multiprocessors together reach", 0.8),
    Parameter("half_bandwidth_share", "share of the multiprocessors at which the bandwidth would be half of its limit", 0.2),
    Parameter("split_us", "split k: second pass over the parts", 2.5),
    Parameter("throttle", "slowdown of full tensor power per e-fold of kernel length", 0.05),
)
WEIGHT_COPIES = "weight_copies"
"""Key of ``Case.launch``: a warm run may rotate over that many B, so that weights come from DRAM while A stays in the L2."""

Choice: TypeAlias = tuple[int, int, int]  # rows and columns of a tile of C, and parts of k


def copy_bytes(n: int, k: int, element_size: int) -> int:
    """Bytes per copy that the rows of A [m, k], B [n, k] or [k, n], and C [m, n] allow; a kernel has one width for all three.

    Sources: CUDA Programming Guide, TMA (strides in multiples of 16 bytes); PTX ISA, cp.async (4, 8 or 16 bytes); CUTLASS kernel
    names. cuBLAS of CUDA 13, profiled on an H200, runs its align2 kernels where rows are multiples of 4 or 8 bytes, and align1
    kernels, which load by element, below. One column is left to kernels for a vector, which have no rows of C to store.

    >>> copy_bytes(4096, 4096, 2), copy_bytes(900, 128, 2), copy_bytes(50257, 768, 2), copy_bytes(1, 768, 2)
    (16, 4, 2, 16)
    """
    row = (k if n == 1 else math.gcd(n, k)) * element_size
    return WIDE_COPY if row % WIDE_COPY == 0 else math.gcd(row, NARROW_COPY)


class TilePlan(NamedTuple):
    """What the busiest multiprocessor does for one choice, summed over its waves; ``busy``: share of the multiprocessors at work.

    ``br`` and ``bc``: the tile of C.
    """

    waves: int
    flops: int
    loaded_bytes: int
    stored_bytes: int
    steps: int
    busy: float
    parts: int
    br: int
    bc: int


@lru_cache(maxsize=4096)
def plans(
    m: int, n: int, k: int, batch: int, element_size: int, slots: int, choices: tuple[Choice, ...] | bool, split_k: int
) -> tuple[TilePlan, ...]:
    """Plans of C [m, n] over a depth k, ``batch`` times; ``choices`` are given, or whether a side of a tile is free."""
    slices = ceil_div(k * element_size, SLICE_BYTES)
    if isinstance(choices, bool):
        choices = candidates(m, n, batch, slices, slots, choices)
        if split_k > 1:
            choices = tuple({(br, bc, split_k): None for br, bc, _ in choices})
    found = []
    for br, bc, parts in choices:
        blocks = batch * ceil_div(m, br) * ceil_div(n, bc) * parts
        waves, steps, busy = ceil_div(blocks, slots), ceil_div(slices, parts), min(blocks / slots, 1.0)
        depth, rows, columns = min(steps * SLICE_BYTES // element_size, k), min(br, m), min(bc, n)
        loaded, stored = (rows + columns) * depth * element_size, rows * columns * element_size
        found.append(TilePlan(waves, waves * 2 * br * bc * depth, waves * loaded, waves * stored, waves * steps, busy, parts, br, bc))
    return tuple(found)


def worth_timing(listed: Sequence[TilePlan]) -> tuple[TilePlan, ...]:
    """Plans of ``listed`` that can be fastest: no earlier plan is as good or better in every quantity that the time grows with."""
    kept: list[TilePlan] = []
    for plan in listed:
        as_good = (before for before in kept if before.busy >= plan.busy and before.parts <= plan.parts)
        if not any(all(a <= b for a, b in zip(before[:5], plan[:5], strict=True)) for before in as_good):
            kept.append(plan)
    return tuple(kept)


def candidates(m: int, n: int, batch: int, slices: int, slots: int, free_side: bool) -> tuple[Choice, ...]:
    """Tiles and splits for C [m, n], ``batch`` times, k in ``slices``, on ``slots`` multiprocessors.

    >>> candidates(64, 64, 1, 1, 108, False)[-1]
    (64, 64, 1)
    """
    tiles: Sequence[tuple[int, int]] = MMA_TILES
    if free_side:
        rows, columns = ({width for width in WIDTHS if width < 2 * length or width == min(WIDTHS)} for length in (m, n))
        for length, free in ((m, rows), (n, columns)):
            even = (ceil_div(ceil_div(length, parts), WIDTH_STEP) * WIDTH_STEP for parts in EVEN_PARTS)
            free |= {width for width in even if width <= max(WIDTHS)}
        listed = {*product(rows, ROWS), *product(ROWS, columns)}
        tiles = sorted((br, bc) for br, bc in listed if br * bc <= LARGEST_TILE)
    return tuple((br, bc, s) for br, bc in tiles for s in splits(batch * ceil_div(m, br) * ceil_div(n, bc), slices, slots))


def simt_candidates(m: int, n: int, batch: int, slices: int, slots: int) -> tuple[Choice, ...]:
    """Tiles and splits of products on the vector unit; beside a few rows, kernels for a matrix and a vector hold just those."""
    rows = [*SIMT_EDGES, *(few for few in FEW_ROWS if m <= few)]
    columns = [*SIMT_EDGES, *(few for few in FEW_ROWS if n <= few)]
    return tuple((br, bc, s) for br in rows for bc in columns for s in splits(batch * ceil_div(m, br) * ceil_div(n, bc), slices, slots))


def splits(blocks: int, slices: int, slots: int) -> list[int]:
    """Parts of k worth a try for a grid of ``blocks``: those that fill the device, and small powers of two.

    >>> splits(20, 64, 132), splits(200, 64, 132), splits(20, 1, 132)
    ([1, 2, 3, 4, 6, 8, 13], [1], [1])
    """
    most = min(slices, LARGEST_SPLIT)
    filling = {min(waves * slots // blocks, most) for waves in range(1, SPLIT_WAVES + 1)}
    small = {s for s in (2, 3, 4, 8) if s <= most and blocks * s <= SPLIT_WAVES * slots}
    return sorted({1} | {s for s in filling | small if s > 1})


def covers(case: Case) -> bool:
    """Matrix multiplications C[m, n] = A[m, k] B[k, n], batched or not, forward, in any dtype."""
    return isinstance(case.workload, Matmul) and case.direction == FORWARD


@dataclass(frozen=True, slots=True)
class _MatmulWork:
    """A case on a device before any parameter. ``width``: bytes that a thread copies at once; ``half``: the peak in fp16.

    ``part_bytes``: of one part of split k, stored and read again.
    """

    slots: int
    clock_hz: float
    rates: Rates
    half: float
    width: int
    plans: tuple[TilePlan, ...]
    dram_bytes: float
    part_bytes: int


@once_per_case
def _work(case: Case, device: Device) -> _MatmulWork:
    w: Matmul = case.workload
    width = copy_bytes(w.n, w.k, w.dtype.size) if device.vendor == "NVIDIA" and w.dtype.matmul_unit == "tensor" else WIDE_COPY
    multiprocessors, clock = numbers_of(device, "multiprocessors", "tensor clock")
    slots, rates, half = int(multiprocessors), rates_of(device, w.dtype), device.peaks.tensor.get("fp16")
    choices: tuple[Choice, ...] | bool = device.capability >= 9 and width == WIDE_COPY and w.dtype.size < 4
    if w.dtype.matmul_unit == "vector":
        choices = simt_candidates(w.m, w.n, w.batch, ceil_div(w.k * w.dtype.size, SLICE_BYTES), slots)
    if "br" in case.launch and "bc" in case.launch:
        choices = ((case.launch["br"], case.launch["bc"], w.split_k),)
    listed = plans(w.m, w.n, w.k, w.batch, w.dtype.size, slots, choices, w.split_k)
    part_bytes, peak = 2 * w.outputs * ACCUMULATOR_SIZE, rates.matmul if half is None else half.number
    return _MatmulWork(slots, clock, rates, peak, width, worth_timing(listed), dram_bytes(case, device), part_bytes)


def dram_bytes(case: Case, device: Device) -> float:
    """Bytes of A, B and C that pass through DRAM: all of them after a flush; of a warm run, what its last turn has pushed out.

    A cyclic scan loses all or nothing: the rule, with its limits, of ``perfmodel.core.cache``.
    """
    w: Matmul = case.workload
    a, b, c = (w.batch * w.dtype.size * size for size in (w.m * w.k, w.k * w.n, w.m * w.n))
    if case.flushed or device.cache_bytes is None:
        return float(a + b + c)
    scans = a + b + c, a + case.launch.get(WEIGHT_COPIES, 1) * b + c
    lost, lost_weights = (lost_share(size / device.cache_bytes, SCAN_SURVIVES, SCAN_IS_LOST) for size in scans)
    return float((a + c) * lost + b * lost_weights)


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one (batched) kernel with the fastest candidate tile; the tile of ``case.launch`` (br, bc) if it has one.

    UnavailableError without multiprocessors, a clock or a peak for the dtype.
    """
    return fastest(case, device, parameters)[0]


def fastest(case: Case, device: Device, parameters: Mapping[str, float]) -> tuple[float, TilePlan]:
    """Seconds of the fastest candidate, and its plan."""
    work = _work(case, device)
    time = plan_seconds(work, {name: min(value, LARGEST) for name, value in parameters.items()})
    return min(((time(plan), plan) for plan in work.plans), key=lambda found: found[0])


def plan_seconds(work: _MatmulWork, p: Mapping[str, float]) -> Callable[[TilePlan], float]:
    """The time of a plan, ``p`` applied: per FLOP, byte and fixed step of one multiprocessor; DRAM traffic; parts of split k."""
    slots, width, cycle_s = work.slots, work.width, 1 / work.clock_hz
    flop_s, byte_s = slots / work.rates.matmul, slots * p["flop_per_loaded_byte"] / work.half
    copy_s = 0.0 if width == WIDE_COPY else COPY_CYCLES * cycle_s / (WARP_THREADS * width)
    load_s, store_s = max(byte_s, copy_s), max(STORE_COST * byte_s, NARROW_STORE_COST * copy_s)
    slice_s, wave_s = p["slice_cycles"] * cycle_s, p["wave_cycles"] * cycle_s
    launch_s, split_s, half = p["launch_us"] * 1e-6, p["split_us"] * 1e-6, p["half_bandwidth_share"]
    throttle = p["throttle"] if width == WIDE_COPY else 0.0
    dram_s, part_s = work.dram_bytes / (work.rates.dram * p["dram_share"]), work.part_bytes * byte_s / slots

    def time(plan: TilePlan) -> float:
        waves, flops, loaded, stored, steps, busy, parts = plan[:7]
        busy_s = max(flops * flop_s, loaded * load_s) + stored * store_s + steps * slice_s + (waves - 1) * wave_s
        if busy_s > THROTTLE_FROM_S:
            busy_s *= 1 + throttle * min(math.log(busy_s / THROTTLE_FROM_S), THROTTLE_SPAN)
        streamed_s = dram_s * (busy + half) / (busy * (1 + half))
        found: float = launch_s + (busy_s**OVERLAP + streamed_s**OVERLAP) ** (1 / OVERLAP)
        return found if parts == 1 else found + split_s + parts * part_s

    return time


def fp8_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of rounding and matmul; UnavailableError as in ``seconds``."""
    w, bandwidth = case.workload, float(_work(case, device).rates.dram)
    # bytes of rounding x, and of the 16-bit result beyond those of the fp8 matmul
    moved = w.batch * w.m * (w.k * (ACTIVATION_SIZE + w.dtype.size) + w.n * (ACTIVATION_SIZE - w.dtype.size))
    return float(seconds(case, device, {**p, "split_us": SPLIT_US}) + moved / (bandwidth * p["quantize_share"]))


def of_dtype(name: str, implementation: str) -> Callable[[Case], bool]:
    """Forward products in one format by one library: each has kernels, and parameters, of its own."""

    def covers_dtype(case: Case) -> bool:
        """A forward product in that format."""
        return covers(case) and case.workload.dtype.name == name and case.implementation == implementation

    return covers_dtype


def covers_half(case: Case) -> bool:
    """Matrix multiplications C[m, n] = A[m, k] B[k, n], batched or not, forward, other than in fp32 or tf32."""
    return covers(case) and case.workload.dtype.size < 4


def covers_fp8(case: Case) -> bool:
    """A single forward product with both operands in fp8; no batch, no split of k."""
    return covers(case) and case.workload.dtype.name == "fp8"


_GEMM = Model(
    "gemm",
    PARAMETERS,
    covers_half,
    seconds,
    "tile and wave quantization: NVIDIA Matrix Multiplication Background User's Guide; split k: CUTLASS documentation, efficient GEMM",
    assumes=f"{ALONE}; B stored as a linear layer's weights, [n, k]; runs of a warm record rotate over its weight_copies",
    implementations=("cublas", "torch-matmul"),
)
_FP8 = replace(
    _GEMM,
    name="fp8-linear",
    parameters=(
        *(parameter for parameter in PARAMETERS if parameter.name != "split_us"),
        Parameter("quantize_share", "of the DRAM bandwidth, x and its rounded copy", 1.0),
    ),
    covers=covers_fp8,
    seconds=fp8_seconds,
    implementations=("trtllm-fp8-linear",),
)
_OTHERS = tuple(
    replace(_GEMM, name=f"gemm-{dtype}", covers=of_dtype(dtype, name), implementations=(name,))
    for dtype, name in (("fp32", "torch-matmul"), ("tf32", "torch-matmul"), ("fp8", "torch-scaled-mm"))
)
MODELS = {model.name: model for model in (_GEMM, _FP8, *_OTHERS)}
