"""Keep x_0 only: backward of layer i runs the chain again up to x_i, 1 + 2 + ... + (n - 1) steps more in all."""

from __future__ import annotations

from perfmodel.core.arith import Number, minimum
from perfmodel.remat.schedule import Plan, Strategy, rebuilt


def extra_steps(n: Number, plan: Plan) -> Number:
    """n (n - 1) / 2.

    >>> extra_steps(10, Plan())
    45
    """
    return n * (n - 1) // 2


STRATEGY = Strategy(
    "keep-none",
    "x_0; each input rebuilt",
    "1 + 2 + ... + (n - 1) forward steps more",
    lambda chain, plan: rebuilt(chain, [0]),
    extra_steps=extra_steps,
    taped_steps=lambda n, plan: extra_steps(n, plan) + n,
    values=lambda n, plan: minimum(n + 1, 3),
)
