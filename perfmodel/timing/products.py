"""Matrix products by a library of compiled tiles: the work of one multiprocessor under a plan, and the fastest plan.

A block of threads holds a tile of C and walks k in slices. On the multiprocessor with most blocks multiplications and loads of all slices
overlap; blocks that are resident together hide each other's wait for a slice, and C is stored after the last one. Traffic of DRAM
overlaps with all of that; few blocks draw less than its bandwidth. Where k is split, a second pass adds up the parts.
A library carries a table of tiles and a heuristic that picks the fastest; the model does the same with its own times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from perfmodel.timing.engine import joined

Tile = tuple[int, int]
Shape = tuple[int, int, int, int]
"""m, n, k and batch."""


class TilePlan(NamedTuple):
    """Work of the busiest multiprocessor with one tile and split of k.

    ``flops``, and bytes ``loaded`` and ``stored``, of all its blocks; ``waits``: slices of those blocks that follow each other, others
    being resident beside them; ``idle``: share of the multiprocessors without work; ``parts`` of k; the tile
    ``br`` x ``bc``; ``kind``: place of the kernel's costs in a list; ``blocks`` that follow each other.
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
    blocks: int = 0


class Costs(NamedTuple):
    """Seconds of one multiprocessor per FLOP, byte loaded, byte stored, wait for a slice, and block.

    ``norm`` joins multiplications and loads: 1 would add them up, infinity take the longer. ``start``: seconds beyond a plain launch.
    """

    flop: float
    load: float
    store: float
    wait: float
    norm: float = inf
    start: float = 0.0
    block: float = 0.0


class CallTimes(NamedTuple):
    """Seconds of a launch, of DRAM traffic at full bandwidth, of adding up parts of k, and of each part.

    ``half``: share of the multiprocessors at which the bandwidth would be half of its limit; ``norm`` joins DRAM and multiprocessors.
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
    (m, n, k, batch), (br, bc) = shape, tile
    rows, columns, steps = min(br, m), min(bc, n), -(k // -depth // parts)  # ceil(ceil(k / depth) / parts), and so below
    blocks = batch * (m // -br) * (n // -bc) * parts
    turns, along = -(blocks // -slots), min(steps * depth, k)
    waits, loaded, stored = -(turns // -resident) * steps, (rows + columns) * along * sizes[0], rows * columns * sizes[1]
    return TilePlan(
        turns * 2 * br * bc * along, turns * loaded, turns * stored, waits, max(1 - blocks / slots, 0), parts, br, bc, kind, turns
    )


PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # known
"""Parts of k to choose among: powers of two, and those half way."""


def parts_of_k(blocks: int, most: int, room: int) -> list[int]:
    """Numbers of parts of k to try, at most ``most``: until ``blocks`` fill ``room`` twice, and the one that fills it exactly.

    >>> parts_of_k(20, 64, 132), parts_of_k(300, 64, 132), parts_of_k(20, 1, 132)
    ([1, 2, 3, 4, 6, 8, 12, 13], [1], [1])
    """
    filling = (min(waves * room // blocks, most) for waves in (1, 2))
    return sorted({1, *(parts for parts in (*PARTS, *filling) if 1 < parts <= most and parts * blocks <= 2 * room)})


def worth_timing(plans: Iterable[TilePlan]) -> tuple[TilePlan, ...]:
    """The ``plans`` that can be fastest: no other of their kind is as good in every quantity that costs time."""
    kept: list[TilePlan] = []
    for plan in sorted(plans):  # by FLOP first: those before have no more
        _, loaded, stored, waits, idle, parts, _, _, kind, blocks = plan
        for _, less, fewer, sooner, busier, whole, _, _, same, turns in kept:
            as_good = less <= loaded and fewer <= stored and sooner <= waits and busier <= idle and turns <= blocks
            if as_good and whole <= parts and same == kind:
                break
        else:
            kept.append(plan)
    return tuple(kept)


def fastest(plans: Sequence[TilePlan], costs: Sequence[Costs], run: CallTimes) -> tuple[float, TilePlan]:
    """Seconds of the fastest of ``plans``, and that plan. The ``kind`` of a plan is its place in ``costs``."""
    launch, dram_s, half, norm, split_s, part_s = run
    best, fastest_plan = inf, plans[0]
    for plan in plans:
        flops, loaded, stored, waits, idle, parts, _, _, kind, blocks = plan
        flop_s, load_s, store_s, wait_s, inner, start_s, block_s = costs[kind]
        multiply, load = flops * flop_s, loaded * load_s
        busy = joined(inner, multiply, load) + stored * store_s + waits * wait_s + blocks * block_s
        moved, before = dram_s * ramp(1 - idle, half), launch + start_s + (split_s + parts * part_s if parts > 1 else 0.0)
        if before + max(busy, moved) >= best:
            continue
        time = before + joined(norm, busy, moved)
        if time < best:
            best, fastest_plan = time, plan
    return best, fastest_plan


def ramp(busy: float, half: float) -> float:
    """Factor by which DRAM traffic takes longer if only the share ``busy`` of the multiprocessors asks for it: half of them get more than
    half.

    >>> ramp(1.0, 0.2), round(ramp(0.2, 0.2), 3)
    (1.0, 1.667)
    """
    return (busy + half) / (busy * (1 + half))
