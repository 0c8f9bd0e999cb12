"""Calibrate a device: by measuring this machine, or from records. The result is a profile with what was measured in it."""

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
    """Options of a calibration. ``done`` is called with the share of a phase that is done, ``on_record`` with each record of a GPU.

    ``quick``: fewer tiles and shapes are measured, each for a shorter time, and fits see fewer points and stop sooner.
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
        """Suffix for the text of a profile."""
        return ", quick" if self.quick else ""


DEFAULT = CalibrationOptions()
OWN = tuple(name for name in models_of() if name.startswith("numba-"))
"""The project's own kernels."""
QUICK_TILES, QUICK_STEP = 2, 3
"""With ``quick``: tiles per kernel, head dim and mask; and step through a library's cases."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A device with its new calibrations, and messages on what was left out."""

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
    software = {name: str(r.environment[name]) for r in records for name in names if name in r.environment}
    if len({r.environment["kernel"] for r in records if "kernel" in r.environment}) > 1:  # the kernels of a library, one for each shape
        software.pop("kernel", None)
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

    ``hardware``: only this device, though others of its architecture help. From the project's own files fits see the half that is meant for
    them, from other files every record. ``fallbacks``: devices whose calibrations serve parts. ``one_device``: UsageError, before any fit,
    if the records are from several devices.
    """
    check_names(implementations)
    listed, shipped = list(paths), set(shipped_records())
    records: list[Record] = []
    for path in listed:
        of_file = [record for _, record in read_records(path)]
        records += of_file if path in shipped else all_fitted(of_file)
    if implementations:
        records = [record for record in records if record.implementation in implementations]
    devices = _devices_of(records, find_device, hardware, progress)
    ids = {device.id: device for device in devices.values()}
    if one_device and hardware is None and len(ids) > 1:
        raise UsageError(f"--output: a .yaml holds one device, the records are of {', '.join(sorted(ids))}", "name one with --hardware")
    fits = calibrate(records, devices, today(), versions_of, progress, fallbacks, options.effort, options.jobs, options.done)
    calibrated = with_borrowed(fits, widths(residuals(points(records, devices), fits, fallbacks)))
    source = (
        RECORDS
        if set(listed) <= shipped and not options.quick
        else f"measurement records{options.words}: {', '.join(path.name for path in listed)}"
    )
    wanted = ids if hardware is None else {find_device(hardware).id}
    return [_with_blocks(ids[name], [], blocks, source) for name, blocks in calibrated.items() if name in wanted]


def _devices_of(
    records: Iterable[Record], find_device: Callable[[str], Device], hardware: str | None, progress: Progress
) -> dict[str, Device]:
    """The device of each name in ``records``; ``hardware`` replaces the one with its id."""
    given = None if hardware is None else find_device(hardware)
    devices: dict[str, Device] = {}
    for name in dict.fromkeys(record.hardware for record in records):
        found_device = device_or_error(name, find_device)
        if isinstance(found_device, PerfmodelError):
            progress(f"{name}: {found_device.message}")
        else:
            devices[name] = given if given is not None and given.id == found_device.id else found_device
    if given is not None and given.id not in {device.id for device in devices.values()}:
        raise UsageError(f"--hardware: no record is of {given.id}", "give the profile of a device that the records name")
    return devices


def check_names(implementations: Sequence[str]) -> None:
    """UsageError for an implementation that no model describes."""
    for name in implementations:
        if name not in models_of():
            raise UsageError(f"--implementation: no time model describes {name!r}", suggest(name, sorted(models_of())))


def _with_blocks(device: Device, probes: list[Microbenchmark], blocks: list[Calibration], source: str, **more: Any) -> Calibrated:
    """``device`` with ``blocks`` in place of its calibrations of the same kernels; ``source``: text on their measurements."""
    key = next(name for name in ("records", "own_records", "more_records") if device.sources.get(name, source) == source)
    blocks = [replace(block, source=key) for block in blocks]
    kept = [block for block in device.calibration if family_of(block) not in set(map(family_of, blocks))]
    sources = {key: source, **device.sources} if blocks else device.sources
    anew = {probe.name for probe in probes}
    all_probes = [*probes, *(probe for probe in device.microbenchmarks if probe.name not in anew)]
    changed = replace(device, sources=sources, microbenchmarks=all_probes, calibration=[*kept, *blocks])
    return Calibrated(changed, probes, blocks, **more)


def this_machine(
    find_device: Callable[[str], Device],
    hardware: str | None,
    implementations: Sequence[str],
    progress: Progress,
    options: CalibrationOptions,
) -> Calibrated:
    """Measure this machine: its GPU if there is one, else its CPU."""
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
    raws, failures = _measured_kernels(base.id, implementations or OWN, progress, options)
    records = all_fitted(map(as_record, raws))
    sources = {MEASURED: f"perfmodel calibrate, {today()}, {versions_of(records)}", **base.sources}
    device = with_measured(replace(base, sources=sources), results)
    timed = (one for one in results if one.value is not None)
    probes = [Microbenchmark(one.name, _text(one), round(one.spread, 4), one.runs, MEASURED, today(), one.size, one.shape) for one in timed]
    failures += [f"{result.name}: {result.reason}" for result in results if result.value is None]
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
    left_out = sorted({name for name in names if name in OWN} - {case.implementation for case in ours})
    failures = [f"{name}: left out, as quick runs have too few shapes for its fit; run without --quick" for name in left_out]
    step = _steps(len(ours) + len(libraries), progress, options.done)

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
    """Default cases of ``names``; with ``quick`` of ``QUICK_TILES`` tiles, and of kernels with enough shapes for a fit."""
    from perfmodel.validation.cuda.cases import calibrated_cases, of_few_tiles, timed_cases

    if not quick:
        return [case for case in calibrated_cases() if case.implementation in names]
    few = [case for case in of_few_tiles(timed_cases(), QUICK_TILES) if case.implementation in names]
    records: dict[str, list[Record]] = {}
    for case in few:
        records.setdefault(case.implementation, []).append(case.record())
    fitted = {name for name, shapes in records.items() if not too_few(all_fitted(shapes), model_of(case_of(shapes[0])))}
    return [case for case in few if case.implementation in fitted]


def _steps(total: int, progress: Progress, done: Callable[[float], None]) -> Progress:
    """A progress function that numbers ``total`` cases, one message per case."""
    finished = iter(range(1, total + 1))
    done(0.0)

    def step(text: str) -> None:
        done(next(finished, total) / total)
        progress(text)

    return step


def _library_cases(names: Sequence[str], quick: bool) -> list[KernelCase]:
    from perfmodel.validation.libraries.measure import FAMILIES, cases

    by_family = [[case for case in cases(family) if case.implementation in names] for family in FAMILIES] if names else []
    return [case for listed in by_family for case in listed[:: QUICK_STEP if quick else 1]]


def _text(result: ProbeResult) -> str:
    """The value with its unit as profiles write it."""
    assert result.value is not None
    return units.format_time(result.value, 5) if result.unit == "s" else units.format_si(result.value, result.unit, 5)


def with_measured(device: Device, results: Iterable[ProbeResult]) -> Device:
    """``device`` with measured values for the ``results`` that have a field of their own; a datasheet value is never replaced."""
    for result in results:
        if result.field is None or result.value is None:
            continue
        quantity = Quantity(_text(result), "measured", MEASURED, result.value)
        part, level, *_ = result.field.split(".")
        if part == "memory":
            memory = [replace(part, measured_bandwidth=quantity) if part.level == level else part for part in device.memory]
            device = replace(device, memory=memory)
        elif device.launch_overhead is None and level == "stream":
            device = replace(device, launch_overhead=LaunchOverhead(quantity))
        elif device.launch_overhead is not None:
            overhead = getattr(device.launch_overhead, level)
            if overhead is None or overhead.kind == "measured":
                device = replace(device, launch_overhead=replace(device.launch_overhead, **{level: quantity}))
    return device
