"""Revolve: the fewest forward steps for a number of stored values, x_0 among them (Griewank & Walther).

Equal layers are placed by the binomial closed form. For other costs a dynamic program over all stretches does it, up to a size;
beyond it layers are placed as if they were equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from perfmodel.core.arith import Number, minimum
from perfmodel.core.trace import is_traced, named, plain
from perfmodel.remat.base import Plan, Strategy
from perfmodel.remat.binomial import fewest_slots, forward_steps, repetitions, split
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import Action, forward, turn

PAPER = "Griewank & Walther 2000, Algorithm 799: revolve, ACM TOMS 26(1)"
ONE_MORE_PASS = 2
"""Runs of a layer for which slots are given where nobody says how many: at most one more than there have to be."""
LARGEST_PROGRAM = 1_500_000
"""Splits that the dynamic program may weigh."""


def slots_of(length: int, plan: Plan) -> int:
    """As given, else as many as the checkpoints and x_0, else the fewest with which no layer runs more than twice."""
    if plan.slots is not None:
        return int(min(plan.slots, length))
    if plan.checkpoints:
        return len(plan.values)
    return fewest_slots(length, ONE_MORE_PASS)


def schedule(chain: Chain, plan: Plan) -> Iterator[Action]:
    """Store x_j, reverse what comes after with a slot less, then what comes before; stretches wait on a stack."""
    place = _placement(chain, slots_of(len(chain), plan))
    todo = [(0, len(chain), slots_of(len(chain), plan))]
    while todo:
        start, stop, slots = todo.pop()
        if stop - start == 1:
            yield from turn(chain, start)
        elif slots == 1:
            yield forward(start, stop - 1)
            yield from turn(chain, stop - 1)
            todo.append((start, stop - 1, 1))
        else:
            middle = place(start, stop, slots)
            yield forward(start, middle)
            todo += [(start, middle, slots), (middle, stop, slots - 1)]


def _placement(chain: Chain, slots: int) -> Callable[[int, int, int], int]:
    """Which value to store next while reversing layers start to stop - 1."""
    costs = {layer.forward for layer in chain.layers}
    if len(costs) == 1 or len(chain) ** 3 // 6 * slots > LARGEST_PROGRAM:
        return lambda start, stop, slots: start + split(stop - start, slots)
    return _program(chain)


def _program(chain: Chain) -> Callable[[int, int, int], int]:
    """The same by dynamic programming over costs."""

    @cache
    def best(start: int, stop: int, slots: int) -> tuple[Number, int]:
        if stop - start == 1:
            return 0, stop
        if slots == 1:
            return sum(chain.forward_cost(start, layer) for layer in range(start + 1, stop)), stop
        return min(
            (chain.forward_cost(start, middle) + best(middle, stop, slots - 1)[0] + best(start, middle, slots)[0], middle)
            for middle in range(start + 1, stop)
        )

    return lambda start, stop, slots: best(start, stop, slots)[1]


def steps(n: Number, plan: Plan) -> Number:
    """Forward steps outside of the backward steps.

    >>> steps(10, Plan(slots=1)), steps(10, Plan(checkpoints=(5,)))
    (45, 20)
    """
    slots, shown = _slots(n, plan)
    runs = named("r", "the most forward runs of a layer", repetitions(int(plain(n)), slots), like=n, source=PAPER)
    return forward_steps(n, shown, runs)


def values(n: Number, plan: Plan) -> Number:
    """The slots, and the input and output of the layer at work."""
    return minimum(_slots(n, plan)[1] + 2, n + 1)


def _slots(n: Number, plan: Plan) -> tuple[int, Number]:
    """The slots, and how a formula shows them."""
    slots = slots_of(int(plain(n)), plan)
    return slots, plan.slots if is_traced(plan.slots) else slots


STRATEGY = Strategy(
    "revolve",
    "s values; fewest steps for it",
    "r n - C(s + r, s + 1) steps outside of the backward steps, with C(s + r - 1, s) < n <= C(s + r, s)",
    schedule,
    paper=PAPER,
    extra_steps=lambda n, plan: steps(n, plan) - (n - 1),
    taped_steps=steps,
    values=values,
)
