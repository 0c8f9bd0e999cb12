"""From SRAM traffic to DRAM traffic: what the last cache level lets through.

Assumptions, with W the bytes of K and V (or whatever is re-read) of the heads that run at once:

1. Tiles that run together read together. Blocks of one head, or KV group, that start in the same wave and have the same
   length stream K and V in lockstep: DRAM sees one scan per wave and head, not one per tile.
2. The next wave finds them in the cache if W fits. A cyclic scan loses all or nothing, so the lost share rises from 0 to 1
   between W = L2 / 4 and W = 3/4 L2 (a split L2 holds two copies of what both halves read).
3. Under a causal mask tiles have different lengths and lose step: each re-read stands alone and misses with probability
   (1 - 0.55 L2 / W)^2. Equal tiles drift too once W exceeds the L2: 0.25 % of their re-reads miss per L2 of excess.
4. A tensor that one kernel hands to the next passes through DRAM only as far as it exceeds the cache.

So DRAM traffic is compulsory while W is small and degrades towards the SRAM traffic as W outgrows the cache. The constants
were set on DRAM read counters of 26 forward kernels on an H200 (FlashAttention-2, cuDNN; 4 k to 512 k keys); the tests
replay them.
"""

from __future__ import annotations

from perfmodel.arith import Number, ceil_div, clip, floor, maximum, minimum
from perfmodel.cost import READ, WRITE, Access, Kernel, Launch
from perfmodel.hardware import Device
from perfmodel.trace import named

SCAN_SURVIVES = 0.25
"""W / L2 up to which a cyclic scan finds all of itself again."""
SCAN_IS_LOST = 0.75
"""W / L2 from which it finds nothing."""
SCATTERED_SURVIVE = 0.55
"""W / L2 up to which scattered re-reads all hit."""
DRIFT_PER_EXCESS = 0.0025
"""Share of lockstep re-reads that miss, per L2 by which W exceeds it."""
BLOCK_RESERVE_BYTES = 1024
"""Shared memory that CUDA keeps for itself in each block (compute capability 8.0 and later)."""


def resident_blocks(launch: Launch, device: Device) -> int:
    """Blocks that run at once on the whole device, limited by SRAM, threads, and 255 registers per thread.

    1 per multiprocessor where the profile gives no limits; 1 in all where it has no multiprocessors.
    """
    if device.multiprocessors is None:
        return 1
    limits, sram = device.limits, device.level("sram")
    per = [32]
    if sram is not None and sram.capacity is not None:
        per.append(int(sram.capacity.number) // (int(launch.sram_bytes) + BLOCK_RESERVE_BYTES))
    if limits.max_threads_per_multiprocessor is not None:
        per.append(int(limits.max_threads_per_multiprocessor.number) // launch.threads)
    if limits.max_blocks_per_multiprocessor is not None:
        per.append(int(limits.max_blocks_per_multiprocessor.number))
    if limits.registers_per_multiprocessor is not None and limits.max_registers_per_thread is not None:
        registers = int(limits.max_registers_per_thread.number) * launch.threads
        per.append(int(limits.registers_per_multiprocessor.number) // registers)
    return int(device.multiprocessors.number) * max(min(per), 1)


def working_set_bytes(kernel: Kernel, launch: Launch, slots: Number) -> Number:
    """W: bytes of the re-read tensors of all groups that a wave of ``slots`` blocks touches."""
    reread = {access.tensor: access.footprint * access.element_size for access in kernel.accesses if access.reread}
    per_group = sum(reread.values()) / launch.groups
    touched = 1 + minimum(launch.blocks, slots) * launch.groups / launch.blocks
    return named("W", "working set of the heads that run at once", per_group * minimum(touched, launch.groups))


def dram_bytes(kernel: Kernel, device: Device, kind: str) -> Number:
    """DRAM bytes of one ``kind`` of access of ``kernel``; never more than its SRAM bytes."""
    return sum(_access_bytes(kernel, access, device) for access in kernel.accesses if access.kind == kind)


def compulsory_bytes(kernel: Kernel, device: Device) -> Number:
    """DRAM bytes, reads and writes, that no implementation of ``kernel`` avoids."""
    moved = [access for access in kernel.accesses if access.kind in (READ, WRITE)]
    return sum(_beyond_cache(access, access.compulsory * access.element_size, device) for access in moved)


def _beyond_cache(access: Access, size: Number, device: Device) -> Number:
    """``size``, less what the caches can hand from one kernel to the next."""
    if not access.handoff:
        return size
    levels = [level for level in device.memory if level.level in ("l2", "llc") and level.scope == "device" and level.capacity]
    caches = sum(int(level.capacity.number) for level in levels if level.capacity)
    return maximum(size - named("caches", "bytes that the caches can hand on", caches, like=size), 0)


def _access_bytes(kernel: Kernel, access: Access, device: Device) -> Number:
    distinct = access.footprint * access.element_size
    launch, cache = kernel.launch, device.cache_bytes
    if not access.reread or launch is None:
        return _beyond_cache(access, distinct, device)
    if cache is None:
        return access.bytes
    again = access.bytes - distinct
    slots = named("slots", "blocks that run at once", resident_blocks(launch, device), like=launch.blocks)
    ratio = working_set_bytes(kernel, launch, slots) / named("L2", "capacity of the last cache", cache, like=launch.blocks)
    if launch.lockstep:
        waves = named("waves", "waves of blocks", ceil_div(launch.blocks, slots))
        scans = named("scans", "pairs of wave and head that meet", minimum(launch.groups + waves - 1, launch.blocks))
        rescans = maximum(access.bytes * scans / launch.blocks - distinct, 0)
        lost = clip((ratio - SCAN_SURVIVES) / (SCAN_IS_LOST - SCAN_SURVIVES), 0, 1)
        drifted = clip(DRIFT_PER_EXCESS * (ratio - 1), 0, 1)
        lost = named("lost", "share of a scan that the next wave does not find", lost)
        missed = rescans * lost + (again - rescans) * named("drifted", "share of lockstep re-reads that miss", drifted)
    else:
        missed = again * named("missed", "share of scattered re-reads that miss", maximum(1 - SCATTERED_SURVIVE / ratio, 0) ** 2)
    return distinct + minimum(floor(missed), again)
