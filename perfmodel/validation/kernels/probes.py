"""Kernels that keep one part of the device busy: ``numba-copy``, reads of global memory, multiply-adds, exponentials, shared memory.

Each compares its result with NEVER and would store it if they were equal, so that no compiler can leave the work out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.validation.kernels import _steps as steps
from perfmodel.validation.kernels._steps import F32, FOUR, ZERO, U, cuda, device_function, float32, kernel, launcher

THREADS = 256
NEVER = F32(1.2345e30)
"""A sum that does not happen, which the compiler does not know."""


# Global memory

IN_FLIGHT = 4
"""16-byte loads that a thread starts before it waits for the first one; a thread of a copy has no more."""
MOST_BLOCKS = 1024


@cache
def build_copy() -> Any:
    """The kernel ``(source, target)`` on flat fp32 arrays of one size, a multiple of 4 elements."""

    def copy(source: Any, target: Any) -> None:
        step = U(cuda.gridDim.x) * U(cuda.blockDim.x) * FOUR
        for at in range((U(cuda.blockIdx.x) * U(cuda.blockDim.x) + U(cuda.threadIdx.x)) * FOUR, U(source.size), step):
            a, b, c, d = steps.load4(source, at)
            steps.store4(target, at, a, b, c, d)

    return kernel(copy)


def blocks_for(elements: int, threads: int) -> int:
    """Number of thread blocks whose threads move IN_FLIGHT times 16 bytes each."""
    return max(-(-elements // (4 * IN_FLIGHT * threads)), 1)


def prepare_copy(source: Any, target: Any, threads: int = THREADS) -> Callable[[], None]:
    """Function that launches the copy: each element is loaded once and stored once, 16 bytes per access."""
    if source.size % 4 or source.size != target.size:
        raise UsageError(f"copy of {source.size} into {target.size} elements", "give equal sizes, a multiple of 4")
    return launcher(build_copy(), (blocks_for(source.size, threads),), threads, 0, source, target)


@cache
def build_read() -> Any:
    """The kernel ``(source, sums, passes)``: loads each element of the flat fp32 ``source`` once per pass, past L1."""

    def read(source: Any, sums: Any, passes: Any) -> None:
        step = U(cuda.gridDim.x) * U(cuda.blockDim.x) * FOUR
        first = (U(cuda.blockIdx.x) * U(cuda.blockDim.x) + U(cuda.threadIdx.x)) * FOUR
        size = U(source.size)
        total = ZERO
        for _ in range(passes):
            at = first
            while at + U(3) * step < size:
                a0, a1, a2, a3 = steps.load4_global(source, at)
                b0, b1, b2, b3 = steps.load4_global(source, at + step)
                c0, c1, c2, c3 = steps.load4_global(source, at + U(2) * step)
                d0, d1, d2, d3 = steps.load4_global(source, at + U(3) * step)
                total += a0 + a1 + a2 + a3 + b0 + b1 + b2 + b3 + c0 + c1 + c2 + c3 + d0 + d1 + d2 + d3
                at += U(4) * step
            while at < size:
                a0, a1, a2, a3 = steps.load4_global(source, at)
                total += a0 + a1 + a2 + a3
                at += step
        if total == NEVER:
            sums[U(0)] = total

    return kernel(read)


def prepare_read(source: Any, sums: Any, passes: int = 1, blocks: int = MOST_BLOCKS, threads: int = THREADS) -> Callable[[], None]:
    """Function that launches the reads; ``sums`` holds one element and is never written. A small ``source`` takes fewer blocks."""
    if source.size % 4 or not source.size:
        raise UsageError(f"reading {source.size} elements", "give a multiple of 4")
    grid = (min(blocks, blocks_for(source.size, threads)),)
    return launcher(build_read(), grid, threads, 0, source, sums, U(passes))


# Units of a multiprocessor

CHAINS = 8
"""Independent chains of operations per thread: an operation waits a few clocks for the one before, so warps alone might not fill a unit."""
UNROLLED = 16
"""Operations of each chain per round of the loop, so that counting rounds costs little."""


def _rate_kernel(step: Callable[[Any, Any, Any], Any]) -> Any:
    """The kernel ``(sums, rounds, start, a, b)``: each chain replaces its x by ``step(x, a, b)``, UNROLLED times a round."""
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
    """Number of steps of all chains of a kernel of ``build_rate``.

    >>> operations(1, 1)
    32768
    """
    return blocks * threads * CHAINS * UNROLLED * rounds


@device_function
def _fma(x: Any, a: Any, b: Any) -> Any:
    return x * a + b


@device_function
def _exp(x: Any, a: Any, b: Any) -> Any:
    return F32(math.exp2(-x))  # one ex2.approx under fast math; tends to 0.64


@cache
def build_rate(name: str) -> Any:
    """The kernel called ``name``. ``fma``: x = a x + b in fp32, 2 FLOP a step; ``exp``: x = 2^(-x), where ``a`` and ``b`` are not used."""
    return _rate_kernel({"fma": _fma, "exp": _exp}[name])


SHARED_LOADS, LOAD_BYTES = 4, 16
"""Loads of shared memory per thread and round, and their width."""


@cache
def build_shared(threads: int = THREADS) -> Any:
    """The kernel ``(sums, rounds)``: a block reads all of its shared memory once a round, 16 bytes per load.

    A round permutes the 128-byte rows, so that addresses change. The lanes of a quarter warp always cover one row, so that no two of them
    want the same bank.
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
                a, b, c, d = steps.load4(shared, at + i * pitch)
                s0 += a
                s1 += b
                s2 += c
                s3 += d
        total = s0 + s1 + s2 + s3
        if total == NEVER:
            sums[U(0)] = total

    return kernel(shared_reads)


def shared_bytes(blocks: int, rounds: int, threads: int = THREADS) -> int:
    """Bytes of shared memory that the kernel of ``build_shared`` reads.

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
    """Function that launches the multiply-adds."""
    return launcher(build_rate("fma"), (blocks,), threads, 0, sums, U(rounds), F32(0.5), F32(0.999), F32(0.001), stream=stream)


def prepare_exp(sums: Any, blocks: int, rounds: int, threads: int = THREADS) -> Callable[[], None]:
    """Function that launches the exponentials."""
    return launcher(build_rate("exp"), (blocks,), threads, 0, sums, U(rounds), F32(0.5), ZERO, ZERO)


def prepare_shared(sums: Any, blocks: int, rounds: int, threads: int = THREADS) -> Callable[[], None]:
    """Function that launches the reads of shared memory."""
    return launcher(build_shared(threads), (blocks,), threads, shared_bytes(1, 1, threads), sums, U(rounds))


def prepare_empty(stream: Any = 0) -> Callable[[], None]:
    """Function that launches the empty kernel."""
    return launcher(build_empty(), (1,), 32, 0, stream=stream)
