"""Segments between checkpoints as given, the last one kept from the forward pass: its backward comes right after."""

from __future__ import annotations

from itertools import pairwise

from perfmodel.core.arith import Number
from perfmodel.remat.schedule import Plan, Strategy, segmented


def extra_steps(n: Number, plan: Plan) -> Number:
    """All layers but one of each segment except the last.

    >>> extra_steps(10, Plan(checkpoints=(5,)))
    5
    """
    return sum(stop - start - 1 for start, stop in pairwise(plan.values))


STRATEGY = Strategy(
    "segments-last-kept",
    "the same, and the last segment",
    "at most one more forward pass but for the last segment, as PyTorch's checkpoint_sequential does",
    lambda chain, plan: segmented(chain, plan.values, keep_last=True),
    applies=lambda chain, plan: bool(plan.checkpoints),
    extra_steps=extra_steps,
    taped_steps=lambda n, plan: plan.values[-1],
)
