"""How often tiles meet: closed forms of the loops over query tiles and key tiles.

A walk covers one head: ``rows`` = group * n query rows (the query heads of a group interleaved, row = q * group + h, when
packed; group 1 otherwise) against ``kv_len`` keys, in tiles of ``br`` rows by ``bc`` keys. With a causal mask a tile pair
is visited only if it holds at least one visible score. All results are per walk, in elements or tiles.

Source: reference walk of FlashAttention (Dao et al. 2022, Alg. 1; Dao 2023, Alg. 1), the sums in closed form.
"""

from __future__ import annotations

from perfmodel.arith import Number, ceil_div, clip, clipped_floor_sum, minimum
from perfmodel.workload import Attention


def visible_scores(w: Attention) -> Number:
    """E, unmasked entries of one head's n x kv_len score matrix.

    >>> visible_scores(Attention(n=4, kv_len=4, d=8, dv=8, causal=True))
    10
    """
    if not w.causal:
        return w.n * w.kv_len
    seeing = visible_rows(w)
    return seeing * w.kv_len - seeing * (seeing - 1) // 2


def visible_rows(w: Attention) -> Number:
    """Query rows of one head that see at least one key."""
    return minimum(w.n, w.kv_len) if w.causal else w.n


def row_tiles(w: Attention, br: Number) -> Number:
    """T_r, tiles along the queries of one walk."""
    return ceil_div(w.row_group * w.n, br)


def key_tiles(w: Attention, bc: Number) -> Number:
    """T_c, tiles along the keys of one walk."""
    return ceil_div(w.kv_len, bc)


def _tiles_of_row_tile(w: Attention, br: Number, bc: Number, low: Number) -> Number:
    """Sum over all row tiles but the last of max(low, key tiles it visits).

    Row tile i ends at row (i+1) br - 1, the query floor(that / g), which sees keys up to query + kv_len - n; nested
    floors merge, so the tile of that last key is floor((i br + br - 1 + g (kv_len - n)) / (g bc)).
    """
    g, tc = w.row_group, key_tiles(w, bc)
    first = br - 1 + g * (w.kv_len - w.n) + g * bc
    return clipped_floor_sum(row_tiles(w, br) - 1, br, first, g * bc, low, tc)


def visited_tiles(w: Attention, br: Number, bc: Number) -> Number:
    """Tile pairs that a kernel computes.

    >>> visited_tiles(Attention(n=4, kv_len=4, d=8, dv=8, causal=True), 2, 1)
    6
    """
    if not w.causal:
        return row_tiles(w, br) * key_tiles(w, bc)
    return _tiles_of_row_tile(w, br, bc, 0) + key_tiles(w, bc)


def streamed_key_rows(w: Attention, br: Number, bc: Number) -> Number:
    """C, key rows loaded when each query tile stays and K, V stream past it.

    >>> streamed_key_rows(Attention(n=1000, kv_len=1000, d=64, dv=64, causal=True), 128, 128)
    4584
    """
    if not w.causal:
        return row_tiles(w, br) * w.kv_len
    tc = key_tiles(w, bc)
    missing = tc * bc - w.kv_len  # keys the last key tile lacks
    reach_end = _tiles_of_row_tile(w, br, bc, tc - 1) - (row_tiles(w, br) - 1) * (tc - 1) + 1
    return bc * visited_tiles(w, br, bc) - missing * reach_end


def streamed_query_rows(w: Attention, br: Number, bc: Number) -> Number:
    """R, query rows loaded when each key tile stays and Q streams past it.

    >>> streamed_query_rows(Attention(n=1000, kv_len=1000, d=64, dv=64), 128, 128)
    8000
    """
    rows, tc = w.row_group * w.n, key_tiles(w, bc)
    if not w.causal:
        return tc * rows
    g = w.row_group
    skipped = clipped_floor_sum(tc, g * bc, g * (w.n - w.kv_len), br, 0, row_tiles(w, br))
    return tc * rows - br * skipped


def rows_of_key_tile(w: Attention, br: Number, bc: Number, j: Number) -> Number:
    """Query rows that key tile ``j`` streams."""
    rows = w.row_group * w.n
    if not w.causal:
        return rows
    return rows - br * clip((w.row_group * (j * bc + w.n - w.kv_len)) // br, 0, row_tiles(w, br))


def visited_scores(w: Attention, br: Number, bc: Number) -> Number:
    """Score entries of the visited tiles, a partial tile counted at its real size, K/V outermost."""
    tc = key_tiles(w, bc)
    return bc * streamed_query_rows(w, br, bc) - (tc * bc - w.kv_len) * rows_of_key_tile(w, br, bc, tc - 1)
