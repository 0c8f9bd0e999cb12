"""What one launch costs on the GPU: empty kernels back to back, from a stream and from a CUDA graph.

A queue is saturated only if the CPU is ahead of the GPU; Python is not. So the kernels are queued behind one that runs longer
than queueing takes, and the start event is checked not to have happened by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.validation.cuda.events import seconds_between
from perfmodel.validation.cuda.gpu import Gpu
from perfmodel.validation.kernels import probe_rates

KERNELS = 500
"""Launches per run: the driver queues about a thousand before it makes the CPU wait."""
FIRST_DELAY_ROUNDS, MOST_DELAY_ROUNDS = 1 << 12, 1 << 22


class QueueTimer:
    """Times a launch on ``stream`` that waits in the queue behind a busy kernel until all of it is there."""

    def __init__(self, gpu: Gpu, stream: Any) -> None:
        from numba import cuda as module

        cuda: Any = module
        self._gpu, self._stream, self._rounds = gpu, stream, FIRST_DELAY_ROUNDS
        self._start, self._end = cuda.event(timing=True), cuda.event(timing=True)
        self._sums = cuda.device_array(1, "float32")
        self._delay = self._delay_of(self._rounds)

    def _delay_of(self, rounds: int) -> Callable[[], None]:
        return probe_rates.prepare_fma(self._sums, self._gpu.multiprocessors, rounds, stream=self._stream)

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
    launch = probe_rates.prepare_empty(stream)

    def launch_all() -> None:
        for _ in range(kernels):
            launch()

    return launch_all


def captured(launch: Callable[[], None], stream: Any) -> Callable[[], None]:
    """``launch``, recorded on ``stream`` as a CUDA graph: what replays it. UnavailableError without cuda-python's bindings."""
    driver = _bindings()
    handle = driver.CUstream(int(stream.handle))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _checked(driver.cuStreamBeginCapture(handle, mode))
    try:
        launch()
    finally:
        graph = _checked(driver.cuStreamEndCapture(handle))
    executable = _checked(driver.cuGraphInstantiate(graph, 0))

    def replay() -> None:
        _checked(driver.cuGraphLaunch(executable, handle))

    return replay


def _bindings() -> Any:
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        fix = "pip install 'numba-cuda[cu13]', which brings them"
        raise UnavailableError("CUDA graphs want the bindings of cuda-python (cuda.bindings.driver)", fix) from None
    return driver


def _checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; UnavailableError with the driver's name of the error."""
    code, *found = result
    if int(code):
        raise UnavailableError(f"CUDA graph: {getattr(code, 'name', code)}", "update the driver")
    return found[0] if found else None
