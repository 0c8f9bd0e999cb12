"""Building blocks of the kernels, as instructions on a device and as plain Python in the simulator, and their launch.

A block works on ``br`` rows. ``lanes`` neighbouring threads share a row. Each thread has ``rows`` rows at a distance of ``step``, and every
``lanes``-th column of a product (``add_row_products``) or every ``lanes``-th group of four columns (``add_product``). All widths, lanes and
steps are powers of two, widths at least 4.

Tiles are stored by rows without padding. The 16-byte parts of a row are permuted instead, part p of row r at p xor
(r mod spread), so that rows read at once lie in different banks: a copy that straddles 128-byte lines of shared memory asks
L2 for sectors twice (rows padded by 16 bytes read 1.5 times their bytes on an H200).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numba
import numba.cuda
import numpy as np

from perfmodel.kernels.register_tiles import TileLayout

cuda: Any = numba.cuda
float32: Any = numba.float32
_settings: Any = numba.config
SIMULATED = bool(_settings.ENABLE_CUDASIM)
"""True under NUMBA_ENABLE_CUDASIM=1, which must be set before numba is first imported."""
_provider: Any = import_module("perfmodel.validation.kernels." + ("_simulated" if SIMULATED else "_instructions"))
copies_done, copy4, keep = _provider.copies_done, _provider.copy4, _provider.keep
load4, load4_global, load_global, store4 = _provider.load4, _provider.load4_global, _provider.load_global, _provider.store4
lane_max, lane_sum, sync_warp = _provider.lane_max, _provider.lane_sum, _provider.sync_warp

U: Any = np.uint64
"""Type of every index and loop bound: unsigned, as numba checks signed ones for wrap-around at each load."""
F32: Any = np.float32
ZERO, FOUR = F32(0), U(4)
LOWEST = F32(-1e30)
"""Running maximum before the first score: finite, so that a row that sees no key yet gets exp2 of a number, not nan."""
HIDDEN = F32(-3e38)
"""Score of a masked key: times any scale it stays far below LOWEST; finite, as fast math knows no infinities."""
UNASKED_SHARED_BYTES = 48 * 1024
"""Shared memory per block that needs no request to the driver; numba has no option for more."""
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute of the CUDA driver API


def device_function(function: Any) -> Any:
    """``function`` compiled for the device; unchanged in the simulator, where it must not use ``cuda``."""
    return function if SIMULATED else cuda.jit(device=True)(function)


def kernel(function: Any, max_registers: int | None = None) -> Any:
    """``function`` as a kernel: fused multiply-adds, fast exponentials, subnormals flushed to zero."""
    return cuda.jit(function) if SIMULATED else cuda.jit(function, fastmath=True, max_registers=max_registers)


def _allow_shared(function: Any, shared_bytes: int) -> None:
    """Raise the limit of a loaded kernel: a CUkernel under the numba-cuda package, a CUfunction under numba's own target."""
    from numba.cuda.cudadrv import driver as module

    driver: Any = module

    if hasattr(function, "kernel"):
        attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)
        return
    handle = ctypes.c_void_p(int(getattr(function.handle, "value", function.handle)))
    code = ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    if code:
        raise RuntimeError(f"{shared_bytes} B of shared memory per block: cuFuncSetAttribute returned {code}; use a smaller tile")


def launcher(kernel: Any, grid: tuple[int, ...], threads: int, shared_bytes: int, *args: Any, stream: Any = 0) -> Callable[[], None]:
    """Compile ``kernel`` for ``args`` and return a launch function, so that a timed launch compiles and checks nothing."""
    if not SIMULATED:
        kernel = kernel.specialize(*args)
        if shared_bytes > UNASKED_SHARED_BYTES:
            [overload] = kernel.overloads.values()
            _allow_shared(overload._codelibrary.get_cufunc(), shared_bytes)
    configured = kernel[grid, threads, stream, shared_bytes]
    return lambda: configured(*args)


def in_turn(steps: tuple[Callable[[], None], ...]) -> Callable[[], None]:
    """Function that launches ``steps`` one after the other."""

    def launch() -> None:
        for step in steps:
            step()

    return launch


def first_row(layout: TileLayout) -> Any:
    """Device function: thread -> the first of its rows."""
    lanes, step, rows = U(layout.lanes), U(layout.step), U(layout.rows)

    @device_function
    def first(thread: Any) -> Any:
        row = thread // lanes
        return row // step * (step * rows) + row % step

    return first


@device_function
def seen_keys(end: Any, n: Any, kv_len: Any) -> Any:
    """Keys that the last query row below ``end`` sees under a causal mask."""
    last = end + kv_len
    return min(last - n if last > n else U(0), kv_len)


def fill_tile(threads: int, rows: int, width: int, spread: int) -> Any:
    """Device function: copy ``real`` rows of ``real_width`` floats from global memory, ``pitch`` apart, and clear the rest.

    Every element is loaded exactly once, 16 bytes per thread, neighbouring threads from neighbouring addresses. Alignment:
    ``start``, ``pitch`` and ``real_width`` are multiples of 4.
    """
    per_row, step, count, n_spread, n_width = U(width // 4), U(threads), U(rows * width // 4), U(spread), U(width)
    rounds = U(-(-rows * width // 4 // threads))
    even = rows * width // 4 % threads == 0

    @device_function
    def fill(shared: Any, at: Any, source: Any, start: Any, pitch: Any, real: Any, real_width: Any, thread: Any) -> None:
        for turn in range(rounds):
            part = thread + turn * step
            if even or part < count:
                row = part // per_row
                column = part % per_row
                to = at + row * n_width + (column ^ (row % n_spread)) * FOUR
                if row < real and column * FOUR < real_width:
                    copy4(shared, to, source, start + row * pitch + column * FOUR)
                else:
                    store4(shared, to, ZERO, ZERO, ZERO, ZERO)

    return fill


def add_row_products(layout: TileLayout, columns: int, depth: int) -> Any:
    """Device function: c[i, j] += sum over k of a[row i, k] b[column j, k], both tiles stored by rows of ``depth``.

    ``rows`` x ``columns`` results per thread; ``part`` holds four floats per row. ``a`` and ``b``: offsets of the thread's first row and
    column, multiples of ``depth`` plus the row's permutation in floats. Four steps of k read rows + columns times 16 bytes for 4 rows x
    columns multiply-adds.
    """
    n_rows, n_columns, n_depth = U(layout.rows), U(columns), U(depth)
    row_pitch, column_pitch = U(layout.step * depth), U(layout.lanes * depth)

    @device_function
    def add(c: Any, part: Any, shared: Any, a: Any, b: Any) -> None:
        k = U(0)
        while k < n_depth:
            from_a, from_b = a ^ k, b ^ k
            for i in range(n_rows):
                part[i * FOUR], part[i * FOUR + U(1)], part[i * FOUR + U(2)], part[i * FOUR + U(3)] = load4(shared, from_a + i * row_pitch)
            for j in range(n_columns):
                b0, b1, b2, b3 = load4(shared, from_b + j * column_pitch)
                for i in range(n_rows):
                    c[i * n_columns + j] += part[i * FOUR] * b0
                for i in range(n_rows):
                    c[i * n_columns + j] += part[i * FOUR + U(1)] * b1
                for i in range(n_rows):
                    c[i * n_columns + j] += part[i * FOUR + U(2)] * b2
                for i in range(n_rows):
                    c[i * n_columns + j] += part[i * FOUR + U(3)] * b3
            k += FOUR

    return add


def add_product(layout: TileLayout, columns: int, depth: int, a_pitch: int, permuted: bool) -> Any:
    """Device function: c[i, j] += sum over k < depth of a[row i, k] b[k, column j], columns of a thread in groups of four.

    ``a`` has rows of ``a_pitch`` floats; if ``permuted``, a_pitch = depth and the row's permutation is part of ``a`` as in
    ``add_row_products``. ``b`` has rows of lanes x columns floats, not permuted.
    """
    n_rows, n_groups, n_depth, n_columns = U(layout.rows), U(columns // 4), U(depth), U(columns)
    row_pitch, b_pitch, group_pitch = U(layout.step * a_pitch), U(layout.lanes * columns), U(4 * layout.lanes)

    @device_function
    def add(c: Any, part: Any, shared: Any, a: Any, b: Any) -> None:
        k = U(0)
        while k < n_depth:
            from_a = a ^ k if permuted else a + k
            for i in range(n_rows):
                part[i * FOUR], part[i * FOUR + U(1)], part[i * FOUR + U(2)], part[i * FOUR + U(3)] = load4(shared, from_a + i * row_pitch)
            for kk in range(FOUR):
                for g in range(n_groups):
                    b0, b1, b2, b3 = load4(shared, b + (k + kk) * b_pitch + g * group_pitch)
                    for i in range(n_rows):
                        c[i * n_columns + g * FOUR] += part[i * FOUR + kk] * b0
                        c[i * n_columns + g * FOUR + U(1)] += part[i * FOUR + kk] * b1
                        c[i * n_columns + g * FOUR + U(2)] += part[i * FOUR + kk] * b2
                        c[i * n_columns + g * FOUR + U(3)] += part[i * FOUR + kk] * b3
            k += FOUR

    return add


def store_row(layout: TileLayout, columns: int) -> Any:
    """Device function: ``factor`` times the thread's ``columns`` results of its i-th row, from ``to`` in ``target`` on."""
    n_groups, n_columns, group_pitch = U(columns // 4), U(columns), U(4 * layout.lanes)

    @device_function
    def store(target: Any, to: Any, c: Any, i: Any, factor: Any) -> None:
        for g in range(n_groups):
            x = i * n_columns + g * FOUR
            store4(target, to + g * group_pitch, c[x] * factor, c[x + U(1)] * factor, c[x + U(2)] * factor, c[x + U(3)] * factor)

    return store
