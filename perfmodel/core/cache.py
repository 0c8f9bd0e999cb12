"""DRAM traffic from SRAM traffic: what the last cache level lets through.

Assumptions, with W the bytes of K and V (or whatever is re-read) of the heads that run at once:

1. Tiles that run together read together. Blocks of one head, or KV group, that start in the same wave and have the same
   length stream K and V in lockstep: DRAM sees one scan per wave and head, not one per tile.
2. The next wave finds them in the cache if W fits. A cyclic scan loses all or nothing: the lost share rises from 0 to 1
   between W = 0.18 L2 and W = L2 / 2, as a split L2 holds two copies of what both halves read. What one block alone reads
   has one copy, as has everything in an L2 that is not split: then between 0.53 L2 and 0.8 L2. The undivided L2s of compute
   capability 8.6, 8.9 and 12.0 hold more, nearly all of their size: between 0.9 L2 and 1.05 L2. Scans that shrink
   (K and V outermost, causal mask) lose the mean over their lengths.
3. Under a causal mask tiles have different lengths and lose step, by the difference in length at most: with W' = W times
   that difference, relative, each re-read stands alone and misses with probability (1 - 0.55 L2 / W')^2. Equal tiles
   drift too once W exceeds the L2: 0.25 % of their re-reads miss per L2 of excess.
4. A tensor that the kernel before has just written or read passes through DRAM only as far as it exceeds the caches, each
   tensor by itself.
5. Where the size of the L2 is unknown it catches every re-read, so that no roof rests on a guess. So it does where a compiler fills the
   SRAM and a matrix unit is systolic (TPUs): rows of one operand stay there while the other streams by. Source: jax-ml/scaling-book.
6. Tiles of a matrix multiplication (a ``MatmulLaunch``) run in waves as square as the grid allows: DRAM sees a panel once per wave
   that meets it, and again only as far as all panels do not survive until then by rule 2.
7. What every head reads, a mask, is scanned by the heads of a wave together, and again by the next, which finds it by rule 2. It
   passes through the cache beside W and counts with it. An element-wise kernel takes one head after another, and as many scores
   pass between two scans.

So DRAM traffic is compulsory while W is small and degrades towards the SRAM traffic as W outgrows the cache. The constants
were set on DRAM read counters of forward kernels on an H200 (FlashAttention-2 and cuDNN with 4 k to 512 k keys, and the
kernels of this package); the tests replay them. Rules 6 and 7 have not been held against counters.
"""

from __future__ import annotations

from functools import reduce

from perfmodel.core.architectures import copies_kept, undivided_l2
from perfmodel.core.arith import Number, ceil_div, clip, floor, largest, maximum, minimum, power
from perfmodel.core.cost import READ, Access, Kernel, Launch
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import ThreadBlock, block_limits, multiprocessor
from perfmodel.core.trace import label, plain

SCAN_SURVIVES, SCAN_IS_LOST = 0.18, 0.5  # tuned
"""W / L2 up to which a repeated scan hits entirely, and from which it misses entirely, in a split L2."""
PRIVATE_SURVIVES, PRIVATE_IS_LOST = 0.53, 0.8  # tuned
"""The same two limits for a scan by a single block, or in an L2 that keeps one copy of everything."""
WHOLE_SURVIVES, WHOLE_IS_LOST = 0.9, 1.05  # tuned
"""The same two limits for an undivided L2: products of L40S and RTX PRO 6000 whose A is read at the rate of the L2 up to there."""
SCATTERED_SURVIVE = 0.55  # tuned
"""W / L2 up to which scattered re-reads all hit."""
DRIFT_PER_EXCESS = 0.0025  # tuned
"""Share of lockstep re-reads that miss, per L2 size by which W exceeds the L2."""
MAX_BLOCKS = 32
"""Most blocks of one multiprocessor on any CUDA device so far."""


def scan_limits(device: Device, alone: bool = False) -> tuple[float, float]:
    """W / L2 up to which a cyclic scan hits entirely, and from which it misses entirely. ``alone``: one block makes each scan."""
    if undivided_l2(device):
        return WHOLE_SURVIVES, WHOLE_IS_LOST
    return (PRIVATE_SURVIVES, PRIVATE_IS_LOST) if alone or copies_kept(device) == 1 else (SCAN_SURVIVES, SCAN_IS_LOST)


@dataclass(frozen=True, slots=True)
class MatmulLaunch(Launch):
    """Blocks of a group are the tiles of a matrix: each streams one panel per operand, and neighbours run together.

    ``cluster``: blocks that share one L2 read of the operand that is read most, by multicast. Source: PTX ISA, cp.async.bulk.tensor with
    .multicast::cluster.
    """

    cluster: int = 1


def multicast_bytes(kernel: Kernel) -> Number:
    """Bytes that reach SMs by multicast: a cluster reads the operand with the most traffic from the L2 only once."""
    if not isinstance(kernel.launch, MatmulLaunch) or kernel.launch.cluster == 1:
        return 0
    share = 1 - 1 / kernel.launch.cluster
    reread = [access for access in kernel.accesses if access.kind == READ and access.reread]
    return largest([minimum(share * access.bytes, access.bytes - access.footprint * access.element_size) for access in reread])


def resident_blocks(launch: Launch, device: Device) -> Number:
    """Blocks that run at once on the whole device, limited by SRAM, threads, and the most registers a thread can have.

    At least 1 per multiprocessor; 1 in all if the profile has no multiprocessors.
    """
    sm, registers = multiprocessor(device), device.limits.max_registers_per_thread
    if sm.count is None:
        return 1
    block = ThreadBlock(launch.threads, None if registers is None else int(registers.number), plain(launch.sram_bytes))
    return sm.count * maximum(reduce(minimum, block_limits(block, sm).values(), MAX_BLOCKS), 1)


def working_set_bytes(kernel: Kernel, launch: Launch, slots: Number, prefix: str = "") -> Number:
    """W: bytes of the re-read tensors of all groups that a wave of ``slots`` blocks touches."""
    reread = {access.tensor: access.footprint * access.element_size for access in kernel.accesses if access.reread and access.scans is None}
    per_group = sum(reread.values()) / launch.groups
    touched = 1 + minimum(launch.blocks, slots) * launch.groups / launch.blocks
    return label(f"{prefix}W", "working set of the heads that run at once", per_group * minimum(touched, launch.groups))


def _passing_bytes(kernel: Kernel, launch: Launch, prefix: str) -> Number:
    """Bytes shared by all heads (a mask) that pass through the cache between two scans of a head's own tensors (rule 7)."""
    scans = [_scan_bytes(access) for access in kernel.accesses if access.scans is not None]
    if not scans:
        return 0
    reread = next(access for access in kernel.accesses if access.reread)
    share = reread.footprint / reread.elements if launch.exclusive_stream else 1
    return label(f"{prefix}passing", "bytes of what all heads read that pass between two scans", sum(scans) * share)


def _scan_bytes(access: Access) -> Number:
    """Bytes of one scan over a tensor that all heads read."""
    return minimum(access.elements / access.scans, access.footprint) * access.element_size


def dram_bytes(kernel: Kernel, device: Device, kind: str, prefix: str = "") -> Number:
    """DRAM bytes of ``kernel`` by accesses of ``kind``, never more than its SRAM bytes. ``prefix`` begins the names in an explanation."""
    return sum(_access_bytes(kernel, access, device, prefix) for access in kernel.accesses if access.kind == kind)


def held_bytes(device: Device, like: Number = 0) -> Number | None:
    """Capacity of all shared caches together in bytes; None if a size is unknown. The result is traced if ``like`` is a traced number."""
    levels = [level for level in device.memory if level.level in ("l2", "llc") and level.scope == "device"]
    if not levels or any(level.capacity is None for level in levels):
        return None
    caches = sum(int(level.capacity.number) for level in levels if level.capacity)
    return label("caches", "bytes that the caches hold", caches, like, f"{device.id}: capacity of its shared caches")


def beyond_caches(size: Number, device: Device) -> Number:
    """``size`` in bytes minus the capacity of all shared caches, at least 0; 0 if that is unknown, as a bound must not guess."""
    capacity = held_bytes(device, size)
    return 0 * size if capacity is None else maximum(size - capacity, 0)


def _handed_on(access: Access, size: Number, device: Device) -> Number:
    """DRAM bytes of a tensor of ``size`` bytes: if the kernel before has just touched it, only what exceeds the caches (rule 4).

    This is for the roof; the lower bound does not count such a tensor.
    """
    return beyond_caches(size, device) if access.handoff else size


def _access_bytes(kernel: Kernel, access: Access, device: Device, prefix: str) -> Number:
    """DRAM bytes of ``access``: each distinct byte once (rule 4), and the re-reads that the last cache misses."""
    distinct = access.footprint * access.element_size
    if device.cache_bytes is None:
        return distinct
    first = _handed_on(access, distinct, device)
    if not access.reread or (kernel.launch is None and access.scans is None):
        return first
    rereads = access.bytes - distinct
    return first + minimum(floor(_missed_bytes(kernel, access, device, prefix)), rereads)


def _missed_bytes(kernel: Kernel, access: Access, device: Device, prefix: str) -> Number:
    """Bytes of re-reads that the last cache misses, by rules 1 to 3, 6 and 7; the caller caps them at all re-reads."""
    launch, distinct = kernel.launch, access.footprint * access.element_size
    rereads = access.bytes - distinct
    if launch is None or (launch.serial and access.scans is not None):  # one head after another
        ratio = 2 * _scan_bytes(access) / _cache_size(access, device)
        return rereads * _lost_scan(access, ratio, device, prefix)
    slots = label(
        f"{prefix}slots",
        "blocks that run at once",
        resident_blocks(launch, device),
        access.elements,
        f"{device.id}: multiprocessors x resident blocks by registers, SRAM and threads, as perfmodel occupancy",
    )
    cache = _cache_size(access, device)
    ratio = (working_set_bytes(kernel, launch, slots, prefix) + _passing_bytes(kernel, launch, prefix)) / cache
    if access.scans is not None:
        waves = minimum(ceil_div(launch.blocks, slots), access.scans)
        rescans = maximum(waves * _scan_bytes(access) - distinct, 0)
        return rescans * _lost_scan(access, ratio, device, prefix)
    lost = _lost_share(launch, ratio, device)
    if isinstance(launch, MatmulLaunch):
        lost = label(f"{prefix}lost", "share of a panel that a later wave does not find", lost)
        return _panel_rescans(access, launch, slots, prefix) * distinct * lost
    if launch.lockstep:
        waves = label(f"{prefix}waves", "waves of blocks", ceil_div(launch.blocks, slots))
        scans = label(f"{prefix}scans", "pairs of wave and head that meet", minimum(launch.groups + waves - 1, launch.blocks))
        rescans = maximum(access.bytes * scans / launch.blocks - distinct, 0)
        drifted = clip(DRIFT_PER_EXCESS * (ratio - 1), 0, 1)
        lost = label(f"{prefix}lost", "share of a scan that the next wave does not find", lost)
        return rescans * lost + (rereads - rescans) * label(f"{prefix}drifted", "share of lockstep re-reads that miss", drifted)
    missed = power(maximum(1 - SCATTERED_SURVIVE / (ratio * launch.length_spread), 0), 2)
    return rereads * label(f"{prefix}missed", "share of scattered re-reads that miss", missed)


def _cache_size(access: Access, device: Device) -> Number:
    """Capacity of the last shared cache in bytes; traced if the counts of ``access`` are."""
    return label("L2", "bytes of the last cache", device.cache_bytes, access.elements, f"{device.id}: capacity of its last shared cache")


def _lost_scan(access: Access, ratio: Number, device: Device, prefix: str) -> Number:
    """Share of a scan over a tensor of all heads that misses in the next scan (rule 2)."""
    low, high = scan_limits(device)
    lost = clip((ratio - low) / (high - low), 0, 1)
    return label(f"{prefix}lost {access.tensor}", "share of a scan that the next heads do not find", lost)


def _lost_share(launch: Launch, ratio: Number, device: Device) -> Number:
    """Share of a scan that misses in the next one, with ``ratio`` = W / L2 (rule 2).

    Scans that shrink under a causal mask have lengths from 0 to the full one. Their share is the mean over these lengths x, weighted by
    length: the integral of 2 x lost(x) from 0 to 1, where lost(x) rises from 0 at ``begins`` to 1 at ``ends``.
    """
    low, high = scan_limits(device, launch.exclusive_stream)
    full_scan = clip((ratio - low) / (high - low), 0, 1)
    begins, ends = minimum(low / ratio, 1), minimum(high / ratio, 1)
    ramp = (2 * ratio * (power(ends, 3) - power(begins, 3)) / 3 - low * (power(ends, 2) - power(begins, 2))) / (high - low)
    shrinking_scan = 1 - power(ends, 2) + ramp
    return full_scan * (1 - launch.causal_share) + shrinking_scan * launch.causal_share


def _panel_rescans(access: Access, grid: MatmulLaunch, slots: Number, prefix: str) -> Number:
    """Waves after the first that read a panel of ``access`` again (rule 6)."""
    tiles_of_panel = access.elements // access.footprint
    panels = grid.blocks // (grid.groups * tiles_of_panel)
    in_one_wave = maximum(floor(slots**0.5), slots // panels)
    in_one_wave = label(f"{prefix}slots {access.tensor}", "tiles of a wave that share a panel", in_one_wave)
    return ceil_div(tiles_of_panel, in_one_wave) - 1
