"""``cpu-standard``, ``cpu-flash``, ``cpu-matmul`` and ``cpu-copy``, and the loops whose rates make a profile: fp32, on every core.

Plain loops that numba compiles; each kernel is one parallel region. Arrays are in C order: q and o [heads, n, d], k and v
[kv heads, kv_len, d], scores [heads, n, kv_len]; batch is among the heads; a causal mask is aligned to the last query and the last
key. Every thread takes every ``threads``-th tile, heads fastest, so that causal tiles of unlike length spread evenly.
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
"""Options of numba that keep array expressions within a thread."""
compiled = numba.njit(**_OPTIONS)
"""A function as machine code, for use in kernels."""
parallel = numba.njit(parallel=_PRANGE_ALONE, **_OPTIONS)
"""A function as a kernel: its ``prange`` runs on every core."""
DEPTH = 32
"""Rows of B that a tile of C visits at a time: with the tile's columns they fit the nearest cache."""
FMA_CHAIN, FMA_VALUES = 16, 256
"""Dependent multiply-adds on a value, and number of values: enough independent chains to hide an FMA's latency."""
HIDDEN = np.float32(-1e30)
ZERO, ONE = np.float32(0), np.float32(1)


@compiled
def add_products(out: Any, a: Any, row: Any, left: Any, b: Any, at: Any, first: Any, rows: Any, depth: Any, columns: Any) -> None:
    """out[:rows, :columns] += a[row:, left:] b[at:, first:] over ``depth``, four rows of b at a time: ``out`` is loaded less often."""
    whole = depth - depth % 4
    for k in range(0, whole, 4):
        b0, b1, b2, b3 = b[at + k, first:], b[at + k + 1, first:], b[at + k + 2, first:], b[at + k + 3, first:]
        for r in range(rows):
            o, x = out[r], a[row + r, left + k :]
            x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
            for j in range(columns):
                o[j] += x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j]
    for k in range(whole, depth):
        b0 = b[at + k, first:]
        for r in range(rows):
            o, y = out[r], a[row + r, left + k]
            for j in range(columns):
                o[j] += y * b0[j]


@compiled
def transposed(packed: Any, b: Any, begin: Any, depth: Any, first: Any, columns: Any, scale: Any) -> None:
    """``scale`` times ``depth`` columns of the rows b[first:] into ``packed`` [depth, columns], as a product reads them."""
    for j in range(columns):
        for k in range(depth):
            packed[k, j] = scale * b[first + j, begin + k]


@compiled
def seen_keys(row: Any, n: Any, kv_len: Any, causal: Any) -> Any:
    """Keys that query ``row`` sees."""
    return max(row + 1 + kv_len - n, 0) if causal else kv_len


@compiled
def scaled(out: Any, x: Any, count: Any, factor: Any) -> None:
    """``factor`` times ``count`` values. A separate loop: array expressions do not compile beside ``prange``."""
    for j in range(count):
        out[j] = factor * x[j]


@compiled
def largest(x: Any, count: Any, top: Any) -> Any:
    """The maximum of ``count`` values and ``top``."""
    for j in range(count):
        top = max(top, x[j])
    return top


@compiled
def exponentials_of(out: Any, x: Any, seen: Any, count: Any, top: Any) -> Any:
    """e^(x - top) of ``seen`` values, zeros up to ``count``, and their sum."""
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
    """O, scores never in memory: a query tile stays, keys and values stream past it."""
    (heads, n, d), (kv_heads, kv_len, dv) = q.shape, v.shape
    group, tasks = heads // kv_heads, -(-n // TILE_ROWS) * heads
    for thread in prange(threads):
        s, packed = np.empty((TILE_ROWS, TILE_KEYS), np.float32), np.empty((d, TILE_KEYS), np.float32)
        out, top, total = np.empty((TILE_ROWS, dv), np.float32), np.empty(TILE_ROWS, np.float32), np.empty(TILE_ROWS, np.float32)
        for task in range(thread, tasks, threads):
            head, first = task % heads, task // heads * TILE_ROWS
            rows = min(TILE_ROWS, n - first)
            out[:], top[:], total[:] = ZERO, HIDDEN, ZERO
            for begin in range(0, seen_keys(first + rows - 1, n, kv_len, causal), TILE_KEYS):
                keys = min(TILE_KEYS, kv_len - begin)
                transposed(packed, k[head // group], 0, d, begin, keys, scale)
                s[:] = ZERO
                add_products(s, q[head], first, 0, packed, 0, 0, rows, d, keys)
                for r in range(rows):
                    seen = min(keys, max(seen_keys(first + r, n, kv_len, causal) - begin, 0))
                    here = largest(s[r], seen, top[r])
                    kept = np.float32(math.exp(top[r] - here))
                    total[r] = total[r] * kept + exponentials_of(s[r], s[r], seen, keys, here)
                    top[r] = here
                    scaled(out[r], out[r], dv, kept)
                add_products(out, s, 0, 0, v[head // group], begin, 0, rows, keys, dv)
            for r in range(rows):
                scaled(o[head, first + r], out[r], dv, ONE / total[r] if total[r] > ZERO else ZERO)


@parallel
def softmax(s: Any, p: Any, causal: Any, threads: Any) -> None:
    """P = softmax of the rows of S; hidden entries are zero, as is a row that sees nothing."""
    heads, n, kv_len = s.shape
    for thread in prange(threads):
        for task in range(thread, heads * n, threads):
            head, row = task // n, task % n
            x, y, seen = s[head, row], p[head, row], seen_keys(row, n, kv_len, causal)
            total = exponentials_of(y, x, seen, kv_len, largest(x, seen, HIDDEN))
            scaled(y, y, seen, ONE / max(total, ONE))  # the largest counts one: less is a row that sees nothing


@parallel
def multiply(a: Any, b: Any, c: Any, tile_rows: Any, tile_columns: Any, span: Any, by_rows: Any, scale: Any, threads: Any) -> None:
    """C [heads, m, n] = A [heads, m, k] B by tiles of C, ``span`` columns in a task; B [kv heads, k, n], or ``by_rows`` [kv heads, n, k].

    ``scale``: of a B by rows.
    """
    (heads, m, depth), n = a.shape, c.shape[2]
    group, across, down = heads // b.shape[0], -(-n // span), -(-m // tile_rows)
    for thread in prange(threads):
        out, packed = np.empty((tile_rows, tile_columns), np.float32), np.empty((DEPTH, tile_columns), np.float32)
        for task in range(thread, heads * down * across, threads):
            head, tile = task % heads, task // heads
            top, left = tile // across * tile_rows, tile % across * span
            rows = min(tile_rows, m - top)
            for first in range(left, min(left + span, n), tile_columns):
                columns = min(tile_columns, n - first)
                out[:] = ZERO
                for begin in range(0, depth, DEPTH):
                    steps = min(DEPTH, depth - begin)
                    if by_rows:
                        transposed(packed, b[head // group], begin, steps, first, columns, scale)
                        add_products(out, a[head], top, begin, packed, 0, 0, rows, steps, columns)
                    else:
                        add_products(out, a[head], top, begin, b[head // group], begin, first, rows, steps, columns)
                for r in range(rows):
                    scaled(c[head, top + r, first:], out[r], columns, ONE)


@parallel
def copy(source: Any, target: Any, factor: Any, threads: Any) -> None:
    """``target`` = ``factor`` x ``source``, each thread a contiguous part. A factor known only when it runs keeps the compiler from
    calling memcpy, whose kind of store changes with the size."""
    part = -(-source.size // threads)
    for thread in prange(threads):
        for i in range(thread * part, min((thread + 1) * part, source.size)):
            target[i] = factor * source[i]


@parallel
def read(source: Any, sums: Any, threads: Any) -> None:
    """Sum of ``source`` by thread: every element once, nothing stored."""
    part = -(-source.size // threads)
    for thread in prange(threads):
        total = ZERO
        for i in range(thread * part, min((thread + 1) * part, source.size)):
            total += source[i]
        sums[thread] = total


def rate(step: Callable[..., Any], chain: int) -> Any:
    """Kernel (x [threads, values], rounds, a, b, threads): replaces a thread's values by ``step(value, a, b)``, ``chain`` times in a row.

    Without rounds it is a bare parallel region.
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
