"""Time of matrix products by tuned kernels of AMD's CDNA (AITER, hipBLASLt, Composable Kernel): the fastest of their tiles.

A workgroup holds a tile of C in the registers of one compute unit (CU) and walks k in slices of ``SLICE_BYTES`` that pass through the
LDS. Multiplication by MFMA and loads from the L2 of the CU's XCD overlap in part; a slice has a fixed step, which workgroups that share
a CU hide from each other. Workgroups are dealt to the XCDs in turn, so that CUs fill evenly, turn after turn. C is stored after the last
slice, which nothing hides.
DRAM traffic overlaps with all of that. A table of tuned kernels holds the fastest for each shape, and so does the model.

Operands come from DRAM in a warm run too: the tuner of AITER rotates over as many copies of them as fill 32 GiB, up to its 101 runs.
Source: ROCm/aiter @e404860, aiter/test_common.py (rotation), csrc/ck_gemm_*/ and hsa/gfx950/ (tiles); AMD CDNA 3 architecture whitepaper.

Formats have kernels of their own, and parameters: bf16, fp8 with a scale per row, int8, fp8 with scales of blocks, MXFP4.
Constants were chosen by cross-validation on the 1,949 of AITER's tuned shapes of MI300X and MI355X that fits may see, among those
between which either device predicts the other best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import ACTIVATION_SIZE
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul, scale_block, scales
from perfmodel.kernels.tile import ACCUMULATOR_SIZE
from perfmodel.timing.base import ALONE, Case, Model, Parameter, dram_bandwidth, numbers_of, once_per_case

ROWS, COLUMNS = (16, 32, 64, 96, 128, 192, 256), (32, 64, 128, 192, 256)  # known
"""Sides of tiles of C that AITER compiles for bf16, fp8 and int8; it has some in between."""
MXFP4_ROWS, MXFP4_COLUMNS = (32, 64, 96, 128, 160, 192, 224, 256), (128, 256, 384, 512)  # known
LARGE_BLOCK_TILES, SMALL_BLOCK_SIDES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 256)), (64, 128, 256)  # known
"""Tiles in fp8 with scales of blocks, Composable Kernel on both devices; and columns of those of 16 and 32 rows."""
LARGEST_TILE = 256 * 256  # known
"""Elements of C: fp32 sums of half the registers of a CU."""
SPLITS, SPLIT_COLUMNS = (1, 2, 4, 8, 16), 64  # known
"""Parts of k that are tried, and the columns that kernels which split k need whole; kernels in MXFP4 take k whole."""
SLICE_BYTES = 128  # known
"""Depth of a slice of k: what a row of a tile brings in one step."""
L2_CYCLE_BYTES = 64  # known
"""That a CU takes from its L2 in a cycle, where a profile has no bandwidth. Source: CDNA 3 whitepaper, what its L1 passes on."""
LOAD_SHARE = 0.65  # tuned
"""Of the L2 bandwidth, which loads of tiles reach."""
DRAM_SHARE, HALF_BANDWIDTH = 0.74, 0.1  # tuned
"""Of the DRAM bandwidth that all CUs reach; and share of the CUs at which it would be half."""
OVERLAP = 3.0  # tuned
"""Norm that joins the work of the CUs and the DRAM traffic."""
SPLIT_S, SPLIT_S_OF = 3.5e-6, {"bf16": 1.5e-6, "fp16": 1.5e-6, "int8": 9e-6}  # tuned
"""To add up the parts of k: least in 16 bits, whose kernels add them up themselves."""

PARAMETERS = (
    Parameter("launch_us", "one kernel, first loads included, without its work"),
    Parameter("multiply_share", "share of the peak that MFMA instructions reach, power limit included"),
    Parameter("slice_cycles", "step of a workgroup beyond the work of its slice"),
    Parameter("stored_bytes_per_cycle", "of C, by one compute unit, once its last slice is multiplied"),
)


class WorkgroupPlan(NamedTuple):
    """What the busiest compute unit does for one tile and split of k; ``busy``: share of the compute units at work."""

    flops: int
    loaded: float
    stored: int
    steps: int
    busy: float
    parts: int
    br: int
    bc: int


class _CdnaWork(NamedTuple):
    """A case on a device before any parameter; seconds per FLOP, byte or cycle of one compute unit."""

    plans: tuple[WorkgroupPlan, ...]
    flop_s: float
    load_s: float
    cycle_s: float
    dram_s: float
    part_s: float
    split_s: float


def tiles(implementation: str, dtype: str) -> tuple[tuple[int, int], ...]:
    """Rows and columns of C of the kernels that run a format."""
    if scale_block(implementation, dtype):
        return (*LARGE_BLOCK_TILES, *((br, bc) for br in (16, 32) for bc in SMALL_BLOCK_SIDES))
    rows, columns = (MXFP4_ROWS, MXFP4_COLUMNS) if dtype == "mxfp4" else (ROWS, COLUMNS)
    return tuple((br, bc) for br in rows for bc in columns if br * bc <= LARGEST_TILE)


def resident(br: int, bc: int, sram: float, registers: float) -> int:
    """Workgroups that share a CU: as its LDS holds slices, and its registers the sums and as many other values.

    >>> resident(256, 256, 64 * 1024, 131072), resident(64, 64, 160 * 1024, 131072)
    (1, 10)
    """
    return max(int(min(sram // ((br + bc) * SLICE_BYTES), registers // (2 * br * bc))), 1)


@once_per_case
def _work(case: Case, device: Device) -> _CdnaWork:
    w: Matmul = case.workload
    count, clock = numbers_of(device, "multiprocessors", "tensor clock")
    l2, registers = device.level("l2"), device.limits.registers_per_multiprocessor
    rate = (l2 and l2.bandwidth_bytes_per_s) or L2_CYCLE_BYTES * count * clock
    peak = device.matmul_peak(w.dtype.name, w.dtype.matmul_unit).number
    held = device.sram_per_block, LARGEST_TILE * 2 if registers is None else registers.number
    bandwidth, dram = dram_bandwidth(device), moved_bytes(w, case.implementation)
    part_s = w.outputs * ACCUMULATOR_SIZE / bandwidth
    found, split_s = _plans(case, int(count), *held), SPLIT_S_OF.get(w.dtype.name, SPLIT_S)
    return _CdnaWork(found, count / peak, count / (rate * LOAD_SHARE), 1 / clock, dram / (bandwidth * DRAM_SHARE), part_s, split_s)


def moved_bytes(w: Matmul, implementation: str) -> float:
    """Bytes of A and B, with their scales, and of C in 16 bits.

    >>> from perfmodel.core.dtypes import PRODUCTS
    >>> moved_bytes(Matmul(16, 256, 512, dtype=PRODUCTS["fp8"]), "aiter-blockscale")
    147744.0
    """
    block = w.scale_block or scale_block(implementation, w.dtype.name)
    operands = w.batch * (w.m + w.n) * w.k * w.dtype.bytes
    beside = sum(access.bytes for access in scales(w.m, w.n, w.k, w.batch, block))
    return float(operands + beside + w.outputs * max(w.dtype.result_size, ACTIVATION_SIZE))


def _plans(case: Case, count: int, sram: float, registers: float) -> tuple[WorkgroupPlan, ...]:
    """Plans on ``count`` compute units; only the tile of ``case.launch`` (br, bc) if it has one, and the split of the workload."""
    w: Matmul = case.workload
    given = ((case.launch["br"], case.launch["bc"]),) if "br" in case.launch and "bc" in case.launch else None
    whole = w.dtype.packed or w.n % SPLIT_COLUMNS
    splits = (w.split_k,) if w.split_k > 1 else (1,) if whole else SPLITS
    return listed_plans(
        (w.m, w.n, w.k, w.batch), w.dtype.bytes, given or tiles(case.implementation, w.dtype.name), splits, (count, sram, registers)
    )


@lru_cache(maxsize=4096)
def listed_plans(
    shape: tuple[int, int, int, int],
    size: float,
    sides: tuple[tuple[int, int], ...],
    splits: tuple[int, ...],
    unit: tuple[int, float, float],
) -> tuple[WorkgroupPlan, ...]:
    """Plans of C [m, n] over k, batch times, elements of ``size`` bytes; of (count, LDS bytes, registers) of ``unit``. Best ones only."""
    m, n, k, batch = shape
    count, sram, registers = unit
    depth = SLICE_BYTES * 8 // int(8 * size)
    found = []
    for br, bc in sides:
        rows, columns, shared = min(br, m), min(bc, n), resident(br, bc, sram, registers)
        for parts in splits:
            slices = ceil_div(ceil_div(k, depth), parts)
            if parts > 1 and slices * (parts - 1) * depth >= k:  # the last part would be empty
                continue
            blocks = batch * ceil_div(m, br) * ceil_div(n, bc) * parts
            turns, along = ceil_div(blocks, count), min(slices * depth, k)
            stored = turns * rows * columns * (ACTIVATION_SIZE if parts == 1 else ACCUMULATOR_SIZE)
            steps, flops, loaded = ceil_div(turns, shared) * slices, turns * 2 * br * bc * along, turns * (rows + columns) * along * size
            found.append(WorkgroupPlan(flops, loaded, stored, steps, min(blocks / count, 1.0), parts, br, bc))
    return worth_timing(found)


def worth_timing(found: list[WorkgroupPlan]) -> tuple[WorkgroupPlan, ...]:
    """Plans of ``found`` that can be fastest: no other is as good in every quantity that the time grows with."""
    kept: list[WorkgroupPlan] = []
    for plan in sorted(found, key=lambda plan: (plan.flops, plan.loaded, plan.stored, plan.steps, -plan.busy, plan.parts)):
        as_good = (one for one in kept if one.busy >= plan.busy and one.parts <= plan.parts)
        if not any(one.loaded <= plan.loaded and one.stored <= plan.stored and one.steps <= plan.steps for one in as_good):
            kept.append(plan)
    return tuple(kept)


def fastest(case: Case, device: Device, p: Mapping[str, float]) -> tuple[float, WorkgroupPlan]:
    """Seconds of the fastest candidate, and its plan.

    UnavailableError without compute units, a clock, a peak for the format or an LDS, and where k has fewer slices than parts.
    """
    work = _work(case, device)
    if not work.plans:
        w = case.workload
        raise UnavailableError(f"{case.implementation} cannot split k of {w.k:,} in {w.split_k}", "give a smaller --split-k")
    flop_s, step_s = work.flop_s / p["multiply_share"], work.cycle_s * p["slice_cycles"]
    store_s, launch_s = work.cycle_s / p["stored_bytes_per_cycle"], p["launch_us"] * 1e-6

    def time(plan: WorkgroupPlan) -> float:
        flops, loaded, stored, steps, busy, parts = plan[:6]
        busy_s = math.hypot(flops * flop_s, loaded * work.load_s) + stored * store_s + steps * step_s
        streamed_s = work.dram_s * (busy + HALF_BANDWIDTH) / (busy * (1 + HALF_BANDWIDTH))
        found: float = launch_s + (busy_s**OVERLAP + streamed_s**OVERLAP) ** (1 / OVERLAP)
        return found if parts == 1 else found + work.split_s + parts * work.part_s

    return min(((time(plan), plan) for plan in work.plans), key=lambda timed: timed[0])


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one (batched) product; UnavailableError as ``fastest``."""
    return fastest(case, device, parameters)[0]


def of_formats(*formats: str) -> Callable[[Case], bool]:
    """Forward products in some formats."""

    def covers(case: Case) -> bool:
        """A forward product in that format."""
        return isinstance(case.workload, Matmul) and case.direction == FORWARD and case.workload.dtype.name in formats

    return covers


_GEMM = Model(
    "amd-gemm",
    PARAMETERS,
    of_formats("bf16", "fp16"),
    seconds,
    "tiles of AITER and Composable Kernel: ROCm/aiter @e404860; XCDs, L2 and Infinity Cache: AMD CDNA 3 architecture whitepaper",
    assumes=f"{ALONE}; the fastest kernel of the library, as its tuner finds it; operands in DRAM in warm runs too, whose copies rotate",
    implementations=("aiter",),
    family="amd-gemm",
)
MODELS = {
    model.name: model
    for model in (
        _GEMM,
        *(replace(_GEMM, name=f"amd-gemm-{dtype}", covers=of_formats(dtype)) for dtype in ("fp8", "int8")),
        *(
            replace(_GEMM, name=name, covers=of_formats(dtype), implementations=("aiter-blockscale",))
            for name, dtype in (("amd-gemm-blockscale", "fp8"), ("amd-gemm-mxfp4", "mxfp4"))
        ),
    )
}
