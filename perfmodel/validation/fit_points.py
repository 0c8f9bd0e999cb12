"""Fits of a time model's parameters to measured points, and the residual of each point by a fit that did not see it.

A fit finds the most likely parameters, given the prior of each: an expected start and a spread around it. Errors are those of log(time), so
that a factor of two counts alike for short and long kernels; parameters are fitted by their logarithms, so that they stay positive. A fit
minimizes the sum of |error| / ``NOISE`` and of half the squares of (parameter - start) / spread. Absolute errors keep one odd measurement
from bending the fit, and a parameter that measurements do not determine stays at its start. Source: iteratively reweighted least squares
with the damping of Levenberg 1944 and Marquardt 1963; expectations as normal priors, Gelman et al. 2013, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.timing.base import Case, Model, Prior, model_of
from perfmodel.timing.predict import modelled_s
from perfmodel.validation.records import Record, group_key

Floats = NDArray[np.float64]
NOISE = 0.03
"""Error in log(time) at which a measurement weighs as much as a parameter one spread away from its start."""
SMALLEST_ERROR = 0.003
"""Error below which errors weigh as squares, so that weights stay finite."""
FIRST_STEP, LAST_STEP = 0.03, 0.002
"""Steps of a parameter's logarithm for slopes. They begin large, as times jump where a launch changes."""
LARGEST_MOVE = 1.0
"""Largest change of a parameter's logarithm in one round."""
DAMPING = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
"""Factors of damping, tried in order until a round lowers the cost."""
ROUNDS = 30
"""Most rounds of a fit."""
SMALLEST_PARAMETER = 1e-6
"""Least value of a parameter; its inverse is the largest."""


def fit(
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
    priors: Mapping[str, Prior],
    begin: Mapping[str, float] | None = None,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """The most likely parameters, one for each of ``priors``.

    ``predict`` gives the seconds of each of ``measured`` for given parameters. ``begin``: values where the search starts, by default the
    starts of the priors.

    >>> found = fit(lambda p: [p["a"] + p["b"] * n for n in (1, 2, 4)], [3.0, 5.0, 9.0], {"a": Prior(2.0), "b": Prior(1.0)})
    >>> round(found["a"], 2), round(found["b"], 2)
    (1.0, 2.0)
    """
    if not priors:
        return {}
    names, logs = list(priors), np.log(np.asarray(measured, float))
    centre = np.log([prior.start for prior in priors.values()])
    weight = np.array([prior.spread**-2 for prior in priors.values()])
    limit = -np.log(SMALLEST_PARAMETER)

    def values(x: Floats) -> dict[str, float]:
        return dict(zip(names, map(float, np.exp(np.clip(x, -limit, limit))), strict=True))

    def errors_at(x: Floats) -> Floats:
        errors: Floats = np.log(np.asarray(predict(values(x)), float)) - logs
        return errors

    def cost(errors: Floats, x: Floats) -> float:
        return float(np.abs(errors).sum() / NOISE + (weight * (x - centre) ** 2).sum() / 2)

    x = np.log([(begin or {}).get(name, prior.start) for name, prior in priors.items()])
    errors = errors_at(x)
    least_cost, step = cost(errors, x), FIRST_STEP
    for _ in range(rounds):
        slopes = np.column_stack([(errors_at(x + step * unit) - errors) / step for unit in np.eye(len(x))])
        error_weight = 1 / (NOISE * np.maximum(np.abs(errors), SMALLEST_ERROR))
        curvature = (slopes.T * error_weight) @ slopes + np.diag(weight)
        gradient = (slopes.T * error_weight) @ errors + weight * (x - centre)
        gain = 0.0
        for damping in DAMPING:
            move = -np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
            next_x = x + np.clip(move, -LARGEST_MOVE, LARGEST_MOVE)
            next_errors = errors_at(next_x)
            next_cost = cost(next_errors, next_x)
            if next_cost < least_cost:
                gain = least_cost - next_cost
                x, errors, least_cost = next_x, next_errors, next_cost
                break
        if gain <= 1e-4 * least_cost:
            if step <= LAST_STEP:
                break
            step /= 4
    return values(x)


# Points

FOLDS = 5


@dataclass(frozen=True, slots=True)
class FitPoint:
    """A record that a model describes, with its device and its lower bound in seconds."""

    record: Record
    case: Case
    device: Device
    lower_s: float

    def predicted(self, model: Model, p: Mapping[str, float]) -> float:
        """Seconds by ``model`` with parameters ``p``, never below the bound."""
        return max(modelled_s(model, self.case, self.device, p), self.lower_s)

    def residual(self, model: Model, p: Mapping[str, float]) -> float:
        """log(measured / predicted)."""
        return math.log(self.record.time_s.median / self.predicted(model, p))


Direction = Literal["forward", "backward"]


class FitKey(NamedTuple):
    """What all points that share one set of parameters have in common. A whole step counts as forward."""

    workload: str
    implementation: str
    direction: Direction
    model: str
    architecture: str

    @property
    def family(self) -> KernelFamily:
        """The key without its architecture."""
        return KernelFamily(*self[:4])


class KernelFamily(NamedTuple):
    """Kernels of one kind, whatever the architecture."""

    workload: str
    implementation: str
    direction: str
    model: str

    @property
    def name(self) -> str:
        """Workload, implementation and pass, for messages."""
        return "/".join(self[:3])


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort of a fit: rounds, folds, and points at most (None: all)."""

    rounds: int = ROUNDS
    folds: int = FOLDS
    points: int | None = None

    def thinned(self, points: Sequence[FitPoint]) -> list[FitPoint]:
        """``points``, or ``self.points`` of them, evenly spaced from the shortest time to the longest."""
        if self.points is None or len(points) <= self.points:
            return list(points)
        ranked = sorted(points, key=lambda point: point.record.time_s.median)
        last = len(ranked) - 1
        return [ranked[number * last // (self.points - 1)] for number in range(self.points)]


FULL, QUICK = Effort(), Effort(rounds=10, folds=3, points=30)


Solved = tuple[dict[str, float], list[float]]
"""Parameters, rounded as profiles hold them, and the residual of each point by a fit that did not see it."""


def solved(points: Sequence[FitPoint], effort: Effort, model: Model | None = None) -> Solved:
    """Parameters and residuals of the fit of ``points``, which share parameters; ``model``: by default the one that describes them."""
    model = model or model_of(points[0].case, points[0].device)
    parameters = {name: float(f"{value:.4g}") for name, value in fitted(model, points, effort=effort).items()}
    return parameters, cross_residuals(model, points, parameters, effort)


ENOUGH_POINTS, NEAR_PRIOR = 5, 0.5
"""Points per parameter from which priors keep their spread, and the largest spread, in logarithms, with fewer points."""


def fitted(model: Model, points: Sequence[FitPoint], begin: Mapping[str, float] | None = None, effort: Effort = FULL) -> dict[str, float]:
    """The most likely parameters on ``points``, by name."""
    priors = model.priors()
    if len(points) < ENOUGH_POINTS * len(priors):
        priors = {name: replace(prior, spread=min(prior.spread, NEAR_PRIOR)) for name, prior in priors.items()}

    def predict(p: Mapping[str, float]) -> list[float]:
        return [point.predicted(model, p) for point in points]

    return fit(predict, [point.record.time_s.median for point in points], priors, begin, effort.rounds)


def error_groups(points: Sequence[FitPoint]) -> list[str]:
    """Name of the group of each point; the errors of a group are alike: its group of ``_fold_groups``, by phase."""
    phases = [str(point.record.shape.get("phase", "")) for point in points]
    return [f"{group} {phase}" for group, phase in zip(_fold_groups(points), phases, strict=True)]


def _fold_groups(points: Sequence[FitPoint]) -> list[str]:
    """Name of the group of each point that shares a fold: its model if there are steps of several models, else its ``group_key``."""
    models = [str(point.record.shape.get("model", "")) for point in points]
    return models if len(set(models)) > 1 else [group_key(point.record) for point in points]


def cross_residuals(model: Model, points: Sequence[FitPoint], p: Mapping[str, float], effort: Effort = FULL) -> list[float]:
    """The residual of each point by parameters that are fitted again, starting at ``p``, to the points of all other folds."""
    groups = _fold_groups(points)
    fold_of_group = {group: number % effort.folds for number, group in enumerate(dict.fromkeys(groups))}
    folds = [fold_of_group[group] for group in groups]
    residuals = [math.nan] * len(points)
    for fold in range(effort.folds):
        others = [point for point, its_fold in zip(points, folds, strict=True) if its_fold != fold]
        if not others or len(others) == len(points):
            continue
        refitted = fitted(model, others, p, effort)
        for number, point in enumerate(points):
            if folds[number] == fold:
                residuals[number] = point.residual(model, refitted)
    return residuals
