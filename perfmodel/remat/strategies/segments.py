"""Segments between checkpoints as given, each run again as a whole when backward reaches it, the last one too."""

from __future__ import annotations

from itertools import pairwise

from perfmodel.core.arith import Number
from perfmodel.remat.schedule import Plan, Strategy, segmented


def extra_steps(n: Number, plan: Plan) -> Number:
    """All layers but one of each segment: that one's output is a checkpoint, or the last output.

    >>> extra_steps(10, Plan(checkpoints=(5,)))
    8
    """
    return sum(stop - start - 1 for start, stop in pairwise([*plan.values, n]))


STRATEGY = Strategy(
    "segments",
    "checkpoints; segments rebuilt",
    "at most one more forward pass",
    lambda chain, plan: segmented(chain, plan.values, keep_last=False),
    applies=lambda chain, plan: bool(plan.checkpoints),
    extra_steps=extra_steps,
    taped_steps=lambda n, plan: n,
)
