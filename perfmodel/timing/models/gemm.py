"""Time of matrix multiplication by a tuned library (cuBLAS and its like): the fastest of its tiles and splits of k.

A block walks k in slices; a slice takes the longer of its multiplication and its load from the L2, and a fixed step. Blocks run in
waves of one per multiprocessor. DRAM traffic overlaps with them, though not perfectly. Split k adds the sum of the parts.
The tensor unit runs at the datasheet's clock, and slower the longer a kernel draws full power.
Where rows of A, B or C do not start on 16 bytes, older kernels run, and their narrow copies set the pace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.core.cache import SCAN_IS_LOST, SCAN_SURVIVES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Rates, rates_of
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.tile import ACCUMULATOR_SIZE
from perfmodel.timing.base import ALONE, Case, Model, Parameter, once_per_case
from perfmodel.timing.models._gemm_tiles import WIDE_COPY, Choice, Plan, copy_bytes, plans, worth_timing

STORE_COST = 3.0
"""A byte stored costs this many loaded ones: no multicast, and the write goes through to the L2."""
OVERLAP = 3.0
"""Norm that joins two overlapping times: 1 would add them up, infinity hide the shorter one."""
THROTTLE_FROM_S, THROTTLE_SPAN = 300e-6, 3.0
"""Length of kernel from which a power limit lowers the clock, and e-folds of length until it has settled."""
COPY_CYCLES, NARROW_STORE_COST = 10.0, 2.0
"""Cycles of a multiprocessor for one copy of a warp below 16 bytes a thread, whatever its width; copies that a store is worth.

A store passes through SRAM on its way. Set on the 20 unaligned products that fits may see of an H200; cross-validation among
them picks 9.5 to 10.5 and 1.5 to 2. No tile multiplies for longer than it copies at that pace, not at the rate of mma.sync either.
"""
WARP_THREADS = 32
LARGEST = 1e9
"""Of any parameter: keeps one that a fit has driven out of sight finite."""

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
TUNED = ("STORE_COST", "OVERLAP", "THROTTLE_FROM_S", "THROTTLE_SPAN", "COPY_CYCLES", "NARROW_STORE_COST")
"""Chosen on measurements that fits may see, beside the fitted parameters."""
KNOWN = ("WARP_THREADS", "LARGEST")
"""Given by hardware, by the source of a kernel, or by definition."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """What a device offers one multiprocessor for one dtype, parameters applied: seconds per FLOP, byte and fixed step.

    Bytes are loaded, stored, or of one part of C in split k.
    """

    slots: int
    flop_s: float
    byte_s: float
    store_s: float
    part_s: float
    slice_s: float
    wave_s: float
    launch_s: float
    split_s: float
    throttle: float
    dram_rate: float
    half_bandwidth_share: float


def covers(case: Case) -> bool:
    """Forward matrix multiplications."""
    return isinstance(case.workload, Matmul) and case.direction == FORWARD


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Time of one (batched) kernel with the fastest candidate tile; the tile of ``case.launch`` (br, bc) if it has one."""
    return fastest(case, device, parameters)[0]


def fastest(case: Case, device: Device, parameters: Mapping[str, float]) -> tuple[float, Plan]:
    """Seconds of the fastest candidate, and what it is."""
    work = _work(case, device)
    at = _machine(work, {name: min(value, LARGEST) for name, value in parameters.items()})
    dram_s = work.dram_bytes / at.dram_rate
    part_s = work.part_bytes * at.part_s / at.slots
    return min(((_plan_seconds(plan, at, dram_s, part_s), plan) for plan in work.plans), key=lambda found: found[0])


@dataclass(frozen=True, slots=True)
class _Work:
    """A case on a device before any parameter. ``width``: bytes that a thread copies at once; ``half``: the peak in fp16.

    ``part_bytes``: of one part of split k, stored and read again.
    """

    slots: int
    clock_hz: float
    rates: Rates
    half: float
    width: int
    plans: tuple[Plan, ...]
    dram_bytes: float
    part_bytes: int


@once_per_case
def _work(case: Case, device: Device) -> _Work:
    w: Matmul = case.workload
    width = copy_bytes(w.n, w.k, w.dtype.size) if device.vendor == "NVIDIA" and w.dtype.matmul_unit == "tensor" else WIDE_COPY
    clock = device.clocks.tensor or device.clocks.max
    if device.multiprocessors is None or clock is None:
        missing = "multiprocessors" if device.multiprocessors is None else "tensor clock"
        raise UnavailableError(f"{device.id} has no {missing} in its profile", "the time of a matmul needs it; add it to the profile")
    slots, rates, half = int(device.multiprocessors.number), rates_of(device, w.dtype), device.peaks.tensor.get("fp16")
    free_side = device.capability >= 9 and width == WIDE_COPY
    choices: tuple[Choice, ...] | bool = free_side
    if "br" in case.launch and "bc" in case.launch:
        choices = ((case.launch["br"], case.launch["bc"], w.split_k),)
    listed = plans(w.m, w.n, w.k, w.batch, w.dtype.size, slots, choices, w.split_k)
    part_bytes, peak = 2 * w.outputs * ACCUMULATOR_SIZE, rates.matmul if half is None else half.number
    return _Work(slots, clock.number, rates, peak, width, worth_timing(listed), dram_bytes(case, device), part_bytes)


def dram_bytes(case: Case, device: Device) -> float:
    """Bytes of A, B and C that pass through DRAM: all of them after a flush; of a warm run, what its last turn has pushed out.

    A cyclic scan loses all or nothing: the rule, with its limits, of ``perfmodel.core.cache``.
    """
    w: Matmul = case.workload
    a, b, c = (w.batch * w.dtype.size * size for size in (w.m * w.k, w.k * w.n, w.m * w.n))
    if case.cold or device.cache_bytes is None:
        return float(a + b + c)
    copies = case.launch.get(WEIGHT_COPIES, 1)
    return float((a + c) * _lost((a + b + c) / device.cache_bytes) + b * _lost((a + copies * b + c) / device.cache_bytes))


def _lost(ratio: float) -> float:
    return min(max((ratio - SCAN_SURVIVES) / (SCAN_IS_LOST - SCAN_SURVIVES), 0.0), 1.0)


def _machine(work: _Work, p: Mapping[str, float]) -> _Machine:
    slots, rates, width, cycle_s = work.slots, work.rates, work.width, 1 / work.clock_hz
    byte_s = slots * p["flop_per_loaded_byte"] / work.half
    copy_s = 0.0 if width == WIDE_COPY else COPY_CYCLES * cycle_s / (WARP_THREADS * width)
    return _Machine(
        slots,
        flop_s=slots / rates.matmul,
        byte_s=max(byte_s, copy_s),
        store_s=max(STORE_COST * byte_s, NARROW_STORE_COST * copy_s),
        part_s=byte_s,
        slice_s=p["slice_cycles"] * cycle_s,
        wave_s=p["wave_cycles"] * cycle_s,
        launch_s=p["launch_us"] * 1e-6,
        split_s=p["split_us"] * 1e-6,
        throttle=p["throttle"] if width == WIDE_COPY else 0.0,
        dram_rate=rates.dram * p["dram_share"],
        half_bandwidth_share=p["half_bandwidth_share"],
    )


def _plan_seconds(plan: Plan, at: _Machine, dram_s: float, part_s: float) -> float:
    """``dram_s``: DRAM traffic at the bandwidth of all multiprocessors; ``part_s``: one part of split k, stored and read again."""
    waves, flops, loaded, stored, steps, busy, parts = plan[:7]
    work = max(flops * at.flop_s, loaded * at.byte_s) + stored * at.store_s + steps * at.slice_s + (waves - 1) * at.wave_s
    if work > THROTTLE_FROM_S:
        work *= 1 + at.throttle * min(math.log(work / THROTTLE_FROM_S), THROTTLE_SPAN)
    dram = dram_s * (busy + at.half_bandwidth_share) / (busy * (1 + at.half_bandwidth_share))
    time: float = at.launch_s + (work**OVERLAP + dram**OVERLAP) ** (1 / OVERLAP)
    return time if parts == 1 else time + at.split_s + parts * part_s


MODEL = Model(
    "gemm",
    PARAMETERS,
    covers,
    seconds,
    "tile and wave quantization: NVIDIA Matrix Multiplication Background User's Guide; split k: CUTLASS documentation, efficient GEMM",
    assumes=f"{ALONE}; B stored as a linear layer's weights, [n, k]; runs of a warm record rotate over its weight_copies",
    implementations=(
        "cublas",
        "torch-matmul",
    ),
)
