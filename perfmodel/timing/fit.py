"""Fit of a model's parameters to measured times: the most likely ones, given what is expected of each.

Errors are those of log(time): a factor weighs alike wherever it stands, and parameters, fitted by their logarithms, stay positive.
The sum of |error| / ``NOISE`` and of half the squares of (parameter - start) / spread is minimized: least absolute errors keep one odd
measurement from bending the rest, and a parameter that measurements do not determine stays at its start. Source: iteratively reweighted
least squares with the damping of Levenberg 1944 and Marquardt 1963; expectations as normal priors, Gelman et al. 2013, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.timing.base import Prior

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
