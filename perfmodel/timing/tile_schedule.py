"""List scheduling of blocks whose time is a latency and a time per tile: which block follows which depends on their ratio alone.

With r = latency / time of a tile, a place that has run K blocks of T tiles in all falls free at K r + T tiles. The order in which
places fall free changes only at ratios where two of these are equal; between them the schedule stays, and is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heapify, heapreplace
from itertools import pairwise
from math import inf
from typing import Generic, TypeVar

from perfmodel.timing.schedule import Shares

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


def lanes(tiles: Sequence[int], blocks: int, shares: Shares) -> ByRatio[Lanes]:
    """How lanes that are equally full end, by ratio; ``blocks`` blocks, whose list of ``tiles`` comes again and again.

    While blocks wait, every lane is full and all run at one speed.
    """
    width, started = len(tiles), min(blocks, shares.slots)

    def lane_of(block: int) -> int:  # one block to each multiprocessor, then a second one
        return block % shares.multiprocessors * shares.lanes + block // shares.multiprocessors % shares.lanes

    def work_out(ratio: float) -> tuple[Lanes, float, float]:
        free = [(ratio + tiles[block % width], lane_of(block), 1, tiles[block % width]) for block in range(started)]
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
    return max(map(partial(_lane_end, ratio, speeds), found))


def _lane_end(ratio: float, speeds: Sequence[float], lane: tuple[Sum, ...]) -> float:
    now, clock = 0.0, 0.0
    for speed, (count, run) in zip(speeds[len(lane) - 1 :: -1], lane, strict=True):
        end = count * ratio + run
        now, clock = now + (end - clock) / speed, end
    return now
