"""When the last block of a fused attention kernel ends: blocks over the places that the multiprocessors have for them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import sqrt

from perfmodel.timing.models._flash_blocks import Blocks

TAIL = 0.2
"""Part of the lateness of the last places that a block gains whose neighbours have ended; others end together with it.

Chosen on measured shapes that fits may see, as are the constants of ``_flash_torch``."""
TUNED = ("TAIL",)
"""Chosen on measurements that fits may see, beside the fitted parameters."""


def listed_cycles(blocks: Blocks, resident: int, slots: int, tile: float, block: float, alone: float) -> float:
    """Blocks one after the other on every place.

    Blocks that share a multiprocessor are slowed down by each other; where places stay empty at the end, those that are left
    run at ``alone`` times their share, which takes back a part of the time by which the last place is late.
    """
    shared = tile * resident
    end, balanced = _ends(
        blocks, slots, [block + tiles * shared for tiles in blocks.last], blocks.early * block + blocks.early_tiles * shared
    )
    if resident == 1:
        return end
    gained = (end - balanced) * (resident - min(alone, resident)) / (resident - 1)
    return max(end - gained, block + max(blocks.last) * tile * min(alone, resident))


def _ends(blocks: Blocks, slots: int, cycles: Sequence[float], early: float) -> tuple[float, float]:
    """End of the last place, and the end if all ended together. ``cycles`` of each of the last blocks, ``early``: sum of the others."""
    free = [early / slots + each for each in cycles[:slots]]  # all places fall free at once: a block to each
    free += [early / slots] * (slots - len(free))
    heapify(free)
    for each in cycles[slots:]:
        heapreplace(free, free[0] + each)
    return max(free), (early + sum(cycles)) / slots


def equal_cycles(blocks: Blocks, resident: int, sms: int, tile: float, block: float, alone: float) -> float:
    """Blocks of equal length, in rounds: the multiprocessor with the most of them ends last."""
    most, tiles = -(-blocks.count // sms), blocks.last[0] * tile
    alone = min(max(alone, 1.0), resident)
    if most <= resident:
        return float(block + tiles * max(most, alone))
    rounds, rest = divmod(most, resident)
    return float(rounds * _steady(block, tiles, resident, alone) + (block + tiles * max(rest, alone) if rest else 0.0))


def interleaved_cycles(blocks: Blocks, resident: int, sms: int, tile: float, block: float, alone: float) -> float:
    """Blocks of unequal length; while one waits for its first loads, its neighbours on the multiprocessor run faster.

    ``alone``: how much longer a tile takes that has the multiprocessor for itself than its share of a full one.
    """
    alone, slots = min(max(alone, 1.0), resident), sms * resident
    if blocks.count <= slots:  # block i runs beside those sms, 2 sms, ... further on
        return block + max(_together(sorted(blocks.last[i::sms]), tile, alone) for i in range(min(sms, blocks.count)))
    mean = (blocks.early_tiles + sum(blocks.last)) * tile / blocks.count
    waiting = block / _steady(block, mean, resident, alone) if mean else 1.0
    slowed = tile * (resident - (resident - alone) * waiting)
    early = blocks.early * block + blocks.early_tiles * slowed
    end, balanced = _ends(blocks, slots, [block + tiles * slowed for tiles in blocks.last], early)
    return end - TAIL * (end - balanced) * (resident - alone) / max(1, resident - 1)


def _together(tiles: Sequence[int], tile: float, alone: float) -> float:
    """Cycles of blocks that start together, shortest first."""
    cycles, before = 0.0, 0
    for left, each in zip(range(len(tiles), 0, -1), tiles, strict=True):
        cycles += (each - before) * tile * max(left, alone)
        before = each
    return cycles


def _steady(block: float, tiles: float, resident: int, alone: float) -> float:
    """Cycles T of a block of ``tiles`` cycles among ``resident``, any of which waits for ``block`` of its T cycles.

    T = block + tiles (R - (R - alone) block / T): the share of a neighbour that waits goes to those that run.
    """
    full = block + resident * tiles
    return (full + sqrt(max(0.0, full * full - 4 * (resident - alone) * tiles * block))) / 2
