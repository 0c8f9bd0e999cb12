"""A checkpoint every k layers; each segment of k run once more, the last one kept from the forward pass."""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.remat.schedule import Plan, Strategy, every_steps, every_values, segmented, starts


def segment_length(plan: Plan) -> Number:
    """As given; one layer where nobody says."""
    return plan.every if plan.every is not None else 1


STRATEGY = Strategy(
    "every-k",
    "every k-th; segments rebuilt",
    "all but one layer of each segment but the last run twice; all of them if they have an interior",
    lambda chain, plan: segmented(chain, starts(len(chain), segment_length(plan)), keep_last=True),
    paper="Chen et al. 2016, Training deep nets with sublinear memory cost, arXiv 1604.06174",
    applies=lambda chain, plan: plan.every is not None or chain.taped,
    extra_steps=lambda n, plan: every_steps(n, minimum(segment_length(plan), n)),
    taped_steps=lambda n, plan: (ceil_div(n, segment_length(plan)) - 1) * segment_length(plan),
    values=lambda n, plan: every_values(n, minimum(segment_length(plan), n)),
)
