"""Times of kernels on the GPU of this machine: each case is checked, timed by CUDA events, and gives a record.

Times between two events include gaps if the GPU waits for the CPU, and Python launches slower than short kernels run. So launches queue
behind a kernel that runs longer than queueing takes. ``EventTimer`` times one launch in this way, ``QueueTimer`` many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.cuda.gpu import Environment, Gpu, in_words, load_numba_cuda, open_gpu, small_grids, this_environment
from perfmodel.validation.records import Seconds, raw_of
from perfmodel.validation.statistics import StoppingRule, Timer, measure_times

SOURCE = "perfmodel numba kernels, CUDA events, L2 flushed by reads"
Progress = Callable[[str], None]
OnRecord = Callable[[dict[str, Any]], None]


def measure(
    cases: Iterable[KernelCase], progress: Progress, on_record: OnRecord, hardware: str | None = None, rule: StoppingRule | None = None
) -> list[str]:
    """Times ``cases`` and passes the record of each to ``on_record`` at once; returns a message per case that failed.

    ``hardware``: the profile's id, if the device's name does not give it. UnavailableError if nothing can be measured at all.
    """
    gpu = open_gpu()
    environment = this_environment(gpu, hardware)
    timer = EventTimer(gpu)
    return measure_with(cases, progress, on_record, lambda case: time_case(case, timer, rule), environment)


def measure_with(
    cases: Iterable[KernelCase],
    progress: Progress,
    on_record: OnRecord,
    time_one: Callable[[KernelCase], tuple[list[float], float, dict[str, int]]],
    environment: Environment,
) -> list[str]:
    """The loop of ``measure``: ``time_one`` gives times, relative error and launch of a case, or raises."""
    failures = []
    listed = list(cases)
    for number, case in enumerate(listed, start=1):
        where = f"{number}/{len(listed)} {case.label}"
        try:
            times, error, launch = time_one(case)
        except LostDeviceError:
            raise
        except Exception as failure:  # numba and the driver raise whatever they like; one case must not end the run
            words = in_words(failure)
            failures.append(words if case.label in words else f"{case.label}: {words}")
            progress(f"{where}: failed, {failures[-1]}")
            continue
        facts = {**environment.facts, "relative_error": error, "runs": len(times), "date": datetime.now(tz=UTC).date().isoformat()}
        time_s = Seconds.of(times)
        on_record(raw_of(case.record(environment.hardware, time_s, SOURCE, environment=facts)) | {"launch": launch})
        progress(f"{where}: {time_s.median * 1e3:.4g} ms, noise {time_s.noise:.1%}, {len(times)} runs")
    return failures


class LostDeviceError(UnavailableError):
    """The driver refuses any further work: an earlier kernel has failed for good."""


def time_case(case: KernelCase, timer: Timer, rule: StoppingRule | None) -> tuple[list[float], float, dict[str, int]]:
    """Seconds of each run, relative error and launch of ``case``; UnavailableError, before timing, if its results are wrong."""
    import numpy as np

    from perfmodel.validation.cuda.prepare import prepare
    from perfmodel.validation.kernels.reference import TOLERANCE

    with small_grids():
        try:
            ready = prepare(case, np.random.default_rng())
            ready.launch()
            error = ready.error()
            if not error < TOLERANCE[case.dtype]:
                raise UnavailableError(f"{case.label}: relative error {error:.1e}, {TOLERANCE[case.dtype]:.0e} is allowed")
            return measure_times(ready.launch, timer, rule), error, ready.facts
        finally:
            ready = None  # type: ignore[assignment]  # its arrays go before the next case needs the room
            _free(load_numba_cuda())


def _free(cuda: Any) -> None:
    """Give freed arrays back to the driver; LostDeviceError if the device no longer answers."""
    try:
        cuda.synchronize()
        cuda.current_context().deallocations.clear()
    except Exception as failure:
        raise LostDeviceError(f"the device is lost: {in_words(failure)}", "start again without the case before") from failure


FLUSH_FACTOR = 4
"""Size of the flush buffer over that of L2: above 1, as caches do not strictly evict the oldest line."""
FLUSH_PASSES = 4
"""Reads of the flush buffer before each run: about 0.2 ms on an H200, longer than Python takes to queue a few launches."""
WARM_PASSES = 64 * FLUSH_FACTOR
"""Before warm runs the buffer is smaller by this factor, to leave the data in L2, and read as many times more often, for the same delay."""


class EventTimer:
    """Times one launch with two CUDA events, behind reads of a buffer. ``cold``: they flush the L2; else it keeps the last run's data."""

    def __init__(self, gpu: Gpu, cold: bool = True) -> None:
        from perfmodel.validation.kernels import probes

        cuda = load_numba_cuda()
        self._start, self._end = cuda.event(timing=True), cuda.event(timing=True)
        elements, passes = FLUSH_FACTOR * gpu.l2_bytes // 4, FLUSH_PASSES
        if not cold:
            elements, passes = elements // WARM_PASSES, passes * WARM_PASSES
        self._buffer = cuda.device_array(elements // 4 * 4, "float32")
        self._sums = cuda.device_array(1, "float32")
        self._read_buffer = probes.prepare_read(self._buffer, self._sums, passes)

    def seconds(self, launch: Callable[[], None]) -> float:
        """Seconds of ``launch``."""
        self._read_buffer()
        self._start.record()
        launch()
        self._end.record()
        self._end.synchronize()
        return seconds_between(self._start, self._end)


def seconds_between(start: Any, end: Any) -> float:
    """Seconds from one recorded event to another; CUDA gives milliseconds in fp32, so digits beyond its precision are cut."""
    return float(f"{start.elapsed_time(end):.7g}") / 1e3


FIRST_DELAY_ROUNDS, MOST_DELAY_ROUNDS = 1 << 12, 1 << 22


class QueueTimer:
    """Times many launches on ``stream`` as if the CPU launched at once.

    They queue behind a delay kernel, which is lengthened until it still runs when all are queued.
    """

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
        """Seconds of ``launch``; UnavailableError if the CPU cannot get ahead of the GPU."""
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


KERNELS = 500
"""Empty launches per run: the driver queues about a thousand before it makes the CPU wait."""


def empty_launches(stream: Any, kernels: int = KERNELS) -> Callable[[], None]:
    """A function that launches ``kernels`` empty kernels on ``stream``."""
    from perfmodel.validation.kernels import probes

    launch = probes.prepare_empty(stream)

    def launch_all() -> None:
        for _ in range(kernels):
            launch()

    return launch_all


HOST_RUNS = 10


def host_times(launch: Callable[[], None], stream: Any) -> list[float]:
    """Seconds that each of ``HOST_RUNS`` calls of ``launch`` takes the host; a call only enqueues, and the queue is empty before it."""
    times = []
    for _ in range(HOST_RUNS + 1):
        stream.synchronize()
        begin = time.perf_counter()
        launch()
        times.append(time.perf_counter() - begin)
    stream.synchronize()
    return times[1:]  # the first one also compiles


def captured(launch: Callable[[], None], stream: Any) -> Callable[[], None]:
    """A function that replays ``launch``, captured on ``stream`` as a CUDA graph. UnavailableError without cuda-python's bindings."""
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        fix = "pip install 'numba-cuda[cu13]', which brings them"
        raise UnavailableError("CUDA graphs want the bindings of cuda-python (cuda.bindings.driver)", fix) from None
    handle = driver.CUstream(int(stream.handle))
    _driver_value(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        launch()
    finally:
        graph = _driver_value(driver.cuStreamEndCapture(handle))
    executable = _driver_value(driver.cuGraphInstantiate(graph, 0))

    def replay() -> None:
        _driver_value(driver.cuGraphLaunch(executable, handle))

    return replay


def _driver_value(result: tuple[Any, ...]) -> Any:
    """The value that a driver call returned; UnavailableError with the driver's name of an error."""
    code, *values = result
    if int(code):
        raise UnavailableError(f"CUDA graph: {getattr(code, 'name', code)}", "update the driver")
    return values[0] if values else None
