"""Kernels that keep one unit of a multiprocessor busy and touch no memory beyond it: multiply-adds, exponentials, shared memory.

Results depend on arguments and on a comparison with NEVER, so that no compiler can leave the work out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from perfmodel.validation.kernels._launch import launcher
from perfmodel.validation.kernels._steps import ZERO, U, cuda, device_function, float32, kernel, load4
from perfmodel.validation.kernels._tiles import FOUR
from perfmodel.validation.kernels.probe_read import NEVER

F32 = np.float32
THREADS = 256
CHAINS = 8
"""Independent chains per thread: a dependent operation waits a few clocks, so warps alone might not fill the unit."""
UNROLLED = 16
"""Operations of each chain per round of the loop, so that counting rounds costs little."""
SHARED_LOADS, LOAD_BYTES = 4, 16
"""Loads of shared memory per thread and round, and their width."""


def _rate_kernel(step: Callable[[Any, Any, Any], Any]) -> Any:
    """The kernel ``(sums, rounds, start, a, b)``: every chain is ``x = step(x, a, b)``, UNROLLED times a round."""
    chains, unrolled = U(CHAINS), U(UNROLLED)

    def rate(sums: Any, rounds: Any, start: Any, a: Any, b: Any) -> None:
        x = cuda.local.array(CHAINS, float32)
        for i in range(chains):
            x[i] = start + F32(i)
        for _ in range(rounds):
            for _ in range(unrolled):
                for i in range(chains):
                    x[i] = step(x[i], a, b)
        total = ZERO
        for i in range(chains):
            total += x[i]
        if total == NEVER:
            sums[U(0)] = total

    return kernel(rate)


def operations(blocks: int, rounds: int, threads: int = THREADS) -> int:
    """Steps of all chains of ``build_fma`` or ``build_exp``.

    >>> operations(1, 1)
    32768
    """
    return blocks * threads * CHAINS * UNROLLED * rounds


@cache
def build_fma() -> Any:
    """x = a x + b in fp32: 2 FLOP a step."""

    @device_function
    def fma(x: Any, a: Any, b: Any) -> Any:
        return x * a + b

    return _rate_kernel(fma)


@cache
def build_exp() -> Any:
    """x = 2^(-x), one ex2.approx under fast math; it tends to 0.64. ``a`` and ``b`` are not used."""

    @device_function
    def exp(x: Any, a: Any, b: Any) -> Any:
        return F32(math.exp2(-x))

    return _rate_kernel(exp)


@cache
def build_shared(threads: int = THREADS) -> Any:
    """The kernel ``(sums, rounds)``: a block reads all of its shared memory, 16 bytes per load, once a round.

    A round permutes the 128-byte rows, so that addresses change; the lanes of a quarter warp always cover one row: no conflicts.
    """
    pitch, size, rows = U(4 * threads), 4 * threads * SHARED_LOADS, U(threads // 8)
    loads, row, n_threads, n_size = U(SHARED_LOADS), U(32), U(threads), U(size)

    def shared_reads(sums: Any, rounds: Any) -> None:
        shared = cuda.shared.array(0, float32)
        thread = U(cuda.threadIdx.x)
        for at in range(thread, n_size, n_threads):
            shared[at] = F32(at)
        cuda.syncthreads()
        s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
        for turn in range(rounds):
            at = (thread * FOUR) ^ (turn % rows * row)
            for i in range(loads):
                a, b, c, d = load4(shared, at + i * pitch)
                s0 += a
                s1 += b
                s2 += c
                s3 += d
        total = s0 + s1 + s2 + s3
        if total == NEVER:
            sums[U(0)] = total

    return kernel(shared_reads)


def shared_bytes(blocks: int, rounds: int, threads: int = THREADS) -> int:
    """Bytes that ``build_shared`` reads.

    >>> shared_bytes(1, 1)
    16384
    """
    return blocks * threads * LOAD_BYTES * SHARED_LOADS * rounds


@cache
def build_empty() -> Any:
    """A kernel that does nothing."""

    def empty() -> None:
        return

    return kernel(empty)


def prepare_fma(sums: Any, blocks: int, rounds: int, threads: int = THREADS, stream: Any = 0) -> Callable[[], None]:
    """What launches the multiply-adds."""
    args = (sums, U(rounds), F32(0.5), F32(0.999), F32(0.001))
    return launcher(build_fma(), (blocks,), threads, 0, *args, stream=stream)


def prepare_exp(sums: Any, blocks: int, rounds: int, threads: int = THREADS, stream: Any = 0) -> Callable[[], None]:
    """What launches the exponentials."""
    return launcher(build_exp(), (blocks,), threads, 0, sums, U(rounds), F32(0.5), ZERO, ZERO, stream=stream)


def prepare_shared(sums: Any, blocks: int, rounds: int, threads: int = THREADS, stream: Any = 0) -> Callable[[], None]:
    """What launches the reads of shared memory."""
    return launcher(build_shared(threads), (blocks,), threads, shared_bytes(1, 1, threads), sums, U(rounds), stream=stream)


def prepare_empty(stream: Any = 0) -> Callable[[], None]:
    """What launches the empty kernel."""
    return launcher(build_empty(), (1,), 32, 0, stream=stream)
