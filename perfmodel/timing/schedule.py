"""Time of a grid whose blocks share the schedulers of a multiprocessor, for this project's own kernels in fp32.

A multiprocessor has several lanes that do not compete, as a block of one warp uses one of four schedulers. Blocks in one lane slow each
other down as long as both run, and a block that ends makes room for the next of the grid. The first rounds of a long grid are assumed to
fill the device evenly. Source: list scheduling, Graham 1966; hardware starts the blocks of a grid in their order.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from perfmodel.core.arith import ceil_div
from perfmodel.core.frozen import dataclass

SHARED_ROUNDS = 4
"""Last rounds over all slots that are simulated block by block."""


@dataclass(frozen=True, slots=True)
class SharedSlots:
    """Slots of ``multiprocessors``, each of which holds ``blocks`` blocks, spread over ``lanes``.

    ``speeds[m - 1]``: speed of a block with m blocks in its lane, relative to a block alone.
    """

    multiprocessors: int
    blocks: int
    lanes: int
    speeds: tuple[float, ...]

    @property
    def slots(self) -> int:
        """Blocks that run at once on the device."""
        return self.multiprocessors * self.blocks

    def lane_of(self, block: int) -> int:
        """Lane in which block number ``block`` of the first round starts: one block to each multiprocessor, then a second, and so on."""
        return block % self.multiprocessors * self.lanes + block // self.multiprocessors % self.lanes

    @property
    def rate(self) -> float:
        """Throughput of a full device, relative to a single block alone."""
        in_lane = [self.blocks // self.lanes + (lane < self.blocks % self.lanes) for lane in range(self.lanes)]
        return self.multiprocessors * sum(count * self.speeds[count - 1] for count in in_lane if count)


def shared_makespan(works: Sequence[float], repeats: int, shares: SharedSlots) -> float:
    """Seconds until the last block ends. ``works``: seconds of each block alone, in order; the list is repeated ``repeats`` times.

    >>> one = SharedSlots(multiprocessors=1, blocks=2, lanes=1, speeds=(1.0, 0.5))
    >>> shared_makespan([1.0], 3, one), shared_makespan([2.0, 1.0], 1, one)
    (3.0, 3.0)
    """
    blocks = repeats * len(works)
    if len(set(works)) == 1 and shares.blocks % shares.lanes == 0:  # rounds of blocks that all end together
        rounds, last_blocks = divmod(blocks, shares.slots)
        rounds_s = rounds / shares.speeds[shares.blocks // shares.lanes - 1]
        in_lane = ceil_div(last_blocks, shares.multiprocessors * shares.lanes)
        return works[0] * (rounds_s + (1 / shares.speeds[in_lane - 1] if last_blocks else 0.0))
    skipped = spread_evenly(blocks, len(works), shares)
    return _simulated(works, blocks - skipped, shares, sum(works) * skipped / len(works) / shares.rate)


def spread_evenly(blocks: int, width: int, shares: SharedSlots) -> int:
    """Number of blocks at the start that are not simulated one by one: a multiple of ``width``, the length of the list."""
    return max(0, blocks // shares.slots - SHARED_ROUNDS) * shares.slots // width * width


def _simulated(works: Sequence[float], blocks: int, shares: SharedSlots, begin: float) -> float:
    """Time at which the last of ``blocks`` blocks ends, which start at ``begin``; ``works`` of each, repeated, simulated end by end.

    Each lane has a clock that counts the work done per block: a block with work w that starts at clock c ends at clock c + w.
    """
    width, speeds = len(works), shares.speeds
    started = min(blocks, shares.slots)
    end_clocks: list[list[float]] = [[] for _ in range(shares.multiprocessors * shares.lanes)]  # of the blocks in each lane
    for block in range(started):
        end_clocks[shares.lane_of(block)].append(works[block % width])
    for lane in end_clocks:
        lane.sort()
    next_ends = [(begin + lane[0] / speeds[len(lane) - 1], number) for number, lane in enumerate(end_clocks) if lane]
    heapify(next_ends)
    now = begin
    while next_ends:
        now, number = next_ends[0]
        lane = end_clocks[number]
        clock = lane.pop(0)
        if started < blocks:
            insort(lane, clock + works[started % width])
            started += 1
        if lane:
            heapreplace(next_ends, (now + (lane[0] - clock) / speeds[len(lane) - 1], number))
        else:
            heappop(next_ends)
    return now
