"""Intervals of predictions, from residuals of points that the fit did not see.

The quantiles are a little wider than 80 %: the structure of a model was chosen on the same records that its residuals come
from. Kin points (one kernel at several sizes) err alike, so each group of them counts once, by its own quantile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.validation.statistics import quantile

LOW, HIGH = 0.08, 0.92


@dataclass(frozen=True, slots=True)
class Residual:
    """log(measured / predicted) of a point, and which points err alike."""

    value: float
    kin: str


def interval(residuals: Sequence[Residual]) -> tuple[float, float]:
    """Measured / predicted at both ends.

    >>> interval([Residual(0.1, "a"), Residual(0.1, "b"), Residual(0.1, "c")])
    (1.1052, 1.1052)
    """
    groups: dict[str, list[float]] = {}
    for residual in residuals:
        groups.setdefault(residual.kin, []).append(residual.value)
    low, high = (quantile([quantile(values, share) for values in groups.values()], share) for share in (LOW, HIGH))
    return round(math.exp(low), 4), round(math.exp(high), 4)
