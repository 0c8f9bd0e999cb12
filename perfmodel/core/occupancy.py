"""Occupancy: how many blocks of a kernel a multiprocessor holds at once, and which resource limits them.

Blocks per multiprocessor are the least of four limits. On NVIDIA devices of compute capability 5.0 and later, registers are given to whole
warps in units of 256, from one of four sub-partitions; shared memory in units of 256 B, from 8.0 on 128 B with 1 KiB per block kept by
CUDA. Other devices publish no such units: there a limit is the plain quotient.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.trace import Trace, label
from perfmodel.core.units import Quantity

SOURCE = "CUDA occupancy rules, cuda_occupancy.h of the CUDA toolkit (units, sub-partitions, reserve)"
REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of this many (compute capability 5.0 and later)."""
SUB_PARTITIONS = 4
"""Parts of a multiprocessor, each with its share of the registers (5.0 and later; 6.0 has two)."""
RESERVED_BYTES = 1024
"""Shared memory that CUDA keeps for itself in each block (8.0 and later)."""
LIMIT_WORDS = {
    "registers": "registers",
    "sram": "shared memory",
    "threads": "threads per multiprocessor",
    "blocks": "blocks per multiprocessor",
}


class ThreadBlock(NamedTuple):
    """A thread block. ``registers`` per thread, None if they are no limit; ``sram_bytes`` of shared memory."""

    threads: Number
    registers: Number | None = None
    sram_bytes: Number = 0


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Capacity of one multiprocessor; None where the profile has no value.

    ``count``: multiprocessors of the device; ``warp``: threads of a warp. ``registers``, ``sram_bytes``, ``threads``, ``blocks``: the most
    at once. ``register_unit``, ``sram_unit``: registers and SRAM are given out in multiples of these. ``partitions``: parts that divide
    the registers. ``sram_reserve``: bytes that CUDA keeps in each block.
    """

    count: Number | None = None
    warp: Number = 32
    registers: Number | None = None
    sram_bytes: Number | None = None
    threads: Number | None = None
    blocks: Number | None = None
    register_unit: int = 1
    partitions: int = 1
    sram_unit: int = 1
    sram_reserve: int = 0


def cuda_major(device: Device) -> int | None:
    """Major compute capability of an NVIDIA device, None for others.

    >>> from perfmodel.catalog import find_device
    >>> cuda_major(find_device("h200")), cuda_major(find_device("mi300x"))
    (9, None)
    """
    is_cuda = device.vendor == "NVIDIA" and device.compute_capability is not None
    return int(str(device.compute_capability).partition(".")[0]) if is_cuda else None


def multiprocessor(device: Device, trace: Trace | None = None) -> Multiprocessor:
    """The multiprocessor of ``device``; with a ``trace``, its numbers are symbols that know their source in the profile."""
    limits, sram, major = device.limits, device.level("sram"), cuda_major(device)

    def number(name: str, meaning: str, quantity: Quantity | None) -> Number | None:
        if quantity is None or trace is None:
            return None if quantity is None else int(quantity.number)
        return trace.symbol(name, int(quantity.number), meaning, device.origin(quantity))

    per_sm = sram if sram is not None and sram.scope == "multiprocessor" else None
    warp = number("warp", "threads of a warp", limits.warp_size)
    return Multiprocessor(
        count=number("SMs", "multiprocessors", device.multiprocessors),
        warp=32 if warp is None else warp,
        registers=number("R_SM", "registers per multiprocessor", limits.registers_per_multiprocessor),
        sram_bytes=number("S_SM", "B of shared memory per multiprocessor", per_sm.capacity if per_sm else None),
        threads=number("Th_SM", "threads per multiprocessor", limits.max_threads_per_multiprocessor),
        blocks=number("Bl_SM", "blocks per multiprocessor", limits.max_blocks_per_multiprocessor),
        register_unit=1 if major is None else REGISTER_UNIT,
        partitions=1 if major is None else 2 if device.capability == 6.0 else SUB_PARTITIONS,
        sram_unit=1 if major is None else (128 if major >= 8 else 256),
        sram_reserve=0 if major is None or major < 8 else RESERVED_BYTES,
    )


def warps_per_block(block: ThreadBlock, sm: Multiprocessor) -> Number:
    """Warps of one block; a partial one counts whole."""
    return label("warps", "warps per block", ceil_div(block.threads, sm.warp))


def block_limits(block: ThreadBlock, sm: Multiprocessor) -> dict[str, Number]:
    """Blocks per multiprocessor that each resource allows; a resource the profile does not know is left out.

    Source: cuda_occupancy.h. Assumes no user preference for a smaller shared memory.

    >>> block_limits(ThreadBlock(256, 40, 0), Multiprocessor(registers=65536, threads=2048, register_unit=256, partitions=4))
    {'registers': 6, 'threads': 8}
    """
    limits: dict[str, Number] = {}
    warps = warps_per_block(block, sm)
    if sm.registers is not None and block.registers:
        unit = sm.register_unit
        per_warp = label("registers per warp", "as given out", ceil_div(block.registers * sm.warp, unit) * unit)
        warps_by_registers = label(
            "warps by registers", "warps per multiprocessor", sm.registers // sm.partitions // per_warp * sm.partitions
        )
        limits["registers"] = label("blocks by registers", "blocks per multiprocessor", warps_by_registers // warps)
    if sm.sram_bytes is not None:
        used = block.sram_bytes + sm.sram_reserve
        allocated = label("SRAM per block", "B, as given out", ceil_div(used, sm.sram_unit) * sm.sram_unit)
        if allocated != 0:  # true of a deferred number too
            limits["sram"] = label("blocks by SRAM", "blocks per multiprocessor", sm.sram_bytes // allocated)
    if sm.threads is not None:
        limits["threads"] = label("blocks by threads", "blocks per multiprocessor", sm.threads // sm.warp // warps)
    if sm.blocks is not None:
        limits["blocks"] = sm.blocks
    return limits


def least(limits: dict[str, Number]) -> Number:
    """Blocks that every one of ``limits`` allows; at least one limit must be known."""
    return reduce(minimum, limits.values())


class Occupancy(NamedTuple):
    """Blocks, warps and threads active at once on one multiprocessor; ``limited_by``: every resource that allows no more."""

    limits: dict[str, Number]
    blocks: Number
    warps: Number
    threads: Number
    limited_by: list[str]


def occupancy(block: ThreadBlock, sm: Multiprocessor) -> Occupancy:
    """Occupancy of ``sm`` by ``block``; 0 blocks if one does not fit."""
    limits = block_limits(block, sm)
    blocks = label("blocks", "blocks active per multiprocessor", least(limits))
    warps = label("active warps", "per multiprocessor", blocks * warps_per_block(block, sm))
    threads = label("active threads", "per multiprocessor", blocks * block.threads)
    return Occupancy(limits, blocks, warps, threads, [name for name, limit in limits.items() if limit == blocks])


def most_threads(sm: Multiprocessor, per_block: Number | None) -> Number | None:
    """Threads that the whole device holds at once; None if unknown. ``per_block``: the most threads of a block.

    A multiprocessor holds the least of its most threads, and its most blocks times ``per_block``.

    >>> most_threads(Multiprocessor(count=108, threads=2048, blocks=32), 1024)
    221184
    """
    if sm.count is None or sm.threads is None:
        return None
    threads = sm.threads if sm.blocks is None or per_block is None else minimum(sm.threads, sm.blocks * per_block)
    return label("most threads", "threads that the device holds at once", sm.count * threads)


def mark(trace: Trace, source: str) -> None:
    """Set ``source`` on every step of ``trace`` that has none."""
    for name, step in trace.steps.items():
        if not step.source:
            trace.steps[name] = step._replace(source=source)
