"""Fit time models to measurement records: parameters per architecture, residuals per device.

Only records that ``records.held_out`` leaves to the fit are used; the others judge it. If there are records for the width, only their
residuals make the interval: no parameter and no rule was chosen on them (split conformal prediction). Otherwise residuals of points that a
fit did not see make it, by cross-validation in ``FOLDS`` parts. Its quantiles are a little wider than 80 %, as the structure of a model was
chosen on the same records. Points of one group (one kernel at several sizes) err alike, so each group counts once, by its own quantile.
Fewer than ten groups say little about the next one: their range is stretched as Student's prediction interval is against the normal one.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import active_children, get_context

from perfmodel.core.arith import quantile
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.power import SUSTAINED
from perfmodel.timing.base import WARM, Case, Model, find_model, model_of
from perfmodel.timing.implementations import kernel_name
from perfmodel.timing.reference_devices import FallbackDevices, with_parts
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.fit_points import FULL, NEAR_PRIOR, Direction, Effort, FitPoint, Key, Solved, errs_with, solved
from perfmodel.validation.records import Record, group_key, held_out, profiled, sets_width
from perfmodel.validation.statistics import Residual, conformal, interval

FEWEST = 10
"""Number of different shapes, or families of the project's own kernels, that is enough for any model."""
LEAST_SHARED = 1000
"""Points times parameters from which starting other processes pays."""
FEWEST_FOR_WIDTH = 30
"""Number of records for the width (of shapes drawn as users have them) that is enough for an interval."""
FEWEST_OWN = 4
"""Number of points of an architecture below which residuals of other architectures' fits count too."""


Family = tuple[str, str, Direction, str]
"""Workload, implementation, pass and model, which are the same on every architecture."""


def family_of(block: Calibration) -> Family:
    """The family of ``block``."""
    return block.workload, block.implementation, block.direction, block.model


def points(records: Iterable[Record], devices: Mapping[str, Device]) -> dict[Key, list[FitPoint]]:
    """Fit points of the records that some model describes, by the key of shared parameters; composites come last."""
    grouped: dict[Key, list[FitPoint]] = {}
    for record in records:
        device = devices.get(record.hardware)
        if (
            device is None
            or profiled(record)
            or record.clock == SUSTAINED
            or (record.direction == "both" and record.workload != "transformer")
        ):
            continue
        case, lower, _ = evaluated(record, device)
        if case is None or lower is None or record.time_s.median < lower:
            continue
        try:
            model = model_of(case, device)
        except PerfmodelError:
            continue
        direction: Direction = "backward" if case.direction == "backward" else "forward"
        key = (record.workload, _calibrated_name(case, model), direction, model.name, device.architecture)
        grouped.setdefault(key, []).append(FitPoint(record, case, device, lower))
    return dict(sorted(grouped.items(), key=lambda item: find_model(item[0][3]).composite))


def _calibrated_name(case: Case, model: Model) -> str:
    """Name under which ``case`` shares parameters: for models from tables the name of its kernel."""
    kernel = kernel_name(case.implementation)
    return kernel if kernel in model.implementations else case.implementation


def calibrate(
    records: Iterable[Record],
    devices: Mapping[str, Device],
    date: str,
    versions: Callable[[list[Record]], str],
    progress: Callable[[str], None],
    fallbacks: FallbackDevices = tuple,
    effort: Effort = FULL,
    jobs: int = 1,
    done: Callable[[float], None] = lambda share: None,
) -> dict[str, list[Calibration]]:
    """Calibrations by device id. A group with fewer than twice as many points to fit as parameters is left out.

    ``fallbacks``: devices whose calibrations serve parts of a sequence for which a device has none. ``jobs``: processes that fit groups at
    the same time, without effect on the result. ``progress`` is called for each fitted group, and ``done`` before it with the share of all
    work that is done.
    """
    current = {device.id: device for device in devices.values()}
    result: dict[str, list[Calibration]] = {}
    elsewhere: dict[Family, list[Residual]] = {}
    alike: dict[str, list[Residual]] = {}
    grouped = points(records, devices)
    lacking = {key: too_few((point.record for point in members), find_model(key[3])) for key, members in grouped.items()}
    tasks = {key: _to_fit(members, effort) for key, members in grouped.items() if not lacking[key]}
    finished = _FitProgress(tasks, progress, done)
    ahead = _solved_ahead(tasks, effort, jobs, finished)
    for key, listed in grouped.items():
        if lacking[key]:
            progress(f"{'/'.join(key[:3])} on {key[4]}: {lacking[key]}")
            continue
        members = [replace(point, device=current[point.device.id]) for point in listed]
        members = with_other_parts(members, key[3], lambda: [*current.values(), *fallbacks()])
        to_fit = _to_fit(members, effort)
        if key not in ahead:
            ahead[key] = solved(to_fit, effort)
            finished(key)
        p, residuals = ahead[key]
        errors = [Residual(value, group) for value, group in zip(residuals, errs_with(to_fit), strict=True)]
        elsewhere.setdefault(key[:4], []).extend(Residual(error.value, f"{error.group} {key[4]}") for error in errors)
        alike.setdefault(key[3], []).extend(Residual(error.value, f"{error.group} {key}") for error in errors)
        for name in sorted({point.device.id for point in members}):
            mine = [error for error, point in zip(errors, to_fit, strict=True) if point.device.id == name]
            if len({residual.group for residual in mine}) < FEWEST:  # too few for a width of its own: those of its architecture
                mine = errors
            here = [point for point in members if point.device.id == name]
            block = with_unseen(with_interval(block_of(key, p, here, date, versions), mine), here)
            block = with_warm(block, [value for value, point in zip(residuals, to_fit, strict=True) if _warm_on(point, name)], here)
            result.setdefault(name, []).append(block)
            others = [error for error in current[name].calibration if family_of(error) != family_of(block)]
            current[name] = replace(current[name], calibration=[*others, block])
    return {
        name: [
            _with_model_width(_with_family_width(block, kept), kept, alike[block.model])
            for block in blocks
            for kept in [elsewhere[family_of(block)]]
        ]
        for name, blocks in result.items()
    }


def _to_fit(members: Sequence[FitPoint], effort: Effort) -> list[FitPoint]:
    return effort.thinned([point for point in members if not held_out(point.record)])


def too_few(records: Iterable[Record], model: Model) -> str:
    """Reason why ``model`` cannot be fitted to ``records``; empty if it can, or if its parameters stay near their starts."""
    shapes = len({group_key(record) for record in records if not held_out(record)})
    free = sum(prior.spread > NEAR_PRIOR for prior in model.priors().values())
    return "" if shapes >= max(2, min(2 * free, FEWEST)) else f"{shapes} shapes are too few for {free} parameters"


class _FitProgress:
    """Reports each fitted group, and before it the share of the work done so far, in points times parameters."""

    def __init__(self, tasks: Mapping[Key, list[FitPoint]], progress: Callable[[str], None], done: Callable[[float], None]) -> None:
        self.points = {key: len(known) for key, known in tasks.items()}
        self.work = {key: count * len(find_model(key[3]).parameters) for key, count in self.points.items()}
        self.progress, self.done, self.work_done = progress, done, 0
        done(0.0)

    def __call__(self, key: Key) -> None:
        self.work_done += self.work[key]
        self.done(self.work_done / sum(self.work.values()))
        self.progress(f"{'/'.join(key[:3])} ({key[3]}) on {key[4]}: {self.points[key]} points")


def _solved_ahead(tasks: Mapping[Key, list[FitPoint]], effort: Effort, jobs: int, finished: _FitProgress) -> dict[Key, Solved]:
    """Fits of all models but composites, which need other fits, in up to ``jobs`` processes, the largest first."""
    plain = sorted((key for key in tasks if not find_model(key[3]).composite), key=lambda key: finished.work[key], reverse=True)
    if jobs < 2 or sum(finished.work[key] for key in plain) < LEAST_SHARED:
        return {}
    solutions: dict[Key, Solved] = {}
    with ProcessPoolExecutor(min(jobs, len(plain)), get_context("spawn"), _dies_at_once) as pool:
        before = set(active_children())
        try:
            futures = {pool.submit(solved, tasks[key], effort): key for key in plain}
            for future in as_completed(futures):
                solutions[futures[future]] = future.result()
                finished(futures[future])
        except BaseException:  # the first error, or Ctrl-C, ends all processes
            for child in set(active_children()) - before:
                child.terminate()
            raise
    return solutions


def _dies_at_once() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes: only the first has something to say


def with_other_parts(members: Sequence[FitPoint], model: str, fallbacks: FallbackDevices) -> list[FitPoint]:
    """``members`` on devices with added calibrations from other devices for parts of ``model`` that they lack."""
    asked = {(point.device.id, point.record.dtype): point.device for point in members}
    devices = {(name, dtype): with_parts(device, model, dtype, fallbacks) for (name, dtype), device in asked.items()}
    return [replace(point, device=devices[point.device.id, point.record.dtype]) for point in members]


def block_of(key: Key, p: dict[str, float], members: list[FitPoint], date: str, versions: Callable[[list[Record]], str]) -> Calibration:
    """The block of one device, still without its interval."""
    workload, implementation, direction, name, _ = key
    model = find_model(name)
    judged = [point for point in members if not sets_width(point.record)]
    unseen = [abs(math.expm1(-point.residual(model, p))) for point in judged if held_out(point.record)]
    return Calibration(
        implementation=implementation,
        workload=workload,
        direction=direction,
        model=name,
        dtypes=sorted({point.record.dtype for point in members}),
        parameters=p,
        points=len(judged) - len(unseen),
        low=1.0,
        high=1.0,
        source="records",
        date=date,
        versions=versions([point.record for point in members]),
        held_out=len(unseen),
        held_out_median_error=round(quantile(unseen, 0.5), 4) if unseen else None,
        held_out_p90_error=round(quantile(unseen, 0.9), 4) if unseen else None,
    )


def with_interval(block: Calibration, residuals: Sequence[Residual]) -> Calibration:
    """``block`` with the interval of ``residuals``."""
    errors = [abs(math.expm1(-residual.value)) for residual in residuals]
    low, high = interval(residuals)
    return replace(block, low=low, high=high, median_error=round(quantile(errors, 0.5), 4))


def _width_residuals(block: Calibration, members: Iterable[FitPoint]) -> list[float]:
    """Residuals of the ``members`` for the width."""
    model = find_model(block.model)
    return [point.residual(model, block.parameters) for point in members if sets_width(point.record)]


def with_unseen(block: Calibration, members: Sequence[FitPoint]) -> Calibration:
    """``block`` with the interval and the error of the ``members`` for the width; unchanged if they are too few."""
    unseen = _width_residuals(block, (point for point in members if point.case.cache != WARM))
    if len(unseen) < FEWEST_FOR_WIDTH:
        return block
    low, high = conformal(unseen)
    return replace(block, low=low, high=high, median_error=round(quantile([abs(math.expm1(-value)) for value in unseen], 0.5), 4))


def _warm_on(point: FitPoint, device: str) -> bool:
    return point.device.id == device and point.case.cache == WARM


def with_warm(block: Calibration, residuals: Sequence[float], members: Sequence[FitPoint]) -> Calibration:
    """``block`` with the interval of warm runs, from their ``residuals`` by fits without them, and from the ``members`` for the width;
    unchanged if these are too few or all runs are warm.
    """
    unseen = _width_residuals(block, (point for point in members if point.case.cache == WARM))
    if len(residuals) + len(unseen) < FEWEST_FOR_WIDTH or len(residuals) == block.points:
        return block
    low, high = conformal([*residuals, *unseen])
    return replace(block, warm_low=low, warm_high=high)


def _with_family_width(block: Calibration, residuals: Sequence[Residual]) -> Calibration:
    """``block`` with the interval of its family on all architectures, if its own points are too few."""
    return block if block.points >= FEWEST_OWN else replace(with_interval(block, residuals), median_error=block.median_error)


def _with_model_width(block: Calibration, residuals: Sequence[Residual], alike: Sequence[Residual]) -> Calibration:
    """``block`` with at least the interval of all kernels of its model, if it comes from a published table of few shapes.

    Constants of such a model were chosen on most of its rows, so the residuals of one kernel's few rows say too little. So do a handful of
    sizes per device, all of the same few shapes.
    """
    model = find_model(block.model)
    few = model.from_tables and len({residual.group for residual in residuals}) < FEWEST
    if not few and not model.few_sizes:
        return block
    low, high = interval(alike)
    return replace(block, low=min(block.low, low), high=max(block.high, high))
