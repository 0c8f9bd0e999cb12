"""Timers on a GPU: CUDA events around a launch, after L2 was flushed or with what the run before left in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.validation.cuda.gpu import Gpu

FLUSH_FACTOR = 4
"""Bytes read over the size of L2: more than once, as no cache replaces strictly the oldest line first."""
FLUSH_PASSES = 4
"""Reads of that buffer before each run: about 0.2 ms on an H200, longer than a Python process takes to queue a few launches."""


class EventTimer:
    """Times one launch with two CUDA events. ``cold``: L2 is flushed first; else what the run before left in it is found there."""

    def __init__(self, gpu: Gpu, cold: bool = True, stream: Any = 0) -> None:
        from numba import cuda as module

        from perfmodel.validation.kernels import probe_read

        cuda: Any = module
        self._stream = stream
        self._start, self._end = cuda.event(timing=True), cuda.event(timing=True)
        elements = FLUSH_FACTOR * gpu.l2_bytes // 4
        wider = 1 if cold else FLUSH_FACTOR * 64  # a warm run wants the same delay, but its data left in L2
        self._buffer = cuda.device_array(elements // wider // 4 * 4, "float32")
        self._sums = cuda.device_array(1, "float32")
        self._flush = probe_read.prepare(self._buffer, self._sums, FLUSH_PASSES * wider, stream=stream)

    def seconds(self, launch: Callable[[], None]) -> float:
        """Seconds of ``launch``."""
        self._flush()
        self._start.record(self._stream)
        launch()
        self._end.record(self._stream)
        self._end.synchronize()
        return seconds_between(self._start, self._end)


def seconds_between(start: Any, end: Any) -> float:
    """Seconds from one recorded event to another; CUDA gives milliseconds in fp32, so digits beyond its precision are cut."""
    return float(f"{start.elapsed_time(end):.7g}") / 1e3
