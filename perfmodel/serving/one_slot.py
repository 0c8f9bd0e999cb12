"""One sequence at a time: requests from outside wait as in front of one server (Pollaczek 1930, Khinchine 1932).

Mean wait = rate E[S^2] / 2 (1 - rate E[S]), S: seconds of a whole request; of those who wait it is about an exponential's.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.serving.steady import Loop, Steady, Weighted

POINTS = 10


def tail(mean: float, chance: float) -> Weighted:
    """None, or with this chance an exponential's wait that has ``mean``.

    >>> round(sum(value * share for value, share in tail(3.0, 0.5)), 6)
    1.5
    """
    shape = [-log(1 - (point + 0.5) / POINTS) for point in range(POINTS)] + [-log(0.005)]
    shares = [1 / POINTS] * (POINTS - 1) + [0.04, 0.06]
    scale = sum(value * share for value, share in zip(shape, shares, strict=True))
    return [(0.0, 1 - chance), *((mean * value / scale, chance * share) for value, share in zip(shape, shares, strict=True))]


def one_slot(loop: Loop, rate: float) -> Steady:
    """The figures at ``rate`` requests a second, less than is served."""
    step = loop.seconds(0, 1) if loop.steps else 0.0
    room = loop.batching.token_budget
    prompts = [loop.until(size, size, 0.0, float(room), 0.0) for size in loop.five()]
    own = sum(prompts) / len(prompts)
    mean = own + loop.steps * step
    low = max(int(loop.load.osl * loop.spread), 1)
    outputs = ((loop.load.osl - low + 1) ** 2 - 1) / 12 * (loop.steps * step / max(loop.osl - 1, 1e-9)) ** 2 if loop.steps else 0.0
    square = mean**2 + sum((one - own) ** 2 for one in prompts) / len(prompts) + outputs
    busy = min(rate * mean, 0.999)
    wait = rate * square / 2 / (1 - busy)
    first = [(one + late, each / len(prompts)) for one in prompts for late, each in tail(wait / busy, busy)]
    found = loop.result(busy, 0.0, rate, step, 0.0, 0.0, first, loop.overhead.request_s, 0.0)
    return loop.waited(found, rate * wait)
