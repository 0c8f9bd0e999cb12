"""Time of matrix multiplication by NVIDIA's tuned library, cuBLAS: the fastest of its compiled tiles and splits of k.

**Launch.** In 16 and 8 bits ``nvjet`` kernels run from Hopper on: one side of a tile is any multiple of 16, and a block has its
multiprocessor alone. Before Hopper, tiles come from a table, and registers and SRAM limit the blocks per multiprocessor. In tf32 it is
``sm90_xmma_gemm`` with tiles of a table, or small tiles by ``mma.sync``. TMA cannot copy rows of A, B or C that do not start on 16 bytes:
older ``mma.sync`` kernels run, whose threads copy the 2 or 4 bytes that alignment allows. In fp32, kernels of the vector unit copy element
by element. One row of C is a matrix times a vector, streamed once; a matrix with fewer rows than multiprocessors is split over k.

**Stage.** A slice of a tile takes its multiplication at a share of the peak (``mma.sync`` where newer instructions reach more: 62.9 %) or
its loads from the L2, whichever is longer; on the vector unit both issue from the same schedulers and hide each other less. The fewer bytes
a thread copies at once, the longer loads and stores take. Each slice costs a step; copies that pass through threads add a latency, divided
by one less than the slices that SRAM holds. The vector unit keeps within the power limit.

Each **format** has its own kernels and parameters. In a linear layer in fp8 on 16-bit activations, kernels find the scale of x and round
it, then the matmul runs in fp8. DRAM moves A, B and C once, in a warm run only what the L2 has lost of them.

Sources: names, registers, SRAM and grids of cuBLAS of CUDA 11 to 13 in profiles; CUTLASS documentation, efficient GEMM; CUDA Programming
Guide, TMA; PTX ISA, cp.async, wgmma, tcgen05.mma; arXiv 2402.13499 (mma.sync on Hopper); NVIDIA TensorRT-LLM,
tensorrt_llm/_torch/modules/linear.py (dynamic scale per tensor).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from perfmodel.core.architectures import tensor_share, wide_matrix
from perfmodel.core.arith import ceil_div
from perfmodel.core.cache import scan_limits
from perfmodel.core.dtypes import ACTIVATION_SIZE
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.roofline import boost, rates_of
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.tile import ACCUMULATOR_SIZE
from perfmodel.timing import products
from perfmodel.timing.base import ALONE, Case, Model, chosen, lost_share, numbers_of
from perfmodel.timing.products import CallTimes, Costs, Tile, TilePlan, parts_of_k, plan_of, worth_timing

# Launch

WIDE_COPY, WORD = 16, 4  # known
"""Bytes that a thread copies at once if every row starts on 16 bytes; and most bytes otherwise."""
SLICE_BYTES = 128  # known
"""Depth of a slice of k: one row of the swizzle pattern of TMA and of CUTLASS tiles."""
SIMT_DEPTH, COPY_DEPTH = 8, 32  # known
"""Elements of k in a slice: of kernels on the vector unit, and of ``mma.sync`` kernels on devices with newer instructions."""
MMA_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))  # known
SM86_TILES = ((192, 128), (128, 192), (128, 96), (96, 128))  # known
"""Compiled tiles of ``mma.sync``; and further tiles of 8.6 and 8.9, whose measured times have steps at multiples of 96 rows and columns."""
SM86 = 8.6  # known
XMMA_TILES = ((128, 256), (128, 128), (64, 256), (256, 64), (128, 64), (64, 128), (64, 64))  # known
ROWS, WIDTHS, WIDTH_STEP, CUTS = (256, 128, 64), (256, 192, 128, 64), 16, (1, 2, 3, 4)  # known
"""Sides of a tile that ``wgmma`` fixes; usual free sides; their step; and numbers of even parts that a free side may cut a short C into."""
LARGEST_TILE = 256 * 128  # known
"""Most elements of a tile: its fp32 sums fill the register file, or half the tensor memory."""
RESULT_REGISTERS = 2  # known
"""Registers per element of a tile: one for its sum, one for everything else."""
MMA_SYNC = 0.629  # known
"""Share of the peak that ``mma.sync`` reaches on devices with newer instructions: arXiv 2402.13499, on Hopper."""
MOST_PARTS = 16  # known

Tiles = Mapping[Tile, int]
"""Blocks resident on a multiprocessor, by rows and columns of their tile of C."""
SIMT: Tiles = {  # known
    **dict.fromkeys(((128, 128), (64, 256), (256, 64), (128, 64), (64, 128)), 2),
    **{(64, 64): 4, (32, 128): 4, (128, 32): 4, (64, 32): 8, (32, 64): 9, (32, 32): 12},
}
"""``ffma`` and ``simt_sgemm`` kernels."""
BATCHED: Mapping[float, Tiles] = {9.0: SIMT, 8.0: {(128, 128): 2}, 0.0: {(64, 128): 4, (32, 128): 4, (64, 64): 4}}  # known
"""Kernels of the vector unit that run batches, from each compute capability on."""
SINGLES: Tiles = {(128, 256): 1, (128, 128): 2, (64, 64): 5, (32, 32): 5, (16, 16): 14}  # known
"""``s1688gemm`` and ``wmma`` kernels of 7.5 with ``align1``: a 16-bit element at a time."""
PAIRS: Tiles = {(256, 128): 1, (128, 256): 1, (64, 256): 1, (128, 128): 2, (64, 128): 2, (64, 64): 2, (32, 32): 8, (16, 16): 14}  # known
"""``s16816gemm`` and ``wmma`` kernels of 8.0 with ``align2``: two 16-bit elements at a time."""
WORDS: Tiles = {(256, 128): 1, (128, 256): 1, (64, 256): 1, (128, 128): 2, (64, 128): 3, (64, 64): 4, (32, 32): 4}  # known
"""``s1688gemm`` kernels of 8.0 with ``align1`` in tf32."""
WHOLE: Tiles = {(128, 64): 3, (64, 128): 3, (64, 64): 4}  # known
"""``s1688gemm`` kernels of 8.0 with ``align4`` in tf32, which also run small products on later architectures."""
TWO_STAGES, STAGES = 2, 3  # known
"""Slices that SRAM holds: in kernels of 7.5 and of the vector unit, and in kernels of 8.0."""
UNSPLIT_BELOW = 2**21  # known
"""Multiplications below which cuBLAS of CUDA 13 runs a product of 16 bits in one small tile of k after k on 8.9 and 12.0, unless C has one
row: in NVIDIA aiconfigurator's tables m n k = 384 x 5120 takes five times as long as 416 x 5120, and 960 x 2048 three times 1024 x 2048."""
UNSPLIT_SINCE = 8.9  # known
"""Compute capability from which these kernels run, and from which k is split into up to 64 parts."""
FIXED_TILES: Mapping[str, Mapping[str, int]] = {"fp8-block-scaled": {"br": 128, "bc": 128}}  # known
"""Tiles of C by implementation where the library has one: scales for 128 x 128 weights; blocks and time of few rows are those of 128."""
TENSOR_OVER_VECTOR = 8  # known
"""FLOP of tensor cores in 16 bits in the time of one in fp32, on Volta and Turing. The L2 keeps pace with them; Pascal has none."""
GEMV_ROWS = 8  # known
"""Rows of the matrix in a block of ``gemv`` kernels."""


class Kernels(NamedTuple):
    """Kernels of one kind: tiles; elements of k in a slice; bytes of a copy; slices in SRAM where copies pass through threads, else 0."""

    tiles: Tiles
    depth: int
    width: int
    stages: int = 0
    most_parts: int = MOST_PARTS


def copy_bytes(n: int, k: int, element_size: int) -> int:
    """Bytes per copy that the rows of A [m, k], B [n, k] or [k, n], and C [m, n] allow; a kernel has one width for all three.

    TMA takes strides in multiples of 16 bytes; cp.async copies 4, 8 or 16. cuBLAS runs its align2 kernels if rows are multiples of 4 or 8
    bytes, else align1 kernels, which load by element. A single column goes to kernels for a vector, which store no rows of C.

    >>> copy_bytes(4096, 4096, 2), copy_bytes(900, 128, 2), copy_bytes(50257, 768, 2), copy_bytes(1, 768, 2)
    (16, 4, 2, 16)
    """
    row = (k if n == 1 else math.gcd(n, k)) * element_size
    return WIDE_COPY if row % WIDE_COPY == 0 else math.gcd(row, WORD)


def copy_width(w: Matmul, device: Device) -> int:
    """Bytes per copy of the kernels that run ``w``; kernels of other makers always copy 16 bytes."""
    n, k = (w.aligned, w.aligned) if w.aligned else (w.n, w.k)
    return copy_bytes(n, k, w.dtype.size) if device.vendor == "NVIDIA" and w.dtype.matmul_unit == "tensor" else WIDE_COPY


def is_vector(w: Matmul, width: int) -> bool:
    """Whether matrix-vector kernels run ``w``: C has one row, in fp32 or tf32 or with rows that do not start on 16 bytes."""
    return bool(min(w.m, w.n) == 1 and w.batch == w.split_k == 1 and (w.dtype.size >= WORD or width < WIDE_COPY))


def kernels_of(w: Matmul, device: Device) -> list[Kernels]:
    """Kernels of the library for ``w`` on ``device``."""
    size, width, wgmma = w.dtype.size, copy_width(w, device), wide_matrix(device)
    if w.dtype.matmul_unit == "vector":
        tiles = SIMT if w.batch == 1 else next(tiles for since, tiles in BATCHED.items() if device.capability >= since)
        return [Kernels(tiles, SIMT_DEPTH, WORD, TWO_STAGES, 64)]
    if width < WORD:
        return [Kernels(SINGLES, COPY_DEPTH, width, TWO_STAGES, 64)]
    if width < WIDE_COPY:
        return [Kernels(WORDS if size == WORD else PAIRS, COPY_DEPTH, width, STAGES, 64)]
    depth = SLICE_BYTES // size
    if not wgmma:
        late = device.capability >= UNSPLIT_SINCE
        if late and size < WORD and min(w.m, w.n) > 1 and w.m * w.n * w.k < UNSPLIT_BELOW:
            return [Kernels({(32, 32): 8}, COPY_DEPTH, WIDE_COPY, STAGES, 1)]
        listed = MMA_TILES + (SM86_TILES if device.capability >= SM86 else ())
        return [Kernels({tile: resident(tile, device) for tile in listed}, depth, WIDE_COPY, most_parts=64 if late else MOST_PARTS)]
    if size < WORD:
        return [Kernels(dict.fromkeys(free_tiles(w.m, w.n), 1), depth, WIDE_COPY)]
    return [Kernels(dict.fromkeys(XMMA_TILES, 1), depth, WIDE_COPY), Kernels(WHOLE, COPY_DEPTH, WIDE_COPY, STAGES, 64)]


def fed_by_tma(w: Matmul, device: Device, plan: TilePlan) -> bool:
    """Whether the kernel of ``plan`` is fed by TMA rather than by its threads' copies, so that its blocks may form clusters."""
    return not kernels_of(w, device)[plan.kind].stages


def resident(tile: Tile, device: Device) -> int:
    """Blocks per multiprocessor: their sums must fit its registers, and two slices of each its SRAM."""
    registers = device.limits.registers_per_multiprocessor
    held = registers.number if registers else LARGEST_TILE * RESULT_REGISTERS
    room = device.sram_per_block // (TWO_STAGES * sum(tile) * SLICE_BYTES)
    return max(int(min(room, held // (RESULT_REGISTERS * tile[0] * tile[1]))), 1)


def free_tiles(m: int, n: int) -> list[Tile]:
    """Tiles for C [m, n] whose one side is free.

    >>> (64, 48) in free_tiles(4096, 144), (48, 64) in free_tiles(4096, 144)
    (True, False)
    """

    def widths(length: int) -> set[int]:
        usual = {width for width in WIDTHS if width < 2 * length or width == min(WIDTHS)}
        even = (ceil_div(ceil_div(length, cut), WIDTH_STEP) * WIDTH_STEP for cut in CUTS)
        return usual | {width for width in even if width <= max(WIDTHS)}

    listed = {*product(widths(m), ROWS), *product(ROWS, widths(n))}
    return sorted(tile for tile in listed if tile[0] * tile[1] <= LARGEST_TILE)


def listed_plans(w: Matmul, device: Device, slots: int, launch: Mapping[str, int]) -> tuple[list[Kernels], tuple[TilePlan, ...]]:
    """Kernels for ``w``, and their plans on ``slots`` multiprocessors; only with the tile of ``launch`` (br, bc) if it has one."""
    given = (launch["br"], launch["bc"]) if "br" in launch and "bc" in launch else None
    listed, width = kernels_of(w, device), copy_width(w, device)
    if given is not None:
        listed = [listed[0]._replace(tiles={given: listed[0].tiles.get(given, 1)})]
    elif is_vector(w, width):  # copies as in small tiles; in fp32 and tf32 whole; by elements from a matrix that does not lie along k
        small = listed[-1]._replace(width=w.dtype.size if w.crossed else WIDE_COPY if w.dtype.size >= WORD else width)
        return [*listed[:-1], small], (vector_plan(w, slots)._replace(kind=len(listed) - 1),)
    plans = worth_timing(plan for kind, kernels in enumerate(listed) for plan in _plans(w, kernels, slots, given is not None, kind))
    return listed, plans


def _plans(w: Matmul, kernels: Kernels, slots: int, whole: bool, kind: int) -> Iterator[TilePlan]:
    shape, slices = (w.m, w.n, w.k, w.batch), ceil_div(w.k, kernels.depth)
    sizes = w.dtype.size, max(w.dtype.size, ACTIVATION_SIZE)
    most = min(max(slices // max(kernels.stages, 1), 1), kernels.most_parts)
    for (br, bc), held in kernels.tiles.items():
        blocks = w.batch * ceil_div(w.m, br) * ceil_div(w.n, bc)
        for parts in [w.split_k] if whole or w.split_k > 1 else parts_of_k(blocks, most, held * slots):
            yield plan_of(shape, (br, bc), parts, resident=held, slots=slots, depth=kernels.depth, sizes=sizes, kind=kind)


def vector_plan(w: Matmul, slots: int) -> TilePlan:
    """Plan of a matrix times a vector: bytes spread over all multiprocessors; k in two parts if rows are fewer than multiprocessors."""
    rows = max(w.m, w.n)
    loaded, waits, parts = rows * w.k * w.dtype.size / slots, ceil_div(rows, GEMV_ROWS * slots), 2 if rows <= slots else 1
    return TilePlan(0, loaded, 0, waits, 0, parts, min(w.m, GEMV_ROWS), min(w.n, GEMV_ROWS))


# Stage

WAIT, LATENCY, HALF, PART, TMA = "wait_cycles", "latency_cycles", "half_bandwidth_share", "part_us", "tma_us"
CROSSED = "crossed_load"
THROTTLE = "throttle"
THROTTLED_FROM_S, MOST_THROTTLED = 300e-6, 3.0  # tuned
"""Length from which products lower the clock, and most by which they do, in e-folds: without this, steps of a second are 9 % too fast."""


def lasting_rate(device: Device) -> float:
    """FLOP/s of the vector unit in fp32 under the power limit, by the energy per FLOP of boards of the same process."""
    picojoules = next(each for since, each in chosen("board_picojoules").items() if device.capability >= float(since))
    return math.inf if device.tdp is None else device.tdp.number / (picojoules * 1e-12)


WEIGHT_COPIES = "weight_copies"
"""Key of ``Case.launch``: number of copies of B that a warm run rotates over, so that weights come from DRAM while A stays in the L2."""


def rotates(case: Case) -> bool:
    """Whether ``case`` is a warm run over several copies of its weights."""
    return not case.flushed and WEIGHT_COPIES in case.launch


class _OnDevice(NamedTuple):
    """A case on a device before any parameter.

    ``rate`` and ``half``: FLOP/s in its format, and in fp16 of an uncut chip; ``highest``: FLOP/s of the vector unit under the power limit;
    bytes and B/s of DRAM; ``cut``: the tensor rate is a share of the chip's.
    """

    plans: tuple[TilePlan, ...]
    kernels: list[Kernels]
    slots: int
    cycle_s: float
    rate: float
    half: float
    highest: float
    dram_bytes: float
    bandwidth: float
    part_bytes: int
    vector_unit: bool
    wgmma: bool
    crossed: bool
    cut: bool


@cached_by_identity
def _work(case: Case, device: Device) -> _OnDevice:
    w: Matmul = case.workload
    multiprocessors, clock = numbers_of(device, "multiprocessors", "tensor clock")
    slots, faster, rates, half = int(multiprocessors), boost(device), rates_of(device, w.dtype), device.peaks.tensor.get("fp16")
    rate, vector_unit, share = rates.matmul * faster, w.dtype.matmul_unit == "vector", tensor_share(device)
    kernels, plans = listed_plans(w, device, slots, {**FIXED_TILES.get(case.implementation, {}), **case.launch})
    return _OnDevice(
        plans,
        kernels,
        slots,
        1 / (clock * faster),
        rate,
        rate * (TENSOR_OVER_VECTOR if vector_unit else 1) if half is None else half.number * faster / share,
        lasting_rate(device),
        dram_bytes(case, device),
        float(rates.dram),
        2 * w.outputs * ACCUMULATOR_SIZE,
        vector_unit,
        wide_matrix(device),
        w.crossed and 1 not in (w.m, w.n),
        share < 1,
    )


def dram_bytes(case: Case, device: Device) -> float:
    """Bytes of A, B and C that pass through DRAM: all of them, or in a run that rotates what its last turn has pushed out.

    The result of an 8-bit product has 16 bits. A cyclic scan loses all or nothing: the rule, with its limits, of ``perfmodel.core.cache``.
    """
    w: Matmul = case.workload
    result = max(w.dtype.size, ACTIVATION_SIZE)
    a, b, c = w.batch * w.dtype.size * w.m * w.k, w.batch * (w.stored or w.dtype.size) * w.k * w.n, w.batch * result * w.m * w.n
    if not rotates(case) or device.cache_bytes is None:
        return float(a + b + c)
    scans = a + b + c, a + case.launch[WEIGHT_COPIES] * b + c
    limits = scan_limits(device)
    lost, lost_weights = (lost_share(size / device.cache_bytes, *limits) for size in scans)
    return float((a + c) * lost + b * lost_weights)


def _costs(kernels: Kernels, work: _OnDevice, p: Mapping[str, float]) -> Costs:
    """Costs of a stage of ``kernels``, in seconds."""
    share = p["multiply_share"] * (MMA_SYNC if work.wgmma and kernels.stages and not work.vector_unit else 1)
    rate = work.rate * share
    if work.vector_unit:
        rate = min(rate, work.highest)
    load_s = work.slots * p["flop_per_loaded_byte"] / work.half * WIDE_COPY / kernels.width
    load_s *= p.get(CROSSED, 1.0) if work.crossed and kernels.width < WIDE_COPY and not work.vector_unit else 1.0
    timed_narrow = kernels.stages and LATENCY in p  # narrow copies of 8-bit elements are in no record: they wait as whole ones do
    wait = p[LATENCY] / (kernels.stages - 1) if timed_narrow else p.get(WAIT, 0.0)
    norm, start_s = p["overlap"] if work.vector_unit else math.inf, 0.0 if kernels.stages else p.get(TMA, 0.0) * 1e-6
    return Costs(work.slots / rate, load_s, load_s * p["store_cost"], wait * work.cycle_s, norm, start_s)


def fastest(case: Case, device: Device, p: Mapping[str, float]) -> tuple[float, TilePlan]:
    """Seconds of one (batched) product in its fastest plan, and that plan; with the tile of ``case.launch`` (br, bc) if it has one.

    UnavailableError without multiprocessors, a clock or a peak for the dtype.
    """
    work = _work(case, device)
    dram_s = work.dram_bytes / (work.bandwidth * p["dram_share"])
    split_s, part_s = p["split_us"] * 1e-6, p.get(PART, 0.0) * 1e-6 + work.part_bytes / work.bandwidth
    run = CallTimes(p["launch_us"] * 1e-6, dram_s, p.get(HALF, 0.0), p["overlap"], split_s, part_s)
    plan_s, plan = products.fastest(work.plans, [_costs(kernels, work, p) for kernels in work.kernels], run)
    if THROTTLE in p and plan_s > THROTTLED_FROM_S and not work.cut:
        plan_s *= 1 + p[THROTTLE] * min(math.log(plan_s / THROTTLED_FROM_S), MOST_THROTTLED)
    return plan_s, plan


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one (batched) product; UnavailableError as ``fastest``."""
    return fastest(case, device, p)[0]


def linear_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of rounding x and the matmul in fp8; UnavailableError as ``fastest``."""
    w = case.workload
    moved = w.batch * w.m * w.k * (ACTIVATION_SIZE + w.dtype.size)
    quantize_s: float = moved / (_work(case, device).bandwidth * p["quantize_share"])
    return seconds(case, device, p) + quantize_s


def covers_formats(*formats: str) -> Callable[[Case], bool]:
    """Function that says whether a case is a forward product in one of ``formats``, by default any of 8 or 16 bits."""

    def covers(case: Case) -> bool:
        """Matrix multiplications C[m, n] = A[m, k] B[k, n], batched or not, forward."""
        w = case.workload
        return isinstance(w, Matmul) and case.direction == FORWARD and (w.dtype.name in formats if formats else w.dtype.size < WORD)

    return covers


_GEMM = Model(
    "gemm",
    "gemm",
    covers_formats(),
    seconds,
    "tile and wave quantization: NVIDIA Matrix Multiplication Background User's Guide; split k: CUTLASS documentation, efficient GEMM",
    assumes=f"{ALONE}; B stored as a linear layer's weights, [n, k]; warm measurements go round copies of B (weight_copies)",
    implementations=("cublas", "torch-matmul"),
    knows_warm=rotates,
)
_FP8 = covers_formats("fp8", "fp4")
MODELS = {
    model.name: model
    for model in (
        _GEMM,
        _GEMM._replace(name="gemm-fp32", covers=covers_formats("fp32"), implementations=("torch-matmul",)),
        _GEMM._replace(name="gemm-tf32", covers=covers_formats("tf32"), implementations=("torch-matmul",)),
        _GEMM._replace(name="gemm-fp8", covers=_FP8, implementations=("torch-scaled-mm",)),
        _GEMM._replace(name="fp8-block-scaled", covers=_FP8, implementations=("fp8-block-scaled",)),
        _GEMM._replace(name="fp8-linear", covers=_FP8, implementations=("trtllm-fp8-linear",), seconds=linear_seconds),
    )
}
