"""Quantiles, and how well a median is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

NORMAL_MEDIAN = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for normal noise."""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie, straight lines between them.

    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([1.0, 2.0], 0.1)
    (2.0, 1.1)
    """
    ranked = sorted(values)
    at = share * (len(ranked) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (at - low) * (ranked[high] - ranked[low])


def relative_error_of_median(values: Sequence[float]) -> float:
    """Standard error of the median of ``values`` over the median; infinite where there are too few to tell.

    >>> relative_error_of_median([1.0, 1.0, 1.0, 1.0]), relative_error_of_median([1.0])
    (0.0, inf)
    """
    if len(values) < 3:
        return math.inf
    root, median = math.sqrt(len(values)), quantile(values, 0.5)
    ranks = min(1 / root, 0.5)  # two standard deviations of the middle's rank, over the number of runs
    by_rank = (quantile(values, 0.5 + ranks) - quantile(values, 0.5 - ranks)) / 4
    by_scatter = NORMAL_MEDIAN * (quantile(values, 0.84) - quantile(values, 0.16)) / 2 / root
    return max(by_rank, by_scatter) / median if median else math.inf
