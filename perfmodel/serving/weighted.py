"""Values with their chances."""

from __future__ import annotations

Weighted = list[tuple[float, float]]
"""Values with their chance."""
Found = tuple[float, float, float, float, float, float, Weighted, float, float]
"""Of a loop at a rate: running, waiting, rate, step, share of steps with prompts, their tokens, seconds to
first tokens, those before, rest."""


def mean(values: Weighted) -> float:
    """Of values with their chance."""
    return sum(value * chance for value, chance in values)


def quantile(values: Weighted, share: float) -> float:
    """The least value that this share does not exceed."""
    left = share * sum(chance for _, chance in values) - 1e-9
    for value, chance in sorted(values):
        left -= chance
        if left <= 0:
            return value
    return values[-1][0]


def thin(values: Weighted, most: int = 9) -> Weighted:
    """Neighbours that are unlikely as one, at their mean: about ``most`` values; the first stays apart, as none is unlike few."""
    if len(values) <= most:
        return values
    found, value, weight = [values[0]], 0.0, 0.0
    for each, chance in values[1:]:
        value, weight = value + each * chance, weight + chance
        if weight >= 1 / (2 * most):
            found.append((value / weight, weight))
            value = weight = 0.0
    return [*found, (value / weight, weight)] if weight else found
