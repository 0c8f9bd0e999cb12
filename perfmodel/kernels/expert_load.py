"""Uneven load of experts: the chance that a router picks each one, and the experts of the fullest GPU.

Experts' loads follow a power law, as in ai-dynamo/aiconfigurator, collector/helper.py (``power_law_logits_v3``): drawn with density x^-a
between 1 and 0.8 of the tokens (0.01 and 2 where there are fewer picks than experts), then brought to the number of picks. Here the loads
are quantiles of that law instead of random draws. The order of experts on GPUs is arbitrary.
"""

from __future__ import annotations

from functools import lru_cache

ORDERS = 16
"""Number of orders of the experts over which the fullest GPU is averaged."""


def quantile(u: float, exponent: float, low: float, high: float) -> float:
    """Quantile ``u`` of the power law x^-``exponent`` between ``low`` and ``high``.

    >>> quantile(0.5, 1, 1, 100), round(quantile(0.5, 2, 1, 3), 6)
    (10.0, 1.5)
    """
    if exponent == 1:
        return float(low * (high / low) ** u)
    a, b = low ** (1 - exponent), high ** (1 - exponent)
    return float((a + u * (b - a)) ** (1 / (1 - exponent)))


@lru_cache(maxsize=2048)
def picks(experts: int, per_token: int, tokens: int, exponent: float) -> tuple[float, ...]:
    """Chance that a token picks each expert, the likeliest first, at most 1; the sum is ``per_token``. With exponent 0 all are equal.

    >>> [round(one, 3) for one in picks(4, 2, 100, 0.0)], [round(one, 3) for one in picks(4, 2, 100, 1.2)]
    ([0.5, 0.5, 0.5, 0.5], [1.0, 0.664, 0.236, 0.1])
    """
    if exponent == 0:
        return (per_token / experts,) * experts
    low, high = (1.0, max(0.8 * tokens, 1.0)) if tokens * per_token > experts else (0.01, 2.0)
    loads = [quantile((experts - index - 0.5) / experts, exponent, low, high) for index in range(experts)]
    full = 0  # experts that every token picks
    while full < per_token and loads[full] * (per_token - full) > sum(loads[full:]):
        full += 1
    rest = sum(loads[full:])
    return (*(1.0 for _ in range(full)), *(load * (per_token - full) / rest for load in loads[full:]))


@lru_cache(maxsize=8)
def orders(experts: int) -> list[tuple[int, ...]]:
    """``ORDERS`` random orders of ``experts`` experts, the same in each run."""
    from random import Random

    r, places, drawn = Random(experts), list(range(experts)), list[tuple[int, ...]]()
    for _ in range(ORDERS):
        r.shuffle(places)
        drawn.append(tuple(places))
    return drawn


@lru_cache(maxsize=2048)
def fullest(experts: int, per_token: int, tokens: int, groups: int, exponent: float) -> tuple[float, ...]:
    """Chances of the experts on the fullest of ``groups`` GPUs, averaged over orders of the experts.

    >>> round(sum(fullest(8, 2, 100, 1, 1.2)), 9), [round(one, 2) for one in fullest(8, 2, 100, 8, 1.2)]
    (2.0, [0.97])
    """
    chances, per_group = list(picks(experts, per_token, tokens, exponent)), -(-experts // groups)
    if groups == 1 or per_group == 1 or exponent == 0:
        return tuple(chances[:per_group])
    added = [0.0] * per_group
    for order in orders(experts):
        mixed = [chances[place] for place in order]
        fullest_group = max((mixed[start : start + per_group] for start in range(0, experts, per_group)), key=sum)
        added = [total + chance for total, chance in zip(added, sorted(fullest_group, reverse=True), strict=False)]
    return tuple(total / ORDERS for total in added)


def touched(chances: tuple[float, ...], tokens: int) -> float:
    """Expected number of experts that at least one of ``tokens`` picks: the sum of 1 - (1 - p)^T over ``chances``.

    >>> touched((0.5, 0.5), 1), touched((1.0, 0.5), 2)
    (1.0, 1.75)
    """
    return float(sum(1 - (1 - chance) ** tokens for chance in chances))
