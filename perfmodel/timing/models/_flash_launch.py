"""The launch of a fused attention kernel, as the time model sees it."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention

_HEAD_DIMS = (32, 64, 96, 128, 192, 256)
WGMMA, TCGEN05 = 64, 128
"""Rows of the other operand that one read from shared memory serves, of Hopper's and of Blackwell's instruction."""
MMA_SYNC_FLOP = 0.629 * 4096
"""Per cycle and multiprocessor, two-byte elements: what mma.sync reaches where newer instructions reach more.

On Hopper 62.9 % of the peak (arXiv:2402.13499); supposed to be as much later. Ampere's peak is lower, and mma.sync reaches it."""
OVERLAP = 3.0
"""How a tile's matmuls and exponentials add up where an implementation has no number of its own."""
TUNED = ("OVERLAP",)
"""Chosen on measurements that fits may see, beside the fitted parameters."""
KNOWN = ("_HEAD_DIMS", "WGMMA", "TCGEN05", "MMA_SYNC_FLOP")
"""Given by hardware, by the source of a kernel, or by definition."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Launch of the main kernel. ``resident``: blocks per multiprocessor.

    A walk is one head's row of blocks. Walks come in groups of ``group``, cut into sections of ``section``; within a section all
    walks advance together. ``longest_first``: a walk begins with its last row tile. ``splits``: parts of a block's key tiles that
    run as blocks of their own. ``packed``: the query heads of a KV head share a walk. ``writes_cache``: the call first copies
    K and V into a paged cache. ``fragment``: rows that one read of the other operand from shared memory serves: 16 for each
    mma.sync of a warp, 64 for wgmma, 128 for tcgen05.mma. ``feeding``: part of those reads that matmuls do not hide.
    ``overlap``: how a tile's matmuls and exponentials add up: 1 is one after the other, infinity the longer of the two.
    ``interleaved``: a block's latency is hidden by the tiles of its neighbours on the multiprocessor.
    ``side_kernels``: kernels beside the main one. ``width``: head dim for which the kernel is compiled. ``fixed_splits``: splits
    are cut from all keys, seen or not. ``mask_tile``: work for masks in each tile, in exponentials' time. ``mask_block``: for
    each block, in ``block_cycles``; ``crowded_block``: more where blocks share a multiprocessor. ``threads``: of a block.
    ``softmax_share``: where measured shapes cannot tell a tile's two parts apart, ``softmax`` over ``matmul``.
    """

    br: int
    bc: int
    fragment: float = 16
    resident: int = 1
    packed: bool = False
    longest_first: bool = False
    group: int = 1
    section: int = 1
    splits: int = 1
    writes_cache: bool = False
    feeding: float = 1.0
    overlap: float = OVERLAP
    interleaved: bool = False
    side_kernels: int = 0
    width: int = 0
    fixed_splits: bool = False
    mask_tile: float = 0.0
    mask_block: float = 0.0
    crowded_block: float = 0.0
    threads: int = 128
    softmax_share: float = 0.0


def slowdown(plan: Plan, peak: float, element_size: int) -> float:
    """Peak FLOP per cycle over what the plan's matrix instruction reaches, of a tensor unit with that ``peak``."""
    if plan.fragment in (WGMMA, TCGEN05):
        return 1.0
    return max(1.0, peak * element_size / 2 / MMA_SYNC_FLOP)


def padded(d: int) -> int:
    """The head dim for which a kernel is compiled."""
    return next((dim for dim in _HEAD_DIMS if dim >= d), d)


def resident_blocks(device: Device, br: int, bc: int, threads: int, w: Attention) -> int:
    """Blocks per multiprocessor: registers, 255 a thread, and SRAM for Q, K and V tiles."""
    sram, registers = device.level("sram"), device.limits.registers_per_multiprocessor
    needed = w.dtype.size * (br * padded(w.d) + bc * (padded(w.d) + padded(w.dv)))
    by_sram = int(sram.capacity.number) // (needed + 1024) if sram and sram.capacity else 1
    by_registers = int(registers.number) // (256 * threads) if registers else 1
    return max(1, min(by_sram, by_registers))


def major(device: Device) -> int:
    """Major compute capability."""
    return int(device.capability)
