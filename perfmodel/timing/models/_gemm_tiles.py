"""Tiles and splits of k that a tuned library may run where one block fills a multiprocessor, and what each has to do.

Sources of the tiles: CUTLASS documentation, efficient GEMM (tiles from 64 x 64 to 256 x 128, split-k for small grids); PTX ISA,
``wgmma`` and ``tcgen05.mma`` (from compute capability 9.0 on, one side of a tile is free in steps of 8 or 16).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import ACTIVATION_SIZE

SLICE_BYTES = 128  # known
"""Depth of a slice of k: one row of the swizzle pattern of TMA and of CUTLASS tiles."""
MMA_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))  # known
"""Compiled tiles where a warp holds its share of C in registers (compute capability below 9.0)."""
ROWS = (256, 128, 64)  # known
"""Sides that the matrix instruction fixes from 9.0 on; the other side is free."""
WGMMA_TF32_TILES = ((128, 256), (128, 128), (64, 256), (256, 64), (128, 64), (64, 128), (64, 64))  # known
"""Compiled tiles of ``sm90_xmma_gemm`` in tf32, which cuBLAS of CUDA 13 runs on an H200 in place of kernels with a free side."""
MOST_OF_TWO_WAVES = 0.67  # tuned
"""Share of two waves up to which slices of k are dealt out evenly."""
WIDTHS = (256, 192, 128, 64)  # known
"""Free sides that any length may use."""
WIDTH_STEP = 16  # known
LARGEST_TILE = 256 * 128  # known
"""Elements of C: fp32 accumulators of a whole register file, or of the tensor memory half by half."""
EVEN_PARTS = (1, 2, 3, 4)  # tuned
"""A free side may also cut a short length into this many even parts."""
LARGEST_SPLIT = 16  # tuned
"""Most parts of k that are tried."""
SPLIT_WAVES = 2  # tuned
"""Splitting k stops once the grid fills the device this often."""

Choice: TypeAlias = tuple[int, int, int]  # rows and columns of a tile of C, and parts of k


class TilePlan(NamedTuple):
    """What the busiest multiprocessor does for one choice, summed over its waves; ``busy``: share of the multiprocessors at work.

    ``br`` and ``bc``: the tile of C.
    """

    waves: int
    flops: int
    loaded_bytes: int
    stored_bytes: int
    steps: int
    busy: float
    parts: int
    br: int
    bc: int


@lru_cache(maxsize=4096)
def plans(
    m: int, n: int, k: int, batch: int, element_size: int, slots: int, choices: tuple[Choice, ...] | bool, split_k: int
) -> tuple[TilePlan, ...]:
    """Plans of C [m, n] over a depth k, ``batch`` times; ``choices`` are given, or whether a side of a tile is free."""
    slices = ceil_div(k * element_size, SLICE_BYTES)
    if isinstance(choices, bool):
        choices = candidates(m, n, batch, slices, slots, choices)
        if split_k > 1:
            choices = tuple({(br, bc, split_k): None for br, bc, _ in choices})
    found = []
    for br, bc, parts in choices:
        blocks = batch * ceil_div(m, br) * ceil_div(n, bc) * parts
        waves, steps, busy = ceil_div(blocks, slots), ceil_div(slices, parts), min(blocks / slots, 1.0)
        depth, rows, columns = min(steps * SLICE_BYTES // element_size, k), min(br, m), min(bc, n)
        loaded, stored = (rows + columns) * depth * element_size, rows * columns * max(element_size, ACTIVATION_SIZE)
        found.append(TilePlan(waves, waves * 2 * br * bc * depth, waves * loaded, waves * stored, waves * steps, busy, parts, br, bc))
    return tuple(found)


def worth_timing(listed: Sequence[TilePlan]) -> tuple[TilePlan, ...]:
    """Plans of ``listed`` that can be fastest: no earlier plan is as good or better in every quantity that the time grows with."""
    kept: list[TilePlan] = []
    for plan in listed:
        waves, flops, loaded, stored, steps, busy, parts, *_ = plan
        for before in kept:
            if (
                before[0] <= waves
                and before[1] <= flops
                and before[2] <= loaded
                and before[3] <= stored
                and before[4] <= steps
                and before[5] >= busy
                and before[6] <= parts
            ):
                break
        else:
            kept.append(plan)
    return tuple(kept)


def candidates(m: int, n: int, batch: int, slices: int, slots: int, free_side: bool) -> tuple[Choice, ...]:
    """Tiles and splits for C [m, n], ``batch`` times, k in ``slices``, on ``slots`` multiprocessors.

    >>> candidates(64, 64, 1, 1, 108, False)[-1]
    (64, 64, 1)
    """
    tiles: Sequence[tuple[int, int]] = MMA_TILES
    if free_side:
        rows, columns = ({width for width in WIDTHS if width < 2 * length or width == min(WIDTHS)} for length in (m, n))
        for length, free in ((m, rows), (n, columns)):
            even = (ceil_div(ceil_div(length, parts), WIDTH_STEP) * WIDTH_STEP for parts in EVEN_PARTS)
            free |= {width for width in even if width <= max(WIDTHS)}
        listed = {*product(rows, ROWS), *product(ROWS, columns)}
        tiles = sorted((br, bc) for br, bc in listed if br * bc <= LARGEST_TILE)
    return tuple((br, bc, s) for br, bc in tiles for s in splits(batch * ceil_div(m, br) * ceil_div(n, bc), slices, slots))


@lru_cache(maxsize=4096)
def stream_plans(m: int, n: int, k: int, batch: int, element_size: int, slots: int) -> tuple[TilePlan, ...]:
    """Plans of ``sm90_xmma_gemm``: whole tiles, or all slices of all tiles dealt out evenly (``segment_k``) where few of them are idle.

    Source: kernel names and grids of cuBLAS of CUDA 13, profiled on an H200; dealing out is stream-K, Osama et al. 2023.
    """
    found = list(plans(m, n, k, batch, element_size, slots, tuple((*tile, 1) for tile in WGMMA_TF32_TILES), 1))
    slices = ceil_div(k * element_size, SLICE_BYTES)
    for whole in tuple(found):
        tiles = batch * ceil_div(m, whole.br) * ceil_div(n, whole.bc)
        if tiles <= slots / 2 or slots < tiles <= MOST_OF_TWO_WAVES * 2 * slots:
            steps = ceil_div(tiles * slices, slots)
            share = steps / whole.steps
            flops, loaded, stored = (math.ceil(share * size) for size in (whole.flops, whole.loaded_bytes, whole.stored_bytes))
            found.append(TilePlan(whole.waves, flops, loaded, stored, steps, min(tiles * slices / slots, 1.0), 2, whole.br, whole.bc))
    return tuple(found)


def splits(blocks: int, slices: int, slots: int) -> list[int]:
    """Parts of k worth a try for a grid of ``blocks``: those that fill the device, and small powers of two.

    >>> splits(20, 64, 132), splits(200, 64, 132), splits(20, 1, 132)
    ([1, 2, 3, 4, 6, 8, 13], [1], [1])
    """
    most = min(slices, LARGEST_SPLIT)
    filling = {min(waves * slots // blocks, most) for waves in range(1, SPLIT_WAVES + 1)}
    small = {s for s in (2, 3, 4, 8) if s <= most and blocks * s <= SPLIT_WAVES * slots}
    return sorted({1} | {s for s in filling | small if s > 1})
