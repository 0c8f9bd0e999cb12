"""Building blocks of the kernels and their launch, on a device and in the simulator.

A block computes ``br`` rows. ``lanes`` neighbouring threads share each row. A thread has ``rows`` rows, ``step`` rows apart. Of the columns
it has every ``lanes``-th one (``add_row_products``) or every ``lanes``-th group of four (``add_product``). All widths, lanes and steps are
powers of two, widths at least 4.

Tiles are stored by rows without padding, and the 16-byte parts of a row are permuted: part p of row r stands at p xor (r mod spread), so
that rows that are read at once lie in different banks. Padding would do that too, but a copy that straddles 128-byte lines of shared memory
asks L2 for sectors twice (rows padded by 16 bytes read 1.5 times their bytes on an H200).

A function that makes a device function begins with its sizes as unsigned numbers; their names begin with ``n_`` or ``u_``.
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


def device_function(function: Any) -> Any:
    """``function`` compiled for the device; unchanged in the simulator, where it must not use ``cuda``."""
    return function if SIMULATED else cuda.jit(device=True)(function)


def kernel(function: Any, max_registers: int | None = None) -> Any:
    """``function`` as a kernel: fused multiply-adds, fast exponentials, subnormals flushed to zero."""
    return cuda.jit(function) if SIMULATED else cuda.jit(function, fastmath=True, max_registers=max_registers)


DEFAULT_SHARED_BYTES = 48 * 1024
"""Largest shared memory of a block without a request to the driver."""


def launcher(kernel: Any, grid: tuple[int, ...], threads: int, shared_bytes: int, *args: Any, stream: Any = 0) -> Callable[[], None]:
    """Function that launches ``kernel``, compiled for ``args`` before, so that a timed launch compiles and checks nothing."""
    if not SIMULATED:
        kernel = kernel.specialize(*args)
        if shared_bytes > DEFAULT_SHARED_BYTES:
            [overload] = kernel.overloads.values()
            _allow_shared(overload._codelibrary.get_cufunc(), shared_bytes)
    configured = kernel[grid, threads, stream, shared_bytes]
    return lambda: configured(*args)


_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute of the CUDA driver API


def _allow_shared(function: Any, shared_bytes: int) -> None:
    """Asks the driver for ``shared_bytes`` per block of a loaded kernel, as numba has no option for it.

    The kernel is a CUkernel under the numba-cuda package, a CUfunction under numba's own target.
    """
    from numba.cuda.cudadrv import driver as untyped_driver

    driver: Any = untyped_driver
    if hasattr(function, "kernel"):
        attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)
        return
    handle = ctypes.c_void_p(int(getattr(function.handle, "value", function.handle)))
    code = ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    if code:
        raise RuntimeError(f"{shared_bytes} B of shared memory per block: cuFuncSetAttribute returned {code}; use a smaller tile")


def in_turn(steps: tuple[Callable[[], None], ...]) -> Callable[[], None]:
    """Function that launches ``steps`` one after the other."""

    def launch() -> None:
        for step in steps:
            step()

    return launch


def first_row(layout: TileLayout) -> Any:
    """Device function: thread -> the first of its rows. ``step`` threads of a column take neighbouring rows, then come their other rows."""
    n_lanes, n_step, n_rows = U(layout.lanes), U(layout.step), U(layout.rows)

    @device_function
    def first(thread: Any) -> Any:
        row = thread // n_lanes
        return row // n_step * (n_step * n_rows) + row % n_step

    return first


@device_function
def seen_keys(end: Any, n: Any, kv_len: Any) -> Any:
    """Number of keys that query row ``end`` - 1 sees under a causal mask: end + kv_len - n, which unsigned numbers keep from 0."""
    before = end + kv_len
    return min(before - n if before > n else U(0), kv_len)


def fill_tile(threads: int, rows: int, width: int, spread: int) -> Any:
    """Device function that fills a tile of ``rows`` x ``width`` floats, which begins at ``to`` in shared memory, permuted by ``spread``.

    It copies ``real_rows`` rows of ``real_width`` floats from global memory, where they begin at ``start`` and are ``pitch`` floats apart,
    and clears the rest of the tile. Every element is loaded exactly once, 16 bytes per thread, neighbouring threads from neighbouring
    addresses. ``start``, ``pitch`` and ``real_width`` are multiples of 4.
    """
    parts = rows * width // 4  # of 16 bytes
    u_parts, u_parts_per_row, u_threads, u_spread, u_width = U(parts), U(width // 4), U(threads), U(spread), U(width)
    rounds = U(-(-parts // threads))
    even = parts % threads == 0

    @device_function
    def fill(shared: Any, to: Any, source: Any, start: Any, pitch: Any, real_rows: Any, real_width: Any, thread: Any) -> None:
        for turn in range(rounds):
            part = thread + turn * u_threads
            if even or part < u_parts:
                row = part // u_parts_per_row
                column = part % u_parts_per_row
                place = to + row * u_width + (column ^ (row % u_spread)) * FOUR
                if row < real_rows and column * FOUR < real_width:
                    copy4(shared, place, source, start + row * pitch + column * FOUR)
                else:
                    store4(shared, place, ZERO, ZERO, ZERO, ZERO)

    return fill


def add_row_products(layout: TileLayout, columns: int, depth: int) -> Any:
    """Device function that adds to the thread's results c [rows, columns] the sums over k of a[row, k] b[column, k].

    Both tiles are stored by rows of ``depth`` floats in shared memory. ``a`` and ``b``: where the thread's first row and its first column
    begin there, plus their permutation in floats. ``part``: room for four floats of each row. Four steps of k read rows + columns times
    16 bytes for 4 rows x columns multiply-adds.
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
    """Device function that adds to the thread's results c [rows, columns] the sums over k < depth of a[row, k] b[k, column].

    ``a`` has rows of ``a_pitch`` floats; if ``permuted``, a_pitch = depth and the row's permutation is part of the offset ``a`` as in
    ``add_row_products``. ``b`` has rows of lanes x columns floats, not permuted. ``part``: room for four floats of each row.
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
    """Device function that stores ``factor`` times the thread's ``columns`` results of its i-th row, from ``to`` in ``target`` on."""
    n_groups, n_columns, group_pitch = U(columns // 4), U(columns), U(4 * layout.lanes)

    @device_function
    def store(target: Any, to: Any, c: Any, i: Any, factor: Any) -> None:
        for g in range(n_groups):
            x = i * n_columns + g * FOUR
            store4(target, to + g * group_pitch, c[x] * factor, c[x + U(1)] * factor, c[x + U(2)] * factor, c[x + U(3)] * factor)

    return store
