"""Checkpoints as given; the input of each layer rebuilt from the nearest one when its backward step comes."""

from __future__ import annotations

from perfmodel.remat.schedule import Strategy, rebuilt, rebuilt_steps

STRATEGY = Strategy(
    "nearest",
    "checkpoints; each input rebuilt",
    "l (l - 1) / 2 forward steps more per stretch of l layers",
    lambda chain, plan: rebuilt(chain, plan.values),
    applies=lambda chain, plan: bool(plan.checkpoints),
    extra_steps=lambda n, plan: rebuilt_steps(n, plan.values),
    taped_steps=lambda n, plan: rebuilt_steps(n, plan.values) + n,
)
