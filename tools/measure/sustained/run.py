"""One callable, back to back for seconds: what its second part shows, when clock and temperature have settled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.core.arith import quantile
from tools.measure.steps.clock import captured
from tools.measure.sustained.nvml import Sampler, joules

SPAN_S, SETTLED_S = 2.5, 1.1
"""How long each runs, and from when on it counts."""
BATCH_S, LONGEST_CAPTURED_S = 2e-3, 3e-4
"""Runs of one graph take about as long as the first; a kernel that takes longer than the second needs none."""
ENQUEUED_S = 0.05


@dataclass(frozen=True, slots=True)
class Sustained:
    """Per run: ``seconds``; over the settled part: watts, MHz (median, lowest, highest), reasons, seconds. ``graph``: replayed as one."""

    seconds: list[float]
    watts: float
    mhz: tuple[float, float, float]
    reasons: int
    span_s: float
    graph: bool


def run_for_seconds(torch: Any, run: Callable[[], Any], capture: bool) -> Sustained:
    """``run`` again and again without gaps; many to a CUDA graph where ``capture`` allows it and the host would be too slow."""
    one = max(one_run(torch, run), 2e-6)
    per = max(1, min(2000, int(BATCH_S / one)))
    graph = capture and one < LONGEST_CAPTURED_S

    def many() -> None:
        for _ in range(per):
            run()

    call = captured(torch, many) if graph else many
    sampler = Sampler()
    sampler.start()
    try:
        begin, marks = time.perf_counter(), _marks(torch, call, per, max(1, int(ENQUEUED_S / (one * per))))
    finally:
        sampler.stop()
    late = [mark for mark in marks if mark[0] - begin > SETTLED_S]
    late = late if len(late) > 2 else marks[-3:]
    first, last = late[0], late[-1]
    samples = [sample for sample in sampler.samples if first[0] <= sample.at_s <= last[0]] or sampler.samples[-1:]
    clocks = sorted(float(sample.mhz) for sample in samples)
    watts, reasons = (last[1] - first[1]) / (last[0] - first[0]), sorted(sample.reasons for sample in samples)[len(samples) // 2]
    mhz = quantile(clocks, 0.5), clocks[0], clocks[-1]
    return Sustained([seconds for _, _, seconds in late[1:]], watts, mhz, reasons, last[0] - first[0], graph)


def one_run(torch: Any, run: Callable[[], Any]) -> float:
    """Seconds of one of two runs, enqueued as fast as the host can."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    torch.cuda.synchronize()
    start.record()
    run()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 2e3


def _marks(torch: Any, call: Callable[[], Any], per: int, each: int) -> list[tuple[float, float, float]]:
    """(when, joules until then, seconds per run) of batches, two of which are always waiting on the device."""
    begin, waiting, marks = time.perf_counter(), [], []
    while time.perf_counter() - begin < SPAN_S:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(each):
            call()
        end.record()
        waiting.append((start, end))
        if len(waiting) > 2:
            first, last = waiting.pop(0)
            last.synchronize()
            marks.append((time.perf_counter(), joules(), first.elapsed_time(last) / 1e3 / (each * per)))
    torch.cuda.synchronize()
    return marks
