"""Keep the middle of the chain, reverse the second half the same way, then the first: O(log n) values, O(n log n) steps."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.core.arith import Number
from perfmodel.core.trace import is_traced, plain, template
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import Action, Plan, Strategy, forward, turn


def schedule(chain: Chain, plan: Plan) -> Iterator[Action]:
    """Halves on a stack: the first layer and the end of what is yet to be reversed."""
    todo = [(0, len(chain))]
    while todo:
        start, stop = todo.pop()
        if stop - start == 1:
            yield from turn(chain, start)
            continue
        middle = (start + stop) // 2
        yield forward(start, middle)
        todo += [(start, middle), (middle, stop)]


def steps(n: Number) -> Number:
    """Forward steps outside of the backward steps, T(n) = floor(n / 2) + T(floor(n / 2)) + T(ceil(n / 2)); n log2(n) / 2 for n = 2^p.

    The recursion is that of the 1 bits in all numbers below n (OEIS A000788), which bit b shares out in runs of 2^b.

    >>> steps(8), steps(10)
    (12, 15)
    """
    if is_traced(n):
        return template("(1 bits in 0 ... {} - 1)", steps(plain(n)), n)
    runs = ((*divmod(n, 2 << bit), 1 << bit) for bit in range(n.bit_length()))
    return sum(whole * run + max(0, rest - run) for whole, rest, run in runs)


def extra_steps(n: Number, plan: Plan) -> Number:
    """Beyond one run of each layer, of which all but the last are among ``steps``."""
    return steps(n) - (n - 1)


def values(n: Number, plan: Plan) -> Number:
    """One per level, and the input and output of the layer at work: ceil(log2 n) + 2.

    >>> values(8, Plan()), values(10, Plan())
    (5, 6)
    """
    levels = (int(plain(n)) - 1).bit_length()
    return (template("ceil(log2({}))", levels, n) if is_traced(n) else levels) + 2


STRATEGY = Strategy(
    "chen-recursive",
    "the middle, then those of the halves",
    "O(log n) values, O(n log n) steps",
    schedule,
    paper="Chen et al. 2016, Training deep nets with sublinear memory cost, arXiv 1604.06174",
    extra_steps=extra_steps,
    taped_steps=lambda n, plan: steps(n),
    values=values,
)
