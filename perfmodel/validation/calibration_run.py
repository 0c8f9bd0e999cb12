"""Calibration of a device, from records or by measuring this machine. The result is the device's profile with its new calibrations."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.core import units
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Calibration, Device, LaunchOverhead, Microbenchmark
from perfmodel.core.units import Quantity
from perfmodel.timing.base import model_of, models_of
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.validation.bounds import case_of
from perfmodel.validation.calibrate import calibrate, family_of, points, too_few
from perfmodel.validation.compare import device_or_error
from perfmodel.validation.cross_device import residuals, widths, with_borrowed
from perfmodel.validation.fit_points import FULL, QUICK, Effort
from perfmodel.validation.profile_text import profile_text
from perfmodel.validation.records import Record, all_fitted, as_record, read_records, shipped_records

if TYPE_CHECKING:
    from perfmodel.validation.cases import KernelCase
    from perfmodel.validation.cuda.microbench import ProbeResult

Progress = Callable[[str], None]
RECORDS = "perfmodel's measurement records, perfmodel/validation/measured"
MEASURED = "measured_here"
"""Key in a profile's sources for what this run measured."""


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """Options of a calibration.

    ``quick``: fewer tiles and shapes are measured, each for a shorter time, and fits see fewer points and stop sooner. ``jobs``: processes
    that fit. ``done`` is called with the share of a phase that is done, ``on_record`` with each record of a GPU.
    """

    quick: bool = False
    jobs: int = 1
    done: Callable[[float], None] = lambda share: None
    on_record: Callable[[dict[str, Any]], None] = lambda record: None

    @property
    def effort(self) -> Effort:
        """Effort of the fits."""
        return QUICK if self.quick else FULL

    @property
    def words(self) -> str:
        """Suffix of the texts in a profile that say how something was measured."""
        return ", quick" if self.quick else ""


DEFAULT = CalibrationOptions()
OWN_KERNELS = tuple(name for name in models_of() if name.startswith("numba-"))
"""The project's own kernels."""
QUICK_TILES, QUICK_STEP = 2, 3
"""A quick run measures this many tiles per kernel, head dim and mask, and every third case of a library."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A device with its new calibrations ``blocks`` and ``microbenchmarks``; ``failures``: a message on each thing that was left out."""

    device: Device
    microbenchmarks: list[Microbenchmark]
    blocks: list[Calibration]
    failures: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The profile as text."""
        return profile_text(self.device)


def today() -> str:
    """The date of a calibration."""
    return datetime.now(tz=UTC).date().isoformat()


def versions_of(records: Sequence[Record]) -> str:
    """One line with the software that the records name."""
    names = ("torch", "cudnn", "numba", "numba-cuda", "driver", "kernel", "vllm", "nccl")
    software = {name: str(record.environment[name]) for record in records for name in names if name in record.environment}
    kernels = {record.environment["kernel"] for record in records if "kernel" in record.environment}
    if len(kernels) > 1:  # a library that has another kernel for each shape
        del software["kernel"]
    return ", ".join(f"{name} {value}" for name, value in sorted(software.items())) or "not recorded"


def from_records(
    paths: Iterable[Path],
    find_device: Callable[[str], Device],
    hardware: str | None,
    implementations: Sequence[str],
    progress: Progress,
    one_device: bool = False,
    fallbacks: FallbackDevices = tuple,
    options: CalibrationOptions = DEFAULT,
) -> list[Calibrated]:
    """Calibrations fitted to the records of ``paths``, one result per device.

    ``hardware``: return only this device; records of others of its architecture still help its fits. ``fallbacks``: devices whose
    calibrations serve parts of a sequence. ``one_device``: UsageError, before any fit, if the records are from several devices. Fits see
    half of the shipped records (``records.held_out``), and all records of other files.
    """
    check_names(implementations)
    files, shipped = list(paths), set(shipped_records())
    records: list[Record] = []
    for path in files:
        in_file = [record for _, record in read_records(path)]
        records += in_file if path in shipped else all_fitted(in_file)
    if implementations:
        records = [record for record in records if record.implementation in implementations]
    devices = _devices_of(records, find_device, hardware, progress)
    ids = {device.id: device for device in devices.values()}
    if one_device and hardware is None and len(ids) > 1:
        raise UsageError(f"--output: a .yaml holds one device, the records are of {', '.join(sorted(ids))}", "name one with --hardware")
    fits = calibrate(records, devices, today(), versions_of, progress, fallbacks, options.effort, options.jobs, options.done)
    calibrated = with_borrowed(fits, widths(residuals(points(records, devices), fits, fallbacks)))
    source = RECORDS
    if options.quick or not set(files) <= shipped:
        source = f"measurement records{options.words}: {', '.join(path.name for path in files)}"
    returned = ids if hardware is None else {find_device(hardware).id}
    return [_with_blocks(ids[name], [], blocks, source) for name, blocks in calibrated.items() if name in returned]


def _devices_of(
    records: Iterable[Record], find_device: Callable[[str], Device], hardware: str | None, progress: Progress
) -> dict[str, Device]:
    """The device of each name in ``records``; ``hardware`` replaces the one with its id."""
    given = None if hardware is None else find_device(hardware)
    devices: dict[str, Device] = {}
    for name in dict.fromkeys(record.hardware for record in records):
        device = device_or_error(name, find_device)
        if isinstance(device, PerfmodelError):
            progress(f"{name}: {device.message}")
        else:
            devices[name] = given if given is not None and given.id == device.id else device
    if given is not None and given.id not in {device.id for device in devices.values()}:
        raise UsageError(f"--hardware: no record is of {given.id}", "give the profile of a device that the records name")
    return devices


def check_names(implementations: Sequence[str]) -> None:
    """UsageError for an implementation that no model describes."""
    for name in implementations:
        if name not in models_of():
            raise UsageError(f"--implementation: no time model describes {name!r}", suggest(name, sorted(models_of())))


def _with_blocks(device: Device, probes: list[Microbenchmark], blocks: list[Calibration], source: str, **more: Any) -> Calibrated:
    """``device`` with ``blocks`` and ``probes`` in place of its calibrations and microbenchmarks of the same names.

    ``source``: text on the measurements, which the profile keeps under the first key of its sources that is free or has this text.
    ``more``: other fields of the result.
    """
    key = next(name for name in ("records", "own_records", "more_records") if device.sources.get(name, source) == source)
    blocks = [replace(block, source=key) for block in blocks]
    sources = {key: source, **device.sources} if blocks else device.sources
    new_families, new_probes = set(map(family_of, blocks)), {probe.name for probe in probes}
    calibration = [*(block for block in device.calibration if family_of(block) not in new_families), *blocks]
    microbenchmarks = [*probes, *(probe for probe in device.microbenchmarks if probe.name not in new_probes)]
    changed = replace(device, sources=sources, microbenchmarks=microbenchmarks, calibration=calibration)
    return Calibrated(changed, probes, blocks, **more)


def this_machine(
    find_device: Callable[[str], Device],
    hardware: str | None,
    implementations: Sequence[str],
    progress: Progress,
    options: CalibrationOptions,
) -> Calibrated:
    """The calibration of this machine, measured now: of its GPU if there is one, else of its CPU."""
    check_names(implementations)
    from perfmodel.validation.run import NO_GPU, best_backend

    if best_backend() != "cuda":
        if implementations:
            raise UnavailableError(f"no GPU to measure {', '.join(implementations)} on", "run it where there is one, or use --from-records")
        from perfmodel.validation.cpu.cases import measure

        progress(NO_GPU)
        device, raws = measure(progress, options.done)
        return Calibrated(device, [], device.calibration, [], raws)
    from perfmodel.validation.cuda.gpu import open_gpu, this_environment
    from perfmodel.validation.cuda.microbench import QUICK_RULE, RULE, benchmark

    environment = this_environment(open_gpu(), hardware)
    base = find_device(hardware or environment.hardware)
    results = benchmark(progress, QUICK_RULE if options.quick else RULE)
    raws, failures = _measured_kernels(base.id, implementations or OWN_KERNELS, progress, options)
    records = all_fitted(map(as_record, raws))
    sources = {MEASURED: f"perfmodel calibrate, {today()}, {versions_of(records)}", **base.sources}
    device = with_measured(replace(base, sources=sources), results)
    probes = [
        Microbenchmark(probe.name, _text(probe), round(probe.spread, 4), probe.runs, MEASURED, today(), probe.size, probe.shape)
        for probe in results
        if probe.value is not None
    ]
    failures += [f"{probe.name}: {probe.reason}" for probe in results if probe.value is None]
    fits = calibrate(records, {device.id: device}, today(), versions_of, progress, tuple, options.effort, options.jobs, options.done)
    blocks = fits.get(device.id, [])
    return _with_blocks(device, probes, blocks, f"kernels measured by the same run{options.words}", failures=failures, records=raws)


def _measured_kernels(
    hardware: str, names: Sequence[str], progress: Progress, options: CalibrationOptions
) -> tuple[list[dict[str, Any]], list[str]]:
    """Records of the kernels ``names`` on this GPU, and messages on what could not be measured."""
    from perfmodel.validation.cuda.microbench import QUICK_RULE
    from perfmodel.validation.cuda.run import measure

    raws: list[dict[str, Any]] = []
    ours = own_cases(names, options.quick)
    libraries = _library_cases([name for name in names if name.startswith("torch-")], options.quick)
    left_out = sorted({name for name in names if name in OWN_KERNELS} - {case.implementation for case in ours})
    failures = [f"{name}: left out, as quick runs have too few shapes for its fit; run without --quick" for name in left_out]
    step = _counted_progress(len(ours) + len(libraries), progress, options.done)

    def keep(raw: dict[str, Any]) -> None:
        raws.append(raw)
        options.on_record(raw)

    if ours:
        failures += measure(ours, step, keep, hardware, QUICK_RULE if options.quick else None)
    if libraries:
        from perfmodel.validation.libraries.measure import as_line
        from perfmodel.validation.libraries.measure import measure as measure_libraries

        measure_libraries(
            libraries,
            hardware,
            lambda record: keep(json.loads(as_line(record))),
            lambda case, why: failures.append(f"{case.implementation} {dict(case.shape)}: {why}"),
            lambda case: step(f"{case.implementation} {case.direction} {dict(case.shape)}"),
        )
    return raws, failures


def own_cases(names: Collection[str], quick: bool) -> list[KernelCase]:
    """Default cases of the project's kernels ``names``; with ``quick`` on few tiles, of kernels with enough shapes for a fit."""
    from perfmodel.validation.cuda.cases import calibrated_cases, of_few_tiles, timed_cases

    if not quick:
        return [case for case in calibrated_cases() if case.implementation in names]
    few = [case for case in of_few_tiles(timed_cases(), QUICK_TILES) if case.implementation in names]
    records: dict[str, list[Record]] = {}
    for case in few:
        records.setdefault(case.implementation, []).append(case.record())
    fitted = {name for name, shapes in records.items() if not too_few(all_fitted(shapes), model_of(case_of(shapes[0])))}
    return [case for case in few if case.implementation in fitted]


def _library_cases(names: Sequence[str], quick: bool) -> list[KernelCase]:
    """Cases of the library kernels ``names``; with ``quick`` every third one of a family."""
    from perfmodel.validation.libraries.measure import FAMILIES, cases

    listed: list[KernelCase] = []
    if names:
        for family in FAMILIES:
            of_names = [case for case in cases(family) if case.implementation in names]
            listed += of_names[::QUICK_STEP] if quick else of_names
    return listed


def _counted_progress(total: int, progress: Progress, done: Callable[[float], None]) -> Progress:
    """``progress`` that also counts its calls: each tells ``done`` the share of ``total`` cases that have begun."""
    numbers = iter(range(1, total + 1))
    done(0.0)

    def step(text: str) -> None:
        done(next(numbers, total) / total)
        progress(text)

    return step


def _text(result: ProbeResult) -> str:
    """The value with its unit as profiles write it."""
    assert result.value is not None
    return units.format_time(result.value, 5) if result.unit == "s" else units.format_si(result.value, result.unit, 5)


def with_measured(device: Device, results: Iterable[ProbeResult]) -> Device:
    """``device`` with the ``results`` that have a ``field`` of the profile; a datasheet value is never replaced."""
    for result in results:
        if result.field is None or result.value is None:
            continue
        quantity = Quantity(_text(result), "measured", MEASURED, result.value)
        section, key, *_ = result.field.split(".")
        if section == "memory":
            memory = [replace(part, measured_bandwidth=quantity) if part.level == key else part for part in device.memory]
            device = replace(device, memory=memory)
        elif device.launch_overhead is None and key == "stream":
            device = replace(device, launch_overhead=LaunchOverhead(quantity))
        elif device.launch_overhead is not None:
            before = getattr(device.launch_overhead, key)
            if before is None or before.kind == "measured":
                device = replace(device, launch_overhead=replace(device.launch_overhead, **{key: quantity}))
    return device
