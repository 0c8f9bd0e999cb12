"""When the last block of a fused attention kernel ends: blocks over the places that the multiprocessors have for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from perfmodel.timing.models._flash_blocks import Blocks

TAIL = 0.2
"""Part of the lateness of the last places that a block gains whose neighbours have ended; others end together with it.

Chosen on measured shapes that fits may see, as are the constants of ``_flash_torch``."""
TUNED = ("TAIL",)
"""Chosen on measurements that fits may see, beside the fitted parameters."""


def listed_cycles(blocks: Blocks, tile: float, block: float, alone: float) -> float:
    """Blocks one after the other on every place.

    Blocks that share a multiprocessor are slowed down by each other; where places stay empty at the end, those that are left
    run at ``alone`` times their share, which takes back a part of the time by which the last place is late.
    """
    resident = blocks.resident
    end, balanced = _ends(blocks, tile * resident, block)
    if resident == 1:
        return end
    gained = (end - balanced) * (resident - min(alone, resident)) / (resident - 1)
    return max(end - gained, block + blocks.most * tile * min(alone, resident))


def _ends(blocks: Blocks, tile: float, block: float) -> tuple[float, float]:
    """End of the last place, and the end if all ended together. The first blocks are spread evenly."""
    early, slots = blocks.early * block + blocks.early_tiles * tile, blocks.slots
    count, tiles = blocks.last_place.at(block / tile)
    balanced = (early + len(blocks.last) * block + blocks.last_tiles * tile) / slots
    return early / slots + (count * block + tiles * tile), balanced


def equal_cycles(blocks: Blocks, tile: float, block: float, alone: float) -> float:
    """Blocks of equal length, in rounds: the multiprocessor with the most of them ends last."""
    resident = blocks.resident
    most, tiles = -(-blocks.count // blocks.sms), blocks.last[0] * tile
    alone = min(max(alone, 1.0), resident)
    if most <= resident:
        return float(block + tiles * max(most, alone))
    rounds, rest = divmod(most, resident)
    return float(rounds * _steady(block, tiles, resident, alone) + (block + tiles * max(rest, alone) if rest else 0.0))


def interleaved_cycles(blocks: Blocks, tile: float, block: float, alone: float) -> float:
    """Blocks of unequal length; while one waits for its first loads, its neighbours on the multiprocessor run faster.

    ``alone``: how much longer a tile takes that has the multiprocessor for itself than its share of a full one.
    """
    resident = blocks.resident
    alone = min(max(alone, 1.0), resident)
    if blocks.count <= blocks.slots:
        return block + max(_together(tiles, tile, alone) for tiles in blocks.together)
    mean = (blocks.early_tiles + blocks.last_tiles) * tile / blocks.count
    waiting = block / _steady(block, mean, resident, alone) if mean else 1.0
    slowed = tile * (resident - (resident - alone) * waiting)
    end, balanced = _ends(blocks, slowed, block)
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
