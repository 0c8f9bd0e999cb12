"""``numba-copy``: one array into another, 16 bytes per access; the bandwidth that any kernel here can hope for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.validation.kernels._launch import launcher
from perfmodel.validation.kernels._steps import U, cuda, kernel, load4, store4
from perfmodel.validation.kernels._tiles import FOUR

NAME = "numba-copy"
THREADS = 256
PER_THREAD = 4


@cache
def build() -> Any:
    """The kernel ``(source, target)`` on flat fp32 arrays of one size, a multiple of 4 elements."""

    def copy(source: Any, target: Any) -> None:
        step = U(cuda.gridDim.x) * U(cuda.blockDim.x) * FOUR
        for at in range((U(cuda.blockIdx.x) * U(cuda.blockDim.x) + U(cuda.threadIdx.x)) * FOUR, U(source.size), step):
            a, b, c, d = load4(source, at)
            store4(target, at, a, b, c, d)

    return kernel(copy)


def grid(elements: int, threads: int = THREADS) -> tuple[int]:
    """Thread blocks: each thread copies PER_THREAD times 16 bytes."""
    return (max(-(-elements // (4 * PER_THREAD * threads)), 1),)


def prepare(source: Any, target: Any, threads: int = THREADS, stream: Any = 0) -> Callable[[], None]:
    """What launches the copy: each element is loaded once and stored once."""
    if source.size % 4 or source.size != target.size:
        raise UsageError(f"copy of {source.size} into {target.size} elements", "give equal sizes, a multiple of 4")
    return launcher(build(), grid(source.size, threads), threads, 0, source, target, stream=stream)


def run(source: Any, target: Any, threads: int = THREADS, stream: Any = 0) -> None:
    """Copy ``source`` into ``target``."""
    prepare(source, target, threads, stream)()
