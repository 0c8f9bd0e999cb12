"""Parameters of a time model from points, and what each point misses by a fit that did not see it.

A fit finds the most likely parameters, beginning at what is expected of each.
Errors are those of log(time): a factor weighs alike wherever it stands, and parameters, fitted by their logarithms, stay positive.
The sum of |error| / ``NOISE`` and of half the squares of (parameter - start) / spread is minimized: least absolute errors keep one odd
measurement from bending the rest, and a parameter that measurements do not determine stays at its start. Source: iteratively reweighted
least squares with the damping of Levenberg 1944 and Marquardt 1963; expectations as normal priors, Gelman et al. 2013, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

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
STEP, FINEST = 0.03, 0.002
"""Steps of a parameter's logarithm for slopes, at first and at the end: times jump where a launch changes."""
LONGEST = 1.0
"""Largest change of a parameter's logarithm in one round."""
ROUNDS = 30
"""Most rounds of a fit."""
SMALLEST = 1e-6
"""Least value of a parameter; its inverse is the largest."""


def fit(
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
    priors: Mapping[str, Prior],
    begin: Mapping[str, float] | None = None,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """The most likely parameters, one for each of ``priors``.

    ``predict`` gives a time for each of ``measured``, seconds; ``begin``: where the search starts, the priors' starts if not given.

    >>> found = fit(lambda p: [p["a"] + p["b"] * n for n in (1, 2, 4)], [3.0, 5.0, 9.0], {"a": Prior(2.0), "b": Prior(1.0)})
    >>> round(found["a"], 2), round(found["b"], 2)
    (1.0, 2.0)
    """
    if not priors:
        return {}
    names, logs = list(priors), np.log(np.asarray(measured, float))
    centre, weight = np.log([prior.start for prior in priors.values()]), np.array([prior.spread**-2 for prior in priors.values()])
    limit = -np.log(SMALLEST)

    def values(x: Floats) -> dict[str, float]:
        return dict(zip(names, map(float, np.exp(np.clip(x, -limit, limit))), strict=True))

    def errors(x: Floats) -> Floats:
        misses: Floats = np.log(np.asarray(predict(values(x)), float)) - logs
        return misses

    def cost(misses: Floats, x: Floats) -> float:
        return float(np.abs(misses).sum() / NOISE + (weight * (x - centre) ** 2).sum() / 2)

    x = np.log([(begin or {}).get(name, prior.start) for name, prior in priors.items()])
    error = errors(x)
    best, step = cost(error, x), STEP
    for _ in range(rounds):
        slopes = np.column_stack([(errors(x + step * unit) - error) / step for unit in np.eye(len(x))])
        certain = 1 / (NOISE * np.maximum(np.abs(error), SMALLEST_ERROR))
        curvature = (slopes.T * certain) @ slopes + np.diag(weight)
        downhill = (slopes.T * certain) @ error + weight * (x - centre)
        gained = 0.0
        for damping in (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0):
            move = -np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
            tried = x + np.clip(move, -LONGEST, LONGEST)
            its_error = errors(tried)
            if (its_cost := cost(its_error, tried)) < best:
                gained, x, error, best = best - its_cost, tried, its_error, its_cost
                break
        if gained <= 1e-4 * best:
            if step <= FINEST:
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


Key = tuple[str, str, Direction, str, str]
"""Workload, implementation, pass, model and architecture, which share one set of parameters. A whole step counts as forward."""


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
        return [ranked[place * (len(ranked) - 1) // (self.points - 1)] for place in range(self.points)]


FULL, QUICK = Effort(), Effort(rounds=10, folds=3, points=30)


Solved = tuple[dict[str, float], list[float]]
"""Parameters, rounded as profiles hold them, and the residual of each point by a fit that did not see it."""


def solved(points: Sequence[FitPoint], effort: Effort, model: Model | None = None) -> Solved:
    """Parameters and residuals of the fit of ``points``, which share parameters; ``model``: by default the one that describes them."""
    model = model or model_of(points[0].case, points[0].device)
    p = {name: float(f"{value:.4g}") for name, value in fitted(model, points, effort=effort).items()}
    return p, cross_residuals(model, points, p, effort)


ENOUGH, NEAR_PRIOR = 5, 0.5
"""Points per parameter from which priors stay wide; with fewer, their largest spread in logarithms."""


def fitted(model: Model, points: Sequence[FitPoint], begin: Mapping[str, float] | None = None, effort: Effort = FULL) -> dict[str, float]:
    """The most likely parameters on ``points``, by name."""
    priors = model.priors()
    if len(points) < ENOUGH * len(priors):
        priors = {name: replace(prior, spread=min(prior.spread, NEAR_PRIOR)) for name, prior in priors.items()}

    def predict(p: Mapping[str, float]) -> list[float]:
        return [point.predicted(model, p) for point in points]

    return fit(predict, [point.record.time_s.median for point in points], priors, begin, effort.rounds)


def _left_out_with(points: Sequence[FitPoint]) -> list[str]:
    """Key of each point for leaving out: its model if there are steps of several models, else the record's group."""
    models = [str(point.record.shape.get("model", "")) for point in points]
    return models if len(set(models)) > 1 else [group_key(point.record) for point in points]


def errs_with(points: Sequence[FitPoint]) -> list[str]:
    """Key of each point whose errors count as one group: as ``_left_out_with``, but also by phase."""
    phases = [str(point.record.shape.get("phase", "")) for point in points]
    return [f"{name} {phase}" for name, phase in zip(_left_out_with(points), phases, strict=True)]


def cross_residuals(model: Model, points: Sequence[FitPoint], p: Mapping[str, float], effort: Effort = FULL) -> list[float]:
    """The residual of each point by parameters refitted, starting at ``p``, without its fold; a group shares a fold."""
    groups = _left_out_with(points)
    fold_of = {name: place % effort.folds for place, name in enumerate(dict.fromkeys(groups))}
    residuals: dict[int, float] = {}
    for fold in range(effort.folds):
        rest = [point for name, point in zip(groups, points, strict=True) if fold_of[name] != fold]
        if not rest or len(rest) == len(points):
            continue
        refitted = fitted(model, rest, p, effort)
        residuals |= {place: point.residual(model, refitted) for place, point in enumerate(points) if fold_of[groups[place]] == fold}
    return [residuals[place] for place in range(len(points))]
