"""Parameters of a time model from points, and what each point misses by a fit that did not see it."""

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
    """One record that a model describes, on its device, with its lower bound in seconds."""

    record: Record
    case: Case
    device: Device
    lower_s: float

    def predicted(self, model: Model, p: Mapping[str, float]) -> float:
        """Seconds, never below the bound."""
        return max(modelled_s(model, self.case, self.device, p), self.lower_s)

    def residual(self, model: Model, p: Mapping[str, float]) -> float:
        """log(measured / predicted)."""
        return math.log(self.record.time_s.median / self.predicted(model, p))


Direction = Literal["forward", "backward"]


Key = tuple[str, str, Direction, str, str]
"""Workload, implementation, pass, model and architecture: what shares one set of parameters. A whole step goes under forward."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a fit takes: rounds, folds, and points at most (None: all)."""

    rounds: int = ROUNDS
    folds: int = FOLDS
    points: int | None = None

    def thinned(self, known: Sequence[FitPoint]) -> list[FitPoint]:
        """``known``, or as many of them as are asked for, from the shortest time to the longest in even steps."""
        if self.points is None or len(known) <= self.points:
            return list(known)
        ranked = sorted(known, key=lambda point: point.record.time_s.median)
        return [ranked[place * (len(ranked) - 1) // (self.points - 1)] for place in range(self.points)]


FULL, QUICK = Effort(), Effort(rounds=10, folds=3, points=30)


Solved = tuple[dict[str, float], list[float]]
"""Parameters, rounded as profiles hold them, and the residual of each point by a fit that did not see it."""


def solved(known: Sequence[FitPoint], effort: Effort) -> Solved:
    """The fit of ``known``, which share parameters."""
    model = model_of(known[0].case, known[0].device)
    p = {name: float(f"{value:.4g}") for name, value in fitted(model, known, effort=effort).items()}
    return p, cross_residuals(model, known, p, effort)


ENOUGH, KIN = 5, 0.5
"""Points per parameter from which they speak for themselves; fewer leave each within so much, in logarithms, of what its kin have."""


def fitted(model: Model, known: Sequence[FitPoint], begin: Mapping[str, float] | None = None, effort: Effort = FULL) -> dict[str, float]:
    """The most likely parameters on ``known``."""
    priors = model.priors()
    if len(known) < ENOUGH * len(priors):
        priors = {name: replace(prior, spread=min(prior.spread, KIN)) for name, prior in priors.items()}

    def predict(p: Mapping[str, float]) -> list[float]:
        return [point.predicted(model, p) for point in known]

    return fit(predict, [point.record.time_s.median for point in known], priors, begin, effort.rounds)


def _left_out_with(known: Sequence[FitPoint]) -> list[str]:
    """Cross-validation key of each of ``known``: the model if there are steps of several models, else the record's group."""
    models = [str(point.record.shape.get("model", "")) for point in known]
    return models if len(set(models)) > 1 else [group_key(point.record) for point in known]


def errs_with(known: Sequence[FitPoint]) -> list[str]:
    """For each of ``known``, a key of the points whose errors count as one group: as ``_left_out_with``, but by phase, too."""
    phases = [str(point.record.shape.get("phase", "")) for point in known]
    return [f"{name} {phase}" for name, phase in zip(_left_out_with(known), phases, strict=True)]


def cross_residuals(model: Model, known: Sequence[FitPoint], p: Mapping[str, float], effort: Effort = FULL) -> list[float]:
    """The residual of each point by parameters refitted, from ``p`` on, without its fold; a group shares one."""
    groups = _left_out_with(known)
    fold_of = {name: place % effort.folds for place, name in enumerate(dict.fromkeys(groups))}
    residuals: dict[int, float] = {}
    for fold in range(effort.folds):
        rest = [point for name, point in zip(groups, known, strict=True) if fold_of[name] != fold]
        if not rest or len(rest) == len(known):
            continue
        refitted = fitted(model, rest, p, effort)
        residuals |= {place: point.residual(model, refitted) for place, point in enumerate(known) if fold_of[groups[place]] == fold}
    return [residuals[place] for place in range(len(known))]
