"""Time of fused, tiled attention over many queries: the forward pass with Q kept, the backward pass with K and V kept.

A block keeps one tile and streams the tiles it meets. Its time is a latency (first loads, last stores) and a time per tile;
blocks are list-scheduled over the slots of the multiprocessors. A tile's matmuls and its exponentials run on different
units and overlap partly. Kernels beside the main one copy K and V into a paged cache, or prepare and finish gradients.

The structure of each implementation (tile, order, packing) is in ``_flash_plans``; parameters are cycles of the tensor clock or
ratios to the rates of the device, so that they carry over to another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, inf

from perfmodel.core.cache import PRIVATE_IS_LOST, PRIVATE_SURVIVES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import boost
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import ALONE, WARM_LATENCY_S, Case, Model, Parameter, kernel_name, lost_share, once_per_case, plain_attention
from perfmodel.timing.models._flash_blocks import (
    L2_PORT,
    FlashPlan,
    TileBlocks,
    blocks_of,
    equal_cycles,
    interleaved_cycles,
    listed_cycles,
    padded,
    slowdown,
)
from perfmodel.timing.models._flash_forward import code_s, mask_latencies, parts_of_tiles
from perfmodel.timing.models._flash_plans import IMPLEMENTATIONS, plan_of

PARAMETERS = (
    Parameter("launch_us", "from the launch to the first block, for every kernel of the call"),
    Parameter("block_cycles", "cycles of a block besides its tiles"),
    Parameter("matmul", "cycles of a tile's matmuls over those that its matrix instruction needs, operands coming from SRAM"),
    Parameter("softmax", "cycles of a tile's other work over those of its exponentials on the SFU"),
    Parameter("alone", "cycles of a tile alone on its multiprocessor over those beside other blocks, per block"),
    Parameter("dram", "time of bytes that pass the memory pins over that at the nominal bandwidth"),
    Parameter("side_block_cycles", "cycles of a block of the kernels beside the main one"),
)

COLD, COLD_SYNC = 2.0, 1.5  # tuned
"""Exponent of the norm that adds compute and DRAM time on cold caches, where blocks wait for their first loads; 1 is no overlap. The
second is of forward kernels that multiply by mma.sync, whose own threads start their loads."""

SFU_EXP = 16.0  # known
"""Exponentials per cycle and multiprocessor of every NVIDIA GPU before Blackwell Ultra, which doubled them: the unit of a tile's other
work. One exponential per score runs at the device's own rate; the rest, on other units, does not go faster with it."""

FORWARD_ONLY = ("vllm-flash-attn", "numba-flash-mma")

_THREADS = 512  # known
"""Most threads of a block that copies one token of K and V: vllm csrc/cache_kernels.cu, reshape_and_cache_flash."""


@dataclass(frozen=True, slots=True)
class FlashRates:
    """Per multiprocessor and cycle of the tensor clock: FLOP, exponentials, bytes of SRAM. ``bandwidth``: B/s over the device."""

    sms: int
    clock_hz: float
    matmul: float
    exp: float
    sram: float
    bandwidth: float
    threads: int


def rates_of(device: Device, dtype: str) -> FlashRates:
    """Those of ``device`` in ``dtype``; UnavailableError names what its profile lacks."""
    peak, threads = device.peaks_of("tensor").get(dtype), device.limits.max_threads_per_multiprocessor
    exp, sms, clock, dram = device.peaks.exp, device.multiprocessors, device.clocks.tensor, device.dram.bandwidth
    if peak is None or exp is None or sms is None or clock is None or dram is None:
        needs = {f"tensor peak in {dtype}": peak, "exp peak": exp, "multiprocessors": sms, "tensor clock": clock, "DRAM bandwidth": dram}
        missing = ", ".join(name for name, value in needs.items() if value is None)
        raise UnavailableError(f"{device.id}: fused attention cannot be timed without {missing}", "add it to the device's profile")
    cycles, sram, faster = sms.number * clock.number, device.level("sram"), boost(device)
    sram_clock = clock if faster > 1 else device.clocks.max or clock
    return FlashRates(
        sms=int(sms.number),
        clock_hz=clock.number * faster,
        matmul=peak.per_clk or peak.number / cycles,
        exp=exp.per_clk or exp.number / cycles,
        sram=sram.bandwidth.number / (sms.number * sram_clock.number) if sram and sram.bandwidth else inf,
        bandwidth=dram.number,
        threads=int(threads.number) if threads else 2048,
    )


def _tile_cycles(w: Attention, work: _FlashWork, direction: str, parameters: Mapping[str, float]) -> float:
    """Cycles of one tile on a multiprocessor of its own, in the mean. Two units overlap partly, hence the norm.

    The tensor unit reads one operand from SRAM again for every ``fragment`` rows of the other. Forward S = Q K^T and O = P V;
    backward S and dP, then dV, dK, and dQ, which is added up in memory by atomics. Other work is one exponential per score and the rest.
    """
    plan, rates = work.plan, work.rates
    d, dv, scores = plan.width or padded(w.d), plan.width or padded(w.dv), plan.br * plan.bc
    flop, other = 2 * scores * (d + dv * work.values), float(scores)
    if direction == BACKWARD:
        flop, other = 2 * scores * (3 * d + 2 * dv), scores + plan.adding * plan.br * d
    fed = flop * w.dtype.size / (2 * plan.fragment * rates.sram)
    slower = slowdown(plan, rates.matmul, w.dtype.size)
    matmul = (1 + plan.uneven * work.later) * slower * parameters["matmul"] * hypot(flop / rates.matmul, plan.feeding * fed)
    per_exp = parameters["matmul"] * plan.softmax_share or parameters["softmax"]
    all_other = per_exp * other * (1 + plan.mask_tile * work.later)
    on_sfu = min(all_other, scores)
    softmax = on_sfu / rates.exp + (all_other - on_sfu) / SFU_EXP
    return float((matmul**plan.overlap + softmax**plan.overlap) ** (1 / plan.overlap))


def _main_cycles(blocks: TileBlocks, plan: FlashPlan, equal: bool, tile: float, parameters: Mapping[str, float]) -> float:
    """Cycles until the last block ends."""
    block, alone = parameters["block_cycles"] * (1 + mask_latencies(plan, blocks)), parameters["alone"] * 128 / plan.threads
    if equal:
        return equal_cycles(blocks, tile, block, alone)
    if plan.interleaved and plan.resident > 1:
        return interleaved_cycles(blocks, tile, block, alone)
    return listed_cycles(blocks, tile, block, alone)


def _tensor_bytes(w: Attention) -> tuple[int, int]:
    """Bytes of Q and O together, of K and V together."""
    return w.query_heads * w.n * (w.d + w.dv) * w.dtype.size, w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size


def _side_bytes(w: Attention, plan: FlashPlan, direction: str) -> int:
    """Bytes that the kernels beside the main one move: copying K and V, adding up splits, or preparing and finishing gradients."""
    if direction == BACKWARD:
        from perfmodel.timing.models._flash_gradients import side_bytes

        return side_bytes(w, plan)
    moved = 2 * _tensor_bytes(w)[1] if plan.writes_cache else 0
    if plan.splits > 1:  # partial results in fp32
        moved += 2 * plan.splits * 4 * w.query_heads * w.n * w.dv
    return moved


def _side_seconds(w: Attention, work: _FlashWork, direction: str, parameters: Mapping[str, float]) -> float:
    """Seconds of the kernels beside the main one."""
    rates, plan, moved = work.rates, work.plan, work.side_bytes
    cycles = plan.side_kernels * parameters["side_block_cycles"]
    if direction == BACKWARD:
        from perfmodel.timing.models._flash_gradients import SUM_BLOCK, sum_blocks

        cycles += SUM_BLOCK * sum_blocks(w, plan) / rates.sms * parameters["side_block_cycles"]
    if plan.writes_cache and direction != BACKWARD:
        threads = min(w.kv_heads * w.d, _THREADS)
        cycles += w.batch * w.kv_len * threads / (rates.threads * rates.sms) * parameters["side_block_cycles"]
    if direction == FORWARD and plan.splits > 1:  # added up by one more wave of blocks
        cycles += parameters["block_cycles"] * (plan.side_kernels == 0)
    moving, working = moved * work.byte_s(parameters["dram"]), cycles / rates.clock_hz
    return moving + working if plan.side_kernels else max(moving, working)


@dataclass(frozen=True, slots=True)
class _FlashWork:
    """A case on a device before any parameter. ``moved``: bytes of the main kernel, ``side_bytes`` of those beside it; ``values`` and
    ``later``: ``parts_of_tiles``; ``lost``: share of bytes that the L2 does not hold; ``cold_s``: by which a flush delays first loads.
    """

    rates: FlashRates
    plan: FlashPlan
    blocks: TileBlocks
    moved: int
    side_bytes: int
    values: float = 1.0
    later: float = 1.0
    lost: float = 1.0
    cold_s: float = 0.0

    def byte_s(self, dram: float) -> float:
        """Seconds of a byte that passes the memory pins, at ``dram`` times those at the nominal bandwidth, or comes from the L2."""
        pins = dram / self.rates.bandwidth
        return self.lost * pins + (1 - self.lost) * min(pins, 1 / (L2_PORT * self.rates.sms * self.rates.clock_hz))


@once_per_case
def _work(case: Case, device: Device) -> _FlashWork:
    w: Attention = case.workload
    rates, plan = rates_of(device, w.dtype.name), plan_of(case, device)
    if case.direction == BACKWARD:
        from perfmodel.timing.models._flash_gradients import gradient_blocks, main_bytes

        moved, blocks = main_bytes(w, plan), gradient_blocks(w, plan, rates.sms)
    else:
        moved, blocks = sum(_tensor_bytes(w)), blocks_of(w, plan, FORWARD, rates.sms)
    parts = (1.0, 1.0) if case.direction == BACKWARD else parts_of_tiles(w, plan, blocks)
    side = _side_bytes(w, plan, case.direction)
    held = (moved + side / 2) / device.cache_bytes if device.cache_bytes else inf
    lost = lost_share(held, PRIVATE_SURVIVES, PRIVATE_IS_LOST)
    late_s = (1 - lost) * WARM_LATENCY_S if case.flushed and plan.writes_cache else 0.0  # others were timed after flushes, too
    return _FlashWork(rates, plan, blocks, moved, side, *parts, 1.0 if case.flushed else lost, late_s)


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one call, launch and side kernels included; UnavailableError if there is no such kernel or the profile lacks a number."""
    w: Attention = case.workload
    work = _work(case, device)
    rates, plan, blocks = work.rates, work.plan, work.blocks
    tile = _tile_cycles(w, work, case.direction, parameters)
    cycles = _main_cycles(blocks, plan, not w.causal and plan.splits == 1, tile, parameters)
    computing, moving = cycles / rates.clock_hz, work.moved * work.byte_s(parameters["dram"])
    cold = COLD_SYNC if plan.interleaved else COLD
    main = (computing**cold + moving**cold) ** (1 / cold) if case.flushed and not plan.writes_cache else max(computing, moving)
    started = parameters["launch_us"] * 1e-6 + code_s(case, plan, blocks) + work.cold_s
    return started + _side_seconds(w, work, case.direction, parameters) + main


WIDEST = {"numba-flash-mma": 128}  # known
"""Largest head dim of an implementation; 256 for those not listed."""


def rarely_timed(case: Case) -> bool:
    """Whether too few records of the kernel exist to fit all parameters: ``flash-few`` models it."""
    few = case.implementation.startswith("fa3") and (case.direction == BACKWARD or case.workload.dtype.size < 2)
    return few or case.implementation.startswith("fa1")


def covers(case: Case) -> bool:
    """Dense fused attention of several queries with d = d_v of at most 256, of an implementation whose launch is known.

    Not the memory-efficient backward pass, whose blocks wait for each other: ``efficient_backward``.
    """
    w = case.workload
    if not plain_attention(case, "sparsity", "dropout", "mask") or case.implementation not in IMPLEMENTATIONS or rarely_timed(case):
        return False
    if w.d != w.dv or w.d > WIDEST.get(case.implementation, 256):
        return False
    if case.direction == BACKWARD:
        return case.implementation not in FORWARD_ONLY and kernel_name(case.implementation) != "torch-sdpa-efficient"
    return bool(w.n > 1)


MODEL = Model(
    name="flash-prefill",
    parameters=PARAMETERS,
    covers=covers,
    seconds=seconds,
    source="FlashAttention-2 (Dao 2023, Alg. 1 and 2) and the published sources of each kernel; list scheduling, Graham 1966",
    assumes=f"{ALONE}; Q, K and V stored as [batch, length, heads, d]",
    regime="prefill",
    implementations=(
        *("numba-flash-mma", "vllm-flash-attn", "torch-sdpa-flash", "torch-sdpa-cudnn", "torch-sdpa-efficient"),
        *("fa2", "fa3", "fa3-no-pipelining", "fa3-no-specialization", "xformers"),
    ),
)
