"""Calibrate a device: by measuring this machine, or from records. The result is a profile with what was measured in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.core import units
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError
from perfmodel.core.hardware import Calibration, Device, LaunchOverhead, Microbenchmark, Quantity
from perfmodel.timing.base import model_of, models_of
from perfmodel.timing.predict import FallbackDevices
from perfmodel.validation.bounds import case_of
from perfmodel.validation.calibrate import FULL, QUICK, Effort, calibrate, family_of, points, too_few
from perfmodel.validation.compare import device_or_error
from perfmodel.validation.profile_text import RECORDS, profile_text
from perfmodel.validation.records import Record, Seconds, as_record, read_records, shipped_records
from perfmodel.validation.transfer import half_widths, with_borrowed

if TYPE_CHECKING:
    from perfmodel.validation.cuda.cases import KernelCase
    from perfmodel.validation.libraries.base import LibraryCase

Progress = Callable[[str], None]
MEASURED = "measured_here"
"""Key in a profile's sources for what this run measured."""


@dataclass(frozen=True, slots=True)
class How:
    """How a calibration is made. ``done`` is told the share of a phase that is done, ``on_record`` each record as it comes.

    On a CPU ``on_record`` hears of timings, kernel by kernel; ``earlier`` are those of an interrupted run.
    ``quick``: fewer tiles and shapes are measured, each for a shorter time, and fits see fewer points and stop sooner.
    """

    quick: bool = False
    jobs: int = 1
    done: Callable[[float], None] = lambda share: None
    on_record: Callable[[dict[str, Any]], None] = lambda record: None
    earlier: Sequence[dict[str, Any]] = ()

    @property
    def effort(self) -> Effort:
        """Of the fits."""
        return QUICK if self.quick else FULL

    @property
    def words(self) -> str:
        """To say so in a profile."""
        return ", quick" if self.quick else ""


HOW = How()
OWN = tuple(name for name in models_of() if name.startswith("numba-"))
"""The project's own kernels."""
QUICK_TILES, QUICK_STEP = 2, 3
"""Tiles per kernel, head dim and mask; one in so many of a library's cases."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A device with its new calibrations, and what was left out, in words."""

    device: Device
    microbenchmarks: list[Microbenchmark]
    blocks: list[Calibration]
    failures: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The profile."""
        return profile_text(self.device)


def today() -> str:
    """The date of a calibration."""
    return datetime.now(tz=UTC).date().isoformat()


def versions_of(records: Sequence[Record]) -> str:
    """Software that the records name, in one line."""
    names = ("torch", "cudnn", "numba", "numba-cuda", "driver", "kernel", "vllm", "nccl")
    found = {name: str(r.environment[name]) for r in records for name in names if name in r.environment}
    return ", ".join(f"{name} {value}" for name, value in sorted(found.items())) or "not recorded"


def from_records(
    paths: Iterable[Path],
    find_device: Callable[[str], Device],
    hardware: str | None,
    implementations: Sequence[str],
    progress: Progress,
    one_device: bool = False,
    fallback_devices: FallbackDevices = tuple,
    how: How = HOW,
) -> list[Calibrated]:
    """Fit what the records of ``paths`` tell; a device per result. ``hardware``: only that one, though kin devices help its fit.

    ``fallback_devices``: lend calibrations of parts. ``one_device``: UsageError, before any fit, if the records are of several.
    """
    check_names(implementations)
    listed = list(paths)
    records = [record for path in listed for _, record in read_records(path)]
    if implementations:
        records = [record for record in records if record.implementation in implementations]
    devices = _devices_of(records, find_device, hardware, progress)
    ids = {device.id: device for device in devices.values()}
    if one_device and hardware is None and len(ids) > 1:
        raise UsageError(f"--output: a .yaml holds one device, the records are of {', '.join(sorted(ids))}", "name one with --hardware")
    fits = calibrate(records, devices, today(), versions_of, progress, fallback_devices, how.effort, how.jobs, how.done)
    found = with_borrowed(fits, half_widths(points(records, devices), fits, fallback_devices))
    shipped = set(listed) <= set(shipped_records())
    source = RECORDS if shipped and not how.quick else f"measurement records{how.words}: {', '.join(path.name for path in listed)}"
    wanted = ids if hardware is None else {find_device(hardware).id}
    return [_with(ids[name], [], blocks, source) for name, blocks in found.items() if name in wanted]


def _devices_of(
    records: Iterable[Record], find_device: Callable[[str], Device], hardware: str | None, progress: Progress
) -> dict[str, Device]:
    """The device that each name in ``records`` means; ``hardware`` stands for its own."""
    given = None if hardware is None else find_device(hardware)
    devices: dict[str, Device] = {}
    for name in dict.fromkeys(record.hardware for record in records):
        known = device_or_error(name, find_device)
        if isinstance(known, PerfmodelError):
            progress(f"{name}: {known.message}")
        else:
            devices[name] = given if given is not None and given.id == known.id else known
    if given is not None and given.id not in {device.id for device in devices.values()}:
        raise UsageError(f"--hardware: no record is of {given.id}", "give the profile of a device that the records name")
    return devices


def check_names(implementations: Sequence[str]) -> None:
    """UsageError for an implementation that no model describes."""
    from perfmodel.core.errors import suggest

    for name in implementations:
        if name not in models_of():
            raise UsageError(f"--implementation: no time model describes {name!r}", suggest(name, sorted(models_of())))


def _with(device: Device, probes: list[Microbenchmark], blocks: list[Calibration], source: str, **more: Any) -> Calibrated:
    """``device`` with ``blocks`` in the place of those of the same kernels; ``source``: what they rest on, in words."""
    key = next(name for name in ("records", "own_records", "more_records") if device.sources.get(name, source) == source)
    blocks = [replace(block, source=key) for block in blocks]
    kept = [block for block in device.calibration if family_of(block) not in set(map(family_of, blocks))]
    sources = {key: source, **device.sources} if blocks else device.sources
    changed = replace(device, sources=sources, microbenchmarks=probes or device.microbenchmarks, calibration=[*kept, *blocks])
    return Calibrated(changed, probes, blocks, **more)


def this_machine(
    find_device: Callable[[str], Device], hardware: str | None, implementations: Sequence[str], progress: Progress, how: How = HOW
) -> Calibrated:
    """Measure this machine: its GPU where there is one, else its CPU."""
    check_names(implementations)
    from perfmodel.validation.session import best_backend

    if best_backend() == "cuda":
        return _gpu(find_device, hardware, implementations, progress, how)
    if implementations:
        raise UnavailableError(f"no GPU to measure {', '.join(implementations)} on", "run it where there is one, or use --from-records")
    from perfmodel.validation.cpu.run import measure

    device, _, raws = measure(progress, how.on_record, how.earlier)
    return Calibrated(device, [], device.calibration, [], raws)


def _gpu(
    find_device: Callable[[str], Device], hardware: str | None, implementations: Sequence[str], progress: Progress, how: How
) -> Calibrated:
    from perfmodel.validation.cuda.environment import this_environment
    from perfmodel.validation.cuda.gpu import open_gpu
    from perfmodel.validation.cuda.microbench import QUICK_RULE, RULE
    from perfmodel.validation.cuda.run import benchmark, measure

    environment = this_environment(open_gpu(), hardware)
    base = find_device(hardware or environment.hardware)
    names = implementations or OWN
    raws: list[dict[str, Any]] = []
    failures: list[str] = []

    def keep(raw: dict[str, Any]) -> None:
        raws.append(raw)
        how.on_record(raw)

    results = benchmark(progress, QUICK_RULE if how.quick else RULE)
    own = own_cases(names, how.quick)
    left_out = sorted({name for name in names if name in OWN} - {case.implementation for case in own})
    failures += [f"{name}: left out, as quick runs have too few shapes for its fit; run without --quick" for name in left_out]
    libraries = _library_cases([name for name in names if name.startswith("torch-")], how.quick)
    step = _steps(len(own) + len(libraries), progress, how.done)
    if own:
        failures += measure(own, step, keep, base.id, QUICK_RULE if how.quick else None)
    if libraries:
        failures += _libraries(libraries, base.id, step, keep)
    sources = {MEASURED: f"perfmodel calibrate, {today()}, {versions_of([as_record(raw) for raw in raws])}", **base.sources}
    device = with_measured(replace(base, sources=sources), results)
    probes = [_probe(result) for result in results if result.value is not None]
    failures += [f"{result.name}: {result.reason}" for result in results if result.value is None]
    found = calibrate(
        [as_record(raw) for raw in raws], {device.id: device}, today(), versions_of, progress, tuple, how.effort, how.jobs, how.done
    )
    blocks = found.get(device.id, [])
    return _with(device, probes, blocks, f"kernels measured by the same run{how.words}", failures=failures, records=raws)


def own_cases(names: Collection[str], quick: bool) -> list[KernelCase]:
    """Default cases of the kernels ``names``. Quick, those of the first ``QUICK_TILES`` tiles of each kernel, head dim and mask, as
    a tile is a kernel to compile, and none of kernels whose shapes are then too few for a fit.
    """
    from perfmodel.validation.cuda.shapes import calibrated_cases, timed_cases

    listed = [case for case in (timed_cases() if quick else calibrated_cases()) if case.implementation in names]
    if not quick:
        return listed
    tiles: dict[tuple[Any, ...], dict[tuple[Any, ...], None]] = {}
    for case in listed:
        tiles.setdefault(_kernel_of(case), {})[_tile_of(case)] = None
    few = [case for case in listed if _tile_of(case) in list(tiles[_kernel_of(case)])[:QUICK_TILES]]
    records: dict[str, list[Record]] = {}
    for case in few:
        records.setdefault(case.implementation, []).append(_untimed(case))
    fitted = {name for name, shapes in records.items() if not too_few(shapes, model_of(case_of(shapes[0])))}
    return [case for case in few if case.implementation in fitted]


def _untimed(case: KernelCase) -> Record:
    return Record(case.workload, case.implementation, "", case.dtype, case.shape, Seconds(1.0), launch=case.launch)


def _kernel_of(case: KernelCase) -> tuple[Any, ...]:
    return case.implementation, case.shape.get("d"), case.shape.get("causal")


def _tile_of(case: KernelCase) -> tuple[Any, ...]:
    return tuple(sorted(case.launch.items()))


def _steps(total: int, progress: Progress, done: Callable[[float], None]) -> Progress:
    """``progress`` of ``total`` cases, of which each says one thing."""
    finished = iter(range(1, total + 1))
    done(0.0)

    def step(text: str) -> None:
        done(next(finished, total) / total)
        progress(text)

    return step


def _library_cases(names: Sequence[str], quick: bool) -> list[LibraryCase]:
    from perfmodel.validation.libraries.cases import FAMILIES, cases

    found = [[case for case in cases(family) if case.implementation in names] for family in FAMILIES] if names else []
    return [case for listed in found for case in listed[:: QUICK_STEP if quick else 1]]


def _libraries(cases: Sequence[LibraryCase], hardware: str, progress: Progress, on_record: Callable[[dict[str, Any]], None]) -> list[str]:
    """Measure library kernels through PyTorch; messages of the cases that failed."""
    import json

    from perfmodel.validation.libraries.measure import as_line, measure

    failures: list[str] = []
    measure(
        cases,
        hardware,
        lambda case: progress(f"{case.implementation} {case.direction} {dict(case.shape)}"),
        lambda record: on_record(json.loads(as_line(record))),
        lambda case, why: failures.append(f"{case.implementation} {dict(case.shape)}: {why}"),
    )
    return failures


def _probe(result: Any) -> Microbenchmark:
    return Microbenchmark(
        result.name, _text(result.value, result.unit), round(result.spread, 4), result.runs, MEASURED, today(), result.size
    )


def _text(value: float, unit: str) -> str:
    """A value with its unit as profiles write it."""
    return units.format_time(value, 5) if unit == "s" else units.format_si(value, unit, 5)


def with_measured(device: Device, results: Iterable[Any]) -> Device:
    """``device`` with the results that have a field for measured values; a datasheet value is never replaced."""
    for result in results:
        if result.field is None or result.value is None:
            continue
        quantity = Quantity(_text(result.value, result.unit), "measured", MEASURED, result.value)
        part, _, name = result.field.partition(".")
        if part == "memory":
            level = name.partition(".")[0]
            memory = [replace(one, measured_bandwidth=quantity) if one.level == level else one for one in device.memory]
            device = replace(device, memory=memory)
        elif part == "launch_overhead":
            device = replace(device, launch_overhead=_overhead(device.launch_overhead, name, quantity))
    return device


def _overhead(old: LaunchOverhead | None, name: str, quantity: Quantity) -> LaunchOverhead | None:
    if old is None:
        return LaunchOverhead(quantity) if name == "stream" else None
    known = getattr(old, name)
    return replace(old, **{name: quantity}) if known is None or known.kind == "measured" else old
