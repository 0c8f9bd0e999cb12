"""The engine of time models of tiled kernels: blocks in slots, units that work at the same time, DRAM beside them, all at a clock.

A slot is room for one block on a multiprocessor; a slot that becomes free takes the next block of the grid. A block takes a latency
(first loads, last stores) and a time per tile. Blocks on one multiprocessor share its units: each runs slower than alone, and while
one waits for its first loads its neighbours run faster. Source: list scheduling, Graham 1966; hardware starts blocks in their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from math import inf, sqrt
from typing import Generic, NamedTuple, TypeVar

from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import boost

L2_PORT = 64.0  # known
"""Bytes per clock that a multiprocessor takes from the L2 at most. Source: NVIDIA A100 whitepaper, L2 read bandwidth of 5,120 B/clk."""
EXACT_ROUNDS = 64  # known
"""Number of last rounds over all slots that ``makespan`` simulates block by block; earlier blocks are assumed to fill all slots evenly."""
ROUNDS = 3  # known
"""The same for a ``TileBlocks``."""
IN_STEP = 2  # tuned
"""First rounds of blocks that wait for their loads at the same time, so that none hides another's."""
ALONE, TAIL = 1.3, 0.3  # tuned
"""Defaults: time of a tile alone over its share beside others; part of the tail that the last blocks recover once others have ended."""
COLD = 1.5  # tuned
"""Norm of compute and DRAM time on cold caches."""
HARDEST = 50.0  # known
"""A norm that hides the shorter time wholly; beyond, powers lose their digits."""
SFU_EXP = 16.0  # known
"""Exponentials per cycle and multiprocessor of every NVIDIA GPU before Blackwell Ultra, which doubled them: the unit of a tile's other
work. One exponential per score runs at the device's own rate; the rest, on other units, does not go faster with it."""


def joined(norm: float, *times: float) -> float:
    """Time of parts that overlap: with a ``norm`` of 1 or less their sum, with ``HARDEST`` or more the longest alone.

    >>> joined(1, 3.0, 4.0), joined(2, 3.0, 4.0)
    (7.0, 5.0)
    """
    longest = max(times)
    if norm >= HARDEST or not longest:
        return longest
    exponent = max(norm, 1.0)
    return float(longest * sum((time / longest) ** exponent for time in times) ** (1 / exponent))


def beside_dram(computing: float, moving: float, cold: bool) -> float:
    """Time of a kernel whose loads run beside its work. With ``cold`` caches they overlap in part: blocks wait for their first loads."""
    return joined(COLD, computing, moving) if cold else max(computing, moving)


class TileRates(NamedTuple):
    """Rates of a multiprocessor per cycle of the tensor clock: FLOP, exponentials, bytes of SRAM. ``bandwidth``: B/s over the device."""

    sms: int
    clock_hz: float
    matmul: float
    exp: float
    sram: float
    bandwidth: float
    threads: int

    def exp_cycles(self, work: float, scores: float) -> float:
        """Cycles of ``work``, counted in exponentials, ``scores`` of which are real ones."""
        on_sfu = min(work, scores)
        return on_sfu / self.exp + (work - on_sfu) / SFU_EXP

    def byte_s(self, dram: float, lost: float = 1.0) -> float:
        """Seconds per byte: the share ``lost`` comes from DRAM at ``dram`` times the nominal time, the rest from the L2."""
        pins = dram / self.bandwidth
        return lost * pins + (1 - lost) * min(pins, 1 / (L2_PORT * self.sms * self.clock_hz))


def rates_of(device: Device, dtype: str) -> TileRates:
    """The ``TileRates`` of ``device`` in ``dtype``; UnavailableError names what its profile lacks."""
    peak, threads = device.peaks_of("tensor").get(dtype), device.limits.max_threads_per_multiprocessor
    exp, sms, clock, dram = device.peaks.exp, device.multiprocessors, device.clocks.tensor, device.dram.bandwidth
    if peak is None or exp is None or sms is None or clock is None or dram is None:
        needs = {f"tensor peak in {dtype}": peak, "exp peak": exp, "multiprocessors": sms, "tensor clock": clock, "DRAM bandwidth": dram}
        missing = ", ".join(name for name, value in needs.items() if value is None)
        raise UnavailableError(f"{device.id}: fused attention cannot be timed without {missing}", "add it to the device's profile")
    cycles, sram, faster = sms.number * clock.number, device.level("sram"), boost(device)
    sram_clock = clock if faster > 1 else device.clocks.max or clock
    return TileRates(
        sms=int(sms.number),
        clock_hz=clock.number * faster,
        matmul=peak.per_clk or peak.number / cycles,
        exp=exp.per_clk or exp.number / cycles,
        sram=sram.bandwidth.number / (sms.number * sram_clock.number) if sram and sram.bandwidth else inf,
        bandwidth=dram.number,
        threads=int(threads.number) if threads else 2048,
    )


# Blocks that take a latency and a time per tile


@dataclass(frozen=True)
class TileBlocks:
    """Blocks for ``sms`` multiprocessors, ``resident`` on each.

    ``last``: tiles of each of the last blocks, in order; ``early`` and ``early_tiles``: blocks before them and their tiles.
    """

    last: tuple[int, ...]
    early: int
    early_tiles: int
    sms: int
    resident: int = 1

    @property
    def count(self) -> int:
        """Number of blocks of the grid."""
        return self.early + len(self.last)

    @property
    def slots(self) -> int:
        """Blocks that run at once on the device."""
        return self.sms * self.resident

    @cached_property
    def last_tiles(self) -> int:
        """Total tiles of the last blocks."""
        return sum(self.last)

    @cached_property
    def mean_tiles(self) -> float:
        """Mean number of tiles of a block."""
        return (self.early_tiles + self.last_tiles) / self.count

    @cached_property
    def equal(self) -> bool:
        """Whether all blocks have equally many tiles."""
        return len(set(self.last)) == 1 and self.mean_tiles == self.last[0]

    @cached_property
    def last_slot(self) -> ByRatio[SlotWork]:
        """Blocks and tiles of the slot that ends last, of the last blocks alone, as a function of block latency over tile time."""
        return last_slot(self.last, self.slots)

    @cached_property
    def together(self) -> set[tuple[int, ...]]:
        """Tiles of the blocks that share a multiprocessor, shortest first. The longest blocks of two rounds are taken to meet."""
        order = sorted(self.last[: self.sms], reverse=True) + sorted(self.last[self.sms :], reverse=True)
        return {tuple(sorted(order[i :: self.sms])) for i in range(min(self.sms, len(order)))}

    def cycles(self, tile: float, block: float, alone: float = ALONE, beside: Callable[[int], float] | None = None) -> float:
        """Cycles until the last block ends, each with a latency ``block`` and ``tile`` cycles of a full multiprocessor for a tile.

        ``beside(m)``: time of a tile in each of m blocks on a multiprocessor over its share of a full one; by default it goes in even steps
        from ``alone`` for one block to ``resident`` for all.
        """
        resident = self.resident
        if beside is None:
            alone = min(max(alone, 1.0), resident)
            beside = lambda m: alone + (resident - alone) * (m - 1) / max(1, resident - 1)  # noqa: E731
        if self.equal:
            return self._rounds(self.last[0] * tile, block, beside)
        if resident == 1:
            return self._ends(tile, block)[0]
        if self.count <= self.slots:
            return block + max(_together(tiles, tile, beside) for tiles in self.together)
        mean, alone = self.mean_tiles * tile, beside(1)
        waiting = block / _steady(block, mean, resident, alone) if mean else 1.0
        waiting *= max(0.0, 1 - IN_STEP * self.slots / self.count)
        end, balanced = self._ends(tile * (resident - (resident - alone) * waiting), block)
        return end - TAIL * (end - balanced) * (resident - alone) / (resident - 1)

    def _ends(self, tile: float, block: float) -> tuple[float, float]:
        """Cycles until the last slot ends, and cycles if all slots were perfectly balanced. Early blocks are spread evenly."""
        early, slots = self.early * block + self.early_tiles * tile, self.slots
        count, tiles = self.last_slot.at(block / tile)
        balanced = (early + len(self.last) * block + self.last_tiles * tile) / slots
        return early / slots + (count * block + tiles * tile), balanced

    def _rounds(self, tiles: float, block: float, beside: Callable[[int], float]) -> float:
        """Cycles until the last of equal blocks ends, on the multiprocessor with the most of them."""
        rounds, rest = divmod(-(-self.count // self.sms), self.resident)
        in_step = min(rounds, IN_STEP)
        before = in_step * (block + self.resident * tiles) + (rounds - in_step) * _steady(block, tiles, self.resident, beside(1))
        return float(before + (block + tiles * beside(rest) if rest else 0.0))


def _together(tiles: Sequence[int], tile: float, beside: Callable[[int], float]) -> float:
    """Cycles until the last of blocks that start together ends; ``tiles`` of each, shortest first."""
    cycles, before = 0.0, 0
    for left, each in zip(range(len(tiles), 0, -1), tiles, strict=True):
        cycles += (each - before) * tile * beside(left)
        before = each
    return cycles


def _steady(block: float, tiles: float, resident: int, alone: float) -> float:
    """Cycles T of a block with ``tiles`` cycles of work among R = ``resident`` blocks, each of which waits ``block`` of its T cycles.

    T = block + tiles (R - (R - alone) block / T): the share of a neighbour that waits goes to those that run.
    """
    full = block + resident * tiles
    return (full + sqrt(max(0.0, full * full - 4 * (resident - alone) * tiles * block))) / 2


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
    """(blocks, tiles) of the slot that ends last, by ratio of latency to tile time; all ``slots`` are free at first.

    A slot that has run K blocks with T tiles is free at K ratio + T: the order changes only at ratios where two of these are equal.

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
        rest = {slot[1:] for slot in free}
        pairs = [*pairwise(order), *((slot, last) for slot in rest)]
        if order:
            pairs += [(order[-1], slot) for slot in rest]
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


# Blocks of any duration


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
