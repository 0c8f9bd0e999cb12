"""Attention in fp32 whose tiles are register-blocked: numba-flash, forward; and what all fp32 kernels of the project share.

A block takes its tiles' instructions: multiply-adds, loads, copies and the softmax, each in issue slots of a scheduler. A warp alone on its
scheduler leaves a known share of the slots empty while it waits; warps that share a scheduler take turns. Blocks start in the order of the
grid, each head's longest rows first, and follow each other on multiprocessors (``shared_makespan``).

All these kernels add products in registers from tiles in shared memory by the same loops (``kernels/register_tiles.py``). So a
multiply-add, a load and a copy cost what the device's calibration of numba-flash says; the other models' own parameters say what their
kernels do beside them.
Source: the kernel's own loops (instructions per tile); CUDA C++ Programming Guide, hardware multithreading (four schedulers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.occupancy import ThreadBlock, block_limits, least, multiprocessor
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.register_tiles import WARP, Geometry, Instructions, geometry, instructions
from perfmodel.timing.base import Case, Model, calibrations, numbers_of, plain_attention
from perfmodel.timing.schedule import SharedSlots, shared_makespan

SCHEDULERS = 4  # known
DEFAULT_TILE = (64, 64)  # known
UNKNOWN_REGISTERS = 255  # known
"""Registers per thread if a launch does not say: the most that the compiler uses."""
_ANY_SHAPE = Attention(n=64, kv_len=64, d=64, dv=64)  # known


def launched_shape(case: Case) -> Geometry:
    """The kernel with the tile that the launch of ``case`` names."""
    return geometry(case.workload.d, *(case.launch.get(name, edge) for name, edge in zip(("br", "bc"), DEFAULT_TILE, strict=True)))


def tile_cycles(work: Instructions, warps_per_scheduler: float, p: Mapping[str, float]) -> float:
    """Cycles of a key tile for a block whose schedulers hold that many warps, at least one."""
    rest = work.loads * p["load_cycles"] + work.scores * p["score_cycles"] + work.copies * p["copy_cycles"]
    return float(max(p["alone_factor"], warps_per_scheduler) * (work.multiply_adds * p["fma_cycles"] + rest))


def instruction_costs(device: Device) -> Mapping[str, float]:
    """Parameters of numba-flash on ``device``; UnavailableError if it is not calibrated."""
    blocks = calibrations(device, "attention", "fp32", Case(_ANY_SHAPE, "numba-flash"))
    if not blocks:
        raise UnavailableError(f"{device.id} has no calibration of attention/numba-flash, whose instruction costs this kernel shares")
    return blocks[0].parameters


def held_blocks(block: ThreadBlock, device: Device) -> int:
    """Blocks that a multiprocessor holds at once."""
    return max(1, int(least(block_limits(block, multiprocessor(device)))))


def grid_seconds(cycles: Callable[[int, float], float], blocks: int, block: ThreadBlock, device: Device) -> float:
    """Seconds of a grid of equal blocks.

    ``cycles(held, warps)``: cycles of one block on a multiprocessor that holds ``held`` blocks, with ``warps`` warps per scheduler, at
    least one. Freed schedulers are filled again, so warps spread evenly.
    """
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    warps, held = int(ceil_div(block.threads, WARP)), held_blocks(block, device)
    times = [cycles(number, max(1.0, number * warps / SCHEDULERS)) for number in range(1, held + 1)]
    rounds, rest = divmod(int(ceil_div(blocks, int(sms))), held)
    return (rounds * times[-1] + (times[rest - 1] if rest else 0.0)) / clock


def launches_seconds(kernels: int, device: Device, costs: Mapping[str, float]) -> float:
    """Seconds to launch ``kernels`` in turn: the first as for numba-flash, the others as the profile says for a full queue."""
    queued = device.launch_overhead.stream if device.launch_overhead else None
    later = costs["launch_us"] * 1e-6 if queued is None else queued.number
    return costs["launch_us"] * 1e-6 + (kernels - 1) * later


def tiles_by_block(w: Attention, br: int, bc: int) -> list[int]:
    """Key tiles that each block of a head visits, in the order in which they start: the last query rows first.

    >>> tiles_by_block(Attention(n=300, kv_len=300, d=64, dv=64, causal=True), 128, 128)
    [3, 2, 1]
    """
    if not w.causal:
        return [ceil_div(w.kv_len, bc)] * ceil_div(w.n, br)
    lasts = (min(w.n, (row + 1) * br) + w.kv_len - w.n for row in reversed(range(ceil_div(w.n, br))))
    return [ceil_div(max(0, last), bc) for last in lasts]


@cached_by_identity
def _grid(case: Case, device: Device) -> tuple[Instructions, tuple[int, ...], int, SharedSlots]:
    """Instructions of a tile, tiles of each block of a head, warps of a block, and slots, before any parameter."""
    shape = launched_shape(case)
    held = held_blocks(ThreadBlock(shape.threads, case.launch.get("registers", UNKNOWN_REGISTERS), shape.shared_bytes), device)
    warps, sms = shape.threads // WARP, int(numbers_of(device, "multiprocessors")[0])
    slots = SharedSlots(sms, held, max(1, SCHEDULERS // warps), ())
    return instructions(shape), tuple(tiles_by_block(case.workload, shape.br, shape.bc)), warps, slots


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without clock or multiprocessors in the profile."""
    [clock] = numbers_of(device, "highest clock")
    work, tiles, warps, slots = _grid(case, device)
    most = ceil_div(slots.blocks, slots.lanes)
    beside = [number * max(1.0, warps / SCHEDULERS) for number in range(1, most + 1)]
    alone = tile_cycles(work, beside[0], p)
    shares = replace(slots, speeds=tuple(max(p["alone_factor"], beside[0]) / max(p["alone_factor"], crowded) for crowded in beside))
    return p["launch_us"] * 1e-6 + alone * _makespan(tiles, int(case.workload.query_heads), shares) / clock


@lru_cache(maxsize=16384)
def _makespan(works: tuple[float, ...], repeats: int, shares: SharedSlots) -> float:
    """``shared_makespan`` in the time of a tile of a block alone: the same for all parameters but ``alone_factor``."""
    return shared_makespan(works, repeats, shares)


def covers(case: Case) -> bool:
    """Forward attention with d = d_v, causal or not; no window, blocks, additive mask or dropout."""
    plain = plain_attention(case, "window", "sparsity", "mask", "masked_fill", "dropout") and case.direction == FORWARD
    return plain and case.workload.d == case.workload.dv


MODEL = Model(
    "register-tiles",
    "numba",
    covers,
    seconds,
    "instructions of the kernel's loops; schedulers of a multiprocessor",
    implementations=("numba-flash",),
)
