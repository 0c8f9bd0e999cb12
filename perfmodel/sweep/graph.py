"""Formulas noted down: numbers that stand for whole columns and remember what is done to them.

A formula that is run once on ``Node`` numbers leaves a graph of what it computes; ``program`` evaluates that graph on arrays.
Equal nodes are one node. Whole numbers are kept as sums of products, where common factors are taken out and cancelled: that
changes no result, as sums and products of whole numbers below 2^53 are exact in float64 in whatever order, and a quotient is
rounded from the same fraction. What is not whole is computed in the order in which the formula does it, but for times (``loose``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import ceil, floor, gcd, inf, prod
from typing import Any

from perfmodel.core.arith import Deferred, Number
from perfmodel.sweep.products import Monomial, joined, shared_by, without

_TINY = 1e-300
"""What a quotient of positive numbers is never below: above zero, by how much is not known."""


@dataclass(slots=True)
class Graph:
    """All nodes of one formula, by what they compute."""

    known: dict[Any, Node] = field(default_factory=dict)

    def node(self, kind: str, payload: Any, inputs: tuple[Node, ...] = (), *, whole: bool = False, low: float = -inf) -> Node:
        """The one node of this kind and payload. ``low``: what it is never below."""
        key = (kind, payload)
        if key not in self.known:
            self.known[key] = Node(self, len(self.known), kind, payload, inputs, whole, low)
        return self.known[key]

    def leaf(self, name: str, *, whole: bool = True, low: float = 1) -> Node:
        """An input column."""
        return self.node("leaf", name, whole=whole, low=low)


class Node(Deferred):
    """A column that is computed later. No formula may ask for its value: comparing it or asking for its truth is an error."""

    __slots__ = ("graph", "index", "inputs", "kind", "low", "payload", "whole")
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(self, graph: Graph, index: int, kind: str, payload: Any, inputs: tuple[Node, ...], whole: bool, low: float) -> None:
        self.graph, self.index, self.kind, self.payload = graph, index, kind, payload
        self.inputs, self.whole, self.low = inputs, whole, low

    def __add__(self, other: Number) -> Number:
        return add(self, other)

    def __radd__(self, other: Number) -> Number:
        return add(other, self)

    def __sub__(self, other: Number) -> Number:
        return subtract(self, other)

    def __rsub__(self, other: Number) -> Number:
        return subtract(other, self)

    def __mul__(self, other: Number) -> Number:
        return multiply(self, other)

    def __rmul__(self, other: Number) -> Number:
        return multiply(other, self)

    def __truediv__(self, other: Number) -> Number:
        return divide(self, other)

    def __rtruediv__(self, other: Number) -> Number:
        return divide(other, self)

    def __floordiv__(self, other: Number) -> Number:
        return rounded("floor", divide(self, other))

    def __rfloordiv__(self, other: Number) -> Number:
        return rounded("floor", divide(other, self))

    def __pow__(self, exponent: float) -> Number:
        if exponent != 0.5:
            raise TypeError("only square roots are deferred; for powers there is arith.power")
        return _operation("sqrt", self, low=0)

    def __neg__(self) -> Number:
        return multiply(-1, self)

    def __bool__(self) -> bool:
        raise TypeError("a formula branches on a number that is not known yet")

    def apply(self, function: str | Callable[..., Any], *arguments: Number) -> Number:
        """A function of this and other numbers."""
        if callable(function):
            return _called(self.graph, function, arguments)
        if function in ("minimum", "maximum"):
            return extreme(function, *arguments)
        if function == "floor":
            return rounded("floor", arguments[0])
        return rounded("ceil", divide(*arguments))


def _called(graph: Graph, function: Callable[..., Any], arguments: tuple[Number, ...]) -> Node:
    """What cannot be looked into: its result is taken to be whole and not negative, as counts are."""
    return graph.node("call", (function, arguments), tuple(a for a in arguments if isinstance(a, Node)), whole=True, low=0)


def _whole(number: Number) -> bool:
    return number.whole if type(number) is Node else type(number) is int


def _low(number: Number) -> float:
    found: float = number.low if type(number) is Node else number
    return found


def _graph(x: Number, y: Number) -> Graph:
    found: Graph = x.graph if type(x) is Node else y.graph
    return found


def _operation(kind: str, *arguments: Number, whole: bool = False, low: float = -inf) -> Node:
    inputs = tuple(argument for argument in arguments if type(argument) is Node)
    return inputs[0].graph.node(kind, arguments, inputs, whole=whole, low=low)


def _ordered(x: Number, y: Number) -> tuple[Number, Number]:
    """Arguments of an operation that commutes: nodes by age, constants last."""
    if type(x) is not Node or (type(y) is Node and y.index < x.index):
        return y, x
    return x, y


# Sums of products


def product(coefficient: int, factors: Monomial, graph: Graph) -> Number:
    """``coefficient`` x ``factors``; a plain number if there are none."""
    if not factors or coefficient == 0:
        return coefficient
    if coefficient == 1 and len(factors) == 1:
        return factors[0]
    return graph.node("product", (coefficient, factors), factors, whole=True, low=_low_of(coefficient, factors))


def _low_of(coefficient: int, factors: Monomial) -> float:
    """What ``coefficient`` x ``factors`` is never below: their least values, multiplied, if all are at least zero."""
    if coefficient > 0 and all(factor.low >= 0 for factor in factors):
        return float(coefficient) * prod(float(factor.low) for factor in factors)
    return coefficient if not factors else -inf


def split(number: Number) -> tuple[int, Monomial]:
    """A whole number as coefficient x factors; a sum is a factor of its own."""
    if type(number) is not Node:
        return number, ()
    return number.payload if number.kind == "product" else (1, (number,))


def terms(number: Number) -> dict[Monomial, int]:
    """``number`` as a sum of coefficients x products."""
    if type(number) is not Node:
        return {(): number} if number else {}
    if number.kind == "sum":
        return dict(number.payload)
    coefficient, factors = split(number)
    return {factors: coefficient}


def total(collected: Mapping[Monomial, int], graph: Graph) -> Number:
    """The sum of ``collected``, with what all its terms share taken out."""
    kept = {factors: coefficient for factors, coefficient in collected.items() if coefficient}
    if len(kept) < 2:
        return next((product(coefficient, factors, graph) for factors, coefficient in kept.items()), 0)
    shared, scale = reduce(shared_by, kept), gcd(*kept.values())
    if all(coefficient < 0 for coefficient in kept.values()):
        scale = -scale
    if not shared and scale == 1:
        return _sum(kept, graph)
    rest: dict[Monomial, int] = {}
    for factors, coefficient in kept.items():
        left = without(factors, shared)
        inner = left[0].payload if len(left) == 1 and left[0].kind == "sum" else ((left, 1),)  # a sum within a sum is one sum
        for monomial, count in inner:
            rest[monomial] = rest.get(monomial, 0) + count * (coefficient // scale)
    return multiply(product(scale, shared, graph), total(rest, graph))


def _sum(kept: Mapping[Monomial, int], graph: Graph) -> Node:
    listed = tuple(sorted(kept.items(), key=lambda item: [node.index for node in item[0]]))
    inputs = tuple({node: None for factors in kept for node in factors})
    low = sum(_low_of(coefficient, factors) for factors, coefficient in _uncancelled(kept).items())
    return graph.node("sum", listed, inputs, whole=True, low=low)


def _uncancelled(kept: Mapping[Monomial, int]) -> Mapping[Monomial, int]:
    """What is left of a sum once its negative terms have been set against positive ones that are known to be no smaller."""
    left = {factors: coefficient for factors, coefficient in kept.items() if coefficient > 0}
    for factors, coefficient in kept.items():
        if coefficient < 0:
            larger = next((one for one, count in left.items() if count >= -coefficient and _covers(one, factors)), None)
            if larger is None:
                return kept
            left[larger] += coefficient
    return {factors: coefficient for factors, coefficient in left.items() if coefficient}


def _covers(larger: Monomial, smaller: Monomial) -> bool:
    """Whether each factor of ``smaller`` is at most one of ``larger``'s, and those left over are at least 1."""
    rest = list(larger)
    for factor in smaller:
        other = next((one for one in rest if at_most(factor, one)), None)
        if other is None or factor.low < 0:
            return False
        rest.remove(other)
    return all(one.low >= 1 for one in rest)


def at_most(x: Number, y: Number) -> bool:
    """Whether x is known never to exceed y."""
    if x is y:
        return True
    if type(x) is not Node:
        return bool(x <= _low(y))
    if x.kind == "minimum":
        return any(at_most(one, y) for one in x.payload)
    return x.kind == "floor" and _is_share(x.payload[0], y)


def _is_share(x: Node, y: Number) -> bool:
    """Whether x is y times something that is at most 1: rounding does not lift that above y."""
    if x.kind != "multiply" or _low(y) < 0 or y not in x.payload:
        return False
    [share] = [one for one in x.payload if one is not y] or [y]
    return type(share) is Node and share.kind == "minimum" and any(type(one) is not Node and one <= 1 for one in share.payload)


# Arithmetic


def add(x: Number, y: Number) -> Number:
    """x + y."""
    if _whole(x) and _whole(y):
        collected = terms(x)
        for factors, coefficient in terms(y).items():
            collected[factors] = collected.get(factors, 0) + coefficient
        return total(collected, _graph(x, y))
    for one, other in ((x, y), (y, x)):
        if type(one) is not Node and one == 0:
            return other
    return _operation("add", *_ordered(x, y), low=_low(x) + _low(y))


def subtract(x: Number, y: Number) -> Number:
    """x - y."""
    if _whole(x) and _whole(y):
        return add(x, multiply(-1, y))
    if type(y) is not Node:
        return x if y == 0 else _operation("subtract", x, y, low=_low(x) - y)
    return 0 if x is y else _operation("subtract", x, y)


def multiply(x: Number, y: Number) -> Number:
    """x y; a product with 0 is 0, as every number here is finite."""
    for one, other in ((x, y), (y, x)):
        if type(one) is not Node:
            if one in (0, 1):
                return other if one == 1 else 0
            if type(other) is not Node:
                return one * other
    if _whole(x) and _whole(y):
        (a, left), (b, right) = split(x), split(y)
        return product(a * b, joined(left, right), _graph(x, y))
    low = _low(x) * _low(y) if _low(x) >= 0 and _low(y) >= 0 else -inf
    return _operation("multiply", *_ordered(x, y), low=low)


def divide(x: Number, y: Number) -> Number:
    """x / y, without what both share."""
    if type(x) is not Node and type(y) is not Node:
        return x / y
    if _whole(x) and _whole(y):
        x, y = _cancelled(x, y)
        if type(x) is not Node and type(y) is not Node:
            return x / y
    if type(y) is not Node and y == 1:
        return x
    if type(x) is not Node and x == 0:
        return 0
    low = -inf
    if _low(x) >= 0 and _low(y) >= 0:
        low = _TINY if _low(x) > 0 else 0
    return _operation("divide", x, y, low=low)


def _cancelled(x: Number, y: Number) -> tuple[Number, Number]:
    graph, (a, left), (b, right) = _graph(x, y), split(x), split(y)
    shared, common = shared_by(left, right), gcd(a, b) if b > 0 else -gcd(a, b)
    return product(a // common, without(left, shared), graph), product(b // common, without(right, shared), graph)


def rounded(how: str, x: Number) -> Number:
    """``floor`` or ``ceil`` of x."""
    if type(x) is not Node:
        return int(x) if how == "floor" else int(-(-x // 1))
    low = x.low if x.low in (-inf, 0) else floor(x.low) if how == "floor" else ceil(x.low)
    return x if x.whole else _operation(how, x, whole=True, low=low)


def extreme(which: str, x: Number, y: Number) -> Number:
    """``minimum`` or ``maximum``; what both share and is never negative stands before it."""
    if type(x) is not Node and type(y) is not Node:
        return min(x, y) if which == "minimum" else max(x, y)
    for one, other in ((x, y), (y, x)):
        if at_most(one, other):
            return one if which == "minimum" else other
    whole = _whole(x) and _whole(y)
    if whole:
        (a, left), (b, right) = split(x), split(y)
        common, scale = left if b == 0 else right if a == 0 else shared_by(left, right), gcd(a, b)
        shared, graph = tuple(node for node in common if node.low >= 0), _graph(x, y)
        if shared or scale > 1:
            one = product(a // scale, without(left, shared) if a else (), graph)
            other = product(b // scale, without(right, shared) if b else (), graph)
            return multiply(product(scale, shared, graph), extreme(which, one, other))
    low = min(_low(x), _low(y)) if which == "minimum" else max(_low(x), _low(y))
    return _operation(which, *_ordered(x, y), whole=whole, low=low)
