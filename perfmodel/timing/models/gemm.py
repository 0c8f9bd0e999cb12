"""Time of matrix multiplication by a tuned library (cuBLAS and its like): the fastest of its tiles and splits of k.

A block walks k in slices; a slice takes the longer of its multiplication and its load from the L2, and a fixed step. Blocks run in
waves of one per multiprocessor. DRAM traffic overlaps with them, though not perfectly. Split k adds the sum of the parts.
The tensor unit runs at the datasheet's clock (GeForce: above it), and slower the longer a kernel draws full power.
Where rows of A, B or C do not start on 16 bytes, and in fp32, older kernels run (``_gemm_blocks.py``); a single row of C is a
product with a vector (``_gemm_vector.py``).

Libraries carry a table of compiled tiles and a heuristic that picks the fastest; the model does the same with its own times.

A linear layer in fp8 on 16-bit activations: kernels find the scale of x and round it, then the matmul runs in fp8, its result 16-bit.
Source: NVIDIA TensorRT-LLM, tensorrt_llm/_torch/modules/linear.py (dynamic scale per tensor, matmul by cuBLAS).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from perfmodel.core.architectures import wide_matrix
from perfmodel.core.arith import ceil_div
from perfmodel.core.cache import scan_limits
from perfmodel.core.dtypes import ACTIVATION_SIZE, Dtype
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Rates, boost, rates_of
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.tile import ACCUMULATOR_SIZE
from perfmodel.timing.base import ALONE, Case, Model, Parameter, lost_share, numbers_of, once_per_case
from perfmodel.timing.models import _gemm_blocks as blocks
from perfmodel.timing.models._gemm_blocks import BlockCosts, BlockPlan, busy_seconds
from perfmodel.timing.models._gemm_plans import NARROW_COPY, WIDE_COPY, Listed, Plan, copy_bytes, listed_plans
from perfmodel.timing.models._gemm_tiles import SLICE_BYTES, TilePlan

__all__ = ("SLICE_BYTES", "WIDE_COPY", "copy_bytes", "fastest")

WARP_THREADS = 32  # known
LARGEST = 1e9  # known
"""Upper limit of every parameter, so that a fit that diverges stays finite."""
STORE_COST = 3.0  # tuned
"""A byte stored costs this many loaded ones: no multicast, and the write goes through to the L2."""
OVERLAP, LOOSE_OVERLAP = 3.0, 2.0  # tuned
"""Norm that joins two overlapping times: 1 would add them up, infinity hide the shorter one; and outside of 16 bits.

In 16 bits the longer of multiplication and loads hides the other; in tf32 and fp8 the looser norm joins them too.
"""
XMMA_LAUNCH_S = 2e-6  # tuned
"""By which kernels in tf32 with ``wgmma`` start later than those of 8.0."""
THROTTLE_FROM_S, THROTTLE_SPAN = 300e-6, 3.0  # tuned
"""Length of kernel from which a power limit lowers the clock, and e-folds of length until it has settled."""
COPY_CYCLES, MMA_SHARE = 7.2, 0.59  # tuned
"""Narrow copies: cycles of a multiprocessor for one of a warp, whatever its width; share of the peak that ``mma.sync`` reaches where
there is ``wgmma``.
"""
WAIT_CYCLES, SINGLE_WAIT_CYCLES = 300.0, 1170.0  # tuned
"""For the copies of a slice, asynchronous ones in several stages; and by element through registers in two stages."""
NARROW_TILE_CYCLES = 5200.0  # tuned
"""Begin and store a tile of 128 x 128 where copies are narrow."""
SUM_S, PART_S = 1.4e-6, 0.07e-6  # tuned
"""Second kernel that adds up the parts of k of narrow copies, and each part: a thread adds one after the other.

The constants of narrow copies were set together on 171 unaligned products in bf16, fp16 and tf32 that fits may see.
"""
SPLIT_US = 2.5  # tuned
"""``split_us`` in fp8: the value from which fits of ``gemm`` start, as the eighth fitted parameter prices the rounding."""
VECTOR_LAUNCH, SMALL_LAUNCH = 0.92, 0.78  # tuned
"""Launch of a kernel that streams a matrix, and in fp32 of one for few rows, beside a launch of the other kernels of the format."""

PARAMETERS = (
    Parameter("launch_us", "one kernel of one wave, first loads and last stores included, without its work"),
    Parameter("flop_per_loaded_byte", "16-bit matmul FLOP in the time one byte comes from the L2"),
    Parameter("wave_cycles", "start and end of a block, for each wave after the first"),
    Parameter("slice_cycles", "step of a block beyond the work of its slice"),
    Parameter("dram_share", "share of the DRAM bandwidth that all multiprocessors together reach"),
    Parameter("half_bandwidth_share", "share of the multiprocessors at which the bandwidth would be half of its limit"),
    Parameter("split_us", "split k: second pass over the parts"),
    Parameter("throttle", "slowdown of full tensor power per e-fold of kernel length"),
)
SIMT_PARAMETERS = (
    Parameter("launch_us", "one kernel, first loads and last stores included, without its work"),
    Parameter("multiply_share", "share of the peak at which a multiprocessor multiplies"),
    Parameter("copy_cycles", "of a multiprocessor, to copy a row or column of a slice of a tile"),
    Parameter("wait_cycles", "for the copies of a slice"),
    Parameter("tile_cycles", "start and end of a tile of 128 x 128"),
    Parameter("dram_share", "share of the DRAM bandwidth that is reached"),
    Parameter("split_us", "split k: second pass over the parts"),
    Parameter("part_us", "split k: each part"),
)
WEIGHT_COPIES = "weight_copies"
"""Key of ``Case.launch``: a warm run may rotate over that many B, so that weights come from DRAM while A stays in the L2."""


def covers(case: Case) -> bool:
    """Matrix multiplications C[m, n] = A[m, k] B[k, n], batched or not, forward, in any dtype."""
    return isinstance(case.workload, Matmul) and case.direction == FORWARD


@dataclass(frozen=True, slots=True)
class _MatmulWork:
    """A case on a device before any parameter. ``half``: the peak in fp16; ``part_bytes``: of one part of split k, stored and read."""

    slots: int
    clock_hz: float
    rates: Rates
    half: float
    listed: Listed
    dram_bytes: float
    part_bytes: int
    element_size: int


@once_per_case
def _work(case: Case, device: Device) -> _MatmulWork:
    w: Matmul = case.workload
    multiprocessors, clock = numbers_of(device, "multiprocessors", "tensor clock")
    slots, faster, half = int(multiprocessors), boost(device), device.peaks.tensor.get("fp16")
    rates = rates_of(device, w.dtype)
    rates = replace(rates, matmul=rates.matmul * faster)
    peak, part_bytes = rates.matmul if half is None else half.number * faster, 2 * w.outputs * ACCUMULATOR_SIZE
    listed, dram = listed_plans(case, device, slots), dram_bytes(case, device)
    return _MatmulWork(slots, clock * faster, rates, peak, listed, dram, part_bytes, w.dtype.size)


def dram_bytes(case: Case, device: Device) -> float:
    """Bytes of A, B and C that pass through DRAM: all of them after a flush; of a warm run, what its last turn has pushed out.

    The result of an 8-bit product has 16 bits.

    A cyclic scan loses all or nothing: the rule, with its limits, of ``perfmodel.core.cache``.
    """
    w: Matmul = case.workload
    result = max(w.dtype.size, ACTIVATION_SIZE)
    a, b, c = w.batch * w.dtype.size * w.m * w.k, w.batch * (w.stored or w.dtype.size) * w.k * w.n, w.batch * result * w.m * w.n
    if case.flushed or device.cache_bytes is None:
        return float(a + b + c)
    scans = a + b + c, a + case.launch.get(WEIGHT_COPIES, 1) * b + c
    limits = scan_limits(device)
    lost, lost_weights = (lost_share(size / device.cache_bytes, *limits) for size in scans)
    return float((a + c) * lost + b * lost_weights)


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one (batched) kernel with the fastest candidate tile; the tile of ``case.launch`` (br, bc) if it has one.

    UnavailableError without multiprocessors, a clock or a peak for the dtype.
    """
    return fastest(case, device, parameters)[0]


def fastest(case: Case, device: Device, parameters: Mapping[str, float]) -> tuple[float, Plan]:
    """Seconds of the fastest candidate, and its plan."""
    work, p = _work(case, device), {name: min(value, LARGEST) for name, value in parameters.items()}
    tiles, shared, _ = work.listed
    if not tiles and not shared:
        return _vector(case.workload, work, p)
    found: list[tuple[float, Plan]] = []
    if tiles:
        tile_time = plan_seconds(work, p)
        found += [(tile_time(plan), plan) for plan in tiles]
    if shared:
        block_time = shared_seconds(work, p, block_costs(case.workload.dtype, work, p, device))
        found += [(block_time(plan), plan) for plan in shared]
    return min(found, key=lambda timed: timed[0])


def _vector(w: Matmul, work: _MatmulWork, p: Mapping[str, float]) -> tuple[float, Plan]:
    """Of a matrix times a vector."""
    from perfmodel.timing.models._gemm_vector import vector_seconds

    rows, launch = max(w.m, w.n), VECTOR_LAUNCH if w.dtype.matmul_unit == "tensor" else SMALL_LAUNCH
    streamed_s = vector_seconds(rows, w.k, w.dtype.size, work.dram_bytes, float(work.rates.dram))
    turns = ceil_div(ceil_div(rows, blocks.FEW_COLUMNS), work.slots)
    br, bc = min(w.m, blocks.FEW_COLUMNS), min(w.n, blocks.FEW_COLUMNS)
    return p["launch_us"] * 1e-6 * launch + streamed_s, BlockPlan(turns, ceil_div(turns, blocks.FEW_RESIDENT), 1, 1, br, bc)


def block_costs(dtype: Dtype, work: _MatmulWork, p: Mapping[str, float], device: Device) -> BlockCosts:
    """Of the vector unit, with parameters of its own, or of older tensor kernels, whose costs are known."""
    cycle_s = 1 / work.clock_hz
    if dtype.matmul_unit == "vector":
        tdp = None if device.tdp is None else float(device.tdp.number)
        rate = blocks.lasting_rate(work.rates.matmul, tdp, device.capability)
        multiply_s = 2 * blocks.SIMT_DEPTH * work.slots / (rate * p["multiply_share"])
        return BlockCosts(multiply_s, p["copy_cycles"] * cycle_s, p["wait_cycles"] * cycle_s, p["tile_cycles"] * cycle_s)
    share, width = MMA_SHARE if wide_matrix(device) else 1.0, work.listed.width
    copies = blocks.COPY_DEPTH * dtype.size / (width * WARP_THREADS)
    wait = SINGLE_WAIT_CYCLES if width < NARROW_COPY else WAIT_CYCLES
    multiply_s = 2 * blocks.COPY_DEPTH * work.slots / (work.rates.matmul * share)
    return BlockCosts(multiply_s, copies * COPY_CYCLES * cycle_s, wait * cycle_s, NARROW_TILE_CYCLES * cycle_s)


def shared_seconds(work: _MatmulWork, p: Mapping[str, float], costs: BlockCosts) -> Callable[[BlockPlan], float]:
    """The time of a plan whose blocks share a multiprocessor; ``part_us`` is a parameter where no other kernels have the format."""
    busy, launch_s = busy_seconds(costs), p["launch_us"] * 1e-6
    dram_s, part_s = work.dram_bytes / (work.rates.dram * p["dram_share"]), work.part_bytes / work.rates.dram
    sum_s, each_s = (p["split_us"] * 1e-6, p["part_us"] * 1e-6) if "part_us" in p else (SUM_S, PART_S)

    def time(plan: BlockPlan) -> float:
        few = plan.bc == blocks.FEW_COLUMNS
        found: float = launch_s * (SMALL_LAUNCH if few else 1) + (busy(plan) ** OVERLAP + dram_s**OVERLAP) ** (1 / OVERLAP)
        return found if plan.parts == 1 else found + sum_s + plan.parts * (each_s + part_s)

    return time


def plan_seconds(work: _MatmulWork, p: Mapping[str, float]) -> Callable[[TilePlan], float]:
    """The time of a plan, ``p`` applied: per FLOP, byte and fixed step of one multiprocessor; DRAM traffic; parts of split k."""
    slots, cycle_s = work.slots, 1 / work.clock_hz
    flop_s, load_s = slots / work.rates.matmul, slots * p["flop_per_loaded_byte"] / work.half
    store_s, slice_s, wave_s = STORE_COST * load_s, p["slice_cycles"] * cycle_s, p["wave_cycles"] * cycle_s
    launch_s, split_s, half = p["launch_us"] * 1e-6, p["split_us"] * 1e-6, p["half_bandwidth_share"]
    dram_s, part_s = work.dram_bytes / (work.rates.dram * p["dram_share"]), work.part_bytes * load_s / slots
    tight = work.element_size == ACTIVATION_SIZE
    overlap = OVERLAP if tight else LOOSE_OVERLAP
    launch_s += XMMA_LAUNCH_S if work.listed.shared else 0

    def time(plan: TilePlan) -> float:
        waves, flops, loaded, stored, steps, busy, parts = plan[:7]
        multiply_s, loaded_s = flops * flop_s, loaded * load_s
        slices_s = max(multiply_s, loaded_s) if tight else math.hypot(multiply_s, loaded_s)
        busy_s = slices_s + stored * store_s + steps * slice_s + (waves - 1) * wave_s
        if busy_s > THROTTLE_FROM_S:
            busy_s *= 1 + p["throttle"] * min(math.log(busy_s / THROTTLE_FROM_S), THROTTLE_SPAN)
        streamed_s = dram_s * (busy + half) / (busy * (1 + half))
        found: float = launch_s + (busy_s**overlap + streamed_s**overlap) ** (1 / overlap)
        return found if parts == 1 else found + split_s + parts * part_s

    return time


def fp8_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of rounding and matmul; UnavailableError as in ``seconds``."""
    w, bandwidth = case.workload, float(_work(case, device).rates.dram)
    moved = w.batch * w.m * w.k * (ACTIVATION_SIZE + w.dtype.size)  # rounding x
    return float(seconds(case, device, {**p, "split_us": SPLIT_US}) + moved / (bandwidth * p["quantize_share"]))


def of_dtype(name: str, implementation: str) -> Callable[[Case], bool]:
    """Forward products in one format by one library: each has kernels, and parameters, of its own."""

    def covers_dtype(case: Case) -> bool:
        """A forward product in that format."""
        own = case.workload.dtype.name in (name, "fp4" if name == "fp8" else name) if covers(case) else False
        return own and case.implementation == implementation

    return covers_dtype


def covers_half(case: Case) -> bool:
    """Matrix multiplications C[m, n] = A[m, k] B[k, n], batched or not, forward, other than in fp32 or tf32."""
    return covers(case) and case.workload.dtype.size < 4


def covers_fp8(case: Case) -> bool:
    """A single forward product with both operands in fp8 or fp4; no batch, no split of k."""
    return covers(case) and case.workload.dtype.name in ("fp8", "fp4")


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
        Parameter("quantize_share", "of the DRAM bandwidth, x and its rounded copy"),
    ),
    covers=covers_fp8,
    seconds=fp8_seconds,
    implementations=("trtllm-fp8-linear",),
)
_OTHERS = tuple(
    replace(_GEMM, name=f"gemm-{dtype}", covers=of_dtype(dtype, name), implementations=(name,), parameters=parameters)
    for dtype, name, parameters in (
        ("fp32", "torch-matmul", SIMT_PARAMETERS),
        ("tf32", "torch-matmul", PARAMETERS),
        ("fp8", "torch-scaled-mm", PARAMETERS),
    )
)
MODELS = {model.name: model for model in (_GEMM, _FP8, *_OTHERS)}
