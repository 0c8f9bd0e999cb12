"""The kernels that are timed on a CPU (``cpu-standard``, ``cpu-flash``, ``cpu-matmul``, ``cpu-copy``) and the loops that measure its rates.

All are plain fp32 loops that numba compiles, and each is one parallel region on every core. Arrays are in C order: q and o [heads, n, d], k
and v [kv heads, kv_len, d], scores [heads, n, kv_len]. The batch is among the heads. A causal mask is aligned to the last query and the
last key. A thread takes every ``threads``-th tile, where the head changes fastest, so that causal tiles of unlike length spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import prange

from perfmodel.timing.models.cpu import TILE_KEYS, TILE_ROWS

numba.config.THREADING_LAYER = "workqueue"  # part of every numba; its threads sleep while they wait

_OPTIONS: dict[str, Any] = {"fastmath": True, "error_model": "numpy"}
_PRANGE_ALONE: Any = dict.fromkeys(("comprehension", "fusion", "inplace_binop", "numpy", "reduction", "setitem", "stencil"), False)
"""Options of numba by which only ``prange`` runs in parallel, and no array expression."""
compiled = numba.njit(**_OPTIONS)
"""A function as machine code, for use in kernels."""
parallel = numba.njit(parallel=_PRANGE_ALONE, **_OPTIONS)
"""A function as a kernel: its ``prange`` runs on every core."""
DEPTH = 32
"""Rows of B that a tile of C visits at a time: with the tile's columns they fit the nearest cache."""
FMA_CHAIN, FMA_VALUES = 16, 256
"""Dependent multiply-adds on a value, and number of values: enough independent chains to hide an FMA's latency."""
HIDDEN = np.float32(-1e30)
"""Score of a hidden key."""
ZERO, ONE = np.float32(0), np.float32(1)


@compiled
def add_products(out: Any, a: Any, row: Any, left: Any, b: Any, top: Any, first: Any, rows: Any, depth: Any, columns: Any) -> None:
    """Adds a[row : row + rows, left : left + depth] times b[top : top + depth, first : first + columns] to out[:rows, :columns].

    It takes four rows of ``b`` at a time, so that ``out`` is loaded less often.
    """
    whole = depth - depth % 4
    for k in range(0, whole, 4):
        b0, b1, b2, b3 = b[top + k, first:], b[top + k + 1, first:], b[top + k + 2, first:], b[top + k + 3, first:]
        for r in range(rows):
            o, x = out[r], a[row + r, left + k :]
            x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
            for j in range(columns):
                o[j] += x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j]
    for k in range(whole, depth):
        b0 = b[top + k, first:]
        for r in range(rows):
            o, y = out[r], a[row + r, left + k]
            for j in range(columns):
                o[j] += y * b0[j]


@compiled
def transpose(packed: Any, b: Any, begin: Any, depth: Any, first: Any, columns: Any, scale: Any) -> None:
    """Writes ``scale`` times b[first : first + columns, begin : begin + depth], transposed, to ``packed``."""
    for j in range(columns):
        for k in range(depth):
            packed[k, j] = scale * b[first + j, begin + k]


@compiled
def seen_keys(row: Any, n: Any, kv_len: Any, causal: Any) -> Any:
    """Number of keys that query ``row`` sees, the first ones."""
    return max(row + 1 + kv_len - n, 0) if causal else kv_len


@compiled
def scale_values(out: Any, x: Any, count: Any, factor: Any) -> None:
    """Writes ``factor`` times the first ``count`` values of ``x`` to ``out``. A loop, as array expressions do not compile beside prange."""
    for j in range(count):
        out[j] = factor * x[j]


@compiled
def largest(x: Any, count: Any, top: Any) -> Any:
    """The maximum of the first ``count`` values of ``x`` and of ``top``."""
    for j in range(count):
        top = max(top, x[j])
    return top


@compiled
def exponentiate(out: Any, x: Any, seen: Any, count: Any, top: Any) -> Any:
    """Writes e^(x - top) of the first ``seen`` values to ``out``, then zeros up to ``count``; returns the sum."""
    total = ZERO
    for j in range(seen):
        e = np.float32(math.exp(x[j] - top))
        out[j] = e
        total += e
    for j in range(seen, count):
        out[j] = ZERO
    return total


@parallel
def flash(q: Any, k: Any, v: Any, o: Any, causal: Any, scale: Any, threads: Any) -> None:
    """Writes O. Scores never reach memory: a tile of queries stays in the caches while keys and values stream past it."""
    (heads, n, d), (kv_heads, kv_len, dv) = q.shape, v.shape
    group, tasks = heads // kv_heads, -(-n // TILE_ROWS) * heads
    for thread in prange(threads):
        s, packed = np.empty((TILE_ROWS, TILE_KEYS), np.float32), np.empty((d, TILE_KEYS), np.float32)
        out = np.empty((TILE_ROWS, dv), np.float32)
        top, total = np.empty(TILE_ROWS, np.float32), np.empty(TILE_ROWS, np.float32)  # maximum and sum of each row so far
        for task in range(thread, tasks, threads):
            head, first = task % heads, task // heads * TILE_ROWS
            rows = min(TILE_ROWS, n - first)
            out[:], top[:], total[:] = ZERO, HIDDEN, ZERO
            for begin in range(0, seen_keys(first + rows - 1, n, kv_len, causal), TILE_KEYS):
                keys = min(TILE_KEYS, kv_len - begin)
                transpose(packed, k[head // group], 0, d, begin, keys, scale)
                s[:] = ZERO
                add_products(s, q[head], first, 0, packed, 0, 0, rows, d, keys)
                for r in range(rows):
                    seen = min(keys, max(seen_keys(first + r, n, kv_len, causal) - begin, 0))
                    new_top = largest(s[r], seen, top[r])
                    decay = np.float32(math.exp(top[r] - new_top))
                    total[r] = total[r] * decay + exponentiate(s[r], s[r], seen, keys, new_top)
                    top[r] = new_top
                    scale_values(out[r], out[r], dv, decay)
                add_products(out, s, 0, 0, v[head // group], begin, 0, rows, keys, dv)
            for r in range(rows):
                scale_values(o[head, first + r], out[r], dv, ONE / total[r] if total[r] > ZERO else ZERO)


@parallel
def softmax(s: Any, p: Any, causal: Any, threads: Any) -> None:
    """Writes P, the softmax of the rows of S; hidden entries are zero, as is a row that sees nothing."""
    heads, n, kv_len = s.shape
    for thread in prange(threads):
        for task in range(thread, heads * n, threads):
            head, row = task // n, task % n
            x, y, seen = s[head, row], p[head, row], seen_keys(row, n, kv_len, causal)
            total = exponentiate(y, x, seen, kv_len, largest(x, seen, HIDDEN))
            scale_values(y, y, seen, ONE / max(total, ONE))  # the largest entry alone is 1, so a smaller sum is that of no entry


@parallel
def multiply(a: Any, b: Any, c: Any, tile_rows: Any, tile_columns: Any, span: Any, by_rows: Any, scale: Any, threads: Any) -> None:
    """Writes C [heads, m, n] = A [heads, m, k] B, by tiles of C; a task is the tiles in ``span`` columns.

    B is [kv heads, k, n]; ``by_rows``, it is [kv heads, n, k] and is multiplied by ``scale``.
    """
    (heads, m, depth), n = a.shape, c.shape[2]
    group = heads // b.shape[0]
    tasks_per_row, tasks_per_column = -(-n // span), -(-m // tile_rows)
    for thread in prange(threads):
        out, packed = np.empty((tile_rows, tile_columns), np.float32), np.empty((DEPTH, tile_columns), np.float32)
        for task in range(thread, heads * tasks_per_column * tasks_per_row, threads):
            head, place = task % heads, task // heads
            top, left = place // tasks_per_row * tile_rows, place % tasks_per_row * span
            rows = min(tile_rows, m - top)
            for first in range(left, min(left + span, n), tile_columns):
                columns = min(tile_columns, n - first)
                out[:] = ZERO
                for begin in range(0, depth, DEPTH):
                    steps = min(DEPTH, depth - begin)
                    if by_rows:
                        transpose(packed, b[head // group], begin, steps, first, columns, scale)
                        add_products(out, a[head], top, begin, packed, 0, 0, rows, steps, columns)
                    else:
                        add_products(out, a[head], top, begin, b[head // group], begin, first, rows, steps, columns)
                for r in range(rows):
                    scale_values(c[head, top + r, first:], out[r], columns, ONE)


@parallel
def copy(source: Any, target: Any, factor: Any, threads: Any) -> None:
    """Writes ``factor`` times ``source`` to ``target``, each thread a contiguous part.

    The factor, known only at run time, keeps the compiler from calling memcpy, whose kind of store changes with the size.
    """
    part = -(-source.size // threads)
    for thread in prange(threads):
        for i in range(thread * part, min((thread + 1) * part, source.size)):
            target[i] = factor * source[i]


@parallel
def read(source: Any, sums: Any, threads: Any) -> None:
    """Writes the sum of each thread's part of ``source``: every element is read once, and hardly anything stored."""
    part = -(-source.size // threads)
    for thread in prange(threads):
        total = ZERO
        for i in range(thread * part, min((thread + 1) * part, source.size)):
            total += source[i]
        sums[thread] = total


def rate(step: Callable[..., Any], chain: int) -> Any:
    """A kernel (x [threads, values], rounds, a, b, threads) that measures the rate of ``step``.

    In each round it replaces every value of a thread by ``step(value, a, b)``, ``chain`` times in a row. Without rounds it is a bare
    parallel region.
    """
    next_value = compiled(step)

    def repeated(x: Any, rounds: Any, a: Any, b: Any, threads: Any) -> None:
        for thread in prange(threads):
            row = x[thread]
            for _ in range(rounds):
                for i in range(row.size):
                    y = row[i]
                    for _ in range(chain):
                        y = next_value(y, a, b)
                    row[i] = y

    return parallel(repeated)


fma = rate(lambda x, a, b: x * a + b, FMA_CHAIN)
exponentials = rate(lambda x, a, b: math.exp(-x), 1)
