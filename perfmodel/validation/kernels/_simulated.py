"""The functions of ``_instructions.py`` in plain Python for the CUDA simulator, an element at a time, so that arrays can count accesses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def load4(array: Any, index: int) -> tuple[Any, Any, Any, Any]:
    """Four neighbouring elements."""
    i = int(index)
    return array[i], array[i + 1], array[i + 2], array[i + 3]


def store4(array: Any, index: int, a: Any, b: Any, c: Any, d: Any) -> None:
    """Four neighbouring elements."""
    for offset, value in enumerate((a, b, c, d)):
        array[int(index) + offset] = value


def copy4(target: Any, to: int, source: Any, index: int) -> None:
    """Copies four elements from global to shared memory."""
    store4(target, to, *load4(source, index))


def copies_done() -> None:
    """Does nothing: a simulated copy is complete when it returns."""


def load_global(array: Any, index: int) -> Any:
    """One element of global memory."""
    return array[int(index)]


load4_global = load4


def keep(index: Any) -> Any:
    """The index itself."""
    return index


def sync_warp() -> None:
    """Barrier of the whole block, as threads of a simulated warp do not run in step."""
    thread: Any = threading.current_thread()
    thread.syncthreads()


def _among_lanes(combine: Callable[[Iterable[Any]], Any], value: Any, lanes: int) -> Any:
    """``combine`` of the values of each ``lanes`` neighbouring threads; every thread of the block must call it."""
    thread: Any = threading.current_thread()
    values = thread._manager.__dict__.setdefault("exchanged_values", {})  # shared by the threads of the block
    values[thread.thread_id] = value
    thread.syncthreads()
    first = thread.thread_id - thread.thread_id % int(lanes)
    result = combine(values[lane] for lane in range(first, first + int(lanes)))
    thread.syncthreads()
    return result


def lane_max(value: Any, lanes: int) -> Any:
    """Largest value among each ``lanes`` neighbouring threads."""
    return _among_lanes(max, value, lanes)


def lane_sum(value: Any, lanes: int) -> Any:
    """Sum over each ``lanes`` neighbouring threads."""
    return _among_lanes(sum, value, lanes)
