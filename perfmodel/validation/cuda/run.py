"""Time cases on the GPU of this machine, one after the other, and hand over a record of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.validation.cuda.cases import KernelCase
from perfmodel.validation.cuda.gpu import Environment, load_numba_cuda, open_gpu, small_grids, this_environment
from perfmodel.validation.cuda.timers import EventTimer
from perfmodel.validation.records import Seconds, raw_of
from perfmodel.validation.statistics import StoppingRule, Timer, measure_times

SOURCE = "perfmodel numba kernels, CUDA events, L2 flushed by reads"
Progress = Callable[[str], None]
OnRecord = Callable[[dict[str, Any]], None]


def measure(
    cases: Iterable[KernelCase], progress: Progress, on_record: OnRecord, hardware: str | None = None, rule: StoppingRule | None = None
) -> list[str]:
    """Time ``cases``; each record goes to ``on_record`` as soon as it is there. Returns a message per case that failed.

    ``hardware``: the profile's id where the device's name does not tell. UnavailableError where nothing can be measured at all.
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
    todo = list(cases)
    for number, case in enumerate(todo, start=1):
        where = f"{number}/{len(todo)} {case.label}"
        try:
            times, error, launch = time_one(case)
        except MemoryError:
            failures.append(f"{case.label}: out of memory on the host")
        except PerfmodelError as failure:
            if isinstance(failure, LostDeviceError):
                raise
            failures.append(failure.message if case.label in failure.message else f"{case.label}: {failure.message}")
        except Exception as failure:  # numba and the driver raise whatever they like; one case must not end the run
            failures.append(f"{case.label}: {_in_words(failure)}")
        else:
            facts = {**environment.facts, "relative_error": error, "runs": len(times), "date": datetime.now(tz=UTC).date().isoformat()}
            time_s = Seconds.of(times)
            found = case.record(environment.hardware, time_s, environment=facts, source=SOURCE)
            on_record(raw_of(found) | {"launch": launch})
            progress(f"{where}: {time_s.median * 1e3:.4g} ms, noise {time_s.noise:.1%}, {len(times)} runs")
            continue
        progress(f"{where}: failed, {failures[-1]}")
    return failures


class LostDeviceError(UnavailableError):
    """The driver refuses any further work: an earlier kernel has failed for good."""


def time_case(case: KernelCase, timer: Timer, rule: StoppingRule | None) -> tuple[list[float], float, dict[str, int]]:
    """Check the results of ``case``, then time it. UnavailableError where they are wrong: a wrong kernel has no time."""
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
    """Give freed arrays back to the driver; LostDeviceError where the device no longer answers."""
    try:
        cuda.synchronize()
        cuda.current_context().deallocations.clear()
    except Exception as failure:
        raise LostDeviceError(f"the device is lost: {_in_words(failure)}", "start again without the case before") from failure


def _in_words(failure: Exception) -> str:
    """The failure's kind and first line; running out of device memory by its name."""
    text = next((line.strip() for line in str(failure).splitlines() if line.strip()), "")
    if "OUT_OF_MEMORY" in text or "out of memory" in text.lower():
        return f"out of memory on the device ({text})"
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__
