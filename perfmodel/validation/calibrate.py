"""Calibrations: time models fitted to measurement records, parameters per architecture, prediction intervals per device.

Fits use only the records that ``records.held_out`` leaves to them; the others judge the fit. The interval comes from one of two sources:

- Records that set a width (``records.sets_width``), if there are enough: no parameter and no rule was chosen on them (split conformal
  prediction).
- Otherwise residuals by cross-validation, each of a point that its fit did not see. Their quantiles are a little wider than 80 %, as the
  structure of a model was chosen on the same records. Points of one group (one kernel at several sizes) err alike, so each group counts
  once, by its own quantile. Fewer than ten groups say little about the next one: their interval is stretched by Student's distribution.
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
from perfmodel.timing.base import WARM, Model, find_model, model_of
from perfmodel.timing.implementations import kernel_name
from perfmodel.timing.reference_devices import FallbackDevices, with_parts
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.fit_points import (
    FULL,
    NEAR_PRIOR,
    Direction,
    Effort,
    FitKey,
    FitPoint,
    KernelFamily,
    Solved,
    error_groups,
    solved,
)
from perfmodel.validation.records import Record, group_key, held_out, profiled, sets_width
from perfmodel.validation.statistics import Residual, conformal, interval

FEWEST_GROUPS = 10
"""Number of groups (different shapes, or families of the project's own kernels) that is enough for any fit and its interval."""
LEAST_SHARED = 1000
"""Points times parameters from which starting other processes pays."""
FEWEST_FOR_WIDTH = 30
"""Number of records that set a width that is enough for an interval."""
FEWEST_OWN = 4
"""Number of points of an architecture from which its interval comes from its own residuals alone."""


def family_of(block: Calibration) -> KernelFamily:
    """The family of kernels that ``block`` calibrates."""
    return KernelFamily(block.workload, block.implementation, block.direction, block.model)


def points(records: Iterable[Record], devices: Mapping[str, Device]) -> dict[FitKey, list[FitPoint]]:
    """Points of the records that some model describes, by key; composite models come last, as they use the fits of their parts."""
    grouped: dict[FitKey, list[FitPoint]] = {}
    for record in records:
        device = devices.get(record.hardware)
        if device is None or not _is_one_kernel_alone(record):
            continue
        case, lower, _ = evaluated(record, device)
        if case is None or lower is None or record.time_s.median < lower:
            continue
        try:
            model = model_of(case, device)
        except PerfmodelError:
            continue
        # kernels that run the same code are fitted together, under the name of the code
        kernel = kernel_name(case.implementation)
        name = kernel if kernel in model.implementations else case.implementation
        direction: Direction = "backward" if case.direction == "backward" else "forward"
        key = FitKey(record.workload, name, direction, model.name, device.architecture)
        grouped.setdefault(key, []).append(FitPoint(record, case, device, lower))
    return dict(sorted(grouped.items(), key=lambda item: find_model(item[0].model).composite))


def _is_one_kernel_alone(record: Record) -> bool:
    """Whether ``record`` timed one pass (or a whole step) at the clock of a single run, without a profiler."""
    both_passes = record.direction == "both" and record.workload != "transformer"
    return not profiled(record) and record.clock != SUSTAINED and not both_passes


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
    """Calibrations by device id. Keys with too few points for their parameters (``too_few``) are left out.

    ``fallbacks``: devices whose calibrations serve parts of a sequence for which a device has none. ``jobs``: processes that fit keys at
    the same time, without effect on the result. ``progress`` is called for each fitted key, and ``done`` before it with the share of all
    work that is done.
    """
    current = {device.id: device for device in devices.values()}
    grouped = points(records, devices)
    refused = {key: too_few((point.record for point in members), find_model(key.model)) for key, members in grouped.items()}
    tasks = {key: _to_fit(members, effort) for key, members in grouped.items() if not refused[key]}
    finished = _FitProgress(tasks, progress, done)
    solutions = _solved_ahead(tasks, effort, jobs, finished)
    result: dict[str, list[Calibration]] = {}
    by_family: dict[KernelFamily, list[Residual]] = {}
    by_model: dict[str, list[Residual]] = {}
    for key, listed in grouped.items():
        if refused[key]:
            progress(f"{key.family.name} on {key.architecture}: {refused[key]}")
            continue
        members = [replace(point, device=current[point.device.id]) for point in listed]
        members = with_other_parts(members, key.model, lambda: [*current.values(), *fallbacks()])
        to_fit = _to_fit(members, effort)
        if key not in solutions:
            solutions[key] = solved(to_fit, effort)
            finished(key)
        parameters, values = solutions[key]
        residuals = [Residual(value, group) for value, group in zip(values, error_groups(to_fit), strict=True)]
        by_family.setdefault(key.family, []).extend(Residual(error.value, f"{error.group} {key.architecture}") for error in residuals)
        by_model.setdefault(key.model, []).extend(Residual(error.value, f"{error.group} {key}") for error in residuals)
        for name in sorted({point.device.id for point in members}):
            here = [point for point in members if point.device.id == name]
            pairs = [(error, point) for error, point in zip(residuals, to_fit, strict=True) if point.device.id == name]
            own_residuals = [error for error, _ in pairs]
            warm_residuals = [error.value for error, point in pairs if point.case.cache == WARM]
            enough = len({error.group for error in own_residuals}) >= FEWEST_GROUPS
            block = block_of(key, parameters, here, date, versions)
            block = with_interval(block, own_residuals if enough else residuals)
            block = with_warm(with_unseen(block, here), warm_residuals, here)
            result.setdefault(name, []).append(block)
            others = [other for other in current[name].calibration if family_of(other) != family_of(block)]
            current[name] = replace(current[name], calibration=[*others, block])

    def widened(block: Calibration) -> Calibration:
        family_residuals = by_family[family_of(block)]
        return _with_model_width(_with_family_width(block, family_residuals), family_residuals, by_model[block.model])

    return {name: [widened(block) for block in blocks] for name, blocks in result.items()}


def _to_fit(members: Sequence[FitPoint], effort: Effort) -> list[FitPoint]:
    return effort.thinned([point for point in members if not held_out(point.record)])


def too_few(records: Iterable[Record], model: Model) -> str:
    """Reason why ``model`` cannot be fitted to ``records``; empty if it can.

    A fit needs two shapes for each parameter that may move far from its start, at least two, and never more than ``FEWEST_GROUPS``.
    """
    shapes = len({group_key(record) for record in records if not held_out(record)})
    free = sum(prior.spread > NEAR_PRIOR for prior in model.priors().values())
    needed = max(2, min(2 * free, FEWEST_GROUPS))
    return "" if shapes >= needed else f"{shapes} shapes are too few for {free} parameters"


class _FitProgress:
    """Reports each fitted key, and before it the share of the work done so far, in points times parameters."""

    def __init__(self, tasks: Mapping[FitKey, list[FitPoint]], progress: Callable[[str], None], done: Callable[[float], None]) -> None:
        self.points = {key: len(to_fit) for key, to_fit in tasks.items()}
        self.work = {key: count * len(find_model(key.model).parameters) for key, count in self.points.items()}
        self.progress, self.done, self.work_done = progress, done, 0
        done(0.0)

    def __call__(self, key: FitKey) -> None:
        self.work_done += self.work[key]
        self.done(self.work_done / sum(self.work.values()))
        self.progress(f"{key.family.name} ({key.model}) on {key.architecture}: {self.points[key]} points")


def _solved_ahead(tasks: Mapping[FitKey, list[FitPoint]], effort: Effort, jobs: int, finished: _FitProgress) -> dict[FitKey, Solved]:
    """Fits of all models but composites, in up to ``jobs`` processes, the largest first; none if other processes do not pay."""
    plain = sorted((key for key in tasks if not find_model(key.model).composite), key=lambda key: finished.work[key], reverse=True)
    if jobs < 2 or sum(finished.work[key] for key in plain) < LEAST_SHARED:
        return {}
    solutions: dict[FitKey, Solved] = {}
    with ProcessPoolExecutor(min(jobs, len(plain)), get_context("spawn"), _end_on_interrupt) as pool:
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


def _end_on_interrupt() -> None:
    """Let Ctrl-C end this process without a traceback: it reaches all processes, and only the first has something to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def with_other_parts(members: Sequence[FitPoint], model: str, fallbacks: FallbackDevices) -> list[FitPoint]:
    """``members`` on devices with added calibrations from other devices for parts of ``model`` that they lack."""
    devices = {(point.device.id, point.record.dtype): point.device for point in members}
    complete = {(name, dtype): with_parts(device, model, dtype, fallbacks) for (name, dtype), device in devices.items()}
    return [replace(point, device=complete[point.device.id, point.record.dtype]) for point in members]


def block_of(key: FitKey, p: dict[str, float], members: list[FitPoint], date: str, versions: Callable[[list[Record]], str]) -> Calibration:
    """The calibration of one device by ``key`` with parameters ``p``, still without its interval; ``members``: points on the device."""
    model = find_model(key.model)
    without_width = [point for point in members if not sets_width(point.record)]
    unseen = [relative_error(point.residual(model, p)) for point in without_width if held_out(point.record)]
    return Calibration(
        implementation=key.implementation,
        workload=key.workload,
        direction=key.direction,
        model=key.model,
        dtypes=sorted({point.record.dtype for point in members}),
        parameters=p,
        points=len(without_width) - len(unseen),
        low=1.0,
        high=1.0,
        source="records",
        date=date,
        versions=versions([point.record for point in members]),
        held_out=len(unseen),
        held_out_median_error=round(quantile(unseen, 0.5), 4) if unseen else None,
        held_out_p90_error=round(quantile(unseen, 0.9), 4) if unseen else None,
    )


def relative_error(residual: float) -> float:
    """|predicted / measured - 1| of a ``residual``, log(measured / predicted)."""
    return abs(math.expm1(-residual))


def with_interval(block: Calibration, residuals: Sequence[Residual]) -> Calibration:
    """``block`` with the interval and the median error of ``residuals`` by cross-validation."""
    low, high = interval(residuals)
    errors = [relative_error(residual.value) for residual in residuals]
    return replace(block, low=low, high=high, median_error=round(quantile(errors, 0.5), 4))


def with_unseen(block: Calibration, members: Sequence[FitPoint]) -> Calibration:
    """``block`` with the interval and the median error of those ``members`` that set a width; unchanged if they are too few."""
    unseen = _width_residuals(block, (point for point in members if point.case.cache != WARM))
    if len(unseen) < FEWEST_FOR_WIDTH:
        return block
    low, high = conformal(unseen)
    return replace(block, low=low, high=high, median_error=round(quantile([relative_error(value) for value in unseen], 0.5), 4))


def with_warm(block: Calibration, residuals: Sequence[float], members: Sequence[FitPoint]) -> Calibration:
    """``block`` with a separate interval of warm runs; unchanged if there are too few of them or if all runs are warm.

    ``residuals``: of warm runs, by cross-validation. Those of the ``members`` that set a width are added.
    """
    unseen = _width_residuals(block, (point for point in members if point.case.cache == WARM))
    if len(residuals) + len(unseen) < FEWEST_FOR_WIDTH or len(residuals) == block.points:
        return block
    low, high = conformal([*residuals, *unseen])
    return replace(block, warm_low=low, warm_high=high)


def _width_residuals(block: Calibration, members: Iterable[FitPoint]) -> list[float]:
    """Residuals of the ``members`` that set a width."""
    model = find_model(block.model)
    return [point.residual(model, block.parameters) for point in members if sets_width(point.record)]


def _with_family_width(block: Calibration, residuals: Sequence[Residual]) -> Calibration:
    """``block`` with the interval of ``residuals``, of its family on all architectures, if its own points are too few."""
    return block if block.points >= FEWEST_OWN else replace(with_interval(block, residuals), median_error=block.median_error)


def _with_model_width(block: Calibration, family_residuals: Sequence[Residual], model_residuals: Sequence[Residual]) -> Calibration:
    """``block`` with an interval at least as wide as that of all kernels of its model, if the rows of its own family say too little.

    They do so if they come from published tables of few shapes, on most of which the constants of the model were chosen, and if they are a
    handful of sizes per device.
    """
    model = find_model(block.model)
    from_few_rows = model.from_tables and len({residual.group for residual in family_residuals}) < FEWEST_GROUPS
    if not from_few_rows and not model.few_sizes:
        return block
    low, high = interval(model_residuals)
    return replace(block, low=min(block.low, low), high=max(block.high, high))
