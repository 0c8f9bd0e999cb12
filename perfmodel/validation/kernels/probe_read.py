"""Reads of global memory and nothing else, past L1: for the bandwidth of DRAM and L2, and to push other data out of L2."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from perfmodel.core.errors import UsageError
from perfmodel.validation.kernels._launch import launcher
from perfmodel.validation.kernels._steps import ZERO, U, cuda, kernel, load4_global
from perfmodel.validation.kernels._tiles import FOUR

NAME = "probe-read"
THREADS = 256
IN_FLIGHT = 4
"""16-byte loads that a thread starts before it waits for one."""
MOST_BLOCKS = 1024
NEVER = np.float32(1.2345e30)
"""A sum that does not happen; the compiler does not know that, so it keeps the loads."""


@cache
def build() -> Any:
    """The kernel ``(source, sums, passes)``: loads each element of the flat fp32 ``source`` once per pass."""

    def read(source: Any, sums: Any, passes: Any) -> None:
        step = U(cuda.gridDim.x) * U(cuda.blockDim.x) * FOUR
        first = (U(cuda.blockIdx.x) * U(cuda.blockDim.x) + U(cuda.threadIdx.x)) * FOUR
        size = U(source.size)
        total = ZERO
        for _ in range(passes):
            at = first
            while at + U(3) * step < size:
                a0, a1, a2, a3 = load4_global(source, at)
                b0, b1, b2, b3 = load4_global(source, at + step)
                c0, c1, c2, c3 = load4_global(source, at + U(2) * step)
                d0, d1, d2, d3 = load4_global(source, at + U(3) * step)
                total += a0 + a1 + a2 + a3 + b0 + b1 + b2 + b3 + c0 + c1 + c2 + c3 + d0 + d1 + d2 + d3
                at += U(4) * step
            while at < size:
                a0, a1, a2, a3 = load4_global(source, at)
                total += a0 + a1 + a2 + a3
                at += step
        if total == NEVER:
            sums[U(0)] = total

    return kernel(read)


def prepare(
    source: Any, sums: Any, passes: int = 1, blocks: int = MOST_BLOCKS, threads: int = THREADS, stream: Any = 0
) -> Callable[[], None]:
    """What launches the reads; ``sums`` holds one element and is never written. Fewer blocks where ``source`` is small."""
    if source.size % 4 or not source.size:
        raise UsageError(f"reading {source.size} elements", "give a multiple of 4")
    grid = (max(min(blocks, -(-source.size // (4 * IN_FLIGHT * threads))), 1),)
    return launcher(build(), grid, threads, 0, source, sums, U(passes), stream=stream)
