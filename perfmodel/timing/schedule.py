"""How long thread blocks take on a device: each place takes the next block of the grid as it falls free.

Blocks whose time is a latency and a time per tile: which follows which depends on their ratio alone. With r = latency / time of a
tile, a place that has run K blocks of T tiles in all falls free at K r + T tiles. The order in which places fall free changes only at
ratios where two of these are equal; between them the schedule stays, and is kept.
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
"""Rounds over all slots that ``makespan`` follows block by block; what comes before fills every slot evenly."""
SHARED_ROUNDS = 4
"""The same for ``shared_makespan``, which follows the blocks of a multiprocessor as they slow each other down."""


def makespan(classes: Iterable[tuple[float, int]], slots: int) -> float:
    """When the last block ends. ``classes``: duration and number of blocks, in the order in which they start.

    Equal blocks run in waves. Uneven ones are followed block by block, except the first of very long lists, which
    are spread evenly: then what is left out is below one block in ``EXACT_ROUNDS``.

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
class SharedPlaces:
    """How the blocks on a multiprocessor slow each other down.

    It has ``lanes`` parts that do not compete (a block of one warp uses one of four schedulers) and holds ``blocks`` blocks,
    spread over them. ``speeds[m - 1]``: speed of each of m blocks in a lane, as a share of one block's alone.
    """

    multiprocessors: int
    blocks: int
    lanes: int
    speeds: tuple[float, ...]

    @property
    def slots(self) -> int:
        """Blocks that run at once."""
        return self.multiprocessors * self.blocks

    def lane_of(self, block: int) -> int:
        """Where one of the first blocks starts: one block to each multiprocessor, then a second one."""
        return block % self.multiprocessors * self.lanes + block // self.multiprocessors % self.lanes

    @property
    def rate(self) -> float:
        """Work per second of a full device, in blocks alone."""
        held = [self.blocks // self.lanes + (lane < self.blocks % self.lanes) for lane in range(self.lanes)]
        return self.multiprocessors * sum(count * self.speeds[count - 1] for count in held if count)


def shared_makespan(works: Sequence[float], repeats: int, shares: SharedPlaces) -> float:
    """When the last block ends. ``works``: seconds of each block alone, in order; the whole list comes ``repeats`` times.

    Blocks that share a lane slow each other down as long as both run, so a half empty last wave runs faster.

    >>> one = SharedPlaces(multiprocessors=1, blocks=2, lanes=1, speeds=(1.0, 0.5))
    >>> shared_makespan([1.0], 3, one), shared_makespan([2.0, 1.0], 1, one)
    (3.0, 3.0)
    """
    blocks = repeats * len(works)
    if len(set(works)) == 1 and shares.blocks % shares.lanes == 0:  # rounds of blocks that all end together
        full, rest = divmod(blocks, shares.slots)
        last = ceil_div(rest, shares.multiprocessors * shares.lanes)
        return works[0] * (full / shares.speeds[shares.blocks // shares.lanes - 1] + (1 / shares.speeds[last - 1] if rest else 0.0))
    skip = spread_evenly(blocks, len(works), shares)
    return _follow(works, blocks - skip, shares, sum(works) * skip / len(works) / shares.rate)


def spread_evenly(blocks: int, width: int, shares: SharedPlaces) -> int:
    """How many of the first ``blocks`` are not followed: whole lists of ``width``."""
    return max(0, blocks // shares.slots - SHARED_ROUNDS) * shares.slots // width * width


def _follow(order: Sequence[float], blocks: int, shares: SharedPlaces, begin: float) -> float:
    """The makespan of ``blocks`` blocks, event by event.

    A lane's clock runs in work done per block: a block with work w that starts at clock c ends at clock c + w.
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


# Blocks of tiles

Sum = tuple[int, int]
"""Blocks and tiles that a place has run."""
Kept = TypeVar("Kept")


class ByRatio(Generic[Kept]):
    """A function of a ratio that is constant on intervals: ``work_out`` gives its value and the interval; each is worked out once."""

    def __init__(self, work_out: Callable[[float], tuple[Kept, float, float]]) -> None:
        self.work_out = work_out
        self.lows: list[float] = []
        self.known: list[tuple[float, Kept]] = []

    def at(self, ratio: float) -> Kept:
        """The value at ``ratio``."""
        place = bisect_right(self.lows, ratio)
        if place and self.known[place - 1][0] >= ratio:
            return self.known[place - 1][1]
        value, low, high = self.work_out(ratio)
        self.lows.insert(place, min(low, ratio))
        self.known.insert(place, (max(high, ratio), value))
        return value


def last_place(tiles: Sequence[int], slots: int) -> ByRatio[Sum]:
    """Blocks and tiles of the place that ends last, by ratio; block i visits ``tiles[i]``, all ``slots`` places are free at first.

    >>> last_place([3, 1, 1, 1], 2).at(0.5), last_place([3, 1, 1, 1], 2).at(2.0)
    ((3, 3), (2, 4))
    """

    def work_out(ratio: float) -> tuple[Sum, float, float]:
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
        return last, *holds(pairs)

    return ByRatio(work_out)


def holds(pairs: Iterable[tuple[Sum, Sum]]) -> tuple[float, float]:
    """Least and largest ratio at which no second of ``pairs`` ends before the first.

    >>> holds([((1, 4), (2, 3)), ((1, 4), (0, 7))])
    (1.0, 3.0)
    """
    low, high = 0.0, inf
    for (fewer, less), (blocks, tiles) in pairs:
        if blocks > fewer:
            low = max(low, (less - tiles) / (blocks - fewer))
        elif blocks < fewer:
            high = min(high, (tiles - less) / (fewer - blocks))
    return low, high


Lanes = frozenset[tuple[Sum, ...]]
"""Of the different lanes, what each of their places runs in all, the first to end first."""


def lanes(tiles: Sequence[int], blocks: int, shares: SharedPlaces) -> ByRatio[Lanes]:
    """How lanes that are equally full end, by ratio; ``blocks`` blocks, whose list of ``tiles`` comes again and again.

    While blocks wait, every lane is full and all run at one speed.
    """
    width, started = len(tiles), min(blocks, shares.slots)

    def work_out(ratio: float) -> tuple[Lanes, float, float]:
        free = [(ratio + tiles[block % width], shares.lane_of(block), 1, tiles[block % width]) for block in range(started)]
        heapify(free)
        order = []
        for block in range(started, blocks):
            _, lane, before, run = free[0]
            order.append((before, run))
            count, run = before + 1, run + tiles[block % width]
            heapreplace(free, (count * ratio + run, lane, count, run))
        rest: dict[int, list[Sum]] = {}
        for _, lane, *one in sorted(free):
            rest.setdefault(lane, []).append((one[0], one[1]))
        found = frozenset(map(tuple, rest.values()))
        pairs = [*pairwise(order), *(pair for lane in found for pair in pairwise(lane))]
        return found, *holds([*pairs, *((order[-1], lane[0]) for lane in found if order)])

    return ByRatio(work_out)


def drained(found: Lanes, ratio: float, speeds: Sequence[float]) -> float:
    """When the last lane ends, in times of a tile alone; ``speeds`` as in ``Shares``.

    >>> drained(frozenset([((1, 1), (1, 3))]), 1.0, (1.0, 0.5))
    6.0
    """

    def end_of(lane: tuple[Sum, ...]) -> float:
        now, clock = 0.0, 0.0
        for speed, (count, run) in zip(speeds[len(lane) - 1 :: -1], lane, strict=True):
            end = count * ratio + run
            now, clock = now + (end - clock) / speed, end
        return now

    return max(map(end_of, found))
