"""Prompts that queue in front of an engine's steps: what waits when a new one comes, in tokens.

Each step runs up to C tokens of prompts; A new prompts come per step, of P tokens each. What is left over obeys V' = max(V + P A - C, 0)
(Lindley 1952), so with S_k = P A_k - k C, A_k the prompts of k steps (Spitzer 1956):

    mean of V = sum over k of E[max(S_k, 0)] / k,    P(V = 0) = exp(-sum over k of P(S_k > 0) / k)

With ``users`` in a closed loop, each comes once in its cycle of T steps: A_k is binomial (users, k / T), which bounds the queue (the
periodic streams of Roberts & Virtamo 1991); from outside, it is Poisson.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, exp, inf, lgamma, log, pi, sqrt

MOST_STEPS, EXACT, NEGLIGIBLE = 10_000, 12.0, 1e-7
"""Terms of the sums; mean number up to which chances are summed one by one, beyond it they are normal; and what is left out."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """``rate``: prompts per step; ``users``: that they come from, infinite from outside; ``size``: tokens.

    ``squared``: their squared coefficient of variation.
    """

    rate: float
    users: float
    size: float
    squared: float = 0.0

    def chances(self, steps: float = 1.0) -> list[tuple[int, float]]:
        """Numbers of prompts that come in so many steps, with their chance: those worth counting."""
        mean = self.rate * steps
        share = min(mean / self.users, 1.0) if self.users > 0 else 0.0
        spread = sqrt(max(mean * (1 - share), 0.0))
        if mean > EXACT:
            normal = (-1.59, -0.97, -0.59, -0.28, 0.0, 0.28, 0.59, 0.97, 1.59)  # means of nine equal parts
            return [(max(round(mean + spread * value), 0), 1 / 9) for value in normal]
        if share >= 1:
            return [(round(self.users), 1.0)]
        low, high = max(int(mean - 5 * spread), 0), int(mean + 6 * spread + 6)
        if self.users < inf:
            high = min(high, max(round(self.users), 0))
        found = [(low, self._chance(low, mean, share))]
        odds = mean if self.users == inf else share / (1 - share)
        for number in range(low + 1, high + 1):  # each from the one before it: binomial, or Poisson from outside
            chance = found[-1][1] * odds / number
            found.append((number, chance if self.users == inf else chance * max(round(self.users) - number + 1, 0)))
        total = sum(chance for _, chance in found) or 1.0
        return [(number, chance / total) for number, chance in found if chance > NEGLIGIBLE] or [(0, 1.0)]

    def _chance(self, number: int, mean: float, share: float) -> float:
        users = round(self.users) if self.users < inf else 0
        if mean <= 0:
            return 1.0 if number == 0 else 0.0
        if not users:
            return exp(number * log(mean) - mean - lgamma(number + 1))
        ways = lgamma(users + 1) - lgamma(number + 1) - lgamma(users - number + 1)
        return exp(ways + number * log(share) + (users - number) * log(1 - share))


def excess(arrivals: Arrivals, steps: int, room: float) -> tuple[float, float]:
    """Mean of max(S_k, 0) and the chance that S_k > 0."""
    mean, limit = arrivals.rate * steps, room * steps
    share = min(mean / arrivals.users, 1.0) if arrivals.users > 0 else 0.0
    variance = arrivals.size**2 * mean * (1 - share + arrivals.squared)
    if variance <= 0:
        return max(mean * arrivals.size - limit, 0.0), float(mean * arrivals.size > limit)
    if mean <= EXACT:
        over = [(number * arrivals.size - limit, chance) for number, chance in arrivals.chances(steps) if number * arrivals.size > limit]
        return sum(value * chance for value, chance in over), sum(chance for _, chance in over)
    deviation = sqrt(variance)
    z = (mean * arrivals.size - limit) / deviation
    above = erfc(-z / sqrt(2)) / 2
    return deviation * (exp(-z * z / 2) / sqrt(2 * pi) + z * above), above


def backlog(arrivals: Arrivals, room: float) -> tuple[float, float]:
    """Mean tokens left over from the steps before, and the chance that there are none; infinite where more come than run."""
    if arrivals.rate * arrivals.size >= room:
        return inf, 0.0
    total = positive = 0.0
    last = min(MOST_STEPS, int(arrivals.users / arrivals.rate) if arrivals.users < inf and arrivals.rate > 0 else MOST_STEPS)
    step, stride = 1, 1
    while step <= last:
        mean, chance = excess(arrivals, step, room)
        total, positive = total + mean * stride / step, positive + chance * stride / step
        if step > 2 * arrivals.size / room + 2 and mean < 1e-4 * arrivals.size:
            break
        stride = max(step // 6, 1)
        step += stride
    return total, exp(-positive)
