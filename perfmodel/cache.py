"""From SRAM traffic to DRAM traffic: what the last cache level lets through.

Three assumptions, in the words of a tile walk:

1. Tiles that run together read together. Blocks of one head (or KV group) that start in the same wave and have the same
   length stream K and V in lockstep, so DRAM sees one pass per wave and head, not one per tile.
2. The next wave finds K and V in the cache if the working set W of the concurrently running heads fits. A cyclic scan
   loses all or nothing: the misses rise from 0 at W = L2/2 * (1/2) to all at 3/4 L2 (each half of a split L2 keeps its own copy).
3. Under a causal mask tiles have different lengths and drift apart, so each re-read stands alone and hits with
   probability 3/4 L2 / W. Even equal tiles lose step when W is many times the L2: 0.4 % of the re-reads per L2 of excess.

So traffic is compulsory while W is small and degrades towards the SRAM traffic as W exceeds the cache. The constants were
set on DRAM read counters of 26 attention kernels on an H200 (FlashAttention-2 and cuDNN, 4k to 512k keys).
"""

from __future__ import annotations

from perfmodel.arith import Number, ceil_div, clip, maximum, minimum
from perfmodel.cost import READ, WRITE, Access, Kernel, Launch
from perfmodel.hardware import Device

RETAINED_SHARE = 0.25
"""Share of the cache that a cyclic scan may fill before it begins to evict itself."""
LOST_SHARE = 0.75
"""Share of the cache at which a cyclic scan has evicted all of itself; also the share that scattered re-reads can use."""
DRIFT_PER_EXCESS = 0.004
"""Share of lockstep re-reads that miss per multiple of the cache by which the working set exceeds it."""
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


def working_set_bytes(kernel: Kernel, launch: Launch, device: Device) -> Number:
    """Bytes of the re-read tensors of all groups that a wave of blocks touches."""
    reread = {access.tensor: access.footprint * access.element_size for access in kernel.accesses if access.reread}
    touched = 1 + minimum(launch.blocks, resident_blocks(launch, device)) * launch.groups / launch.blocks
    return sum(reread.values()) / launch.groups * minimum(touched, launch.groups)


def dram_bytes(kernel: Kernel, device: Device, kind: str) -> Number:
    """DRAM bytes of one ``kind`` of access of ``kernel``; never more than its SRAM bytes."""
    return sum(_access_bytes(kernel, access, device) for access in kernel.accesses if access.kind == kind)


def compulsory_bytes(kernel: Kernel, device: Device) -> Number:
    """DRAM bytes, reads and writes, that no implementation of ``kernel`` avoids."""
    moved = [access for access in kernel.accesses if access.kind in (READ, WRITE)]
    return sum(_beyond_cache(access, access.compulsory * access.element_size, device) for access in moved)


def _beyond_cache(access: Access, size: Number, device: Device) -> Number:
    """``size``, less what the cache can hand from one kernel to the next."""
    caches = sum(int(level.capacity.number) for level in device.memory if level.level in ("l2", "llc") and level.capacity)
    return maximum(size - caches, 0) if access.handoff else size


def _access_bytes(kernel: Kernel, access: Access, device: Device) -> Number:
    distinct = access.footprint * access.element_size
    launch, cache = kernel.launch, device.cache_bytes
    if not access.reread or launch is None:
        return _beyond_cache(access, distinct, device)
    if cache is None:
        return access.bytes
    again = access.bytes - distinct
    excess = working_set_bytes(kernel, launch, device) / cache
    if not launch.lockstep:
        return distinct + _share(again, maximum(1 - LOST_SHARE / excess, 0))
    waves = ceil_div(launch.blocks, resident_blocks(launch, device))
    scans = minimum(launch.groups + waves - 1, launch.blocks)  # (wave, group) pairs that meet
    between_waves = maximum(access.bytes * scans / launch.blocks - distinct, 0)
    lost = clip((excess - RETAINED_SHARE) / (LOST_SHARE - RETAINED_SHARE), 0, 1)
    missed = between_waves * lost + (again - between_waves) * clip(DRIFT_PER_EXCESS * (excess - 1), 0, 1)
    return distinct + minimum(_whole(missed), again)


def _share(amount: Number, share: Number) -> Number:
    return minimum(_whole(amount * share), amount)


def _whole(amount: Number) -> Number:
    """A whole number of bytes, so that a count stays an int."""
    return int(amount) if isinstance(amount, float) else amount // 1
