"""Products as sorted tuples of factors: what both have, what is left, all of it. A factor is anything with an ``index``."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

Monomial = tuple[Any, ...]
"""A product of nodes, by their age; empty for 1."""

_AGE = attrgetter("index")


def joined(left: Monomial, right: Monomial) -> Monomial:
    """All factors of both."""
    return tuple(sorted(left + right, key=_AGE)) if left and right else left or right


def shared_by(left: Monomial, right: Monomial) -> Monomial:
    """The factors that both have."""
    if left == right:
        return left
    found, rest = [], list(right)
    for node in left:
        if node in rest:
            rest.remove(node)
            found.append(node)
    return tuple(found)


def without(factors: Monomial, taken: Monomial) -> Monomial:
    """``factors`` less those ``taken``."""
    if not taken:
        return factors
    rest = list(factors)
    for node in taken:
        rest.remove(node)
    return tuple(rest)
