"""Intervals of predictions, from residuals of points that the fit did not see.

The quantiles are a little wider than 80 %: the structure of a model was chosen on the same records that its residuals come
from. Kin points (one kernel at several sizes) err alike, so each group of them counts once, by its own quantile. Of fewer than ten
groups the range says little of the next one: it is stretched as Student's prediction interval is against the normal one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.validation.statistics import quantile

LOW, HIGH = 0.08, 0.92
NORMAL_90 = 1.2816
STUDENT_90 = {1: 3.078, 2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 7: 1.415, 8: 1.397}
"""One-sided 90 % quantiles by degrees of freedom. Source: Student's t distribution, any table of it."""


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
    beyond = (high - low) / 2 * (stretch(len(groups)) - 1)
    low, high = low - beyond, high + beyond
    return round(math.exp(low), 4), round(math.exp(high), 4)


def stretch(groups: int) -> float:
    """By which the prediction interval of ``groups`` observations is wider than the normal quantiles of their deviation.

    >>> [round(stretch(groups), 2) for groups in (2, 5, 9, 10)]
    [2.94, 1.31, 1.15, 1.0]
    """
    student = STUDENT_90.get(groups - 1)
    return 1.0 if student is None else student / NORMAL_90 * math.sqrt(1 + 1 / groups)
