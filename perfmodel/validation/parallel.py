"""Work shared among processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

Name = TypeVar("Name")
Found = TypeVar("Found")


def _dies_at_once() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes: only the first has something to say


def in_parallel(function: Callable[..., Found], tasks: Mapping[Name, tuple[Any, ...]], jobs: int) -> Iterator[tuple[Name, Found]]:
    """``function`` of each task's arguments in up to ``jobs`` processes; each result as soon as it is there.

    The first error, or leaving the loop, ends all processes. Function and arguments must be such that pickle takes them.
    """
    if not tasks:
        return
    with ProcessPoolExecutor(min(jobs, len(tasks)), get_context("spawn"), _dies_at_once) as pool:
        before = set(active_children())
        try:
            futures = {pool.submit(function, *task): name for name, task in tasks.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            for child in set(active_children()) - before:
                child.terminate()
            raise
