"""A checkpoint every sqrt(n) layers: k + ceil(n / k) values are fewest there, about 2 sqrt(n), for at most one more forward pass."""

from __future__ import annotations

from math import isqrt

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.trace import plain
from perfmodel.remat.schedule import Strategy, every_steps, every_values, segmented, starts


def segment_length(n: Number) -> int:
    """The k of least k + ceil(n / k); of equal ones the one with the fewest values, then the fewest extra steps.

    >>> segment_length(100), segment_length(10), segment_length(1)
    (10, 3, 1)
    """
    length = int(plain(n))
    near = range(max(1, isqrt(length) - 2), min(length, isqrt(length) + 2) + 1)
    return min(near, key=lambda k: (k + ceil_div(length, k), every_values(length, k), every_steps(length, k)))


STRATEGY = Strategy(
    "sqrt-n",
    "every sqrt(n)-th; segments rebuilt",
    "k + ceil(n / k) values, at most one more forward pass",
    lambda chain, plan: segmented(chain, starts(len(chain), segment_length(len(chain))), keep_last=True),
    paper="Chen et al. 2016, Training deep nets with sublinear memory cost, arXiv 1604.06174",
    extra_steps=lambda n, plan: every_steps(n, segment_length(n)),
    taped_steps=lambda n, plan: (ceil_div(n, segment_length(n)) - 1) * segment_length(n),
    values=lambda n, plan: every_values(n, segment_length(n)),
)
