"""A device's power, fitted to records of kernels that ran for seconds: joules per operation and byte, watts of static and busy silicon.

Non-negative least squares of watts, relative to those measured, at the measured clock and time; points far off count less. The exponent of
the clock and the draw of a moment are chosen among a few values by what fits without a point say of its clock and time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import linear_regression
from typing import Any

from perfmodel.core.arith import quantile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, PerfmodelError
from perfmodel.core.hardware import Device, PowerFit
from perfmodel.core.power import SUSTAINED, Power, PowerState, limit_of
from perfmodel.timing.base import chosen as chosen_number
from perfmodel.timing.power import IDLE, TENSOR_OPERATION, UNCOUNTED, Activity, behind_itself, case_activity, energy_name
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.step_power import of_row
from perfmodel.validation.bounds import case_of
from perfmodel.validation.records import Record, held_out

EXPONENTS = (1.0, 1.25, 1.5, 1.75, 2.0)
BURSTS = tuple(round(1.1 + 0.05 * step, 2) for step in range(13))
FOLDS, FAR, ROUNDS, SWEEPS = 20, 0.1, 8, 600
"""Of cross-validation; relative error from which a point counts less; re-weightings; passes over all parameters."""
MOST_COUNTED, NEAR_LIMIT, ALIKE = 0.2, 0.95, 0.01
STATIC, BUSY, MULTIPLY, OPERAND = "static", "busy", "multiply", "operand"
HALVES = (energy_name("fp16"), energy_name("bf16"))
DIGITS = 4


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """A record that ran for seconds: ``measured`` in its measured time, and ``alone``, the same call alone after a pause.

    ``held``: watts near the limit, and no clock was read: at the highest clock it asks for as many at least.
    """

    record: Record
    measured: Activity
    alone: Activity
    clock: float
    watts: float
    held: bool = False


def points(records: Iterable[Record], device: Device) -> list[PowerPoint]:
    """Points of the ``records`` that fits may see and that have watts, a clock and a burst time."""
    return [point for record in records if not held_out(record) and (point := power_point(record, device)) is not None]


def power_point(record: Record, device: Device) -> PowerPoint | None:
    """Point of ``record``; None if it has no watts, clock, burst time or counts.

    Where no clock was read, watts well below the limit say that it was the highest.
    """
    burst, highest, most = record.environment.get("burst_s"), device.clocks.max, limit_of(device)
    if record.clock != SUSTAINED or record.power_w is None or highest is None or most is None:
        return None
    f = 1.0 if record.sm_hz is None else record.sm_hz / float(highest.number)
    burst = record.time_s.median if record.sm_hz is None else burst
    if burst is None:
        return None
    try:
        case = case_of(record)
        both = [record.time_s.median, behind_itself(case, record.workload, burst) if record.environment.get("graph") else burst]
        measured, alone = (case_activity(case, record.workload, record.dtype, device, seconds) for seconds in both)
    except PerfmodelError:
        return None
    return PowerPoint(record, measured, alone, f, record.power_w, record.sm_hz is None and record.power_w > NEAR_LIMIT * most)


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step that ran for seconds, and what its rows do alone after a pause, each its predicted share of that time."""

    record: Record
    alone: tuple[Activity, ...]


def step_points(records: Iterable[Record], device: Device, fallbacks: FallbackDevices = tuple) -> list[StepPoint]:
    """Points of the steps among ``records`` that fits may see, under a power limit."""
    steps = []
    for record in records:
        burst = record.environment.get("burst_s")
        if record.workload == "transformer" and burst is not None and not held_out(record) and limited(record, device):
            whole = case_of(record).workload.on(device, fallbacks)
            rows = [of_row(row, device, burst / whole.seconds) for row in whole.rows if row.seconds > 0]
            steps.append(StepPoint(record, tuple(rows)))
    return steps


def energy_parts(name: str) -> dict[str, float]:
    """Parameters whose sum, each times its factor, is the energy ``name``: of a tensor operation, one per operand byte among them."""
    if not name.startswith(TENSOR_OPERATION):
        return {name: 1.0}
    form = name.removeprefix(TENSOR_OPERATION)
    factor = chosen_number("significand_energy").get(form, 1.0)
    return {MULTIPLY: factor, OPERAND: factor * float(DTYPES[form].size)}


def terms(point: PowerPoint, exponent: float) -> dict[str, float]:
    """Watts of each parameter at one: picojoules as operations x 1e-12 / s, watts of static and busy silicon as shares.

    ``BUSY`` is of all kernels; what is under the name of a kind comes on top. Tensor operations of all formats have two parameters.
    """
    one, f = point.measured, point.clock
    found: dict[str, float] = {}
    for name, count in one.counts:
        if count:
            rate = float(count) * 1e-12 / one.seconds * (1 if name == "dram" else f**exponent)
            for part, weight in energy_parts(name).items():
                found[part] = found.get(part, 0.0) + rate * weight
    kinds = () if one.kind == IDLE else (BUSY, one.kind) if one.kind in UNCOUNTED else (BUSY,)
    return found | {STATIC: 1.0} | dict.fromkeys(kinds, one.busy * f ** (exponent + 1))


def solved(
    rows: Sequence[Mapping[str, float]], watts: Sequence[float], static_w: float | None = None, held: Collection[int] = ()
) -> dict[str, float]:
    """Parameters, none negative, that fit sums over ``rows`` to ``watts``; coordinate descent on the normal equations, re-weighted.

    ``static_w``: of the parameter ``STATIC``, where that is known. ``held``: rows that ask for at least their watts, and count where
    less is predicted.
    """
    names = sorted({name for row in rows for name in row} - ({STATIC} if static_w is not None else set()))
    targets = [1 - (static_w or 0.0) / w for w in watts]
    matrix = [[row.get(name, 0.0) / w for name in names] for row, w in zip(rows, watts, strict=True)]
    x, weights = [0.0] * len(names), [0.0 if i in held else 1.0 for i in range(len(rows))]
    for _ in range(ROUNDS):
        x = _descent(matrix, weights, targets, x)
        misses = [sum(a * b for a, b in zip(line, x, strict=True)) - target for line, target in zip(matrix, targets, strict=True)]
        weights = [0.0 if i in held and miss >= 0 else min(1.0, FAR / max(abs(miss), 1e-9)) for i, miss in enumerate(misses)]
    return dict(zip(names, x, strict=True)) | ({} if static_w is None else {STATIC: static_w})


def _descent(matrix: Sequence[Sequence[float]], weights: Sequence[float], targets: Sequence[float], start: Sequence[float]) -> list[float]:
    size = len(start)
    columns = [[line[i] for line in matrix] for i in range(size)]
    products = [[sum(w * a * b for w, a, b in zip(weights, column, other, strict=True)) for other in columns] for column in columns]
    wanted = [sum(w * a * t for w, a, t in zip(weights, column, targets, strict=True)) for column in columns]
    x = list(start)
    for _ in range(SWEEPS):
        for i in range(size):
            if products[i][i]:
                rest = wanted[i] - sum(products[i][j] * x[j] for j in range(size)) + products[i][i] * x[i]
                x[i] = max(rest / products[i][i], 0.0)
    return x


def power_fit(power_points: Sequence[PowerPoint], exponent: float, burst: float, static_w: float | None = None, **words: Any) -> PowerFit:
    """The fit to ``power_points`` at that exponent and draw of a moment; ``static_w``: if known. ``words``: source, records and date."""
    held = {at for at, point in enumerate(power_points) if point.held}
    x = solved([terms(point, exponent) for point in power_points], [point.watts for point in power_points], static_w, held)
    kinds = sorted({point.measured.kind for point in power_points} - {IDLE})
    busy = {name: _rounded(x[BUSY] + x.get(name, 0.0)) for name in kinds}
    names = {name for point in power_points for name, count in point.measured.counts if count}
    names |= set(HALVES) if names & set(HALVES) else set()
    joules = {name: _rounded(sum(x[part] * factor for part, factor in energy_parts(name).items())) for name in sorted(names)}
    filled: dict[str, Any] = {"median_error": 0.0, "p90_error": 0.0, "records": "", "source": "", "date": ""} | words
    return PowerFit("fitted", _rounded(x[STATIC]), joules, busy, exponent, burst, len(power_points), **filled)


OPERAND_BYTES = {energy_name(name): float(DTYPES[name].size) for name in ("fp8", "bf16", "fp16", "tf32")}


def with_formats(fit: PowerFit, widths: Mapping[str, float]) -> PowerFit:
    """``fit`` with the tensor operations of ``widths`` (bytes of an operand) that it lacks, on the line through those that it has."""
    known = {width: fit.picojoules[name] / energy_parts(name)[MULTIPLY] for name, width in widths.items() if name in fit.picojoules}
    slope, base = linear_regression(list(known), list(known.values()))
    told = {name: energy_parts(name)[MULTIPLY] * (base + slope * width) for name, width in widths.items()}
    return replace(fit, picojoules=told | fit.picojoules)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def running(point: PowerPoint, device: Device, fit: PowerFit) -> PowerState:
    """State of a point by ``fit``, from the time of the call alone."""
    return Power(replace(device, power=fit)).state([point.alone.demand(fit)], SUSTAINED)


def fold_fits(power_points: Sequence[PowerPoint], exponent: float) -> list[PowerFit]:
    """Fits, each without one fold; every twentieth point is one."""
    return [power_fit([point for at, point in enumerate(power_points) if at % FOLDS != fold], exponent, 1.0) for fold in range(FOLDS)]


def left_out(power_points: Sequence[PowerPoint], device: Device, fits: Sequence[PowerFit], burst: float) -> list[tuple[Record, PowerState]]:
    """(record, state by the fit without its fold) of each point whose kind and operations that fit knows."""
    pairs = []
    for at, point in enumerate(power_points):
        fit = replace(fits[at % FOLDS], burst_over_limit=burst)
        if point.measured.kind in fit.busy_w and {name for name, count in point.measured.counts if count} <= set(fit.picojoules):
            pairs.append((point.record, running(point, device, fit)))
    return pairs


def mean_error(values: Sequence[float]) -> float:
    """Mean size of ``values``; one far off counts no more than ``MOST_COUNTED``."""
    return sum(min(abs(value), MOST_COUNTED) for value in values) / len(values)


def of_steps(steps: Iterable[StepPoint], device: Device, fit: PowerFit) -> list[tuple[Record, PowerState]]:
    """(record, state by ``fit``) of each step."""
    power = Power(replace(device, power=fit))
    return [(step.record, power.state([one.demand(fit) for one in step.alone], SUSTAINED)) for step in steps]


def absolute(values: Iterable[float], share: float = 0.5) -> float:
    """Quantile ``share`` of the sizes of ``values``."""
    return quantile([abs(value) for value in values], share)


@dataclass(frozen=True, slots=True)
class PowerErrors:
    """Predicted over measured, less one, of records that ran for seconds."""

    clock: list[float]
    watts: list[float]
    joules: list[float]
    seconds: list[float]


def power_errors(pairs: Iterable[tuple[Record, PowerState]]) -> PowerErrors:
    """Errors of records with watts and a clock; ``pairs``: each with its predicted state."""
    errors = PowerErrors([], [], [], [])
    for record, state in pairs:
        if record.power_w is None or record.sm_hz is None:
            continue
        seconds = record.time_s.median
        errors.clock.append(state.sm_hz / record.sm_hz - 1)
        errors.watts.append(state.watts / record.power_w - 1)
        errors.joules.append(state.joules / (record.power_w * seconds) - 1)
        errors.seconds.append(state.sustained_s / seconds - 1)
    return errors


LIMITED = 0.96
"""Share of the highest clock below which a record counts as limited by power."""


def limited(record: Record, device: Device) -> bool:
    """Whether power held the clock of ``record`` down."""
    highest = device.clocks.max
    return highest is not None and record.sm_hz is not None and record.sm_hz < LIMITED * highest.number


def chosen(power_points: Sequence[PowerPoint], device: Device, steps: Sequence[StepPoint] = (), **words: Any) -> PowerFit:
    """The exponent and the draw of a moment with the best clocks and times of limited points left out and of ``steps``; fitted to all
    points. Of pairs whose errors are within ``ALIKE`` of the best, the one with the lowest exponent: a ridge of pairs does as well.

    DataError without any point that power limits.
    """
    if not any(limited(point.record, device) for point in power_points):
        raise DataError("no record ran under a power limit", "measure kernels that draw the limit for seconds")

    fits = {exponent: fold_fits(power_points, exponent) for exponent in EXPONENTS}

    def miss(pair: tuple[float, float]) -> float:
        those = power_errors(one for one in left_out(power_points, device, fits[pair[0]], pair[1]) if limited(one[0], device))
        of_all_steps = power_errors(of_steps(steps, device, replace(fits[pair[0]][0], burst_over_limit=pair[1])))
        return sum(mean_error(errors) for errors in (those.clock, those.seconds, of_all_steps.clock, of_all_steps.seconds) if errors)

    misses = {pair: miss(pair) for pair in product(EXPONENTS, BURSTS)}
    exponent, burst = min(pair for pair, missed in misses.items() if missed <= (1 + ALIKE) * min(misses.values()))
    judged = power_errors(left_out(power_points, device, fits[exponent], burst))
    both = {"median_error": _rounded(absolute(judged.watts)), "p90_error": _rounded(absolute(judged.watts, 0.9))}
    return power_fit(power_points, exponent, burst, **both, **words)
