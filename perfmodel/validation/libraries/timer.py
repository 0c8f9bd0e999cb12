"""Time what a callable enqueues on the GPU, with CUDA events, until the median is known well enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.validation.libraries.base import Torch
from perfmodel.validation.records import Seconds
from perfmodel.validation.statistics import quantile, relative_error_of_median

FLUSH_BYTES = 256 << 20
"""Read before each cold run: several times the L2 of any GPU here, so that little of the operands stays. Reads leave no
dirty lines, whose write-back would be timed with the run."""

WARM_UP_RUNS = 3

LONGEST_ENQUEUE_S = 2e-3
"""What a run may take to be enqueued; a warm-up that took longer met something else."""

CYCLES_PER_S = 2e9
"""Turns a wait into device cycles. About the highest clock of a GPU, so that the wait errs on the long side."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Runs come ``batch`` at a time: until the median's standard error is below ``error`` of it, ``at_most`` runs, or ``seconds``."""

    batch: int = 10
    at_most: int = 40
    error: float = 0.005
    seconds: float = 0.25

    def enough(self, times: Sequence[float]) -> bool:
        """Whether to stop."""
        return len(times) >= self.at_most or sum(times) >= self.seconds or relative_error_of_median(times) < self.error


def seconds(times: Sequence[float]) -> Seconds:
    """Median, tenth and ninetieth percentile."""
    return Seconds(quantile(times, 0.5), quantile(times, 0.1), quantile(times, 0.9))


class Timer:
    """Times callables on the current CUDA device.

    Each run waits on the device for longer than the host needs to enqueue it: else gaps between launches would be timed.
    """

    def __init__(self, torch: Torch, stopping: Stopping) -> None:
        self.torch, self.stopping = torch, stopping
        self.flushed = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")

    def times(self, run: Callable[[], Any], cold: bool, during: Callable[[], None] = lambda: None) -> list[float]:
        """Seconds of each run after a warm-up. ``during`` is called while the device is busy with a batch."""
        wait = self._host_cycles(run)
        found: list[float] = []
        while not found or not self.stopping.enough(found):
            events = [self._enqueue(run, cold, wait) for _ in range(self.stopping.batch)]
            during()
            self.torch.cuda.synchronize()
            found += [start.elapsed_time(end) / 1e3 for start, end in events]
        return found

    def _host_cycles(self, run: Callable[[], Any]) -> int:
        """Device cycles that cover what the host needs for one run, its flush and events."""
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(WARM_UP_RUNS - 1):
            begin = time.perf_counter()
            run()
        enqueued_s = time.perf_counter() - begin
        run()
        self.torch.cuda.synchronize()
        return int((2 * min(enqueued_s, LONGEST_ENQUEUE_S) + 60e-6) * CYCLES_PER_S)

    def _enqueue(self, run: Callable[[], Any], cold: bool, wait: int) -> tuple[Any, Any]:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(wait)
        if cold:
            self.flushed.sum()
        start.record()
        run()
        end.record()
        return start, end
