"""Prompts first at a rate: batches of prompts between two decode steps, and how many requests run.

All prompts that came in a decode step run before the next one, and so do those that come while prompts run: a burst is a branching
process of batches, a batch of m prompts followed by Poisson (rate x its seconds) more (Kendall 1951). With D(n) seconds of a decode step
of n sequences, B(n) of the burst after it and G decode steps of a request, n is the number of an M/G queue with shared service (Cohen
1979, insensitive to the lengths' distribution):

    P(n) / P(n - 1) = rate (T + G (D(n) + B(n))) / n,    T: of a request's own batch

A burst ends at the latest when no slot is free: ``free`` of them bound its prompts, of R on average, by R (1 - exp(-free / R)). Where
bursts would not end by themselves, all slots are taken and G (D + B) = slots / rate (Little 1961). Requests beyond the slots wait as in
front of one server (Pollaczek 1930). A request from outside finds each moment as likely as it lasts (Wolff 1982, PASTA).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from typing import TYPE_CHECKING

from perfmodel.serving.backlog import Arrivals

if TYPE_CHECKING:
    from perfmodel.serving.steady import Loop

EACH, GROWTH, STEPS_KEPT = 12, 1.2, 1e3
"""Batches of so many prompts are counted one by one, larger ones by this factor; decode steps of a burst at most."""


def ladder(most: int) -> list[int]:
    """Numbers that stand for all up to ``most``.

    >>> ladder(20)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 17, 20]
    """
    found = list(range(1, min(EACH, most) + 1))
    while found[-1] < most:
        found.append(min(round(found[-1] * GROWTH), most))
    return found


def solve(rows: list[list[float]], right: list[float]) -> list[float]:
    """x of x = right + rows x, by elimination; rows sum to less than one.

    >>> solve([[0.5, 0.0], [0.25, 0.5]], [1.0, 1.0])
    [2.0, 3.0]
    """
    size = len(right)
    left = [[float(i == j) - rows[i][j] for j in range(size)] + [right[i]] for i in range(size)]
    for i in range(size):
        own = left[i]
        for j in range(i + 1, size):
            share = left[j][i] / own[i]
            if share:
                left[j] = [a - share * b for a, b in zip(left[j], own, strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (left[i][size] - sum(left[i][j] * found[j] for j in range(i + 1, size))) / left[i][i]
    return found


@dataclass
class Bursts:
    """Of prompts that come at ``rate`` to the engine of ``loop``."""

    loop: Loop
    rate: float

    @cached_property
    def sizes(self) -> list[int]:
        """Prompts of a batch."""
        return ladder(self.loop.slots)

    @cached_property
    def batches(self) -> list[list[float]]:
        """Seconds of a batch of each size, for prompts that are short up to long: their sum varies by the root of their number."""
        loop, found = self.loop, []
        room = loop.room(0)
        for number in self.sizes:
            totals = [loop.prompt * (number + (size / loop.prompt - 1) * sqrt(number)) for size in loop.five()]
            found.append([loop.until(tokens, tokens if number == 1 else loop.prompt, 0.0, room, 0.0) for tokens in totals])
        return found

    def after(self, seconds: float) -> list[tuple[int, float]]:
        """Batches that may follow so many seconds, by place in ``sizes``, with their chance."""
        found = []
        for number, chance in Arrivals(self.rate * seconds, inf, 1.0).chances():
            if number:
                found.append((min(bisect_left(self.sizes, number), len(self.sizes) - 1), chance))
        return found

    @cached_property
    def follows(self) -> list[list[float]]:
        """Chance of each batch to follow each."""
        rows = [[0.0] * len(self.sizes) for _ in self.sizes]
        for row, ways, number in zip(rows, self.batches, self.sizes, strict=True):
            kept = 1 - min(number / (10 * self.loop.slots), 1.0)
            for seconds in ways:
                for place, chance in self.after(seconds):
                    row[place] += kept * chance / len(ways)
        return rows

    @cached_property
    def means(self) -> list[float]:
        """Seconds of a batch of each size."""
        return [sum(ways) / len(ways) for ways in self.batches]

    @cached_property
    def lasting(self) -> list[float]:
        """Seconds of a burst that starts with each batch."""
        return solve(self.follows, self.means)

    def burst(self, seconds: float) -> float:
        """Seconds of the burst after so many seconds without one."""
        return sum(chance * self.lasting[place] for place, chance in self.after(seconds))

    def seen(self, start: list[float]) -> list[float]:
        """How often each batch runs in a burst, whose first batch is drawn from ``start``."""
        size = len(start)
        return solve([[self.follows[j][i] for j in range(size)] for i in range(size)], start)
