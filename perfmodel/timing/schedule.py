"""Time of a grid whose blocks share schedulers of a multiprocessor, for this project's own kernels in fp32.

A multiprocessor has several lanes, parts that do not compete; blocks in one lane slow each other down as long as both run, and a block that
ends makes room for the next of the grid. Of long grids the first rounds are assumed to fill the device evenly.
Source: list scheduling, Graham 1966; hardware starts the blocks of a grid in their order.
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
    """Slots of multiprocessors on which blocks slow each other down.

    A multiprocessor holds ``blocks`` blocks, spread over ``lanes``: parts that do not compete (a block of one warp uses one of four
    schedulers). ``speeds[m - 1]``: speed of a block with m blocks in its lane, relative to a block alone.
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
        held = [self.blocks // self.lanes + (lane < self.blocks % self.lanes) for lane in range(self.lanes)]
        return self.multiprocessors * sum(count * self.speeds[count - 1] for count in held if count)


def shared_makespan(works: Sequence[float], repeats: int, shares: SharedSlots) -> float:
    """Seconds until the last block ends. ``works``: seconds of each block alone, in order; the list is repeated ``repeats`` times.

    Blocks that share a lane slow each other down as long as both run, so a half empty last wave runs faster.

    >>> one = SharedSlots(multiprocessors=1, blocks=2, lanes=1, speeds=(1.0, 0.5))
    >>> shared_makespan([1.0], 3, one), shared_makespan([2.0, 1.0], 1, one)
    (3.0, 3.0)
    """
    blocks = repeats * len(works)
    if len(set(works)) == 1 and shares.blocks % shares.lanes == 0:  # rounds of blocks that all end together
        full, rest = divmod(blocks, shares.slots)
        last = ceil_div(rest, shares.multiprocessors * shares.lanes)
        return works[0] * (full / shares.speeds[shares.blocks // shares.lanes - 1] + (1 / shares.speeds[last - 1] if rest else 0.0))
    skip = spread_evenly(blocks, len(works), shares)
    return _simulated(works, blocks - skip, shares, sum(works) * skip / len(works) / shares.rate)


def spread_evenly(blocks: int, width: int, shares: SharedSlots) -> int:
    """Number of blocks at the start that are not simulated one by one: a multiple of ``width``, the length of the list."""
    return max(0, blocks // shares.slots - SHARED_ROUNDS) * shares.slots // width * width


def _simulated(order: Sequence[float], blocks: int, shares: SharedSlots, begin: float) -> float:
    """Makespan of ``blocks`` blocks that start at ``begin``, event by event.

    A lane's clock counts the work done per block: a block with work w that starts at clock c ends at clock c + w.
    """
    width, speeds = len(order), shares.speeds
    started = min(blocks, shares.slots)
    ends: list[list[float]] = [[] for _ in range(shares.multiprocessors * shares.lanes)]
    for block in range(started):
        ends[shares.lane_of(block)].append(order[block % width])
    for lane in ends:
        lane.sort()
    events = [(begin + lane[0] / speeds[len(lane) - 1], place) for place, lane in enumerate(ends) if lane]
    heapify(events)
    now = begin
    while events:
        now, place = events[0]
        lane = ends[place]
        clock = lane.pop(0)
        if started < blocks:
            insort(lane, clock + order[started % width])
            started += 1
        if lane:
            heapreplace(events, (now + (lane[0] - clock) / speeds[len(lane) - 1], place))
        else:
            heappop(events)
    return now
