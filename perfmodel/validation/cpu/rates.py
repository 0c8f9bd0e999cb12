"""Loops that do one thing as fast as the machine can: the rates of its profile."""

from __future__ import annotations

from typing import Any

from numba import prange

from perfmodel.validation.cpu._steps import ONE, F, U, exp, parallel
from perfmodel.validation.cpu._vectors import fma_chains
from perfmodel.validation.cpu.kernels import copy

__all__ = ["copy", "exponentials", "fma", "read"]


@parallel
def read(source: Any, sums: Any, threads: Any) -> None:
    """Sum of ``source`` by thread: every element once, nothing stored."""
    size = U(source.size)
    part = (size + threads - ONE) // threads
    for thread in prange(threads):
        total = F(0)
        for i in range(U(thread) * part, min((U(thread) + ONE) * part, U(source.size))):
            total += source[i]
        sums[thread] = total


@parallel
def fma(rounds: Any, sums: Any, threads: Any) -> None:
    """``rounds`` of independent FMAs in the registers of each thread; with none, a bare parallel region."""
    for thread in prange(threads):
        sums[thread] = fma_chains(rounds)


@parallel
def exponentials(x: Any, rounds: Any, threads: Any) -> None:
    """e^-x of a thread's row of ``x`` [threads, values], ``rounds`` times over, in its nearest cache."""
    values = U(x.size) // threads
    for thread in prange(threads):
        for _ in range(rounds):
            for i in range(U(thread) * values, (U(thread) + ONE) * values):
                x[i] = exp(-x[i])
