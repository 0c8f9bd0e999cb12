"""Fit time models to measurement records: parameters per architecture, residuals per device.

Only records that ``split.held_out`` leaves to the fit are used; the others judge it. The interval is made of residuals of
points that a fit did not see, by cross-validation in ``FOLDS`` parts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import MAX_PARAMETERS, VARIANTS, Case, Model, find_model, kernel_name, model_of
from perfmodel.timing.fit import ROUNDS, fit
from perfmodel.timing.predict import FallbackDevices, with_parts
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.intervals import Residual, interval
from perfmodel.validation.parallel import in_parallel
from perfmodel.validation.records import Record, profiled
from perfmodel.validation.split import group_key, held_out
from perfmodel.validation.statistics import quantile

FOLDS = 5
FEWEST = 10
"""Different shapes, or families of the project's own kernels, that are enough for any model."""
LEAST_SHARED = 1000
"""Points times parameters from which other processes are worth their start."""
FEWEST_OWN = 4
"""Points of an architecture below which the residuals of the others' own fits count, too."""


@dataclass(frozen=True, slots=True)
class Point:
    """One record that a model describes, on its device, with its lower bound in seconds."""

    record: Record
    case: Case
    device: Device
    lower_s: float

    def predicted(self, model: Model, p: Mapping[str, float]) -> float:
        """Seconds, never below the bound."""
        return max(model.seconds(self.case, self.device, p), self.lower_s)

    def residual(self, model: Model, p: Mapping[str, float]) -> float:
        """log(measured / predicted)."""
        return math.log(self.record.time_s.median / self.predicted(model, p))


Key = tuple[str, str, str, str, str]
"""Workload, implementation, pass, model and architecture: what shares one set of parameters."""
Family = tuple[str, str, str, str]
"""Workload, implementation, pass and model: what is the same on every architecture."""


def family_of(block: Calibration) -> Family:
    """The family that ``block`` is a member of."""
    return block.workload, block.implementation, block.direction, block.model


def points(records: Iterable[Record], devices: Mapping[str, Device]) -> dict[Key, list[Point]]:
    """The records that some model describes, by what shares parameters; composites come last."""
    found: dict[Key, list[Point]] = {}
    for record in records:
        device = devices.get(record.hardware)
        if device is None:
            continue
        if profiled(record) or (record.direction == "both" and record.workload != "transformer"):
            continue
        case, lower, _ = evaluated(record, device)
        if case is None or lower is None or record.time_s.median < lower:
            continue
        try:
            model = model_of(case)
        except PerfmodelError:
            continue
        key = (record.workload, _calibrated_name(case, model), case.direction, model.name, device.architecture)
        found.setdefault(key, []).append(Point(record, case, device, lower))
    return dict(sorted(found.items(), key=lambda item: find_model(item[0][3]).composite))


def _calibrated_name(case: Case, model: Model) -> str:
    """What shares parameters with ``case``: its kernel under any name, where the model holds what is known of kernels."""
    shared = model.name in ("flash-decode", "flash-prefill") and case.implementation not in VARIANTS
    return kernel_name(case.implementation) if shared else case.implementation


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a fit takes: restarts of its simplex, rounds of one per parameter, folds, and points at most (None: all)."""

    restarts: int = 2
    rounds: int = ROUNDS
    folds: int = FOLDS
    points: int | None = None

    def thinned(self, known: Sequence[Point]) -> list[Point]:
        """``known``, or as many of them as are asked for, from the shortest time to the longest in even steps."""
        if self.points is None or len(known) <= self.points:
            return list(known)
        ranked = sorted(known, key=lambda point: point.record.time_s.median)
        return [ranked[place * (len(ranked) - 1) // (self.points - 1)] for place in range(self.points)]


FULL, QUICK = Effort(), Effort(restarts=0, rounds=40, folds=3, points=30)
Solved = tuple[dict[str, float], list[float]]
"""Parameters, rounded as profiles hold them, and the residual of each point by a fit that did not see it."""


def solved(known: Sequence[Point], effort: Effort) -> Solved:
    """The fit of ``known``, which share parameters."""
    model = model_of(known[0].case)
    p = {name: float(f"{value:.4g}") for name, value in fitted(model, known, effort=effort).items()}
    return p, cross_residuals(model, known, p, effort)


def fitted(model: Model, known: Sequence[Point], starts: Mapping[str, float] | None = None, effort: Effort = FULL) -> dict[str, float]:
    """Parameters with the least mean |log error| on ``known``."""

    def predict(p: Mapping[str, float]) -> list[float]:
        return [point.predicted(model, p) for point in known]

    return fit(predict, [point.record.time_s.median for point in known], starts or model.starts(), effort.restarts, effort.rounds)


def _kin(point: Point) -> str:
    return json.dumps(group_key(point.record), sort_keys=True)


def _left_out_with(known: Sequence[Point]) -> list[str]:
    """What each of ``known`` is left out with: steps of one model, whatever their batch and length, if there are several; else its kin."""
    models = [str(point.record.shape.get("model", "")) for point in known]
    return models if len(set(models)) > 1 else [_kin(point) for point in known]


def _errs_with(known: Sequence[Point]) -> list[str]:
    """What each of ``known`` errs with: as it is left out, but prefill and decode of a model apart."""
    phases = [str(point.record.shape.get("phase", "")) for point in known]
    return [f"{name} {phase}" for name, phase in zip(_left_out_with(known), phases, strict=True)]


def cross_residuals(model: Model, known: Sequence[Point], p: Mapping[str, float], effort: Effort = FULL) -> list[float]:
    """The residual of each point by parameters refitted, from ``p`` on, without its fold; kin points share one."""
    kins = _left_out_with(known)
    fold_of = {name: place % effort.folds for place, name in enumerate(dict.fromkeys(kins))}
    residuals: dict[int, float] = {}
    for fold in range(effort.folds):
        rest = [point for name, point in zip(kins, known, strict=True) if fold_of[name] != fold]
        if not rest or len(rest) == len(known):
            continue
        refitted = fitted(model, rest, p, replace(effort, restarts=0))
        residuals |= {place: point.residual(model, refitted) for place, point in enumerate(known) if fold_of[kins[place]] == fold}
    return [residuals[place] for place in range(len(known))]


def calibrate(
    records: Iterable[Record],
    devices: Mapping[str, Device],
    date: str,
    versions: Callable[[list[Record]], str],
    progress: Callable[[str], None],
    fallback_devices: FallbackDevices = tuple,
    effort: Effort = FULL,
    jobs: int = 1,
    done: Callable[[float], None] = lambda share: None,
) -> dict[str, list[Calibration]]:
    """Calibrations by device id. A group with fewer than twice as many points to fit as parameters is left out.

    ``fallback_devices``: devices whose calibrations serve for parts of a sequence that a device has none of. ``jobs``: processes that
    fit groups at the same time; the result is the same with any number of them. ``progress`` hears of each group as it is fitted,
    ``done`` before that of the share of all work that is done.
    """
    current = {device.id: device for device in devices.values()}
    result: dict[str, list[Calibration]] = {}
    elsewhere: dict[Family, list[Residual]] = {}
    grouped = points(records, devices)
    tell = _Teller(grouped, effort, progress, done)
    ahead = _solved_ahead(effort, jobs, tell)
    for key, listed in grouped.items():
        own = [replace(point, device=current[point.device.id]) for point in listed]
        model = model_of(own[0].case)
        own = with_lent(own, model.name, lambda: [*current.values(), *fallback_devices()])
        known = effort.thinned(_to_fit(own))
        if missing := _too_few(own, model):
            progress(f"{'/'.join(key[:3])} on {key[4]}: {missing}")
            continue
        assert len(model.parameters) <= MAX_PARAMETERS
        if key not in ahead:
            ahead[key] = solved(known, effort)
            tell(key)
        p, residuals = ahead[key]
        labels = _errs_with(known)
        errors = [(q.device.id, Residual(value, label)) for value, q, label in zip(residuals, known, labels, strict=True)]
        family = (key[0], key[1], _direction(key), key[3])
        elsewhere.setdefault(family, []).extend(Residual(residual.value, f"{residual.kin} {key[4]}") for _, residual in errors)
        for name in sorted({point.device.id for point in own}):
            mine = [residual for device, residual in errors if device == name]
            if len({residual.kin for residual in mine}) < FEWEST:  # too few for a width of its own: those of its architecture
                mine = [residual for _, residual in errors]
            block = with_interval(_block(key, model, p, [q for q in own if q.device.id == name], date, versions), mine)
            result.setdefault(name, []).append(block)
            current[name] = replace(current[name], calibration=[*_others(current[name], block), block])
    return {name: [_of_all(block, elsewhere[family_of(block)]) for block in blocks] for name, blocks in result.items()}


def _to_fit(own: Sequence[Point]) -> list[Point]:
    return [point for point in own if not held_out(point.record)]


def _too_few(own: Sequence[Point], model: Model) -> str:
    """Why ``own`` cannot be fitted, in words; empty where they can."""
    return too_few((point.record for point in own), model)


def too_few(records: Iterable[Record], model: Model) -> str:
    """Why ``model`` cannot be fitted to ``records``, in words; empty where it can."""
    shapes = len({json.dumps(group_key(record), sort_keys=True) for record in records if not held_out(record)})
    enough = shapes >= max(2, min(2 * len(model.parameters), FEWEST))
    return "" if enough else f"{shapes} shapes are too few for {len(model.parameters)} parameters"


class _Teller:
    """Says that a group is fitted, after the share of the work that is done with it: points times parameters."""

    def __init__(
        self, grouped: Mapping[Key, list[Point]], effort: Effort, progress: Callable[[str], None], done: Callable[[float], None]
    ) -> None:
        fits = {key: own for key, own in grouped.items() if not _too_few(own, find_model(key[3]))}
        self.tasks = {key: effort.thinned(_to_fit(own)) for key, own in fits.items()}
        self.work = {key: len(known) * len(find_model(key[3]).parameters) for key, known in self.tasks.items()}
        self.progress, self.done, self.finished = progress, done, 0
        done(0.0)

    def __call__(self, key: Key) -> None:
        self.finished += self.work[key]
        self.done(self.finished / sum(self.work.values()))
        self.progress(f"{'/'.join(key[:3])} ({key[3]}) on {key[4]}: {len(self.tasks[key])} points")


def _solved_ahead(effort: Effort, jobs: int, tell: _Teller) -> dict[Key, Solved]:
    """The fits that call for no other: all but those of composites, largest first so that no process ends late."""
    plain = sorted((key for key in tell.tasks if not find_model(key[3]).composite), key=lambda key: tell.work[key], reverse=True)
    if jobs < 2 or sum(tell.work[key] for key in plain) < LEAST_SHARED:
        return {}
    found: dict[Key, Solved] = {}
    for key, result in in_parallel(solved, {key: (tell.tasks[key], effort) for key in plain}, jobs):
        found[key] = result
        tell(key)
    return found


def _of_all(block: Calibration, residuals: Sequence[Residual]) -> Calibration:
    """``block`` with the interval of its family on all architectures where its own points are too few to tell any."""
    return block if block.points >= FEWEST_OWN else replace(with_interval(block, residuals), median_error=block.median_error)


def with_lent(own: Sequence[Point], model: str, fallback_devices: FallbackDevices) -> list[Point]:
    """``own``, with the parts of ``model`` that their devices lack."""
    devices = {point.device.id: with_parts(point.device, model, fallback_devices) for point in own}
    return [replace(point, device=devices[point.device.id]) for point in own]


def _others(device: Device, block: Calibration) -> list[Calibration]:
    return [one for one in device.calibration if family_of(one) != family_of(block)]


def _direction(key: Key) -> Literal["forward", "backward"]:
    """The pass that a calibration names: a whole step of training goes under forward."""
    return "backward" if key[2] == "backward" else "forward"


def _block(
    key: Key, model: Model, p: dict[str, float], own: list[Point], date: str, versions: Callable[[list[Record]], str]
) -> Calibration:
    """The block of one device, its interval still to be filled in."""
    workload, implementation, _, name, _ = key
    unseen = [abs(math.expm1(-point.residual(model, p))) for point in own if held_out(point.record)]
    return Calibration(
        implementation=implementation,
        workload=workload,
        direction=_direction(key),
        model=name,
        dtypes=sorted({point.record.dtype for point in own}),
        parameters=p,
        points=len(own) - len(unseen),
        low=1.0,
        high=1.0,
        source="records",
        date=date,
        versions=versions([point.record for point in own]),
        held_out=len(unseen),
        held_out_median_error=round(quantile(unseen, 0.5), 4) if unseen else None,
        held_out_p90_error=round(quantile(unseen, 0.9), 4) if unseen else None,
    )


def with_interval(block: Calibration, residuals: Sequence[Residual]) -> Calibration:
    """``block`` with the interval that ``residuals`` tell."""
    errors = [abs(math.expm1(-residual.value)) for residual in residuals]
    low, high = interval(residuals)
    return replace(block, low=low, high=high, median_error=round(quantile(errors, 0.5), 4))
