"""Timing on a machine that others use too.

A run lasts as long as its busiest thread computes: that is the wall clock of a machine with nothing else to do, without the
time in which the system gave the core to another process. It holds for kernels whose threads sleep while they wait (numba's
``workqueue`` layer) and share the work evenly. Where threads have no clocks of their own it is the wall clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.validation.statistics import quantile, relative_error_of_median

VISIT_S = 0.05
"""An item is run again and again for about this long before the next one has its turn."""
FEWEST_RUNS, MOST_RUNS = 9, 100
RELATIVE_ERROR = 0.02
"""Standard error of the median at which an item is done."""


@dataclass(slots=True)
class Item:
    """What is timed: ``run`` is called without arguments. ``budget_s``: it gets no further turn once its turns took this long."""

    name: str
    run: Callable[[], object]
    budget_s: float = 0.6
    seconds: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    spent_s: float = 0.0

    def visit(self) -> None:
        """Warm up once, then time runs for a while."""
        self.run()
        threads = thread_clocks()
        begin = now = time.perf_counter()
        while now - begin < VISIT_S and len(self.seconds) < MOST_RUNS:
            before, start = [time.clock_gettime(clock) for clock in threads], time.perf_counter()
            self.run()
            now = time.perf_counter()
            busy = [time.clock_gettime(clock) - was for clock, was in zip(threads, before, strict=True)]
            self.wall_s.append(now - start)
            self.seconds.append(max(busy, default=now - start))
        self.spent_s += time.perf_counter() - begin

    @property
    def done(self) -> bool:
        """Whether the median is known well enough, or the budget is spent."""
        if self.spent_s >= self.budget_s or len(self.seconds) >= MOST_RUNS:
            return True
        return len(self.seconds) >= FEWEST_RUNS and relative_error_of_median(self.seconds) < RELATIVE_ERROR

    def quantile(self, share: float) -> float:
        """Seconds that ``share`` of the runs stay below; 0.5 is the median."""
        return quantile(self.seconds, share)


def thread_clocks() -> list[int]:
    """CPU-time clocks of this process's threads; none where the system has no such clocks.

    Source: Linux, include/linux/posix-timers.h: a per-thread clock is the complement of its id, shifted by 3, with 4 for a
    thread and 2 for exact scheduler time.
    """
    try:
        return [(~int(thread) << 3) | 6 for thread in os.listdir("/proc/self/task")]
    except OSError:
        return []


def take_turns(items: Sequence[Item], keep: Callable[[Item], None] = lambda item: None) -> None:
    """Visit every item, again and again, until all are done: a slow spell then touches all of them alike. ``keep`` hears of each visit."""
    while waiting := [item for item in items if not item.done]:
        for item in waiting:
            item.visit()
            keep(item)


def sample(item: Item) -> dict[str, Any]:
    """What was timed of ``item`` so far, for ``take_up``."""
    return {"item": item.name, "seconds": item.seconds, "wall_s": item.wall_s, "spent_s": item.spent_s}


def take_up(items: Sequence[Item], samples: Sequence[Mapping[str, Any]]) -> None:
    """Give ``items`` what an interrupted run has timed of them; of several samples of one, the last counts."""
    by_name = {item.name: item for item in items}
    for known in samples:
        if known["item"] in by_name:
            item = by_name[known["item"]]
            item.seconds, item.wall_s, item.spent_s = list(known["seconds"]), list(known["wall_s"]), known["spent_s"]
