"""How long thread blocks take on a device: each place takes the next block of the grid as it falls free.

Source: list scheduling, Graham 1966; hardware starts the blocks of a grid in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from perfmodel.core.arith import Number, ceil_div

EXACT_ROUNDS = 64
"""Rounds over all slots that ``makespan`` follows block by block; what comes before fills every slot evenly."""
SHARED_ROUNDS = 4
"""The same for ``shared_makespan``, which follows the blocks of a multiprocessor as they slow each other down."""


def waves(blocks: Number, slots: Number) -> Number:
    """Rounds that equal blocks take.

    >>> waves(133, 132)
    2
    """
    return ceil_div(blocks, slots)


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
        even, rest = _spread_early(rest, max(0, sum(count for _, count in rest) - EXACT_ROUNDS * slots), slots)
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


def _spread_early(classes: list[tuple[float, int]], skip: int, slots: int) -> tuple[float, list[tuple[float, int]]]:
    """When the first ``skip`` blocks end if they fill all slots evenly, and the blocks after them."""
    even, rest = 0.0, []
    for duration, count in classes:
        early = min(skip, count)
        even, skip = even + duration * early / slots, skip - early
        rest.append((duration, count - early))
    return even, rest


@dataclass(frozen=True, slots=True)
class Shares:
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

    @property
    def rate(self) -> float:
        """Work per second of a full device, in blocks alone."""
        held = [self.blocks // self.lanes + (lane < self.blocks % self.lanes) for lane in range(self.lanes)]
        return self.multiprocessors * sum(count * self.speeds[count - 1] for count in held if count)


def shared_makespan(works: Sequence[float], repeats: int, shares: Shares) -> float:
    """When the last block ends. ``works``: seconds of each block alone, in order; the whole list comes ``repeats`` times.

    Blocks that share a lane slow each other down as long as both run, so a half empty last wave runs faster.

    >>> one = Shares(multiprocessors=1, blocks=2, lanes=1, speeds=(1.0, 0.5))
    >>> shared_makespan([1.0], 3, one), shared_makespan([2.0, 1.0], 1, one)
    (3.0, 3.0)
    """
    blocks = repeats * len(works)
    if len(set(works)) == 1 and shares.blocks % shares.lanes == 0:
        return works[0] * _equal_rounds(blocks, shares)
    skip = spread_evenly(blocks, len(works), shares)
    return _follow(works, blocks - skip, shares, sum(works) * skip / len(works) / shares.rate)


def spread_evenly(blocks: int, width: int, shares: Shares) -> int:
    """How many of the first ``blocks`` are not followed: whole lists of ``width``."""
    return max(0, blocks // shares.slots - SHARED_ROUNDS) * shares.slots // width * width


def _equal_rounds(blocks: int, shares: Shares) -> float:
    """Rounds, in times of one block alone, of equal blocks whose lanes are equally full: all end together."""
    full, rest = divmod(blocks, shares.slots)
    last = ceil_div(rest, shares.multiprocessors * shares.lanes)
    return full / shares.speeds[shares.blocks // shares.lanes - 1] + (1 / shares.speeds[last - 1] if rest else 0.0)


def _follow(order: Sequence[float], blocks: int, shares: Shares, begin: float) -> float:
    """The makespan of ``blocks`` blocks, event by event.

    A lane's clock runs in work done per block: a block with work w that starts at clock c ends at clock c + w.
    """
    from bisect import insort  # here: commands that follow no such blocks start without it

    width, lanes, speeds = len(order), shares.lanes, shares.speeds
    started = min(blocks, shares.slots)
    ends: list[list[float]] = [[] for _ in range(shares.multiprocessors * lanes)]
    for block in range(started):  # one to each multiprocessor, then a second one
        place = block % shares.multiprocessors * lanes + block // shares.multiprocessors % lanes
        ends[place].append(order[block % width])
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
