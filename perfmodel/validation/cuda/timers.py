"""Timers on a GPU: CUDA events around a launch with L2 flushed or warm, and around launches that wait in a queue; CUDA graphs.

A queue is saturated only if the CPU is ahead of the GPU; Python is not. So its kernels are queued behind one that runs longer
than queueing takes, and the start event is checked not to have happened by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.validation.cuda.gpu import Gpu, load_numba_cuda

FLUSH_FACTOR = 4
"""Bytes read over the size of L2: more than once, as no cache replaces strictly the oldest line first."""
FLUSH_PASSES = 4
"""Reads of that buffer before each run: about 0.2 ms on an H200, longer than a Python process takes to queue a few launches."""
KERNELS = 500
"""Empty launches per run: the driver queues about a thousand before it makes the CPU wait."""
FIRST_DELAY_ROUNDS, MOST_DELAY_ROUNDS = 1 << 12, 1 << 22


class EventTimer:
    """Times one launch with two CUDA events. ``cold``: L2 is flushed first; else what the run before left in it is found there."""

    def __init__(self, gpu: Gpu, cold: bool = True) -> None:
        from perfmodel.validation.kernels import probes

        cuda = load_numba_cuda()
        self._start, self._end = cuda.event(timing=True), cuda.event(timing=True)
        elements = FLUSH_FACTOR * gpu.l2_bytes // 4
        wider = 1 if cold else FLUSH_FACTOR * 64  # a warm run wants the same delay, but its data left in L2
        self._buffer = cuda.device_array(elements // wider // 4 * 4, "float32")
        self._sums = cuda.device_array(1, "float32")
        self._flush = probes.prepare_read(self._buffer, self._sums, FLUSH_PASSES * wider)

    def seconds(self, launch: Callable[[], None]) -> float:
        """Seconds of ``launch``."""
        self._flush()
        self._start.record()
        launch()
        self._end.record()
        self._end.synchronize()
        return seconds_between(self._start, self._end)


def seconds_between(start: Any, end: Any) -> float:
    """Seconds from one recorded event to another; CUDA gives milliseconds in fp32, so digits beyond its precision are cut."""
    return float(f"{start.elapsed_time(end):.7g}") / 1e3


class QueueTimer:
    """Times a launch on ``stream`` that waits in the queue behind a busy kernel until all of it is there."""

    def __init__(self, gpu: Gpu, stream: Any) -> None:
        cuda = load_numba_cuda()
        self._gpu, self._stream, self._rounds = gpu, stream, FIRST_DELAY_ROUNDS
        self._start, self._end = cuda.event(timing=True), cuda.event(timing=True)
        self._sums = cuda.device_array(1, "float32")
        self._delay = self._delay_of(self._rounds)

    def _delay_of(self, rounds: int) -> Callable[[], None]:
        from perfmodel.validation.kernels import probes

        return probes.prepare_fma(self._sums, self._gpu.multiprocessors, rounds, stream=self._stream)

    def seconds(self, launch: Callable[[], None]) -> float:
        """Seconds of ``launch``; UnavailableError where the CPU cannot get ahead of the GPU."""
        while True:
            self._delay()
            self._start.record(self._stream)
            launch()
            self._end.record(self._stream)
            ahead = not self._start.query()
            self._end.synchronize()
            if ahead:
                return seconds_between(self._start, self._end)
            if self._rounds >= MOST_DELAY_ROUNDS:
                raise UnavailableError("launches take the CPU longer than a second", "measure on an idle machine")
            self._rounds *= 2
            self._delay = self._delay_of(self._rounds)


def empty_launches(stream: Any, kernels: int = KERNELS) -> Callable[[], None]:
    """What launches ``kernels`` empty kernels on ``stream``."""
    from perfmodel.validation.kernels import probes

    launch = probes.prepare_empty(stream)

    def launch_all() -> None:
        for _ in range(kernels):
            launch()

    return launch_all


def captured(launch: Callable[[], None], stream: Any) -> Callable[[], None]:
    """``launch``, recorded on ``stream`` as a CUDA graph: what replays it. UnavailableError without cuda-python's bindings."""
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        fix = "pip install 'numba-cuda[cu13]', which brings them"
        raise UnavailableError("CUDA graphs want the bindings of cuda-python (cuda.bindings.driver)", fix) from None
    handle = driver.CUstream(int(stream.handle))
    _checked(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        launch()
    finally:
        graph = _checked(driver.cuStreamEndCapture(handle))
    executable = _checked(driver.cuGraphInstantiate(graph, 0))

    def replay() -> None:
        _checked(driver.cuGraphLaunch(executable, handle))

    return replay


def _checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; UnavailableError with the driver's name of the error."""
    code, *found = result
    if int(code):
        raise UnavailableError(f"CUDA graph: {getattr(code, 'name', code)}", "update the driver")
    return found[0] if found else None
