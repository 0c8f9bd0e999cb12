"""As ``nearest``, with the last output rebuilt too, though the forward pass has just made it and no backward step needs it."""

from __future__ import annotations

from perfmodel.remat.schedule import Strategy, rebuilt, rebuilt_steps

STRATEGY = Strategy(
    "nearest-and-output",
    "checkpoints; each value rebuilt",
    "l (l - 1) / 2 forward steps more per stretch of l layers, and the last stretch once more",
    lambda chain, plan: rebuilt(chain, plan.values, output=True),
    applies=lambda chain, plan: bool(plan.checkpoints),
    extra_steps=lambda n, plan: rebuilt_steps(n, plan.values) + n - plan.values[-1],
    taped_steps=lambda n, plan: rebuilt_steps(n, plan.values) + 2 * n - plan.values[-1],
)
