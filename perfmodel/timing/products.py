"""Matrix products by a library of compiled tiles: the work of one multiprocessor under a plan, and the fastest plan.

A block of threads holds a tile of C and walks k in slices. The multiprocessor with most blocks sets the time. There multiplications and
loads of all slices overlap, blocks that are resident together hide each other's wait for a slice, and C is stored after the last one.
Traffic of DRAM overlaps with all of that; few blocks draw less than its bandwidth. If k is split, a second pass adds up the parts.
A library has a table of tiles and a heuristic that picks the fastest; the model does the same with its own times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from perfmodel.core.arith import ceil_div
from perfmodel.timing.engine import joined

Tile = tuple[int, int]
Shape = tuple[int, int, int, int]
"""m, n, k and batch."""


class TilePlan(NamedTuple):
    """Work of the busiest multiprocessor with the tile ``br`` x ``bc`` and k in ``parts``.

    ``flops``, ``loaded`` and ``stored``: FLOP and bytes of all its blocks. ``waits``: slices that it waits for, counted once for blocks
    that are resident together. ``idle``: share of the multiprocessors without work. ``kind``: place of the kernel's costs in a list.
    """

    flops: float
    loaded: float
    stored: float
    waits: int
    idle: float
    parts: int
    br: int
    bc: int
    kind: int = 0


class Costs(NamedTuple):
    """Seconds of one multiprocessor per FLOP, byte loaded, byte stored, and wait for a slice.

    ``norm``: how multiplications and loads overlap: 1 adds them up, infinity takes the longer. ``start``: seconds beyond a plain launch.
    """

    flop: float
    load: float
    store: float
    wait: float
    norm: float = inf
    start: float = 0.0


class CallTimes(NamedTuple):
    """Seconds of a call that do not depend on the plan: of its launch, and of its DRAM traffic at full bandwidth.

    ``split``: seconds of adding up parts of k, and ``part`` more for each part. ``half``: the bandwidth grows with the share of the
    multiprocessors at work, see ``ramp``. ``norm``: how DRAM and multiprocessors overlap.
    """

    launch: float
    dram: float
    half: float
    norm: float
    split: float
    part: float


def plan_of(
    shape: Shape, tile: Tile, parts: int, *, resident: int = 1, slots: int, depth: int, sizes: tuple[float, float], kind: int = 0
) -> TilePlan:
    """Plan of blocks of ``tile``, with ``resident`` blocks on each of ``slots`` multiprocessors, and k in slices of ``depth`` elements.

    ``sizes``: bytes of an element that is loaded, and of one that is stored.

    >>> plan_of((256, 256, 64, 1), (128, 128), 1, slots=3, depth=64, sizes=(2, 2))[:5]
    (4194304, 65536, 65536, 2, 0)
    """
    (m, n, k, batch), (br, bc), (load_size, store_size) = shape, tile, sizes
    slices = ceil_div(ceil_div(k, depth), parts)  # of each block
    block_k = min(slices * depth, k)
    grid = batch * ceil_div(m, br) * ceil_div(n, bc) * parts
    blocks = ceil_div(grid, slots)
    rows, columns = min(br, m), min(bc, n)
    return TilePlan(
        flops=blocks * 2 * br * bc * block_k,
        loaded=blocks * (rows + columns) * block_k * load_size,
        stored=blocks * rows * columns * store_size,
        waits=ceil_div(blocks, resident) * slices,
        idle=max(1 - grid / slots, 0),
        parts=parts,
        br=br,
        bc=bc,
        kind=kind,
    )


PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # known
"""Parts of k to choose among: powers of two, and those half way."""


def parts_of_k(blocks: int, most: int, slots: int) -> list[int]:
    """Numbers of parts of k to try, at most ``most``, for a grid of ``blocks`` if k is whole.

    They are 1, those of ``PARTS`` with which the grid fills ``slots`` at most twice, and the largest with which it fills them at most once
    and at most twice.

    >>> parts_of_k(20, 64, 132), parts_of_k(300, 64, 132), parts_of_k(20, 1, 132)
    ([1, 2, 3, 4, 6, 8, 12, 13], [1], [1])
    """
    filling_once, filling_twice = min(slots // blocks, most), min(2 * slots // blocks, most)
    candidates = (*PARTS, filling_once, filling_twice)
    return sorted({1, *(parts for parts in candidates if 1 < parts <= most and parts * blocks <= 2 * slots)})


def worth_timing(plans: Iterable[TilePlan]) -> tuple[TilePlan, ...]:
    """The ``plans`` that can be fastest: no other of their kind is as good in every quantity that costs time."""
    kept: list[TilePlan] = []
    for plan in sorted(plans):  # by FLOP first, so that none of ``kept`` has more of them
        if not any(_as_good(other, plan) for other in kept):
            kept.append(plan)
    return tuple(kept)


def _as_good(other: TilePlan, plan: TilePlan) -> bool:
    """Whether ``other`` has no more of anything that costs time than ``plan``, FLOP aside."""
    if other.kind != plan.kind or other.loaded > plan.loaded or other.stored > plan.stored or other.waits > plan.waits:
        return False
    return other.idle <= plan.idle and other.parts <= plan.parts


def fastest(plans: Sequence[TilePlan], costs: Sequence[Costs], call: CallTimes) -> tuple[float, TilePlan]:
    """Seconds of the fastest of ``plans``, and that plan. The ``kind`` of a plan is its place in ``costs``."""
    least_s, fastest_plan = inf, plans[0]
    for plan in plans:
        cost = costs[plan.kind]
        work_s = joined(cost.norm, plan.flops * cost.flop, plan.loaded * cost.load)
        busy_s = work_s + plan.stored * cost.store + plan.waits * cost.wait
        dram_s = call.dram * ramp(1 - plan.idle, call.half)
        fixed_s = call.launch + cost.start + (call.split + plan.parts * call.part if plan.parts > 1 else 0.0)
        if fixed_s + max(busy_s, dram_s) >= least_s:  # the norm is no less than the longer time
            continue
        seconds = fixed_s + joined(call.norm, busy_s, dram_s)
        if seconds < least_s:
            least_s, fastest_plan = seconds, plan
    return least_s, fastest_plan


def ramp(busy: float, half: float) -> float:
    """Factor on the time of DRAM traffic if only the share ``busy`` of the multiprocessors asks for it.

    The bandwidth grows as busy / (busy + half), so that half of the multiprocessors get more than half of it.

    >>> ramp(1.0, 0.2), round(ramp(0.2, 0.2), 3)
    (1.0, 1.667)
    """
    return (busy + half) / (busy * (1 + half))
