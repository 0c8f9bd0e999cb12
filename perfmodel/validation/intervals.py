"""Intervals of predictions, from residuals of points that the fit did not see.

Launch-bound kernels scatter otherwise than long ones, so a family of kernels may have two intervals, parted at a predicted time:
where that narrows them. A device's interval is the mean of its own quantiles and those of all devices of the family: few
points of one device understate what other shapes show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.validation.statistics import quantile

LOW, HIGH = 0.1, 0.9
LEAST = 30
"""Points of the family on each side of a threshold."""
LEAST_OWN = 8
"""Points of a device from which its own quantiles count."""
GAIN = 0.05
"""Mean narrowing, in logarithms, that a threshold must bring."""
NARROWEST = 1e-3


@dataclass(frozen=True, slots=True)
class Residual:
    """log(measured / predicted) of a point, and what is predicted for it in seconds."""

    value: float
    predicted_s: float


def _width(residuals: Sequence[Residual]) -> float:
    values = [residual.value for residual in residuals]
    return math.log(max(quantile(values, HIGH) - quantile(values, LOW), NARROWEST))


def threshold_s(family: Sequence[Residual]) -> float | None:
    """The predicted time at which to part ``family`` so that its intervals are narrowest; None where parting gains little."""
    ranked = sorted(family, key=lambda residual: residual.predicted_s)
    size = len(ranked)
    best, found = size * (_width(ranked) - GAIN), None
    for cut in range(LEAST, size - LEAST + 1):
        width = cut * _width(ranked[:cut]) + (size - cut) * _width(ranked[cut:])
        if width < best:
            best, found = width, ranked[cut].predicted_s
    return found


def interval(own: Sequence[Residual], family: Sequence[Residual]) -> tuple[float, float]:
    """Measured / predicted at the two quantiles, for one side of a threshold."""
    low, high = (_mean_quantile(own, family, share) for share in (LOW, HIGH))
    return round(math.exp(low), 4), round(math.exp(high), 4)


def _mean_quantile(own: Sequence[Residual], family: Sequence[Residual], share: float) -> float:
    pooled = quantile([residual.value for residual in family], share)
    if len(own) < LEAST_OWN:
        return pooled
    return (quantile([residual.value for residual in own], share) + pooled) / 2
