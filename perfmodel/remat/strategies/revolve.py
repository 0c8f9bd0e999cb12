"""Revolve: the fewest forward steps for a number of stored values, x_0 among them (Griewank & Walther).

Equal layers are placed by the binomial closed form. For other costs a dynamic program over all stretches does it, up to a size;
beyond it layers are placed as if they were equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from math import comb, isqrt

from perfmodel.core.arith import Number, minimum
from perfmodel.core.trace import is_traced, label, plain, template
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import Action, Plan, Strategy, forward, from_input_or_loss

PAPER = "Griewank & Walther 2000, Algorithm 799: revolve, ACM TOMS 26(1)"
ONE_MORE_PASS = 2
"""Most runs of a layer with the default number of slots: one more than without recomputation."""
LARGEST_PROGRAM = 1_500_000
"""Most splits that the dynamic program may compare."""


def slots_of(length: int, plan: Plan) -> int:
    """Slots: as given; else one per checkpoint and one for x_0; else the fewest with which no layer runs more than twice."""
    if plan.slots is not None:
        return int(min(plan.slots, length))
    if plan.checkpoints:
        return len(plan.values)
    return fewest_slots(length, ONE_MORE_PASS)


def schedule(chain: Chain, plan: Plan) -> Iterator[Action]:
    """Actions that store x_j, reverse the stretch after it with one slot less, then the stretch before it; stretches wait on a stack."""
    place = _placement(chain, slots_of(len(chain), plan))
    todo = [(0, len(chain), slots_of(len(chain), plan))]
    while todo:
        start, stop, slots = todo.pop()
        if stop - start == 1:
            yield from from_input_or_loss(chain, start)
        elif slots == 1:
            yield forward(start, stop - 1)
            yield from from_input_or_loss(chain, stop - 1)
            todo.append((start, stop - 1, 1))
        else:
            middle = place(start, stop, slots)
            yield forward(start, middle)
            todo += [(start, middle, slots), (middle, stop, slots - 1)]


def _placement(chain: Chain, slots: int) -> Callable[[int, int, int], int]:
    """Function (start, stop, slots) -> index of the value to store next while reversing layers start to stop - 1."""
    costs = {layer.forward for layer in chain.layers}
    if len(costs) == 1 or len(chain) ** 3 // 6 * slots > LARGEST_PROGRAM:
        return lambda start, stop, slots: start + split(stop - start, slots)

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
    slots, in_formula = _slots(n, plan)
    runs = label("r", "the most forward runs of a layer", repetitions(int(plain(n)), slots), like=n, source=PAPER)
    return forward_steps(n, in_formula, runs)


def values(n: Number, plan: Plan) -> Number:
    """Most values in memory: the slots, and the input and output of the layer at work."""
    _, slots = _slots(n, plan)
    return minimum(slots + 2, n + 1)


def _slots(n: Number, plan: Plan) -> tuple[int, Number]:
    """Number of slots, as a plain number and as a formula has it."""
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


def beta(slots: int, repetitions: int) -> int:
    """The longest chain that ``slots`` reverse without running any layer forward more than ``repetitions`` times: C(s + r, s).

    >>> beta(2, 3), beta(3, -1)
    (10, 0)
    """
    return comb(slots + repetitions, slots) if repetitions >= 0 else 0


def repetitions(length: int, slots: int) -> int:
    """The fewest forward runs r of a layer with which ``slots`` reverse ``length`` layers: C(s + r - 1, s) < l <= C(s + r, s).

    >>> repetitions(10, 1), repetitions(10, 2), repetitions(10, 9)
    (9, 3, 1)
    """
    if slots == 1:
        return length - 1
    return bisect_left(range(isqrt(2 * length)), length, key=lambda runs: beta(slots, runs))  # two slots need no more than that


def forward_steps(length: Number, slots: Number, runs: Number) -> Number:
    """The fewest forward steps that reverse ``length`` layers with ``slots``: r l - C(s + r, s + 1), r = ``repetitions``.

    Source: Griewank & Walther 2000, Proposition 1.

    >>> forward_steps(10, 1, 9), forward_steps(10, 2, 3)
    (45, 20)
    """
    if is_traced(length, slots, runs):
        value = forward_steps(plain(length), plain(slots), plain(runs))
        return template("({} * {} - C({} + {}, {} + 1))", value, runs, length, slots, runs, slots)
    return runs * length - (comb(slots + runs, slots + 1) if runs else 0)


def fewest_slots(length: int, runs: int) -> int:
    """The fewest slots with which no layer runs forward more than ``runs`` times.

    >>> fewest_slots(10, 2), fewest_slots(10_000, 2)
    (3, 140)
    """
    return 1 + bisect_left(range(1, length), length, key=lambda slots: beta(slots, runs))


@lru_cache(maxsize=1 << 16)
def split(length: int, slots: int) -> int:
    """Offset at which to store the next value: j layers in, so that both parts stay within the fewest forward steps.

    With r runs, l <= C(s + r, s) = C(s + r - 1, s) + C(s + r - 1, s - 1): the part before x_j, which is run once more, may need
    r - 1 runs and all slots, the part after it r runs and one slot less; any j with both is optimal.

    >>> split(10, 2)
    6
    """
    runs = repetitions(length, slots)
    return max(1, beta(slots, runs - 2), length - beta(slots - 1, runs))
