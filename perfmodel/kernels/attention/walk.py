"""How often tiles meet: closed forms of the loops over query tiles and key tiles.

A walk covers one head: ``rows`` = g n query rows (the query heads of a group interleaved, row = q g + h, when packed; g = 1
otherwise) against ``kv_len`` keys, in tiles of ``br`` rows by ``bc`` keys. Query q sees keys up to q + kv_len - n under a
causal mask, and only the last ``window`` of them if there is one. A tile pair is visited if it holds a visible score. All
results are per walk, in elements or tiles.

Row tile i begins at row i B_r, which belongs to query floor(i B_r / g); nested floors merge, so the tile of a key at a fixed
distance x from that query is floor((i B_r + g x) / (g B_c)): every sum below is a clipped floor sum.

Source: reference walk of FlashAttention (Dao et al. 2022, Alg. 1; Dao 2023, Alg. 1), the sums in closed form.
"""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div, clip, clipped_floor_sum, maximum, minimum
from perfmodel.core.trace import label
from perfmodel.core.workload import Attention


def visible_scores(w: Attention) -> Number:
    """E, unmasked entries of one head's n x kv_len score matrix.

    >>> visible_scores(Attention(n=4, kv_len=4, d=8, dv=8, causal=True))
    10
    >>> visible_scores(Attention(n=4, kv_len=4, d=8, dv=8, causal=True, window=2))
    7
    """
    if not w.causal:
        scores = w.n * w.kv_len
    elif w.window is not None:
        scores = _scores_before(w.kv_len, w.window) - _scores_before(maximum(w.kv_len - w.n, 0), w.window)
    else:
        seeing = visible_rows(w)
        scores = seeing * w.kv_len - seeing * (seeing - 1) // 2
    return label("E", "visible scores per head", scores)


def _scores_before(keys: Number, window: Number) -> Number:
    """Visible scores of the queries whose last key is one of the first ``keys``."""
    short = minimum(keys, window)
    return short * (short + 1) // 2 + (keys - short) * window


def visible_rows(w: Attention) -> Number:
    """Query rows of one head that see at least one key."""
    return label("rows", "query rows per head that see a key", minimum(w.n, w.kv_len)) if w.causal else w.n


def visible_keys(w: Attention) -> Number:
    """Keys of one head that at least one query sees."""
    return w.kv_len if w.window is None else label("keys", "keys per head that a query sees", minimum(w.kv_len, w.n + w.window - 1))


def row_tiles(w: Attention, br: Number) -> Number:
    """T_r, tiles along the queries of one walk."""
    return label("T_r", "tiles along the queries", ceil_div(w.row_group * w.n, br))


def key_tiles(w: Attention, bc: Number) -> Number:
    """T_c, tiles along the keys of one walk."""
    return label("T_c", "tiles along the keys", ceil_div(w.kv_len, bc))


def _tiles_to_last_key(w: Attention, br: Number, bc: Number, low: Number) -> Number:
    """Sum over all row tiles but the last of max(low, key tiles up to the last visible one). The last row tile sees all keys."""
    g = w.row_group
    last_row = br - 1 + g * (w.kv_len - w.n)
    return clipped_floor_sum(row_tiles(w, br) - 1, br, last_row + g * bc, g * bc, low, key_tiles(w, bc))


def _tiles_before_window(w: Attention, br: Number, bc: Number) -> Number:
    """Sum over all row tiles of the key tiles that lie wholly before the window."""
    if w.window is None:
        return 0
    g = w.row_group
    first_key = g * (w.kv_len - w.n - w.window + 1)
    return clipped_floor_sum(row_tiles(w, br), br, first_key, g * bc, 0, key_tiles(w, bc))


def visited_tiles(w: Attention, br: Number, bc: Number) -> Number:
    """Tile pairs that a kernel computes.

    >>> visited_tiles(Attention(n=4, kv_len=4, d=8, dv=8, causal=True), 2, 1)
    6
    """
    if not w.causal:
        tiles = row_tiles(w, br) * key_tiles(w, bc)
    else:
        tiles = _tiles_to_last_key(w, br, bc, 0) + key_tiles(w, bc) - _tiles_before_window(w, br, bc)
    return label("tiles", "tile pairs visited per walk", tiles)


def streamed_key_rows(w: Attention, br: Number, bc: Number) -> Number:
    """C, key rows loaded when each query tile stays and K, V stream past it.

    >>> streamed_key_rows(Attention(n=1000, kv_len=1000, d=64, dv=64, causal=True), 128, 128)
    4584
    """
    if not w.causal:
        return label("C", "key rows streamed per walk", row_tiles(w, br) * w.kv_len)
    tc = key_tiles(w, bc)
    missing = tc * bc - w.kv_len  # keys the last key tile lacks
    reach_end = _tiles_to_last_key(w, br, bc, tc - 1) - (row_tiles(w, br) - 1) * (tc - 1) + 1
    return label("C", "key rows streamed per walk", bc * visited_tiles(w, br, bc) - missing * reach_end)


def distinct_key_rows(w: Attention, bc: Number) -> Number:
    """Key rows in tiles that some query tile visits: all but those before the first window."""
    if w.window is None:
        return w.kv_len
    return w.kv_len - bc * clip((w.kv_len - w.n - w.window + 1) // bc, 0, key_tiles(w, bc))


def streamed_query_rows(w: Attention, br: Number, bc: Number) -> Number:
    """R, query rows loaded when each key tile stays and Q streams past it.

    >>> streamed_query_rows(Attention(n=1000, kv_len=1000, d=64, dv=64), 128, 128)
    8000
    """
    rows, tc, tr, g = w.row_group * w.n, key_tiles(w, bc), row_tiles(w, br), w.row_group
    streamed = tc * rows
    if w.causal:
        skipped = clipped_floor_sum(tc, g * bc, g * (w.n - w.kv_len), br, 0, tr)
        if w.window is None:
            streamed = streamed - br * skipped
        else:  # the last query of a key tile is the one whose window begins at the tile's last key; the last key tile reaches the end
            last_row = g * (bc + w.n - w.kv_len + w.window - 1) - 1
            reached = clipped_floor_sum(tc - 1, g * bc, last_row + br, br, 0, tr)
            reach_end = clipped_floor_sum(tc - 1, g * bc, last_row + br, br, tr - 1, tr) - (tc - 1) * (tr - 1)
            streamed = br * reached - (tr * br - rows) * reach_end + rows - br * skipped
    return label("R", "query rows streamed per walk", streamed)


def rows_of_key_tile(w: Attention, br: Number, bc: Number, j: Number) -> Number:
    """Query rows that key tile ``j`` streams."""
    rows, g, tr = w.row_group * w.n, w.row_group, row_tiles(w, br)
    if not w.causal:
        return rows
    skipped = br * clip((g * (j * bc + w.n - w.kv_len)) // br, 0, tr)
    if w.window is None:
        return rows - skipped
    last_key = minimum((j + 1) * bc, w.kv_len) - 1
    last_row = g * (last_key + w.n - w.kv_len + w.window) - 1
    return minimum(rows, br * clip(last_row // br + 1, 0, tr)) - skipped


def distinct_query_rows(w: Attention, br: Number, bc: Number) -> Number:
    """Query rows in tiles that some key tile visits: all but those before the first key."""
    rows = w.row_group * w.n
    if w.causal:
        rows -= br * clip((w.row_group * (w.n - w.kv_len)) // br, 0, row_tiles(w, br))
    return label("rows touched", "query rows of a walk that some key tile streams", rows)


def visited_scores(w: Attention, br: Number, bc: Number) -> Number:
    """Score entries of the visited tiles, a partial tile counted at its real size, K/V outermost."""
    tc = key_tiles(w, bc)
    return bc * streamed_query_rows(w, br, bc) - (tc * bc - w.kv_len) * rows_of_key_tile(w, br, bc, tc - 1)


def touched_scores(w: Attention, scores: Number) -> Number:
    """Distinct entries of one head's score matrix among the ``scores`` that a walk visits; the mean over the heads of a packed group.

    Heads differ only where a packed tile ends inside a query: there some heads visit one key tile fewer.
    """
    return ceil_div(scores, w.row_group) if w.packed else scores
