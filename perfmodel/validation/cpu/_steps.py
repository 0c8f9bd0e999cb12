"""Steps of the CPU kernels, compiled by numba and inlined: tiles, packing, rows of a softmax.

Indices are unsigned: a signed one carries a test for wrap-around into every loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from perfmodel.validation.cpu._vectors import LANES, ROWS, add_products, larger, power_of_two

Function = TypeVar("Function", bound=Callable[..., Any])
_OPTIONS: dict[str, Any] = {"fastmath": True, "cache": False, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """``function`` as machine code, for use in kernels."""
    made: Function = numba.njit(**_OPTIONS)(function)
    return made


def parallel(function: Function) -> Function:
    """``function`` as a kernel: its ``prange`` runs on every core."""
    made: Function = numba.njit(parallel=True, **_OPTIONS)(function)
    return made


BR, BC, DEPTH = 128, 64, 256
"""Query rows and keys per tile of attention; keys per step of P V."""

U, F = np.uintp, np.float32
N_LANES, N_ROWS, N_BR, N_BC, N_DEPTH = U(LANES), U(ROWS), U(BR), U(BC), U(DEPTH)
ZERO, ONE = U(0), U(1)
HIDDEN = F(-1e30)
_LOWEST = F(-87.0)  # e^-87 is about the smallest normal float32


@compiled
def exp(x: Any) -> Any:
    """e^x for x <= 0, flushed to about 1e-38 below -87. 2^f on [-1/2, 1/2] by Taylor's series: relative error 2e-7."""
    y = (x if x > _LOWEST else _LOWEST) * F(1.4426950408889634)
    whole = np.floor(y + F(0.5))
    f = y - whole
    p = F(1.5403530e-4)
    p = p * f + F(1.3333558e-3)
    p = p * f + F(9.6181291e-3)
    p = p * f + F(5.5504109e-2)
    p = p * f + F(2.4022651e-1)
    p = p * f + F(6.9314718e-1)
    p = p * f + F(1.0)
    return p * power_of_two(np.int32(whole))


@compiled
def rows_in(target: Any, source: Any, at: Any, rows: Any, padded: Any, width: Any, pitch: Any, factor: Any) -> None:
    """``rows`` rows times ``factor`` into a local tile of ``padded`` rows; the rest is zero."""
    for r in range(padded):
        for c in range(width):
            target[r * width + c] = factor * source[at + r * pitch + c] if r < rows else F(0)


@compiled
def pack_keys(target: Any, k: Any, at: Any, keys: Any, d: Any) -> None:
    """Keys in panels of LANES, transposed: panel, column, key; missing keys of the last panel are zero."""
    for j in range((keys + N_LANES - ONE) // N_LANES * N_LANES):
        to = j // N_LANES * d * N_LANES + j % N_LANES
        for c in range(d):
            target[to + c * N_LANES] = k[at + j * d + c] if j < keys else F(0)


@compiled
def score_block(s: Any, q: Any, q_at: Any, keys: Any, key_count: Any, d: Any) -> None:
    """ROWS x BC scores of rows of ``q`` with packed ``keys``."""
    for i in range(N_ROWS * N_BC):
        s[i] = F(0)
    for j in range(ZERO, key_count, N_LANES):
        add_products(s, j, N_BC, q, q_at, d, keys, j * d, N_LANES, d)


@compiled
def seen_keys(row: Any, n: Any, kv_len: Any, causal: Any) -> Any:
    """Keys that query ``row`` sees."""
    if not causal:
        return kv_len
    return row + ONE + kv_len - n if row + ONE + kv_len > n else ZERO


@compiled
def largest(x: Any, at: Any, count: Any) -> Any:
    top = HIDDEN
    for j in range(count):
        top = larger(top, x[at + j])
    return top


@compiled
def exponentials_of(out: Any, to: Any, x: Any, at: Any, count: Any, top: Any) -> Any:
    """e^(x - top) of ``count`` values, and their sum. Two arrays: in one the compiler fears an overlap and stays scalar."""
    total = F(0)
    for j in range(count):
        e = exp(x[at + j] - top)
        out[to + j] = e
        total += e
    return total


@compiled
def scale_row(x: Any, at: Any, count: Any, factor: Any) -> None:
    for c in range(count):
        x[at + c] *= factor


@compiled
def online(s: Any, p: Any, at: Any, seen: Any, keys: Any, out: Any, out_at: Any, d: Any, top: Any, total: Any, row: Any) -> None:
    """One row of a score tile into exponentials ``p``; the row's output so far, maximum and sum follow."""
    for j in range(seen, keys):
        p[at + j] = F(0)
    if seen == ZERO:
        return
    before, here = top[row], largest(s, at, seen)
    after = here if here > before else before
    added, kept = exponentials_of(p, at, s, at, seen, after), exp(before - after)
    total[row] = total[row] * kept + added
    top[row] = after
    scale_row(out, out_at, d, kept)


@compiled
def pack_columns(target: Any, b: Any, at: Any, depth: Any, columns: Any, n: Any) -> None:
    """A slice of B in panels of LANES columns: panel, row, column; missing columns are zero."""
    for panel in range((columns + N_LANES - ONE) // N_LANES):
        for i in range(depth):
            for c in range(N_LANES):
                column = panel * N_LANES + c
                target[(panel * depth + i) * N_LANES + c] = b[at + i * n + column] if column < columns else F(0)
