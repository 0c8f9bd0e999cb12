"""What the models of the project's fp32 kernels share: instruction costs of numba-flash, grids of equal blocks, launches.

All these kernels add products in registers from tiles in shared memory by the same loops, so a multiply-add, a load and a copy
cost what the device's calibration of numba-flash says; a model's own parameters say what its kernel does beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import Block, block_limits, least, multiprocessor
from perfmodel.core.workload import Attention
from perfmodel.timing.base import Case, calibrations
from perfmodel.timing.models.register_tiles import SCHEDULERS
from perfmodel.timing.register_tiles import WARP
from perfmodel.timing.schedule import Shares, shared_makespan

_ANY_SHAPE = Attention(n=64, kv_len=64, d=64, dv=64)
KNOWN = ("_ANY_SHAPE",)
"""Given by hardware, by the source of a kernel, or by definition."""


def instruction_costs(device: Device) -> Mapping[str, float]:
    """Parameters of numba-flash on ``device``; UnavailableError if it is not calibrated."""
    blocks = calibrations(device, "attention", "fp32", Case(_ANY_SHAPE, "numba-flash"))
    if not blocks:
        raise UnavailableError(f"{device.id} has no calibration of attention/numba-flash, whose instruction costs this kernel shares")
    return blocks[0].parameters


def clock_hz(device: Device) -> float:
    """The highest clock; UnavailableError without one in the profile."""
    if device.clocks.max is None:
        raise UnavailableError(f"{device.id} lacks its clock", "add clocks.max to the profile")
    return device.clocks.max.number


def grid_seconds(cycles: Callable[[int, float], float], blocks: int, block: Block, device: Device) -> float:
    """Seconds of a grid of equal blocks.

    ``cycles(held, warps)``: of one block on a multiprocessor that holds ``held``, ``warps`` of them all to each scheduler, at
    least one: freed schedulers are filled again, so that warps spread evenly.
    """
    sm = multiprocessor(device)
    if sm.count is None:
        raise UnavailableError(f"{device.id} lacks its multiprocessors", "add multiprocessors to the profile")
    warps, held = int(ceil_div(block.threads, WARP)), max(1, int(least(block_limits(block, sm))))
    times = [cycles(number, max(1.0, number * warps / SCHEDULERS)) for number in range(1, held + 1)]
    shares = Shares(int(sm.count), held, 1, tuple(times[0] / time for time in times))
    return shared_makespan([times[0]], blocks, shares) / clock_hz(device)


def launches_seconds(kernels: int, device: Device, costs: Mapping[str, float]) -> float:
    """Launching ``kernels`` one behind another: the first as numba-flash, the others as the profile says of a full queue."""
    queued = device.launch_overhead.stream if device.launch_overhead else None
    later = costs["launch_us"] * 1e-6 if queued is None else queued.number
    return costs["launch_us"] * 1e-6 + (kernels - 1) * later
