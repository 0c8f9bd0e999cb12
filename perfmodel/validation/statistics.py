"""How often a kernel is timed, and the intervals of its prediction.

Runs stop once the standard error of their median is small enough (``StoppingRule``). Intervals hold 80 % of the measurements: they are
quantiles of log(measured / predicted), of points that a fit did not see (``interval``, ``conformal``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from perfmodel.core.arith import quantile
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass

NORMAL_MEDIAN = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for normal noise."""


def relative_error_of_median(values: Sequence[float]) -> float:
    """Standard error of the median of ``values`` over the median; infinite if there are too few values.

    It is the larger of two estimates, as each is too small by chance now and then and the stopping rule asks after every run. One holds for
    normal noise: 1.25 sigma / sqrt(n), with sigma from the middle 68 %. The other assumes no distribution: it is a quarter of the distance
    between the values two standard deviations of the median's rank above and below the middle. Source: David & Nagaraja 2003, Order
    Statistics, sections 7.1 and 8.5.

    >>> relative_error_of_median([1.0, 1.0, 1.0, 1.0]), relative_error_of_median([1.0])
    (0.0, inf)
    """
    if len(values) < 3:
        return math.inf
    root, median = math.sqrt(len(values)), quantile(values, 0.5)
    two_deviations = min(1 / root, 0.5)  # of the median's rank, as a share of the number of values
    by_rank = (quantile(values, 0.5 + two_deviations) - quantile(values, 0.5 - two_deviations)) / 4
    sigma = (quantile(values, 0.84) - quantile(values, 0.16)) / 2
    return max(by_rank, NORMAL_MEDIAN * sigma / root) / median if median else math.inf


class Timer(Protocol):
    """Runs something once and times it."""

    def seconds(self, launch: Callable[[], None]) -> float:
        """Seconds on the GPU from the start to the end of ``launch``, with the caches in this timer's state."""


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Run until the median's relative standard error is below ``relative_error``, or ``runs`` or ``budget_s`` are spent.

    ``budget_s`` is wall time, warm-up not counted, and never stops before ``least_runs``. Warm-up: ``warm_up_runs``, and on
    until ``warm_up_s`` have passed, since an idle GPU takes some time to raise its clock.
    """

    relative_error: float = 0.005
    least_runs: int = 10
    runs: int = 200
    budget_s: float = 1.0
    warm_up_runs: int = 3
    warm_up_s: float = 0.05

    def __post_init__(self) -> None:
        if not 1 <= self.least_runs <= self.runs:
            raise UsageError(f"{self.least_runs} runs at least and {self.runs} at most", "give at least 1, and no less at most")

    def enough(self, times: Sequence[float], spent_s: float) -> bool:
        """Whether ``times``, measured in ``spent_s``, are enough."""
        if len(times) < self.least_runs:
            return False
        return len(times) >= self.runs or spent_s >= self.budget_s or relative_error_of_median(times) < self.relative_error


def measure_times(
    launch: Callable[[], None], timer: Timer, rule: StoppingRule | None = None, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Warm up, then run ``launch`` until ``rule`` has enough: seconds of each run."""
    rule = rule or StoppingRule()
    began, warm_up_runs = clock(), 0
    while warm_up_runs < rule.warm_up_runs or clock() - began < rule.warm_up_s:
        timer.seconds(launch)
        warm_up_runs += 1
    times: list[float] = []
    began = clock()
    while not rule.enough(times, clock() - began):
        times.append(timer.seconds(launch))
    return times


# Prediction intervals

PROMISED = 0.8
"""Share of measurements that an interval holds."""
LOW, HIGH = 0.08, 0.92
"""Quantiles of residuals from cross-validation at the ends of an interval: a little wider than 80 %, see ``calibrate``."""
NORMAL_90 = 1.2816
STUDENT_90 = {1: 3.078, 2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 7: 1.415, 8: 1.397}
"""One-sided 90 % quantiles: of the normal distribution, and of Student's t by degrees of freedom. Source: any table of them."""


@dataclass(frozen=True, slots=True)
class Residual:
    """log(measured / predicted) of a point, and the group of points that err alike."""

    value: float
    group: str


def interval(residuals: Sequence[Residual]) -> tuple[float, float]:
    """Measured / predicted at both ends of the interval of ``residuals``, in which each group counts once, by its own quantile.

    >>> interval([Residual(0.1, "a"), Residual(0.1, "b"), Residual(0.1, "c")])
    (1.1052, 1.1052)
    """
    groups: dict[str, list[float]] = {}
    for residual in residuals:
        groups.setdefault(residual.group, []).append(residual.value)
    low = quantile([quantile(values, LOW) for values in groups.values()], LOW)
    high = quantile([quantile(values, HIGH) for values in groups.values()], HIGH)
    widening = (high - low) / 2 * (stretch(len(groups)) - 1)
    return round(math.exp(low - widening), 4), round(math.exp(high + widening), 4)


BETWEEN_RUNS = 0.006  # tuned
"""Relative difference of a group's times between two measurements on one machine: root mean square over 22 groups."""


def conformal(residuals: Sequence[float]) -> tuple[float, float]:
    """Measured / predicted at both ends of the interval of ``residuals``, all of points that no fit saw.

    The share ``PROMISED`` of similar points lies between them. One standard error of that share is added, so that few residuals do not
    promise too much, and ``BETWEEN_RUNS``. Source: Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World, split conformal
    prediction.

    >>> conformal([math.log(value) for value in (0.8, 0.9, 1.0, 1.1, 1.2)])
    (0.7992, 1.2028)
    """
    share = PROMISED + math.sqrt(PROMISED * (1 - PROMISED) / len(residuals))
    low, high = quantile(residuals, (1 - share) / 2), quantile(residuals, (1 + share) / 2)
    return round(math.exp(low - BETWEEN_RUNS), 4), round(math.exp(high + BETWEEN_RUNS), 4)


def stretch(groups: int) -> float:
    """Student's prediction interval for one more observation after ``groups`` ones, over the interval of the normal distribution.

    >>> [round(stretch(groups), 2) for groups in (2, 5, 9, 10)]
    [2.94, 1.31, 1.15, 1.0]
    """
    student = STUDENT_90.get(groups - 1)
    return 1.0 if student is None else student / NORMAL_90 * math.sqrt(1 + 1 / groups)
