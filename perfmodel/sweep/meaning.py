"""Whether an expression means something: quantities of one kind are compared, words are known ones, nothing is divided by zero.

What is refused here would else hold for every row, or for none. A bare number may stand for any quantity, and so may a product or
a quotient, whose factors may carry units of their own: ``n * d * 2 < 80 GB``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from perfmodel.core.errors import UsageError, suggest
from perfmodel.sweep.base import Input, Workload
from perfmodel.sweep.expression import Expression

ANY, TEXT, COUNT = "any", "text", "a count"
_COUNTED = ("", "FLOP", "OP", "rows", "columns", "elements", "sequences", "tokens")
_PHYSICAL = ("FLOP/s", "OP/s", "FLOP/B", "B/s", "1/s", "Hz", "B", "s", "W")
"""Units that differ in kind from each other and from what is counted."""
_SAYS = {"B": "bytes", "s": "a time", "1/s": "a rate in 1/s"}
_JOINS, _DIVIDES, _KEEPS = ("+", "-"), ("/", "//", "%"), ("minimum", "maximum", "ceil", "floor")


def understood(expression: Expression, workload: Workload, where: str) -> Expression:
    """``expression`` with the words in it as the axes have them; UsageError if it, in option ``where``, means nothing."""
    reading = _Reading(expression, workload, where)
    tree = reading.named(expression.tree)
    if reading.kind(tree) == TEXT:
        raise UsageError(f"{where} {expression.text.strip()[:60]!r} is a text", "compare it with another, by == or !=")
    return replace(expression, tree=tree)


@dataclass(frozen=True, slots=True)
class _Reading:
    expression: Expression
    workload: Workload
    where: str

    def _refuse(self, what: str, fix: str | None) -> UsageError:
        return UsageError(f"{self.where} {self.expression.text.strip()[:60]!r}: {what}", fix)

    def named(self, tree: Any) -> Any:
        """``tree`` with every word that a choice is held against in the form that the choice has."""
        if tree[0] in ("number", "text", "name"):
            return tree
        parts = [self.named(part) if isinstance(part, tuple) else part for part in tree[1:]]
        if tree[0] == "compare":
            for one, other in ((1, 2), (2, 1)):
                choice = self.workload.input(parts[one][1]) if parts[one][0] == "name" else None
                if choice is not None and choice.kind == "name" and parts[other][0] == "text":
                    parts[other] = ("text", self._word(choice, parts[other][1]))
        return (tree[0], *parts)

    def _word(self, choice: Input, text: str) -> str:
        if choice.canonical is not None:
            try:
                return choice.canonical(text)
            except UsageError as error:
                raise self._refuse(error.message, error.fix) from None
        if choice.names is not None and text not in choice.names():
            raise self._refuse(f"{choice.name} is never {text!r}", suggest(text, list(choice.names())))
        return text

    def kind(self, tree: Any) -> str:
        """What sort of value ``tree`` has."""
        form, *parts = tree
        if form == "number":
            return ANY if parts[1] is None else _unit_kind(parts[1])
        if form == "text":
            return TEXT
        if form == "name":
            return self._column_kind(parts[0])
        kinds = [self.kind(part) for part in parts if isinstance(part, tuple)]
        if form == "compare":
            self._joined(kinds)
            return ANY
        if TEXT in kinds:
            raise self._refuse("it reckons with a text", "compare it with == or !=")
        self._finite(tree)
        if form == "negative":
            return kinds[0]
        keeps = (form == "binary" and parts[0] in _JOINS) or (form == "call" and parts[0] in _KEEPS)
        return self._joined(kinds) if keeps else ANY

    def _column_kind(self, name: str) -> str:
        one = self.workload.input(name)
        if one is None:
            return _unit_kind(self.workload.column(name).unit)
        return {"name": TEXT, "flag": ANY, "number": ANY}.get(one.kind, _unit_kind(one.unit))

    def _joined(self, kinds: list[str]) -> str:
        """The kind that all of them have."""
        found = list(dict.fromkeys(kind for kind in kinds if kind != ANY))
        if len(found) > 1 or (found == [TEXT] and ANY in kinds):
            told = " with ".join(_SAYS.get(kind, kind) for kind in (found if len(found) > 1 else [TEXT, "a number"]))
            raise self._refuse(f"it compares {told}", "hold quantities of one kind against each other: memory < 80 GB, time < 80 ms")
        return found[0] if found else ANY

    def _finite(self, tree: Any) -> None:
        if tree[0] == "binary" and tree[1] in _DIVIDES and not _names(tree[3]) and _constant(tree[3]) == 0:
            raise self._refuse("it divides by zero", "take the 0 out")
        if not _names(tree) and not isfinite(_constant(tree)):
            raise self._refuse("a number in it is too large, or none", "write smaller numbers")


def _unit_kind(unit: str) -> str:
    """The kind of a quantity in ``unit``, which may have a prefix."""
    return COUNT if unit in _COUNTED else next(known for known in _PHYSICAL if unit.endswith(known))


def _names(tree: Any) -> bool:
    return tree[0] == "name" or any(_names(part) for part in tree[1:] if isinstance(part, tuple))


def _constant(tree: Any) -> float:
    return float(Expression("", (), None, tree).value({}))
