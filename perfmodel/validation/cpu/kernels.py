"""``cpu-standard``, ``cpu-flash``, ``cpu-matmul`` and ``cpu-copy``: fp32 on every core, one parallel region per kernel.

Arrays are flat and in C order: q [heads, n, d], k and v [kv heads, kv_len, d], scores [heads, n, kv_len], o [heads, n, d]; batch is
among the heads; d is a multiple of LANES; a causal mask is aligned to the last query and the last key. Every thread takes
every ``threads``-th tile, heads fastest, so that causal tiles of unlike length spread evenly.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange

from perfmodel.validation.cpu._steps import (
    BR,
    HIDDEN,
    N_BC,
    N_BR,
    N_DEPTH,
    N_LANES,
    N_ROWS,
    ONE,
    ZERO,
    F,
    U,
    exponentials_of,
    largest,
    online,
    pack_columns,
    pack_keys,
    parallel,
    rows_in,
    scale_row,
    score_block,
    seen_keys,
)
from perfmodel.validation.cpu._vectors import add_products

numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]  # part of every numba; its threads sleep while they wait

MATMUL_ROWS, MATMUL_COLUMNS, MATMUL_DEPTH = 64, 128, 128
"""Tile of C, and the depth of the slices of A and B that are packed for it."""
_TILE_M, _TILE_N, _TILE_K = U(MATMUL_ROWS), U(MATMUL_COLUMNS), U(MATMUL_DEPTH)


@parallel
def flash(
    q: Any, k: Any, v: Any, o: Any, heads: Any, group: Any, n: Any, kv_len: Any, d: Any, causal: Any, scale: Any, threads: Any
) -> None:
    """O, scores never in memory: a query tile stays, keys and values stream past it."""
    tasks = (n + N_BR - ONE) // N_BR * heads
    for thread in prange(threads):
        rows_q, out = np.empty(N_BR * d, np.float32), np.empty(N_BR * d, np.float32)
        packed, top, total = np.empty(N_BC * d, np.float32), np.empty(BR, np.float32), np.empty(BR, np.float32)
        s, p = np.empty(N_ROWS * N_BC, np.float32), np.empty(N_ROWS * N_BC, np.float32)
        for task in range(U(thread), tasks, U(threads)):
            head, first = task % heads, task // heads * N_BR
            rows = min(N_BR, n - first)
            padded = (rows + N_ROWS - ONE) // N_ROWS * N_ROWS
            rows_in(rows_q, q, (head * n + first) * d, rows, padded, d, d, scale)
            out[:] = F(0)
            top[:] = HIDDEN
            total[:] = F(0)
            for begin in range(ZERO, seen_keys(first + rows - ONE, n, kv_len, causal), N_BC):
                keys, at = min(N_BC, kv_len - begin), (head // group * kv_len + begin) * d
                pack_keys(packed, k, at, keys, d)
                for g in range(ZERO, padded, N_ROWS):
                    score_block(s, rows_q, g * d, packed, keys, d)
                    for r in range(N_ROWS):
                        seen = seen_keys(first + g + r, n, kv_len, causal)
                        here = min(keys, seen - begin) if seen > begin else ZERO
                        online(s, p, r * N_BC, here, keys, out, (g + r) * d, d, top, total, g + r)
                    for c in range(ZERO, d, N_LANES):
                        add_products(out, g * d + c, d, p, ZERO, N_BC, v, at + c, d, keys)
            for r in range(rows):
                factor = F(1) / total[r] if total[r] > F(0) else F(0)
                for c in range(d):
                    o[(head * n + first + r) * d + c] = out[r * d + c] * factor


@parallel
def standard_scores(q: Any, k: Any, s: Any, heads: Any, group: Any, n: Any, kv_len: Any, d: Any, scale: Any, threads: Any) -> None:
    """S = scale Q K^T, all of it."""
    tasks = (n + N_BR - ONE) // N_BR * heads
    for thread in prange(threads):
        rows_q = np.empty(N_BR * d, np.float32)
        packed, local = np.empty(N_BC * d, np.float32), np.empty(N_ROWS * N_BC, np.float32)
        for task in range(U(thread), tasks, U(threads)):
            head, first = task % heads, task // heads * N_BR
            rows = min(N_BR, n - first)
            rows_in(rows_q, q, (head * n + first) * d, rows, (rows + N_ROWS - ONE) // N_ROWS * N_ROWS, d, d, scale)
            for begin in range(ZERO, kv_len, N_BC):
                keys = min(N_BC, kv_len - begin)
                pack_keys(packed, k, (head // group * kv_len + begin) * d, keys, d)
                for g in range(ZERO, rows, N_ROWS):
                    score_block(local, rows_q, g * d, packed, keys, d)
                    for r in range(min(N_ROWS, rows - g)):
                        to = (head * n + first + g + r) * kv_len + begin
                        for j in range(keys):
                            s[to + j] = local[r * N_BC + j]


@parallel
def standard_softmax(s: Any, p: Any, rows: Any, n: Any, kv_len: Any, causal: Any, threads: Any) -> None:
    """P = softmax of the rows of S; hidden entries are zero, as is a row that sees nothing."""
    for thread in prange(threads):
        for row in range(U(thread), rows, U(threads)):
            at, seen = row * kv_len, seen_keys(row % n, n, kv_len, causal)
            total = exponentials_of(p, at, s, at, seen, largest(s, at, seen))
            if seen > ZERO:
                scale_row(p, at, seen, F(1) / total)
            for j in range(seen, kv_len):
                p[at + j] = F(0)


@parallel
def standard_outputs(p: Any, v: Any, o: Any, heads: Any, group: Any, n: Any, kv_len: Any, d: Any, threads: Any) -> None:
    """O = P V, with all of P."""
    tasks = (n + N_BR - ONE) // N_BR * heads
    for thread in prange(threads):
        out, local = np.empty(N_BR * d, np.float32), np.empty(N_ROWS * N_DEPTH, np.float32)
        for task in range(U(thread), tasks, U(threads)):
            head, first = task % heads, task // heads * N_BR
            rows = min(N_BR, n - first)
            out[:] = F(0)
            for begin in range(ZERO, kv_len, N_DEPTH):
                keys, values = min(N_DEPTH, kv_len - begin), (head // group * kv_len + begin) * d
                for g in range(ZERO, rows, N_ROWS):
                    rows_in(local, p, (head * n + first + g) * kv_len + begin, min(N_ROWS, rows - g), N_ROWS, keys, kv_len, F(1))
                    for c in range(ZERO, d, N_LANES):
                        add_products(out, g * d + c, d, local, ZERO, keys, v, values + c, d, keys)
            for i in range(rows * d):
                o[(head * n + first) * d + i] = out[i]


@parallel
def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any, threads: Any) -> None:
    """C [m, n] = A [m, k] B [k, n], a tile of C at a time."""
    across = (n + _TILE_N - ONE) // _TILE_N
    tasks = (m + _TILE_M - ONE) // _TILE_M * across
    for thread in prange(threads):
        out, left = np.empty(_TILE_M * _TILE_N, np.float32), np.empty(_TILE_M * _TILE_K, np.float32)
        right = np.empty(_TILE_N * _TILE_K, np.float32)
        for task in range(U(thread), tasks, U(threads)):
            top, first = task // across * _TILE_M, task % across * _TILE_N
            rows, columns = min(_TILE_M, m - top), min(_TILE_N, n - first)
            padded = (rows + N_ROWS - ONE) // N_ROWS * N_ROWS
            out[:] = F(0)
            for begin in range(ZERO, k, _TILE_K):
                depth = min(_TILE_K, k - begin)
                rows_in(left, a, top * k + begin, rows, padded, depth, k, F(1))
                pack_columns(right, b, begin * n + first, depth, columns, n)
                for j in range(ZERO, columns, N_LANES):
                    for g in range(ZERO, padded, N_ROWS):
                        add_products(out, g * _TILE_N + j, _TILE_N, left, g * depth, depth, right, j * depth, N_LANES, depth)
            for r in range(rows):
                for j in range(columns):
                    c[(top + r) * n + first + j] = out[r * _TILE_N + j]


@parallel
def copy(source: Any, target: Any, factor: Any, threads: Any) -> None:
    """``target`` = ``factor`` x ``source``, each thread a contiguous part. A factor known only when it runs keeps the compiler from
    calling memcpy, whose kind of store changes with the size."""
    size = U(source.size)
    part = (size + threads - ONE) // threads
    for thread in prange(threads):
        for i in range(U(thread) * part, min((U(thread) + ONE) * part, U(source.size))):
            target[i] = factor * source[i]
