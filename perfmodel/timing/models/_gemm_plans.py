"""Which kernels a tuned library has for a product: by format, alignment and rows, and the plans of each.

The kernels, and when they run, are those of cuBLAS of CUDA 13 on an H200, read in a profile. Hopper and B200 have kernels
with ``wgmma`` in 16 and 8 bits (``nvjet``: any free side) and in tf32 (``sm90_xmma_gemm``: few tiles); those need rows of whole 16 bytes.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from perfmodel.core.architectures import wide_matrix
from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.models import _gemm_blocks as blocks
from perfmodel.timing.models._gemm_blocks import BlockPlan, Tiles, block_plans, few_row_plan
from perfmodel.timing.models._gemm_tiles import TilePlan, plans, stream_plans, worth_timing

WIDE_COPY, NARROW_COPY = 16, 4  # known
"""Bytes that a thread copies to SRAM at once: where every row starts on 16 bytes, and at most elsewhere."""
TF32_SINCE = 9.0  # known
"""Compute capability whose kernels in tf32 these are."""
SMALL_EDGE, FEWEST_TILES = 64, 8  # tuned
"""A product in tf32 of fewer tiles of that edge is always split."""

Plan: TypeAlias = TilePlan | BlockPlan
Given: TypeAlias = tuple[int, int] | None


class Listed(NamedTuple):
    """Plans of kernels whose blocks have a multiprocessor to themselves, and whose blocks share it; neither: a vector.

    ``width``: bytes that a thread copies at once.
    """

    tiles: tuple[TilePlan, ...]
    shared: tuple[BlockPlan, ...]
    width: int


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


def listed_plans(case: Case, device: Device, slots: int) -> Listed:
    """What may run ``case`` on ``slots`` multiprocessors; only the tile of ``case.launch`` (br, bc) if it has one."""
    w: Matmul = case.workload
    tensor = w.dtype.matmul_unit == "tensor"
    width = copy_bytes(w.n, w.k, w.dtype.size) if device.vendor == "NVIDIA" and tensor else WIDE_COPY
    given = (case.launch["br"], case.launch["bc"]) if "br" in case.launch and "bc" in case.launch else None
    if given is None and _is_vector(w, width):
        return Listed((), (), width)
    if not tensor or width < WIDE_COPY:
        return Listed((), _shared_plans(w, width, slots, given, device.capability), width)
    wgmma = wide_matrix(device)  # which narrow copies cannot feed
    if wgmma and w.dtype.size == 4 and given is None and w.split_k == 1:
        return _tf32_plans(w, width, slots)
    choices = wgmma and w.dtype.size < 4 if given is None else ((*given, w.split_k),)
    return Listed(worth_timing(plans(w.m, w.n, w.k, w.batch, w.dtype.size, slots, choices, w.split_k)), (), width)


def _is_vector(w: Matmul, width: int) -> bool:
    """Whether kernels for a matrix and a vector run it."""
    return bool(min(w.m, w.n) == 1 and w.batch == w.split_k == 1 and (w.dtype.size >= 4 or width < WIDE_COPY))


def _tf32_plans(w: Matmul, width: int, slots: int) -> Listed:
    """Kernels of 9.0, and small tiles of 8.0; these alone, and split, where there are few of them."""
    shared = _shared_plans(w, width, slots, None, TF32_SINCE)
    if w.batch * ceil_div(w.m, SMALL_EDGE) * ceil_div(w.n, SMALL_EDGE) >= FEWEST_TILES or w.k <= blocks.COPY_DEPTH:
        return Listed(worth_timing(stream_plans(w.m, w.n, w.k, w.batch, w.dtype.size, slots)), shared, width)
    halves = block_plans(w.m, w.n, w.k, w.batch, blocks.COPY_DEPTH, slots, _rows_of(blocks.WHOLE_COPIES), 2)
    return Listed((), (*(plan for plan in shared if plan.parts > 1), *halves), width)


def _shared_plans(w: Matmul, width: int, slots: int, given: Given, capability: float) -> tuple[BlockPlan, ...]:
    """Plans of kernels whose blocks share a multiprocessor, by what the vector unit or the copies allow."""
    simt = w.dtype.matmul_unit == "vector"
    table, depth = (_simt_table(w.batch, capability), blocks.SIMT_DEPTH) if simt else (_copy_table(w.dtype.size, width), blocks.COPY_DEPTH)
    tiles = _rows_of(table) if given is None else ((*given, table.get(given, 1)),)
    parts = w.split_k if given is not None or w.split_k > 1 else None
    found = block_plans(w.m, w.n, w.k, w.batch, depth, slots, tiles, parts)
    few = few_row_plan(w.m, w.n, w.k, slots) if simt and given is None and w.batch == w.split_k == 1 else None
    return found if few is None else (*found, few)


def _simt_table(batch: int, capability: float) -> Tiles:
    """Tiles of kernels on the vector unit."""
    if batch == 1:
        return blocks.SIMT_TILES
    return next(table for since, table in blocks.BATCHED_TILES.items() if capability >= since)


def _copy_table(element_size: int, width: int) -> Tiles:
    """Tiles of tensor kernels that copy ``width`` bytes at once."""
    if width == WIDE_COPY:
        return blocks.WHOLE_COPIES
    if width < NARROW_COPY:
        return blocks.SINGLE_COPIES
    return blocks.WORD_COPIES if element_size == 4 else blocks.PAIR_COPIES


def _rows_of(table: Tiles) -> tuple[tuple[int, int, int], ...]:
    """(rows, columns, resident blocks) of each tile."""
    return tuple((*tile, resident) for tile, resident in table.items())
