"""Forward with some values kept; then, for each backward step anew, its input rebuilt from the nearest kept value before it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from perfmodel.core.arith import Number
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import BACKWARD, LOSS, TAPE, Action, drop, forward


def sweep(values: Sequence[int]) -> Iterator[Action]:
    """Forward from the first to the last of ``values``, keeping each on the way."""
    return (forward(start, stop) for start, stop in pairwise(values))


def rebuilt(chain: Chain, values: Sequence[int], *, output: bool = False) -> Iterator[Action]:
    """Backward of layer i runs the layers from the last of ``values`` before it up to x_i. ``output``: x_n is rebuilt as well."""
    end = len(chain)
    yield from sweep([*values, end])
    if output:
        yield drop(end)
        yield forward(values[-1], end)
    yield Action(LOSS, end, end)
    for layer in reversed(range(end)):
        start = values[bisect_right(values, layer) - 1]
        if start < layer:
            yield forward(start, layer)
        if chain.layers[layer].interior:
            yield Action(TAPE, layer, layer + 1)
            yield drop(layer + 1)
        yield Action(BACKWARD, layer, layer)


def rebuilt_steps(n: Number, values: Sequence[int]) -> Number:
    """Forward steps that ``rebuilt`` adds for layers without interior: l (l - 1) / 2 per stretch of l layers between kept values.

    >>> rebuilt_steps(10, [0]), rebuilt_steps(10, [0, 6])
    (45, 21)
    """
    return sum((stop - start) * (stop - start - 1) // 2 for start, stop in pairwise([*values, n]))
