"""Fit a model's parameters to measured times: least mean |log error|, by the simplex method in the logarithms.

Logarithms keep parameters positive and weigh a factor alike wherever it stands. Least absolute error keeps one odd
measurement from bending the rest. Source: Nelder & Mead 1965, with the coefficients of Gao & Han 2012 for several parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Objective = Callable[[list[float]], float]

STEP = 0.3
"""First step of each parameter, in logarithms."""
ROUNDS = 100
"""Largest number of simplex iterations per parameter."""
SMALLEST = 1e-6
"""Smallest value of a parameter; 1 / this is the largest."""


UNDETERMINED = 1e-4
"""What the start value of a parameter may add to the mean |log error| of one that measurements do not determine."""


def simplex(objective: Objective, start: Sequence[float], step: float = STEP, rounds: int = ROUNDS, tolerance: float = 1e-5) -> list[float]:
    """The point of the least ``objective`` that the simplex method finds.

    >>> [round(x, 3) for x in simplex(lambda x: (x[0] - 1) ** 2 + (x[1] + 2) ** 2, [0.0, 0.0])]
    [1.0, -2.0]
    """
    size = len(start)
    grow, shrink, reduce = 1 + 2 / size, 0.75 - 0.5 / size, 1 - 1 / size
    if size == 1:
        grow, shrink, reduce = 2.0, 0.5, 0.5
    points = [list(start), *([*start[:i], start[i] + step, *start[i + 1 :]] for i in range(size))]
    ranked = sorted((objective(point), point) for point in points)
    for _ in range(rounds * size):
        best, worst = ranked[0][0], ranked[-1][0]
        spread = max(abs(a - b) for _, point in ranked for a, b in zip(point, ranked[0][1], strict=True))
        if worst - best <= tolerance * (abs(best) + tolerance) or spread <= tolerance:
            break
        last = ranked[-1][1]
        centre = [sum(point[i] for _, point in ranked[:-1]) / size for i in range(size)]

        def at(factor: float, centre: list[float] = centre, last: list[float] = last) -> tuple[float, list[float]]:
            point = [c + factor * (c - x) for c, x in zip(centre, last, strict=True)]
            return objective(point), point

        tried = at(1.0)
        if tried[0] < best:
            ranked[-1] = min(tried, at(grow))
        elif tried[0] < ranked[-2][0]:
            ranked[-1] = tried
        else:
            inner = at(shrink) if tried[0] < worst else at(-shrink)
            if inner[0] < min(tried[0], worst):
                ranked[-1] = inner
            else:
                top = ranked[0][1]
                moved = [[t + reduce * (x - t) for t, x in zip(top, point, strict=True)] for _, point in ranked[1:]]
                ranked = [ranked[0], *((objective(point), point) for point in moved)]
        ranked.sort()
    return ranked[0][1]


def fit(
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
    starts: Mapping[str, float],
    restarts: int = 2,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """Parameters, from ``starts`` on, with the least mean |log(predicted / measured)|.

    ``predict`` gives a time per measurement. The simplex is restarted around its best point, which frees it from a collapse. A parameter
    that the measurements do not determine keeps its start value.
    """
    names = list(starts)
    logs = [math.log(time) for time in measured]

    def parameters(x: list[float]) -> dict[str, float]:
        return {name: math.exp(min(max(value, math.log(SMALLEST)), -math.log(SMALLEST))) for name, value in zip(names, x, strict=True)}

    def objective(x: list[float]) -> float:
        times = predict(parameters(x))
        return sum(abs(math.log(time) - log) for time, log in zip(times, logs, strict=True)) / len(logs)

    x = [math.log(starts[name]) for name in names]
    begin = list(x)
    for turn in range(restarts + 1):
        x = simplex(objective, x, STEP / (1 + turn), rounds)
    return parameters(_determined(objective, x, begin))


def _determined(objective: Objective, x: Sequence[float], start: Sequence[float]) -> list[float]:
    """``x`` with the value of ``start`` wherever that is as good: of such a parameter the measurements say nothing, and others may ask."""
    kept, best = list(x), objective(list(x))
    for at, value in enumerate(start):
        tried = [*kept[:at], value, *kept[at + 1 :]]
        if objective(tried) <= best + UNDETERMINED:
            kept = tried
    return kept
