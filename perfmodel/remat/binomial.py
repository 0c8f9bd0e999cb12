"""How long a chain s slots can reverse, and in how many forward steps: Griewank and Walther's closed forms.

A slot holds one value, x_0 among them; the value that a forward run works on, and what a backward step makes of its layer, are
not counted. Neither is the forward run of a layer inside its own backward step.
Source: Griewank & Walther 2000, Algorithm 799: revolve, ACM TOMS 26(1).
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

from perfmodel.core.arith import Number
from perfmodel.core.trace import is_traced, plain, template


def beta(slots: int, repetitions: int) -> int:
    """The longest chain that ``slots`` reverse without running any layer forward more than ``repetitions`` times: C(s + r, s).

    >>> beta(2, 3), beta(3, -1)
    (10, 0)
    """
    return comb(slots + repetitions, slots) if repetitions >= 0 else 0


def repetitions(length: int, slots: int) -> int:
    """The fewest forward runs r of a layer with which ``slots`` reverse ``length`` layers: C(s + r - 1, s) < l <= C(s + r, s).

    >>> repetitions(10, 1), repetitions(10, 2), repetitions(10, 9)
    (9, 3, 1)
    """
    if slots == 1:
        return length - 1
    high = 1
    while beta(slots, high) < length:
        high *= 2
    low = 0 if length == 1 else high // 2  # beta(low) < length, or length is 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if beta(slots, middle) < length else (low, middle)
    return high if length > 1 else 0


def forward_steps(length: Number, slots: Number, runs: Number) -> Number:
    """The fewest forward steps that reverse ``length`` layers with ``slots``: r l - C(s + r, s + 1), r = ``repetitions``.

    Source: Griewank & Walther 2000, Proposition 1.

    >>> forward_steps(10, 1, 9), forward_steps(10, 2, 3)
    (45, 20)
    """
    if is_traced(length, slots, runs):
        value = forward_steps(plain(length), plain(slots), plain(runs))
        return template("({} * {} - C({} + {}, {} + 1))", value, runs, length, slots, runs, slots)
    return runs * length - (comb(slots + runs, slots + 1) if runs else 0)


def fewest_slots(length: int, runs: int) -> int:
    """The fewest slots with which no layer runs forward more than ``runs`` times.

    >>> fewest_slots(10, 2), fewest_slots(10_000, 2)
    (3, 140)
    """
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if beta(middle, runs) < length else (low, middle)
    return high


@lru_cache(maxsize=1 << 16)
def split(length: int, slots: int) -> int:
    """Where to store the next value: j layers in, so that both parts stay within the fewest forward steps.

    With r runs, l <= C(s + r, s) = C(s + r - 1, s) + C(s + r - 1, s - 1): the part before x_j, which is run once more, may need
    r - 1 runs and all slots, the part after it r runs and one slot less; any j with both is optimal.

    >>> split(10, 2)
    6
    """
    runs = repetitions(length, slots)
    return max(1, beta(slots, runs - 2), length - beta(slots - 1, runs))
