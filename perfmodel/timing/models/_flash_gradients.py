"""What the backward pass of fused attention launches and moves, beside what ``_flash_blocks`` says of both passes.

Three to five kernels: row sums of O dO, which also zero the sums of dQ in fp32; the main one, whose blocks keep key tiles and add to
dQ by atomics; the conversion of dQ; and, where query heads share K and V, two that add up dK and dV, which the main one writes for
each query head.

Source: Dao-AILab/flash-attention csrc/flash_attn/flash_api.cpp, mha_bwd (rounded sizes, dk_expanded); names, grids and times of
PyTorch 2.11's and cuDNN 9's kernels on an H200 by its profiler.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from perfmodel.core.arith import ceil_div, clipped_floor_sum
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.walk import key_tiles, row_tiles, visited_tiles
from perfmodel.timing.models._flash_blocks import ROUNDS, FlashPlan, TileBlocks, head_blocks, key_tile_visits, padded

_FP32 = 4  # known
SUM_OUTPUTS = 512  # known
"""Elements of dK or dV that a block of PyTorch's sums gives: 128 threads, four each (aten Reduce.cuh)."""
SUM_BLOCK = 0.06  # tuned
"""Of ``side_block_cycles``: such a block besides its bytes, for its share of a multiprocessor."""


def summed_rows(w: Attention, plan: FlashPlan) -> int:
    """Rows of dQ in fp32 over all heads: of whole row tiles where kernels round them up."""
    return int(w.query_heads * (ceil_div(w.n, plan.br) * plan.br if plan.rounded else w.n))


def _dq_bytes(w: Attention, plan: FlashPlan) -> int:
    """Bytes of dQ in fp32."""
    return summed_rows(w, plan) * (padded(w.d) if plan.rounded else w.d) * _FP32


def main_bytes(w: Attention, plan: FlashPlan) -> int:
    """Of the main kernel: it reads Q, dO, K and V, adds to dQ in fp32, and writes dK and dV of each query head."""
    read = (w.query_heads * w.n + w.stored_kv_heads * w.kv_len) * (w.d + w.dv)
    return int((read + w.query_heads * w.kv_len * (w.d + w.dv)) * w.dtype.size + 2 * w.query_heads * w.n * w.d * _FP32)


def side_bytes(w: Attention, plan: FlashPlan) -> int:
    """Of the others: O dO -> row sums, dQ zeroed; dQ in fp32 -> dQ; dK, dV of query heads -> of KV heads."""
    per_row = w.query_heads * w.n * (2 * w.dv + w.d) * w.dtype.size
    sums = w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size * (w.group + 1) if w.group > 1 else 0
    return int(per_row + 2 * _dq_bytes(w, plan) + sums)


def sum_blocks(w: Attention, plan: FlashPlan) -> float:
    """Blocks of PyTorch's sums of dK and dV over query heads; 0 where the library has kernels of its own."""
    return w.stored_kv_heads * w.kv_len * (w.d + w.dv) / SUM_OUTPUTS if plan.rounded and w.group > 1 else 0.0


def key_tiles_visits(walk: Attention, plan: FlashPlan, first: int, step: int) -> int:
    """Row tiles that key tiles ``first``, ``first + step``, ... visit together, each counted by itself."""
    count, tiles, g = max(0, ceil_div(key_tiles(walk, plan.bc) - first, step)), row_tiles(walk, plan.br), walk.row_group
    if not walk.causal:
        return int(count * tiles)
    apart, row = g * step * plan.bc, g * (first * plan.bc - walk.kv_len + walk.n)
    ended = count * tiles
    if walk.window is not None:
        ended = clipped_floor_sum(count, apart, row + g * (plan.bc + walk.window - 1) + plan.br - 1, plan.br, 0, tiles)
    return int(ended - clipped_floor_sum(count, apart, row, plan.br, 0, tiles))


def gradient_blocks(w: Attention, plan: FlashPlan, sms: int) -> TileBlocks:
    """The main kernel's blocks, one per key tile and query head, tiles of a head one after another; ``plan.paired`` key tiles at least."""
    if plan.by_head:
        return head_blocks(w, plan, sms)
    tiles = int(ceil_div(w.kv_len, plan.bc))
    keys = int(ceil_div(tiles, plan.paired)) * plan.paired
    walk = replace(w, packed=False)
    visits = cache(partial(key_tile_visits, walk, plan))
    heads = int(w.query_heads)
    listed = min(heads * keys, ROUNDS * sms * plan.resident)
    last = tuple(visits(i % keys) for i in range(heads * keys - listed, heads * keys))
    visited = int(visited_tiles(walk, plan.br, plan.bc)) + sum(visits(j) for j in range(tiles, keys))
    return TileBlocks(last, heads * keys - listed, heads * visited - sum(last), sms, plan.resident)
