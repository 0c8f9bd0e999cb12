"""Parameters of a time model from points, and the residual of each point by a fit that did not see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.core.hardware import Device
from perfmodel.timing.base import Case, Model, model_of
from perfmodel.timing.fit import ROUNDS, fit
from perfmodel.timing.predict import modelled_s
from perfmodel.validation.records import Record, group_key

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
