"""Times of steps: each waits on the device until the host has enqueued all of it, so that no gap of the host is timed.

Among several GPUs the wait ends with a collective on the device: GPUs that wait differently long would wait for each other while timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CYCLES_PER_S = 2e9
LONGEST_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Together:
    """What brings the GPUs of a step together ahead of each: ``hosts`` waits, ``devices`` enqueues a wait. Nothing to do for one GPU."""

    hosts: Callable[[], Any] = lambda: None
    devices: Callable[[], Any] = lambda: None


ALONE = Together()


def among(torch: Any, dist: Any, group: Any) -> Together:
    """``Together`` of a process group."""
    flag = torch.zeros(1, device="cuda")
    return Together(lambda: dist.barrier(group=group), lambda: dist.all_reduce(flag, group=group))


def step_times(torch: Any, run: Callable[[], Any], runs: int, together: Together = ALONE) -> list[float]:
    """Seconds of each of ``runs`` steps after two that are not counted."""
    run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    enqueued_s = time.perf_counter() - begin
    torch.cuda.synchronize()
    wait = int(min(1.5 * enqueued_s + 2e-4, LONGEST_WAIT_S) * CYCLES_PER_S)
    found = []
    for _ in range(runs):
        together.hosts()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(wait)
        together.devices()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return found


def captured(torch: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    """``run`` as a CUDA graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    replay: Callable[[], Any] = graph.replay
    return replay
