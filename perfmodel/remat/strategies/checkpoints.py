"""Strategies with checkpoints that are given, evenly spaced, halves, or chosen for a budget; values between them are rebuilt.

A segment that is rebuilt as a whole runs all but its last layer once more, whose output is a checkpoint or the last output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import isqrt
from typing import Any

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.trace import is_traced, plain, template
from perfmodel.remat.chain import Chain
from perfmodel.remat.optimal_dp import LARGEST, Program
from perfmodel.remat.schedule import (
    Action,
    Plan,
    Strategy,
    backward,
    every_steps,
    every_values,
    forward,
    from_input_or_loss,
    keep,
    loss,
    rebuilt,
    rebuilt_steps,
    segmented,
)

CHEN = "Chen et al. 2016, Training deep nets with sublinear memory cost, arXiv 1604.06174"


def keep_all(chain: Chain, plan: Plan) -> Iterator[Action]:
    """Actions that run forward once, then backward."""
    end = len(chain)
    yield from keep(chain, 0, end)
    yield loss(chain)
    yield from backward(0, end)


def interior_steps(ends: list[Number]) -> Number:
    """Number of layers in the segments between neighbours of ``ends``, all but one of each.

    >>> interior_steps([0, 5, 10]), interior_steps([0, 5])
    (8, 4)
    """
    return sum(stop - start - 1 for start, stop in pairwise(ends))


def _segments_of(length: Callable[[Number, Plan], Number], **described: Any) -> Strategy:
    """The strategy of equal segments of ``length`` layers, the last one kept."""
    return Strategy(
        schedule=lambda chain, plan: segmented(chain, range(0, len(chain), int(length(len(chain), plan))), keep_last=True),
        paper=CHEN,
        extra_steps=lambda n, plan: every_steps(n, length(n, plan)),
        taped_steps=lambda n, plan: (ceil_div(n, length(n, plan)) - 1) * length(n, plan),
        values=lambda n, plan: every_values(n, length(n, plan)),
        **described,
    )


def sqrt_length(n: Number) -> int:
    """Segment length k of least k + ceil(n / k); of equal ones the one with the fewest values, then the fewest extra steps.

    >>> sqrt_length(100), sqrt_length(10), sqrt_length(1)
    (10, 3, 1)
    """
    length = int(plain(n))
    near = range(max(1, isqrt(length) - 2), min(length, isqrt(length) + 2) + 1)
    return min(near, key=lambda k: (k + ceil_div(length, k), every_values(length, k), every_steps(length, k)))


def halves(chain: Chain, plan: Plan) -> Iterator[Action]:
    """Actions of recursive halving: run to the middle, reverse what comes after it, then what comes before."""
    stretches = [(0, len(chain))]  # first layer and end of what is yet to be reversed, the next one last
    while stretches:
        start, stop = stretches.pop()
        if stop - start == 1:
            yield from from_input_or_loss(chain, start)
            continue
        middle = (start + stop) // 2
        yield forward(start, middle)
        stretches += [(start, middle), (middle, stop)]


def halves_steps(n: Number) -> Number:
    """Forward steps outside of the backward steps, T(n) = floor(n / 2) + T(floor(n / 2)) + T(ceil(n / 2)); n log2(n) / 2 for n = 2^p.

    The recursion is that of the number of 1 bits in all numbers below n (OEIS A000788), which are counted bit by bit.

    >>> halves_steps(8), halves_steps(10)
    (12, 15)
    """
    if is_traced(n):
        return template("(1 bits in 0 ... {} - 1)", halves_steps(plain(n)), n)
    ones = 0
    for bit in range(n.bit_length()):
        run = 1 << bit  # in 0, 1, 2, ... this bit is 0 in a run of so many numbers, then 1 in as many
        periods, remainder = divmod(n, 2 * run)
        ones += periods * run + max(0, remainder - run)
    return ones


def halves_values(n: Number) -> Number:
    """Most values in memory: one per level, and the input and output of the layer at work: ceil(log2 n) + 2.

    >>> halves_values(8), halves_values(10)
    (5, 6)
    """
    levels = (int(plain(n)) - 1).bit_length()
    return (template("ceil(log2({}))", levels, n) if is_traced(n) else levels) + 2


def _checkpointed(chain: Chain, plan: Plan) -> bool:
    return bool(plan.checkpoints)


_LISTED = (
    Strategy(
        "keep-all",
        "everything",
        "each layer runs once",
        keep_all,
        extra_steps=lambda n, plan: 0 * n,
        taped_steps=lambda n, plan: 0 * n,
        values=lambda n, plan: n + 1,
    ),
    Strategy(
        "keep-none",
        "x_0; each input rebuilt",
        "1 + 2 + ... + (n - 1) forward steps more",
        lambda chain, plan: rebuilt(chain, [0]),
        extra_steps=lambda n, plan: rebuilt_steps(n, [0]),
        taped_steps=lambda n, plan: rebuilt_steps(n, [0]) + n,
        values=lambda n, plan: minimum(n + 1, 3),
    ),
    # The last output rebuilt too, though the forward pass has just made it and no backward step needs it
    Strategy(
        "nearest-and-output",
        "checkpoints; each value rebuilt",
        "l (l - 1) / 2 forward steps more per stretch of l layers, and the last stretch once more",
        lambda chain, plan: rebuilt(chain, plan.values, output=True),
        applies=_checkpointed,
        extra_steps=lambda n, plan: rebuilt_steps(n, plan.values) + n - plan.values[-1],
        taped_steps=lambda n, plan: rebuilt_steps(n, plan.values) + 2 * n - plan.values[-1],
    ),
    # The input of each layer rebuilt from the nearest checkpoint when its backward step comes
    Strategy(
        "nearest",
        "checkpoints; each input rebuilt",
        "l (l - 1) / 2 forward steps more per stretch of l layers",
        lambda chain, plan: rebuilt(chain, plan.values),
        applies=_checkpointed,
        extra_steps=lambda n, plan: rebuilt_steps(n, plan.values),
        taped_steps=lambda n, plan: rebuilt_steps(n, plan.values) + n,
    ),
    # Each segment run again as a whole when backward reaches it, the last one too
    Strategy(
        "segments",
        "checkpoints; segments rebuilt",
        "at most one more forward pass",
        lambda chain, plan: segmented(chain, plan.values, keep_last=False),
        applies=_checkpointed,
        extra_steps=lambda n, plan: interior_steps([*plan.values, n]),
        taped_steps=lambda n, plan: n,
    ),
    # The last segment kept from the forward pass: its backward comes right after
    Strategy(
        "segments-last-kept",
        "the same, and the last segment",
        "at most one more forward pass but for the last segment, as PyTorch's checkpoint_sequential does",
        lambda chain, plan: segmented(chain, plan.values, keep_last=True),
        applies=_checkpointed,
        extra_steps=lambda n, plan: interior_steps(plan.values),
        taped_steps=lambda n, plan: plan.values[-1],
    ),
    _segments_of(
        lambda n, plan: minimum(plan.every, n) if plan.every is not None else 1,
        name="every-k",
        summary="every k-th; segments rebuilt",
        rule="all but one layer of each segment but the last run twice; all of them if they have an interior",
        applies=lambda chain, plan: plan.every is not None or chain.taped,
    ),
    # k + ceil(n / k) values are fewest at about sqrt(n): 2 sqrt(n)
    _segments_of(
        lambda n, plan: sqrt_length(n),
        name="sqrt-n",
        summary="every sqrt(n)-th; segments rebuilt",
        rule="k + ceil(n / k) values, at most one more forward pass",
    ),
    # Beyond one run of each layer, of which all but the last are among the steps
    Strategy(
        "chen-recursive",
        "the middle, then those of the halves",
        "O(log n) values, O(n log n) steps",
        halves,
        paper=CHEN,
        extra_steps=lambda n, plan: halves_steps(n) - (n - 1),
        taped_steps=lambda n, plan: halves_steps(n),
        values=lambda n, plan: halves_values(n),
    ),
    # Within the budget, of all schedules whose stored values stay until used
    Strategy(
        "optimal",
        "what is cheapest within --budget",
        "dynamic program over stretches of layers and memory; a stored value stays until its backward step",
        lambda chain, plan: Program(chain, plan.memory).schedule(),
        paper="Beaumont et al. 2019, Optimal checkpointing for heterogeneous chains, arXiv 1911.13214",
        applies=lambda chain, plan: plan.memory is not None and len(chain) <= LARGEST,
    ),
)
STRATEGIES = {strategy.name: strategy for strategy in _LISTED}
