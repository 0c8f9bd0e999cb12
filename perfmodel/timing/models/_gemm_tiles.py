"""What a GEMM library can choose from: tiles of C and parts of k.

Libraries carry a table of compiled tiles and a heuristic that picks the fastest; the model does the same with its own times.
Sources: CUTLASS documentation, efficient GEMM (tiles from 64 x 64 to 256 x 128, split-k for small grids); PTX ISA, ``wgmma`` and
``tcgen05.mma`` (from compute capability 9.0 on, one side of a tile is free in steps of 8 or 16).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from perfmodel.core.arith import ceil_div

Choice: TypeAlias = tuple[int, int, int]
"""Rows and columns of a tile of C, and parts of k."""
SLICE_BYTES = 128
"""Depth of a slice of k: one row of the swizzle pattern of TMA and of CUTLASS tiles."""

MMA_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Compiled tiles where a warp holds its share of C in registers (compute capability below 9.0, and copies below 16 bytes)."""
ROWS = (256, 128, 64)
"""Sides that the matrix instruction fixes from 9.0 on; the other side is free."""
WIDTHS = (256, 192, 128, 64)
"""Free sides that any length may use."""
EVEN_PARTS = (1, 2, 3, 4)
"""A free side may also cut a short length into this many even parts."""
WIDTH_STEP = 16
LARGEST_TILE = 256 * 128
"""Elements of C: fp32 accumulators of a whole register file, or of the tensor memory half by half."""
LARGEST_SPLIT = 16
"""Most parts of k that are tried."""
SPLIT_WAVES = 2
"""Splitting k stops once the grid fills the device this often."""
WIDE_COPY, NARROW_COPY = 16, 4
"""Bytes that a thread copies to SRAM at once: where every row starts on 16 bytes, and at most elsewhere."""
TUNED = ("EVEN_PARTS", "LARGEST_SPLIT", "SPLIT_WAVES")
"""Chosen on measurements that fits may see, beside the fitted parameters."""
KNOWN = ("SLICE_BYTES", "MMA_TILES", "ROWS", "WIDTHS", "WIDTH_STEP", "LARGEST_TILE", "WIDE_COPY", "NARROW_COPY")
"""Given by hardware, by the source of a kernel, or by definition."""


def copy_bytes(n: int, k: int, element_size: int) -> int:
    """Bytes per copy that the rows of A [m, k], B [n, k] or [k, n], and C [m, n] allow; a kernel has one width for all three.

    Sources: CUDA Programming Guide, TMA (strides in multiples of 16 bytes); PTX ISA, cp.async (4, 8 or 16 bytes); CUTLASS kernel
    names. cuBLAS of CUDA 13, profiled on an H200, runs its align2 kernels where rows are multiples of 4 or 8 bytes, and align1
    kernels, which load by element, below. One column is left to kernels for a vector, which have no rows of C to store.

    >>> copy_bytes(4096, 4096, 2), copy_bytes(900, 128, 2), copy_bytes(50257, 768, 2), copy_bytes(1, 768, 2)
    (16, 4, 2, 16)
    """
    row = (k if n == 1 else math.gcd(n, k)) * element_size
    return WIDE_COPY if row % WIDE_COPY == 0 else math.gcd(row, NARROW_COPY)


class Plan(NamedTuple):
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
) -> tuple[Plan, ...]:
    """Plans of C [m, n] over a depth k, ``batch`` times; ``choices`` are given, or whether a side of a tile is free."""
    slices = ceil_div(k * element_size, SLICE_BYTES)
    if isinstance(choices, bool):
        choices = candidates(m, n, batch, slices, slots, choices)
        if split_k > 1:
            choices = tuple({(br, bc, split_k): None for br, bc, _ in choices})
    found = []
    for br, bc, parts in choices:
        blocks = batch * ceil_div(m, br) * ceil_div(n, bc) * parts
        waves, steps = ceil_div(blocks, slots), ceil_div(slices, parts)
        depth, rows, columns = min(steps * SLICE_BYTES // element_size, k), min(br, m), min(bc, n)
        loaded, stored = (rows + columns) * depth * element_size, rows * columns * element_size
        busy = min(blocks / slots, 1.0)
        found.append(Plan(waves, waves * 2 * br * bc * depth, waves * loaded, waves * stored, waves * steps, busy, parts, br, bc))
    return tuple(found)


def worth_timing(listed: Sequence[Plan]) -> tuple[Plan, ...]:
    """Those of ``listed`` that no plan before them matches or beats in all that a time grows with, whatever the parameters."""
    kept: list[Plan] = []
    for plan in listed:
        if not any(before.busy >= plan.busy and before.parts <= plan.parts and _no_more(before, plan) for before in kept):
            kept.append(plan)
    return tuple(kept)


def _no_more(before: Plan, plan: Plan) -> bool:
    return all(a <= b for a, b in zip(before[:5], plan[:5], strict=True))


def candidates(m: int, n: int, batch: int, slices: int, slots: int, free_side: bool) -> tuple[Choice, ...]:
    """Tiles and splits for C [m, n], ``batch`` times, k in ``slices``, on ``slots`` multiprocessors.

    >>> candidates(64, 64, 1, 1, 108, False)[-1]
    (64, 64, 1)
    """
    tiles = sorted(set(_free_tiles(m, n))) if free_side else MMA_TILES
    return tuple((br, bc, s) for br, bc in tiles for s in splits(batch * ceil_div(m, br) * ceil_div(n, bc), slices, slots))


def splits(blocks: int, slices: int, slots: int) -> list[int]:
    """Parts of k worth a try for a grid of ``blocks``: those that fill the device, and small powers of two.

    >>> splits(20, 64, 132), splits(200, 64, 132), splits(20, 1, 132)
    ([1, 2, 3, 4, 6, 8, 13], [1], [1])
    """
    most = min(slices, LARGEST_SPLIT)
    filling = {min(waves * slots // blocks, most) for waves in range(1, SPLIT_WAVES + 1)}
    small = {s for s in (2, 3, 4, 8) if s <= most and blocks * s <= SPLIT_WAVES * slots}
    return sorted({1} | {s for s in filling | small if s > 1})


def _free_tiles(m: int, n: int) -> Iterator[tuple[int, int]]:
    for side in ROWS:
        yield from ((width, side) for width in _widths(m) if width * side <= LARGEST_TILE)
        yield from ((side, width) for width in _widths(n) if width * side <= LARGEST_TILE)


def _widths(length: int) -> set[int]:
    even = {ceil_div(ceil_div(length, parts), WIDTH_STEP) * WIDTH_STEP for parts in EVEN_PARTS}
    return {width for width in WIDTHS if width < 2 * length or width == min(WIDTHS)} | {w for w in even if w <= max(WIDTHS)}
