"""The engine of time models of tiled kernels: when the last block of a grid ends (``TileBlocks``, ``makespan``), and how times overlap.

A slot is room for one block on a multiprocessor; a slot that becomes free takes the next block of the grid. A block takes a latency (first
loads, last stores) and a time per tile. Blocks on one multiprocessor share its units: each runs slower than alone, and while one waits for
its first loads its neighbours run faster. Source: list scheduling, Graham 1966; hardware starts blocks in their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from math import inf, sqrt
from typing import Generic, NamedTuple, TypeVar

from perfmodel.core.architectures import tensor_share
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import boost

L2_PORT = 64.0  # known
"""Bytes per clock that a multiprocessor takes from the L2 at most. Source: NVIDIA A100 whitepaper, L2 read bandwidth of 5,120 B/clk."""
EXACT_ROUNDS = 64  # known
"""Number of last rounds over all slots that ``makespan`` simulates block by block; earlier blocks are assumed to fill all slots evenly."""
ROUNDS = 3  # known
"""Number of last rounds of a ``TileBlocks`` whose blocks are listed one by one."""
COLD = 1.5  # tuned
"""Norm of compute and DRAM time on cold caches."""
HARDEST = 50.0  # known
"""A norm that hides the shorter time wholly; beyond, powers lose their digits."""
SFU_EXP = 16.0  # known
"""Exponentials per cycle and multiprocessor of every NVIDIA GPU before Blackwell Ultra, which doubled them. The other work of a tile is
counted in these: it runs on other units, at this rate on every device."""


def joined(norm: float, *times: float) -> float:
    """Time of parts that overlap, by a p-norm: with a ``norm`` of 1 or less their sum, with ``HARDEST`` or more the longest alone.

    >>> joined(1, 3.0, 4.0), joined(2, 3.0, 4.0)
    (7.0, 5.0)
    """
    longest = max(times)
    if norm >= HARDEST or not longest:
        return longest
    exponent = max(norm, 1.0)
    return float(longest * sum((time / longest) ** exponent for time in times) ** (1 / exponent))


def beside_dram(computing: float, moving: float, cold: bool) -> float:
    """Time of a kernel whose loads run beside its work. With ``cold`` caches they overlap in part, as blocks wait for their first loads."""
    return joined(COLD, computing, moving) if cold else max(computing, moving)


class TileRates(NamedTuple):
    """Rates of one multiprocessor per cycle of the tensor clock ``clock_hz``: FLOP ``matmul``, exponentials ``exp``, bytes ``sram``.

    ``sms``: number of multiprocessors; ``bandwidth``: DRAM bytes per second; ``threads``: most threads on a multiprocessor.
    """

    sms: int
    clock_hz: float
    matmul: float
    exp: float
    sram: float
    bandwidth: float
    threads: int

    def exp_cycles(self, work: float, scores: float) -> float:
        """Cycles of ``work``, counted in exponentials, ``scores`` of which are real ones at the device's rate."""
        on_sfu = min(work, scores)
        return on_sfu / self.exp + (work - on_sfu) / SFU_EXP

    def byte_s(self, dram: float, lost: float = 1.0) -> float:
        """Seconds per byte: the share ``lost`` comes from DRAM at ``dram`` times the nominal time, the rest from the L2."""
        dram_s, l2_s = dram / self.bandwidth, 1 / (L2_PORT * self.sms * self.clock_hz)
        return lost * dram_s + (1 - lost) * min(dram_s, l2_s)


def rates_of(device: Device, dtype: str) -> TileRates:
    """The ``TileRates`` of ``device`` in ``dtype``; UnavailableError names what its profile lacks.

    A device whose tensor rate was cut runs at its highest clock: it never draws the power that would lower it.
    """
    peak, threads = device.peaks_of("tensor").get(dtype), device.limits.max_threads_per_multiprocessor
    exp, sms, clock, dram = device.peaks.exp, device.multiprocessors, device.clocks.tensor, device.dram.bandwidth
    if peak is None or exp is None or sms is None or clock is None or dram is None:
        needs = {f"tensor peak in {dtype}": peak, "exp peak": exp, "multiprocessors": sms, "tensor clock": clock, "DRAM bandwidth": dram}
        missing = ", ".join(name for name, value in needs.items() if value is None)
        raise UnavailableError(f"{device.id}: fused attention cannot be timed without {missing}", "add it to the device's profile")
    cycles_per_s, sram, clock_factor = sms.number * clock.number, device.level("sram"), boost(device)
    sram_clock = clock if clock_factor > 1 else device.clocks.max or clock
    return TileRates(
        sms=int(sms.number),
        clock_hz=clock.number * clock_factor if device.clocks.max is None or tensor_share(device) == 1 else device.clocks.max.number,
        matmul=peak.per_clk or peak.number / cycles_per_s,
        exp=exp.per_clk or exp.number / cycles_per_s,
        sram=sram.bandwidth.number / (sms.number * sram_clock.number) if sram and sram.bandwidth else inf,
        bandwidth=dram.number,
        threads=int(threads.number) if threads else 2048,
    )


# Blocks that take a latency and a time per tile

IN_STEP = 2  # tuned
"""First rounds of blocks that wait for their loads at the same time, so that none hides another's wait."""
ALONE = 1.3  # tuned
"""Default time of a tile in a block alone on its multiprocessor, over its share of the time beside others."""
TAIL = 0.3  # tuned
"""Part of the tail, the time after perfect balance, that the last blocks recover once others have ended."""


@dataclass(frozen=True)
class TileBlocks:
    """Blocks of a grid in the order of their start, for ``sms`` multiprocessors with ``resident`` blocks on each.

    ``last``: tiles of each of the last blocks; ``early`` and ``early_tiles``: number of blocks before them, and of their tiles together.
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
        """Mean tiles of a block."""
        return (self.early_tiles + self.last_tiles) / self.count

    @cached_property
    def equal(self) -> bool:
        """Whether all blocks have equally many tiles."""
        return len(set(self.last)) == 1 and self.mean_tiles == self.last[0]

    @cached_property
    def last_slot(self) -> ByRatio[SlotWork]:
        """Work of the slot that ends last, if only the last blocks ran, by the ratio of block latency to tile time."""
        return last_slot(self.last, self.slots)

    @cached_property
    def neighbours(self) -> set[tuple[int, ...]]:
        """Tiles of the blocks that share a multiprocessor, shortest first. The longest blocks of two rounds are taken to meet."""
        order = sorted(self.last[: self.sms], reverse=True) + sorted(self.last[self.sms :], reverse=True)
        return {tuple(sorted(order[i :: self.sms])) for i in range(min(self.sms, len(order)))}

    def cycles(self, tile: float, block: float, alone: float = ALONE, beside: Callable[[int], float] | None = None) -> float:
        """Cycles until the last block ends; each has a latency ``block``, and a tile takes ``tile`` cycles of a full multiprocessor.

        ``beside(m)``: time of a tile in each of m blocks on a multiprocessor over its share of a full one; by default it goes in even steps
        from ``alone`` for one block to ``resident`` for all.
        """
        resident = self.resident
        if beside is None:
            alone = min(max(alone, 1.0), resident)
            beside = lambda m: alone + (resident - alone) * (m - 1) / max(1, resident - 1)  # noqa: E731
        if self.equal:
            return self._cycles_of_equal(self.last[0] * tile, block, beside)
        if resident == 1:
            end, _ = self._ends(tile, block)
            return end
        if self.count <= self.slots:
            return block + max(_cycles_together(tiles, tile, beside) for tiles in self.neighbours)
        alone, mean_cycles = beside(1), self.mean_tiles * tile
        waiting_share = block / _steady(block, mean_cycles, resident, alone) if mean_cycles else 1.0
        waiting_share *= max(0.0, 1 - IN_STEP * self.slots / self.count)
        end, balanced = self._ends(tile * (resident - (resident - alone) * waiting_share), block)
        return end - TAIL * (end - balanced) * (resident - alone) / (resident - 1)

    def _ends(self, tile: float, block: float) -> tuple[float, float]:
        """(cycles until the last slot ends, cycles if all slots were perfectly balanced). Early blocks are spread evenly."""
        early = self.early * block + self.early_tiles * tile
        balanced = (early + len(self.last) * block + self.last_tiles * tile) / self.slots
        slot_blocks, slot_tiles = self.last_slot.at(block / tile)
        return early / self.slots + (slot_blocks * block + slot_tiles * tile), balanced

    def _cycles_of_equal(self, work: float, block: float, beside: Callable[[int], float]) -> float:
        """Cycles until the last of equal blocks ends, on the multiprocessor with the most of them; each has ``work`` cycles of tiles."""
        rounds, last_blocks = divmod(-(-self.count // self.sms), self.resident)
        in_step = min(rounds, IN_STEP)
        before = in_step * (block + self.resident * work) + (rounds - in_step) * _steady(block, work, self.resident, beside(1))
        return float(before + (block + work * beside(last_blocks) if last_blocks else 0.0))


def _cycles_together(tiles: Sequence[int], tile: float, beside: Callable[[int], float]) -> float:
    """Cycles until the last of blocks that start together ends; ``tiles`` of each, shortest first."""
    cycles, ended_tiles = 0.0, 0
    for running, block_tiles in zip(range(len(tiles), 0, -1), tiles, strict=True):
        cycles += (block_tiles - ended_tiles) * tile * beside(running)
        ended_tiles = block_tiles
    return cycles


def _steady(block: float, work: float, resident: int, alone: float) -> float:
    """Cycles T of a block with ``work`` cycles of tiles among R = ``resident`` blocks, each of which waits ``block`` of its T cycles.

    T = block + work (R - (R - alone) block / T): while a neighbour waits, its share goes to those that run.
    """
    full = block + resident * work
    return (full + sqrt(max(0.0, full * full - 4 * (resident - alone) * work * block))) / 2


SlotWork = tuple[int, int]
"""(blocks, tiles) that a slot has run."""
Value = TypeVar("Value")


class ByRatio(Generic[Value]):
    """A cached step function of a ratio: ``compute(ratio)`` returns the value there and the interval (low, high) on which it holds."""

    def __init__(self, compute: Callable[[float], tuple[Value, float, float]]) -> None:
        self.compute = compute
        self.lows: list[float] = []
        self.highs_and_values: list[tuple[float, Value]] = []

    def at(self, ratio: float) -> Value:
        """The value at ``ratio``."""
        place = bisect_right(self.lows, ratio)
        if place:
            high, value = self.highs_and_values[place - 1]
            if high >= ratio:
                return value
        value, low, high = self.compute(ratio)
        self.lows.insert(place, min(low, ratio))
        self.highs_and_values.insert(place, (max(high, ratio), value))
        return value


def last_slot(tiles: Sequence[int], slots: int) -> ByRatio[SlotWork]:
    """Work of the slot that ends last, by ratio of block latency to tile time; ``tiles`` of each block, in the order of their start.

    A slot that has run K blocks with T tiles is free at K ratio + T. Which slot takes the next block, and which ends last, so changes only
    at ratios where two of these are equal.

    >>> last_slot([3, 1, 1, 1], 2).at(0.5), last_slot([3, 1, 1, 1], 2).at(2.0)
    ((3, 3), (2, 4))
    """

    def compute(ratio: float) -> tuple[SlotWork, float, float]:
        free = [(ratio + count, 1, count) for count in tiles[:slots]] + [(0.0, 0, 0)] * (slots - len(tiles))
        heapify(free)
        taken = []  # work of the slots that took the next block, in this order
        for count in tiles[slots:]:
            free_at, slot_blocks, slot_tiles = free[0]
            taken.append((slot_blocks, slot_tiles))
            heapreplace(free, (free_at + (ratio + count), slot_blocks + 1, slot_tiles + count))
        _, last_blocks, last_tiles = max(free)
        last = (last_blocks, last_tiles)
        ended = {(slot_blocks, slot_tiles) for _, slot_blocks, slot_tiles in free}
        in_order = [*pairwise(taken), *((slot, last) for slot in ended)]
        if taken:
            in_order += [(taken[-1], slot) for slot in ended]
        return last, *ratio_range(in_order)

    return ByRatio(compute)


def ratio_range(pairs: Iterable[tuple[SlotWork, SlotWork]]) -> tuple[float, float]:
    """Range of ratios in which, for each of ``pairs``, the second slot is free no earlier than the first.

    >>> ratio_range([((1, 4), (2, 3)), ((1, 4), (0, 7))])
    (1.0, 3.0)
    """
    low, high = 0.0, inf
    for (first_blocks, first_tiles), (blocks, tiles) in pairs:
        if blocks > first_blocks:
            low = max(low, (first_tiles - tiles) / (blocks - first_blocks))
        elif blocks < first_blocks:
            high = min(high, (tiles - first_tiles) / (first_blocks - blocks))
    return low, high


# Blocks of any duration


def makespan(classes: Iterable[tuple[float, int]], slots: int) -> float:
    """Time at which the last block ends, in the unit of durations. ``classes``: (duration, number of blocks), in order of their start.

    Equal blocks run in waves. Uneven blocks are simulated one by one, except the first ones of a very long list, which are spread evenly
    over the slots; the error is then below one block in ``EXACT_ROUNDS``.

    >>> makespan([(1.0, 5)], 2)
    3.0
    >>> makespan([(3.0, 1), (2.0, 1), (1.0, 2)], 2)
    4.0
    """
    simulated = [(duration, count) for duration, count in classes if count > 0]
    begin = 0.0
    if len({duration for duration, _ in simulated}) > 1:
        begin, simulated = _without_first(simulated, slots)
    free: list[tuple[float, int]] = [(begin, slots)]  # (time, number of slots that become free then)
    for duration, count in simulated:
        remaining = count
        while remaining > 0:
            start, width = heappop(free)
            while free and free[0][0] == start:
                width += heappop(free)[1]
            waves = remaining // width if not free else 0
            if waves > 1:  # every slot becomes free at once: whole waves of equal blocks
                start, remaining = start + (waves - 1) * duration, remaining - (waves - 1) * width
            used = min(width, remaining)
            heappush(free, (start + duration, used))
            if width > used:
                heappush(free, (start, width - used))
            remaining -= used
    return max(end for end, _ in free)


def _without_first(classes: list[tuple[float, int]], slots: int) -> tuple[float, list[tuple[float, int]]]:
    """(time of the first blocks, spread evenly over the slots; the last ``EXACT_ROUNDS`` rounds of blocks)."""
    first = max(0, sum(count for _, count in classes) - EXACT_ROUNDS * slots)
    first_s, last = 0.0, []
    for duration, count in classes:
        spread = min(first, count)
        first_s, first = first_s + duration * spread / slots, first - spread
        last.append((duration, count - spread))
    return first_s, last
