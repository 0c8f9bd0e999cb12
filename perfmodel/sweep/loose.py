"""Times, with the factors that their terms share taken out: most of a maximum or a sum is then computed along few axes.

That regroups products of real numbers, so a result differs in its last digits from the formula's; counts are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import inf

from perfmodel.core.arith import Number
from perfmodel.sweep.graph import Graph, Node, split
from perfmodel.sweep.products import Monomial, joined, shared_by, without

SCALED, SEVERAL = "scaled", "several"
"""Kinds of nodes: a real coefficient with factors; an operation over any number of terms."""
_FOLDED = ("add", "maximum", "minimum")


@dataclass(frozen=True, slots=True)
class Term:
    """``coefficient`` x ``factors``."""

    coefficient: float
    factors: Monomial = ()

    def number(self, graph: Graph) -> Number:
        """As a node."""
        if not self.factors or not self.coefficient:
            return self.coefficient
        if self.coefficient == 1 and len(self.factors) == 1:
            return self.factors[0]
        return graph.node(SCALED, (self.coefficient, self.factors), self.factors, low=_low([self]))


def loosened(number: Number) -> Number:
    """``number`` with shared factors taken out; itself if it is whole."""
    return number if not isinstance(number, Node) or number.whole else term_of(number).number(number.graph)


def term_of(number: Number) -> Term:
    """``number`` as a coefficient with factors; what cannot be taken apart is a factor."""
    if not isinstance(number, Node):
        return Term(float(number))
    if number.whole:
        coefficient, factors = split(number)
        return Term(float(coefficient), factors)
    if number.kind == SCALED:
        return Term(*number.payload)
    if number.kind == "divide" and not isinstance(number.payload[1], Node):
        inner = term_of(number.payload[0])
        return Term(inner.coefficient / number.payload[1], inner.factors)
    if number.kind == "multiply":
        one, other = map(term_of, number.payload)
        return Term(one.coefficient * other.coefficient, joined(one.factors, other.factors))
    if number.kind in _FOLDED:
        return _folded(number.graph, number.kind, [term_of(part) for part in _flat(number.kind, number)])
    return Term(1.0, (number,))


def _flat(kind: str, number: Number) -> list[Number]:
    """Operands of nested operations of one kind."""
    if isinstance(number, Node) and not number.whole and number.kind == kind:
        return [part for operand in number.payload for part in _flat(kind, operand)]
    return [number]


def _folded(graph: Graph, kind: str, terms: list[Term]) -> Term:
    """The operation over ``terms`` without what all of them share; zero has every factor."""
    factored = [term.factors for term in terms if term.coefficient]
    shared = tuple(node for node in reduce(shared_by, factored) if node.low >= 0) if factored else ()
    left = [Term(one.coefficient, without(one.factors, shared) if one.coefficient else ()) for one in terms]
    rest = tuple(_added(left) if kind == "add" else dict.fromkeys(left))
    if kind == "maximum" and any(_positive(term) for term in rest if term.coefficient):
        rest = tuple(term for term in rest if term.coefficient)
    if len(rest) == 1:
        return Term(rest[0].coefficient, joined(rest[0].factors, shared))
    return Term(1.0, joined((several(graph, kind, rest),), shared))


def _added(terms: list[Term]) -> list[Term]:
    """Terms of a sum, those with the same factors as one."""
    found: dict[Monomial, float] = {}
    for term in terms:
        found[term.factors] = found.get(term.factors, 0.0) + term.coefficient
    return [Term(coefficient, factors) for factors, coefficient in found.items() if coefficient] or [Term(0.0)]


def several(graph: Graph, kind: str, terms: tuple[Term, ...]) -> Node:
    """The node of an operation over ``terms``."""
    inputs = tuple({node: None for term in terms for node in term.factors})
    return graph.node(SEVERAL, (kind, terms), inputs, low=_low(terms))


def _low(terms: Iterable[Term]) -> float:
    """What an operation over ``terms`` is never below: zero, or nothing is known."""
    return 0 if all(_positive(term) for term in terms) else -inf


def _positive(term: Term) -> bool:
    return term.coefficient >= 0 and all(factor.low >= 0 for factor in term.factors)
