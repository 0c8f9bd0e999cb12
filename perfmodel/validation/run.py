"""One validation: kernels run on a backend of this machine, or records read from files, each held against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.timing.predict import FallbackDevices
from perfmodel.validation.compare import Count, RecordRow, compare, compare_files
from perfmodel.validation.records import as_record

BACKENDS = ("cuda", "cpu", "simulator")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ValidationRun:
    """What was found. ``backend`` is empty for records that were read; ``failures``: what could not be measured, in words."""

    backend: str = ""
    device: Device | None = None
    rows: list[RecordRow] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def best_backend() -> str:
    """``cuda`` where there is a GPU that numba drives, else ``cpu``."""
    from perfmodel.validation.cuda.gpu import open_gpu

    try:
        open_gpu()
    except PerfmodelError:
        return "cpu"
    return "cuda"


def run(backend: str, find_device: Callable[[str], Device], hardware: str | None, counters: bool, progress: Progress) -> ValidationRun:
    """Measure on ``backend``. UsageError for an unknown one, UnavailableError where it cannot run."""
    if backend not in BACKENDS:
        raise UsageError(f"--backend: no backend is called {backend!r}", f"there is auto, {', '.join(BACKENDS)}")
    if counters and backend != "cuda":
        raise UsageError(f"--counters with --backend {backend}", "hardware counters are read on a GPU, with --backend cuda")
    return {"cuda": _cuda, "cpu": _cpu, "simulator": _simulator}[backend](find_device, hardware, counters, progress)


def _cuda(find_device: Callable[[str], Device], hardware: str | None, counters: bool, progress: Progress) -> ValidationRun:
    from perfmodel.validation.cuda.cases import counted_cases, timed_cases
    from perfmodel.validation.cuda.counters import count
    from perfmodel.validation.cuda.gpu import open_gpu, this_environment
    from perfmodel.validation.cuda.run import measure

    device = find_device(hardware or this_environment(open_gpu()).hardware)
    raws: list[dict[str, Any]] = []
    failures: list[str] = []
    try:
        failures += measure(timed_cases(), progress, raws.append, device.id)
        if counters:
            failures += count(counted_cases(), progress, raws.append, device.id)
    except PerfmodelError as error:  # what was measured so far is kept
        if not raws:
            raise
        failures.append(error.message)
    rows = _rows(raws, device)
    return ValidationRun("cuda", device, rows, counts_of(rows), failures)


def _cpu(find_device: Callable[[str], Device], hardware: str | None, counters: bool, progress: Progress) -> ValidationRun:
    from perfmodel.validation.cpu.cases import measure

    device, raws = measure(progress)
    device = device if hardware is None else find_device(hardware)
    return ValidationRun("cpu", device, _rows(raws, device))


def _simulator(find_device: Callable[[str], Device], hardware: str | None, counters: bool, progress: Progress) -> ValidationRun:
    from perfmodel.validation.simulator import counted

    return ValidationRun("simulator", counts=counted(progress))


def _rows(raws: Iterable[dict[str, Any]], device: Device) -> list[RecordRow]:
    return [compare(raw, as_record(raw), device) for raw in raws]


def read(paths: Iterable[Path], find_device: Callable[[str], Device], hardware: str | None, fallbacks: FallbackDevices) -> ValidationRun:
    """Records from files; with ``hardware``, a device or the profile that stands for it, of that device only."""
    given = None if hardware is None else find_device(hardware)

    rows = compare_files(paths, find_device, fallbacks, given)
    if given is not None and not rows:
        raise UsageError(f"--hardware: no record is of {given.id}", "give the profile of a device that the records name")
    return ValidationRun(device=given, rows=rows, counts=counts_of(rows))


def counts_of(rows: Iterable[RecordRow]) -> list[Count]:
    """Hardware counters of records beside the model's counts; records without any, or of kernels that are not counted, add nothing."""
    from perfmodel.validation.cuda.counters import compare_counters

    found: list[Count] = []
    for row in rows:
        if not row.record.counters or row.device is None or row.case is None:  # without a case its shape or launch has no meaning
            continue
        try:
            found += compare_counters(row.record, row.device)
        except UnavailableError:
            continue
    return found
