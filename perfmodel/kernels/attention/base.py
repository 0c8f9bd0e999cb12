"""The contract of an attention algorithm, and functions that the fused ones share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from perfmodel.core.arith import Number, minimum
from perfmodel.core.cost import GROUP_SUM, READ, WRITE, Access, Kernel, Tile, once
from perfmodel.core.dtypes import BOOLEAN_SIZE
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention, BlockCounts
from perfmodel.kernels.attention.loops import Move
from perfmodel.kernels.attention.walk import touched_scores, visible_keys, visible_rows, visible_scores, visited_scores


class Tiling(NamedTuple):
    """Tiling of an algorithm's loops.

    ``default(w, device, sram_bytes, pass)`` proposes a tile, or None. ``sram_elements(w, tile, pass)`` counts what stays in SRAM while one
    tile pair is computed: the tensors in ``resident``; scores, statistics and accumulators live in registers. ``in_sram``: False if tiles
    are chunks in memory, which SRAM does not bound. ``complete(w, device, tile)`` sets what depends on the device once ``br`` and ``bc``
    are fixed: the splits. ``settles_work(w)``: whether the tile determines which scores are computed, so that no smaller one may replace
    it.
    """

    default: Callable[[Attention, Device, int, str], Tile | None]
    sram_elements: Callable[[Attention, Tile, str], Number]
    resident: dict[str, str]
    complete: Callable[[Attention, Device, Tile], Tile] = lambda w, device, tile: tile
    in_sram: bool = True
    settles_work: Callable[[Attention], bool] = lambda w: False


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An IO scheme: kernels of its forward and backward pass, as functions of workload and tile.

    ``tiling`` is None where nothing is tiled by name (standard attention). ``io_class`` is the growth of ``accesses`` for a square problem,
    declared here and tested by growth ratios. ``vector_work`` says what vector operations count. ``pays_while``: the largest d with which
    the leading terms move less than standard attention's 4 N^2, as a formula in words and as a function of M in elements and the tile.
    ``obstacle(w, pass)``: reason why the algorithm cannot run a workload, and what would help; None if it can. ``walk(w, tile, pass)``
    yields each load and store of the published loops, one after another, without the closed forms that ``forward`` and ``backward`` count
    with: tests compare the two.
    """

    name: str
    title: str
    source: str
    io_class: str
    vector_work: str
    forward: Callable[[Attention, Tile], list[Kernel]]
    backward: Callable[[Attention, Tile], list[Kernel]]
    walk: Callable[[Attention, Tile, str], Iterator[Move]]
    tiling: Tiling | None = None
    aliases: tuple[str, ...] = ()
    obstacle: Callable[[Attention, str], str | None] = lambda w, direction: None
    pays_while: tuple[str, Callable[[int, Tile], float]] | None = None


SOFTMAX_VECTOR = 4
"""Vector FLOP per score of a softmax (max, scale and subtract, sum, divide or rescale), and of its backward pass."""
MASK_VECTOR = 1
SCALE_VECTOR = 1
DROPOUT_VECTOR = 2
"""Vector FLOP per score of dropout: compare and scale. Drawing the random number is not counted."""
FUSED_VECTOR = f"{SOFTMAX_VECTOR} per score, mask {MASK_VECTOR}, dropout {DROPOUT_VECTOR}; "
"""Sentence that says which vector operations a fused kernel counts."""


def fused_vector_work(w: Attention) -> int:
    """Vector FLOP per score of a fused kernel, forward or backward: softmax, and the options that it absorbs."""
    return SOFTMAX_VECTOR + MASK_VECTOR * w.mask + DROPOUT_VECTOR * (w.dropout > 0)


def matmul_flops(w: Attention, contractions_d: int, contractions_dv: int, scores: Number | None = None) -> Number:
    """FLOP of matmuls that touch each score once: 2 d or 2 d_v per score and contraction, over batch and query heads.

    ``scores`` per query head; the visible ones by default.
    """
    per_score = 2 * (contractions_d * w.d + contractions_dv * w.dv)
    return w.query_heads * (visible_scores(w) if scores is None else scores) * per_score


def query_rows(w: Attention) -> Number:
    """Query rows over batch and heads."""
    return w.query_heads * w.n


def seeing_rows(w: Attention) -> Number:
    """Query rows that see a key, over batch and heads: a row that sees none needs no Q, and its O is zero."""
    return w.query_heads * visible_rows(w)


def seen_keys(w: Attention) -> Number:
    """Key rows that some query sees, over batch and KV heads."""
    return w.stored_kv_heads * visible_keys(w)


def key_rows_stored(w: Attention) -> Number:
    """Key rows over batch and KV heads."""
    return w.stored_kv_heads * w.kv_len


def query_read(w: Attention, tensor: str, width: Number) -> Access:
    """Each row of a query-shaped tensor loaded once per pass."""
    return once(tensor, READ, query_rows(w) * width, w.dtype.size, compulsory=seeing_rows(w) * width)


def query_write(w: Attention, tensor: str, width: Number) -> Access:
    """Each row of a query-shaped tensor stored once."""
    return once(tensor, WRITE, query_rows(w) * width, w.dtype.size, compulsory=seeing_rows(w) * width)


def key_read(w: Attention, tensor: str, width: Number) -> Access:
    """K or V loaded once per walk: per query head, or per KV head if packed."""
    stored, needed = key_rows_stored(w) * width, seen_keys(w) * width
    return Access(tensor, READ, w.row_heads * w.kv_len * width, w.dtype.size, stored, needed)


def mask_read(w: Attention, tile: Tile, counts: BlockCounts | None = None) -> tuple[Access, ...]:
    """The additive mask beside every score of the visited tiles, or of ``counts``; nothing without a mask.

    One load per score and head, from one n x kv_len matrix for all of them: packed or not, each row looks up its own.
    """
    if not w.mask:
        return ()
    if counts is None:
        scores, needed = visited_scores(w, tile.br, tile.bc), visible_scores(w)
    else:
        scores, needed = counts.scores, counts.visible_scores // w.row_group
    loads, distinct = w.row_heads * scores, touched_scores(w, scores)
    return (Access("mask", READ, loads, w.dtype.size, distinct, needed, reread=True, scans=w.row_heads),)


def unfused_masks(w: Attention, scans: Number) -> dict[str, Access]:
    """Kernels that mask scores in memory, by name, and the n x kv_len matrix that each reads: again for every head.

    ``additive mask`` adds a matrix of the workload's dtype. ``masked_fill`` writes -inf, or 0 into gradients, where a boolean matrix of 1 B
    per entry says that a causal mask hides a score; fused kernels know that from the indices. It works in place; PyTorch's ``masked_fill``
    without underscore copies the scores first.
    """
    entries, kernels = w.n * w.kv_len, dict[str, Access]()
    if w.mask:
        visible = visible_scores(w)
        kernels["additive mask"] = Access("mask", READ, w.query_heads * entries, w.dtype.size, entries, visible, reread=True, scans=scans)
    if w.masked_fill:
        kernels["masked_fill"] = Access("boolean mask", READ, w.query_heads * entries, BOOLEAN_SIZE, entries, 0, reread=True, scans=scans)
    return kernels


def key_gradients(w: Attention, *tensors: tuple[str, Number]) -> tuple[Access, ...]:
    """dK and dV stored once per walk, and their sum over a group if each query head stored its own."""
    size, stored, per_walk = w.dtype.size, key_rows_stored(w), w.row_heads * w.kv_len
    writes = tuple(Access(name, WRITE, per_walk * width, size, per_walk * width, stored * width) for name, width in tensors)
    sums = minimum(w.group - w.row_group, 1)  # 0 where a walk already covers its whole group, else 1
    width = sum(width for _, width in tensors)
    return (*writes, Access("group sum", GROUP_SUM, sums * (per_walk + stored) * width, size, sums * stored * width, 0))
