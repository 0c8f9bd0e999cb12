"""Segments between kept values: each is run once more as a whole, everything in it kept, and then reversed.

With the last segment kept from the forward pass (its backward comes at once), it does not run twice: PyTorch's
checkpoint_sequential does so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from perfmodel.core.arith import Number, ceil_div, maximum
from perfmodel.remat.chain import Chain
from perfmodel.remat.nearest import sweep
from perfmodel.remat.schedule import LOSS, Action, backward, drop, keep


def segmented(chain: Chain, values: Sequence[int], *, keep_last: bool) -> Iterator[Action]:
    """Reverse the segments that begin at ``values``, 0 first."""
    end, last = len(chain), values[-1]
    if keep_last:
        yield from sweep(values)
        yield from keep(chain, last, end)
    else:
        yield from sweep([*values, end])
    yield Action(LOSS, end, end)
    bounds = [*values, end]
    for start, stop in reversed(list(pairwise(bounds))):
        if not (keep_last and stop == end):
            yield from _again(chain, start, stop)
        yield from backward(start, stop)


def _again(chain: Chain, start: int, stop: int) -> Iterator[Action]:
    """What the backward steps of a segment need. The output of its last layer is not among it: it runs only for its interior."""
    taped = bool(chain.layers[stop - 1].interior)
    yield from keep(chain, start, stop if taped else stop - 1)
    if taped:
        yield drop(stop)


def starts(length: int, every: int) -> list[int]:
    """The values kept with segments of ``every`` layers.

    >>> starts(10, 4)
    [0, 4, 8]
    """
    return list(range(0, length, every))


def every_steps(n: Number, k: Number) -> Number:
    """Extra forward steps of segments of k, the last kept: all but one layer of each segment but the last.

    >>> every_steps(10, 4), every_steps(100, 10)
    (6, 81)
    """
    return (ceil_div(n, k) - 1) * (k - 1)


def every_values(n: Number, k: Number) -> Number:
    """Values at once with m = ceil(n / k) segments: their starts, beside the last segment; or m - 1 beside an earlier one, rebuilt.

    Assumes k <= n.

    >>> every_values(10, 4), every_values(100, 10), every_values(10, 10)
    (5, 20, 11)
    """
    m = ceil_div(n, k)
    return m + maximum(n - (m - 1) * k, k - 2)
