"""Products of kernels whose blocks share a multiprocessor: on the vector unit, and those that copy less than 16 bytes at once.

Each block multiplies a slice of k, copies it into SRAM and waits for the copies; blocks on one multiprocessor share its units and
hide each other's waits. The tiles, and how many blocks of each are resident, are those that cuBLAS of CUDA 13 runs on an H200, read
from kernel names, registers and SRAM in a profile; its kernels for these cases are built for compute capability 7.5 and 8.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from perfmodel.core.arith import ceil_div

Tiles = Mapping[tuple[int, int], int]
"""Rows and columns of a tile of C: blocks resident on a multiprocessor."""

SIMT_DEPTH, COPY_DEPTH = 8, 32  # known
"""Elements of k in a slice: of kernels on the vector unit, and of those that copy narrowly."""
SIMT_TILES: Tiles = {  # known
    (128, 128): 2,
    (64, 256): 2,
    (256, 64): 2,
    (128, 64): 2,
    (64, 128): 2,
    (64, 64): 4,
    (32, 128): 4,
    (128, 32): 4,
    (64, 32): 8,
    (32, 64): 9,
    (32, 32): 12,
}
"""``ffma`` and ``simt_sgemm`` kernels."""
SIMT_PICOJOULES = {12.0: 6.9, 8.9: 7.9, 8.0: 11.6, 0.0: 16.5}  # tuned
"""Of the whole board for an fp32 FLOP on the vector unit, from each compute capability on: cards of 70 W cannot run at their peak.

Power limit over the best rate that is published of cards that it keeps below their peak: RTX 5090, RTX 4090 (L40S 7.5, RTX 6000 Ada
8.6, L4 6.5 to 8.4), RTX 3090 (A10 10.7, A40 12.6), T4. An H200's vector unit alone is measured at 9.6 pJ.
"""
BATCHED_TILES: Mapping[float, Tiles] = {9.0: SIMT_TILES, 8.0: {(128, 128): 2}, 0.0: {(64, 128): 4, (32, 128): 4, (64, 64): 4}}  # known
"""Those that run batches, from each compute capability on: before 9.0 as kernel names of cuBLAS 11 and 12 show."""
FEW_COLUMNS, FEW_RESIDENT, MOST_FEW_ROWS, LEAST_WIDE = 8, 6, 10, 512  # known
"""``gemmSN``: all of up to so many rows beside this many columns, where there are more columns than the last."""
SINGLE_COPIES: Tiles = {(128, 256): 1, (128, 128): 2, (64, 64): 5, (32, 32): 5, (16, 16): 14}  # known
"""``s1688gemm`` and ``wmma`` kernels of 7.5 with ``align1``: a 16-bit element at a time."""
PAIR_COPIES: Tiles = {  # known
    (256, 128): 1,
    (128, 256): 1,
    (64, 256): 1,
    (128, 128): 2,
    (64, 128): 2,
    (64, 64): 2,
    (32, 32): 8,
    (16, 16): 14,
}
"""``s16816gemm`` and ``wmma`` kernels of 8.0 with ``align2``: two 16-bit elements at a time."""
WORD_COPIES: Tiles = {  # known
    (256, 128): 1,
    (128, 256): 1,
    (64, 256): 1,
    (128, 128): 2,
    (64, 128): 3,
    (64, 64): 4,
    (32, 32): 4,
}
"""``s1688gemm`` kernels of 8.0 with ``align1`` in tf32: four bytes at a time."""
WHOLE_COPIES: Tiles = {(128, 64): 3, (64, 128): 3, (64, 64): 4}  # known
"""``s1688gemm`` kernels of 8.0 with ``align4`` in tf32, which run small products on later architectures too."""
FEWEST_SLICES, MOST_PARTS, SMALL_PARTS = 4, 64, (2, 3, 4, 6, 8, 12, 16, 24, 32)  # tuned
"""Splits of k: least slices of a part, most parts, and those tried until the grid fills the device twice."""
SHARED_FILLS = (0.5, 1, 2)  # tuned
"""How often the blocks of a split fill the device."""
ISSUE_OVERLAP = 1.6  # tuned
"""Norm that joins multiplying and copying of one multiprocessor; 1 would add them up."""
WHOLE_TILE = 128 * 128  # known
"""Elements of the tile that ``BlockCosts.tile`` is for."""


class BlockPlan(NamedTuple):
    """Of one tile and split: blocks that the busiest multiprocessor runs, and rounds of those resident at once; slices of a block."""

    turns: int
    waves: int
    steps: int
    parts: int
    br: int
    bc: int


class BlockCosts(NamedTuple):
    """Seconds of a multiprocessor: to multiply an element of C by one slice, to copy a row or column of one, to wait for the copies
    of one, and to begin and store a tile of ``WHOLE_TILE`` elements.
    """

    multiply: float
    copy: float
    wait: float
    tile: float


def lasting_rate(peak: float, tdp: float | None, capability: float) -> float:
    """FLOP/s of the vector unit that the power limit leaves.

    >>> [round(lasting_rate(*given) / 1e12, 2) for given in ((8.1e12, 70.0, 7.5), (19.5e12, 250.0, 8.0), (19.5e12, None, 8.0))]
    [4.24, 19.5, 19.5]
    """
    picojoules = next(each for since, each in SIMT_PICOJOULES.items() if capability >= since)
    return peak if tdp is None else min(peak, tdp / (picojoules * 1e-12))


def parts_of_k(blocks: int, slices: int, resident: int, slots: int) -> list[int]:
    """Parts of k worth a try for a grid of ``blocks``, of which ``resident`` share a multiprocessor.

    >>> parts_of_k(4, 512, 4, 132), parts_of_k(600, 64, 2, 132)
    ([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64], [1])
    """
    most, room = min(slices // FEWEST_SLICES, MOST_PARTS), slots * resident
    filling = {min(int(fill * room // blocks), most) for fill in SHARED_FILLS}
    small = {parts for parts in SMALL_PARTS if parts <= most and parts * blocks <= 2 * room}
    return sorted({1} | {parts for parts in filling | small if parts > 1})


@lru_cache(maxsize=4096)
def block_plans(
    m: int, n: int, k: int, batch: int, depth: int, slots: int, tiles: tuple[tuple[int, int, int], ...], split_k: int | None
) -> tuple[BlockPlan, ...]:
    """Plans of C [m, n] over a depth k in slices of ``depth``, ``batch`` times; ``tiles``: rows, columns, resident blocks.

    ``split_k``: parts of k; None where the library may choose.
    """
    slices, found = ceil_div(k, depth), []
    for br, bc, resident in tiles:
        grid = batch * ceil_div(m, br) * ceil_div(n, bc)
        for parts in [split_k] if split_k else parts_of_k(grid, slices, resident, slots):
            turns = ceil_div(grid * parts, slots)
            found.append(BlockPlan(turns, ceil_div(turns, resident), ceil_div(slices, parts), parts, br, bc))
    return _worth_timing(found)


def _worth_timing(listed: Sequence[BlockPlan]) -> tuple[BlockPlan, ...]:
    """Plans of ``listed`` that can be fastest: none before is as good or better in all that the time grows with."""
    kept: dict[tuple[int, ...], BlockPlan] = {}
    for plan in listed:
        area, edge = plan.br * plan.bc, plan.br + plan.bc
        turns, waves = plan.turns * plan.steps, plan.waves * plan.steps
        demand = (turns * area, turns * edge, waves * area, waves * edge, waves, plan.turns * area, plan.parts)
        if not any(all(a <= b for a, b in zip(before, demand, strict=True)) for before in kept):
            kept[demand] = plan
    return tuple(kept.values())


def few_row_plan(m: int, n: int, k: int, slots: int) -> BlockPlan | None:
    """All of a few rows beside eight columns a block, k unsplit; None where there are too many rows or too few columns."""
    if not 1 < m <= MOST_FEW_ROWS or n <= LEAST_WIDE:
        return None
    turns = ceil_div(ceil_div(n, FEW_COLUMNS), slots)
    return BlockPlan(turns, ceil_div(turns, FEW_RESIDENT), ceil_div(k, SIMT_DEPTH), 1, m, FEW_COLUMNS)


def busy_seconds(costs: BlockCosts) -> Callable[[BlockPlan], float]:
    """Seconds of the busiest multiprocessor under a plan."""
    multiply, copy, wait, tile = costs

    def time(plan: BlockPlan) -> float:
        turns, waves, steps, _, br, bc = plan
        slice_s = ((br * bc * multiply) ** ISSUE_OVERLAP + ((br + bc) * copy) ** ISSUE_OVERLAP) ** (1 / ISSUE_OVERLAP)
        found: float = max(turns * slice_s, waves * (slice_s + wait)) * steps + turns * br * bc / WHOLE_TILE * tile
        return found

    return time
