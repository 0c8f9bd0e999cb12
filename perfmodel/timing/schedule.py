"""Makespan of a grid of thread blocks: the time from the first start to the last end.

A slot is room for one block on a multiprocessor. When a slot becomes free, it takes the next block of the grid. If a block takes a
fixed latency plus a time per tile, the schedule depends only on the ratio r = latency / time per tile: a slot that has run K blocks with
T tiles in total is free at K r + T, in tile times. The order of these times changes only at ratios where two of them are equal; between
such ratios one schedule holds, which is cached.
Source: list scheduling, Graham 1966; hardware starts the blocks of a grid in their order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from math import inf
from typing import Generic, TypeVar

from perfmodel.core.arith import ceil_div

EXACT_ROUNDS = 64
"""Last rounds over all slots that ``makespan`` simulates block by block; earlier blocks are assumed to fill all slots evenly."""
SHARED_ROUNDS = 4
"""The same for ``shared_makespan``."""


def makespan(classes: Iterable[tuple[float, int]], slots: int) -> float:
    """Time at which the last block ends, in the unit of durations. ``classes``: (duration, number of blocks), in order of their start.

    Equal blocks run in waves. Uneven blocks are simulated one by one, except the first of a very long list, which are spread evenly
    over the slots; the error is then below one block in ``EXACT_ROUNDS``.

    >>> makespan([(1.0, 5)], 2)
    3.0
    >>> makespan([(3.0, 1), (2.0, 1), (1.0, 2)], 2)
    4.0
    """
    rest = [(duration, count) for duration, count in classes if count > 0]
    even = 0.0
    if len({duration for duration, _ in rest}) > 1:
        skip, listed, rest = max(0, sum(count for _, count in rest) - EXACT_ROUNDS * slots), rest, []
        for duration, count in listed:
            early = min(skip, count)
            even, skip = even + duration * early / slots, skip - early
            rest.append((duration, count - early))
    free: list[tuple[float, int]] = [(even, slots)]
    for duration, count in rest:
        left = count
        while left > 0:
            start, width = heappop(free)
            while free and free[0][0] == start:
                width += heappop(free)[1]
            rounds = left // width if not free else 0
            if rounds > 1:  # every slot falls free at once: whole waves of equal blocks
                start, left = start + (rounds - 1) * duration, left - (rounds - 1) * width
            used = min(width, left)
            heappush(free, (start + duration, used))
            if width > used:
                heappush(free, (start, width - used))
            left -= used
    return max(end for end, _ in free)


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
    """How many blocks at the start are not simulated one by one: a multiple of ``width``, the length of the list."""
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


# Blocks that take a latency and a time per tile

SlotWork = tuple[int, int]
"""(blocks, tiles) that a slot has run."""
Kept = TypeVar("Kept")


class ByRatio(Generic[Kept]):
    """A cached step function of a ratio: ``compute(ratio)`` returns the value there and the interval (low, high) on which it holds."""

    def __init__(self, compute: Callable[[float], tuple[Kept, float, float]]) -> None:
        self.compute = compute
        self.lows: list[float] = []
        self.known: list[tuple[float, Kept]] = []

    def at(self, ratio: float) -> Kept:
        """The value at ``ratio``."""
        place = bisect_right(self.lows, ratio)
        if place and self.known[place - 1][0] >= ratio:
            return self.known[place - 1][1]
        value, low, high = self.compute(ratio)
        self.lows.insert(place, min(low, ratio))
        self.known.insert(place, (max(high, ratio), value))
        return value


def last_slot(tiles: Sequence[int], slots: int) -> ByRatio[SlotWork]:
    """(blocks, tiles) of the slot that ends last, by ratio. Block i visits ``tiles[i]`` tiles; all ``slots`` are free at first.

    >>> last_slot([3, 1, 1, 1], 2).at(0.5), last_slot([3, 1, 1, 1], 2).at(2.0)
    ((3, 3), (2, 4))
    """

    def compute(ratio: float) -> tuple[SlotWork, float, float]:
        free = [(ratio + each, 1, each) for each in tiles[:slots]] + [(0.0, 0, 0)] * (slots - len(tiles))
        heapify(free)
        order = []
        for each in tiles[slots:]:
            first = free[0]
            order.append(first[1:])
            heapreplace(free, (first[0] + (ratio + each), first[1] + 1, first[2] + each))
        last = max(free)[1:]
        rest = {one[1:] for one in free}
        pairs = [*pairwise(order), *((one, last) for one in rest)]
        if order:
            pairs += [(order[-1], one) for one in rest]
        return last, *ratio_range(pairs)

    return ByRatio(compute)


def ratio_range(pairs: Iterable[tuple[SlotWork, SlotWork]]) -> tuple[float, float]:
    """Range of ratios in which, for each of ``pairs``, the second slot is free no earlier than the first.

    >>> ratio_range([((1, 4), (2, 3)), ((1, 4), (0, 7))])
    (1.0, 3.0)
    """
    low, high = 0.0, inf
    for (fewer, less), (blocks, tiles) in pairs:
        if blocks > fewer:
            low = max(low, (less - tiles) / (blocks - fewer))
        elif blocks < fewer:
            high = min(high, (tiles - less) / (fewer - blocks))
    return low, high
