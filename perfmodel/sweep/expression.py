"""A small language for derived axes and constraints: ``heads / 4``, ``memory < 80 GB and n * batch <= 65536``.

Numbers with or without units, names of columns, quoted text, ``+ - * / // % **``, comparisons (which chain), ``and or not``, and the
functions ``min max ceil floor sqrt log2``. Python's parser reads it with a placeholder for every number, name and text, no other form
is accepted, and ``core/formula.py`` works it out, over texts and arrays of float64.

Refused is what would hold for every row or for none: comparisons of different quantities, unknown words, division by zero. A bare
number may stand for any quantity, and so may a product or a quotient: ``n * d * 2 < 80 GB``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import isfinite, isinf
from typing import Any, NoReturn

import numpy as np

from perfmodel.core import formula
from perfmodel.core.errors import DataError, UsageError, cut, suggest
from perfmodel.core.units import parse_any, parse_number
from perfmodel.sweep.base import FITS, SweepInput, SweepWorkload

MAX_LENGTH, MAX_TOKENS = 1000, 200

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?:\s*(?!(?:and|or|not)\b)(?P<unit>[A-Za-z]+(?:/s)?(?![A-Za-z0-9_(])))?"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%<>(),]))"
)
_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "min": (2, lambda *numbers: reduce(np.minimum, numbers)),
    "max": (2, lambda *numbers: reduce(np.maximum, numbers)),
    "ceil": (1, np.ceil),
    "floor": (1, np.floor),
    "sqrt": (1, np.sqrt),
    "log2": (1, np.log2),
}
"""Least number of arguments, and the function on arrays."""
NUMBER, TEXT, NAME, FUNCTION = "number", "text", "name", "function"
ANY, COUNT = "any", "a count"
_COUNTED = ("", "FLOP", "OP", "rows", "columns", "elements", "sequences", "tokens")
_PHYSICAL = ("FLOP/s", "OP/s", "FLOP/B", "B/s", "tokens/s", "requests/s", "Hz", "B", "s", "W")
"""Units that differ in kind from each other and from what is counted."""
_SAYS = {"B": "bytes", "s": "a time"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a placeholder stands for: a number, a text, the name of a column, or a function.

    ``kind``: of quantity; TEXT, ANY, COUNT or a unit.
    """

    sort: str
    value: Any
    kind: str = ANY


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: a tree of Python's parser, whose names are the placeholders of ``leaves``."""

    text: str
    tree: ast.expr
    leaves: Mapping[str, Leaf]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(dict.fromkeys(leaf.value for leaf in self.leaves.values() if leaf.sort == NAME))

    @property
    def alias(self) -> str | None:
        """The column, if it is a single name."""
        return self.names[0] if isinstance(self.tree, ast.Name) and self.names else None

    def value(self, columns: Mapping[str, Any]) -> Any:
        """The value for these ``columns``, in float64: integers would wrap around."""
        found = {sign: columns[leaf.value] if leaf.sort == NAME else leaf.value for sign, leaf in self.leaves.items()}
        with np.errstate(all="ignore"):
            return formula.value(self.tree, {s: v if isinstance(v, str) or callable(v) else np.asarray(v, float) for s, v in found.items()})


def parse(text: str, where: str, workload: SweepWorkload, *, constraint: bool = False) -> Expression:
    """``text`` as an expression over the numbers of ``workload``, or as a ``constraint`` on all of its inputs and columns.

    Quoted words become those of the axes. UsageError names the option ``where`` and the part that has no meaning.

    >>> from perfmodel.sweep.study import workload_named
    >>> float(parse("80 GB / heads", "--n", workload_named("attention")).value({"heads": 4}))
    20000000000.0
    >>> bool(parse("1 <= n // 3 < 5 and not d == 64", "--where", workload_named("attention"), constraint=True).value({"n": 12, "d": 32}))
    True
    """
    reader = _Reader(text, where, workload, constraint)
    tree = reader.tree()
    if reader.kind(tree) == TEXT:
        raise UsageError(f"{reader.shown} is a text", "compare it with another, by == or !=")
    found = Expression(text, tree, reader.leaves)
    if constraint and not found.names:
        raise UsageError(f"{reader.shown} names no axis or column", "write it like 'n * batch <= 65536'")
    if constraint and not reader.is_condition(tree):
        raise UsageError(f"{reader.shown} is a number and no condition", "compare it: 'n * batch <= 65536'")
    return found


class _Reader:
    """Turns ``text`` into a tree of placeholders, and checks what its parts mean."""

    def __init__(self, text: str, where: str, workload: SweepWorkload, constraint: bool) -> None:
        self.text, self.workload, self.constraint = text, workload, constraint
        self.shown = f"{where} {text.strip()[:60]!r}"
        if len(text) > MAX_LENGTH:
            raise UsageError(f"{where}: longer than {MAX_LENGTH} characters", "split it into several constraints")
        inputs = [axis.name for axis in workload.inputs if constraint or not axis.choice]
        names = [*inputs, *(column.name for column in workload.columns if constraint)]
        self.known = {name: name for name in names} | (dict(workload.words) if constraint else {})
        self.leaves: dict[str, Leaf] = {}
        self.signs = self._split()

    def fail(self, what: str, fix: str | None = None) -> NoReturn:
        """Raises a UsageError that shows the text."""
        like = "memory < 80 GB and n * batch <= 65536" if self.constraint else "64 or 64,128 or 512:131072:x2, or heads / 4 of another axis"
        raise UsageError(f"{self.shown}: {what}", fix or f"write it like: {like}")

    def _split(self) -> list[str]:
        """Tokens of the text: signs, and a placeholder for each leaf."""
        tokens: list[str] = []
        place = 0
        while self.text[place:].strip():
            match = _TOKEN.match(self.text, place)
            if match is None:
                self.fail(f"{self.text[place:].strip()[:1]!r} has no meaning")
            place, name = match.end(), match["name"]
            tokens.append(match["sign"] or (name if name in ("and", "or", "not") else f"_{len(tokens)}"))
            if match["number"]:
                self.leaves[tokens[-1]] = self._number(match["number"], match["unit"])
            elif tokens[-1].startswith("_"):
                self.leaves[tokens[-1]] = Leaf(NAME, name) if name else Leaf(TEXT, match["text"][1:-1], TEXT)
        if len(tokens) > MAX_TOKENS:
            self.fail(f"more than {MAX_TOKENS} words and signs")
        return tokens

    def _number(self, digits: str, unit: str | None) -> Leaf:
        """The number in base units; 8k has no unit."""
        if isinf(float(digits)):
            self.fail(f"{cut(digits)} is too large")
        if unit is None or (len(unit.removesuffix("i")) == 1 and unit[0] in "kKMGT"):
            return Leaf(NUMBER, float(parse_number(digits + (unit or ""))))
        try:
            return Leaf(NUMBER, float(parse_any(f"{digits} {unit}")), _unit_kind(unit))
        except DataError:
            self.fail(f"{unit!r} is no unit; known are B, s, FLOP/s, B/s, Hz, W with their prefixes")

    def tree(self) -> ast.expr:
        """The tree of the whole text."""
        try:
            return ast.parse(" ".join(self.signs), mode="eval").body
        except SyntaxError as error:
            if "never closed" in error.msg or "forgot a comma" in error.msg:
                self.fail("a ')' is missing")
            place = 1
            for sign in self.signs if error.offset else ():  # none at the end
                if place >= (error.offset or 0):
                    self._stray(sign)
                place += len(sign) + 1
            self.fail("something is missing at its end")

    def _stray(self, sign: str) -> NoReturn:
        self.fail(f"{self.leaves[sign].value if sign in self.leaves else sign!r} does not belong here")

    def kind(self, tree: ast.AST) -> str:
        """The kind of quantity of ``tree``: TEXT, ANY, COUNT or a unit; UsageError for a form or a mixture of kinds that has no meaning."""
        match tree:
            case ast.Name(id=sign):
                return self._leaf(sign)
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                kinds = list(map(self.kind, sides))
                for one, other in [*pairwise(sides), *pairwise(sides[::-1])]:
                    self._spell(one, other)
                self._joined(kinds)
                return ANY
            case ast.BoolOp(values=parts):
                return self._reckoned(tree, parts, keeps=False)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as sign, operand=part):
                return self._reckoned(tree, [part], keeps=isinstance(sign, ast.USub))
            case ast.BinOp(left=left, op=sign, right=right):
                return self._reckoned(tree, [left, right], keeps=isinstance(sign, ast.Add | ast.Sub))
            case ast.Call(func=ast.Name(id=sign), args=parts, keywords=[]):
                return self._reckoned(tree, parts, keeps=self._function(sign, len(parts)) not in ("sqrt", "log2"))
            case _:
                return self._stray({ast.Tuple: ",", ast.Starred: "*", ast.UnaryOp: "+"}.get(type(tree), "("))

    def _leaf(self, sign: str) -> str:
        """The kind of a leaf; a name becomes that of a column."""
        leaf = self.leaves[sign]
        if leaf.sort != NAME:
            return leaf.kind
        if leaf.value not in self.known:
            self.fail(f"there is no column {leaf.value!r} ({suggest(leaf.value, list(self.known))}); text stands in quotes")
        name = self.known[leaf.value]
        axis = self.workload.named.get(name)
        kinds = {"name": TEXT, "flag": ANY, "number": ANY}
        kind = _unit_kind(self.workload.column(name).unit) if axis is None else kinds.get(axis.kind) or _unit_kind(axis.unit)
        self.leaves[sign] = Leaf(NAME, name, kind)
        return kind

    def _function(self, sign: str, arguments: int) -> str:
        """The name of a function that is called with so many arguments."""
        leaf = self.leaves[sign]
        if leaf.sort != NAME:
            self._stray("(")
        if leaf.value not in _FUNCTIONS:
            self.fail(f"there is no function {leaf.value!r}; there are {', '.join(_FUNCTIONS)}")
        least, function = _FUNCTIONS[leaf.value]
        if arguments < least or (least == 1 and arguments > 1):
            self.fail(f"{leaf.value} takes {'one number' if least == 1 else 'two numbers or more'}")
        self.leaves[sign] = Leaf(FUNCTION, function)
        return str(leaf.value)

    def _spell(self, one: ast.AST, other: ast.AST) -> None:
        """Gives a text that is compared with a named axis the spelling that the axis has."""
        if not isinstance(one, ast.Name) or not isinstance(other, ast.Name) or self.leaves[other.id].sort != TEXT:
            return
        axis = self.workload.named.get(self.leaves[one.id].value) if self.leaves[one.id].sort == NAME else None
        if axis is not None and axis.kind == "name":
            self.leaves[other.id] = Leaf(TEXT, self._word(axis, self.leaves[other.id].value), TEXT)

    def _word(self, axis: SweepInput, text: str) -> str:
        if axis.canonical is not None:
            try:
                return axis.canonical(text)
            except UsageError as error:
                self.fail(error.message, error.fix)
        if axis.names is not None and text not in axis.names():
            self.fail(f"{axis.name} is never {text!r}", suggest(text, list(axis.names())))
        return text

    def _reckoned(self, tree: ast.expr, parts: list[ast.expr], *, keeps: bool) -> str:
        """The kind of an operation on ``parts``, which ``keeps`` theirs or makes another."""
        kinds = list(map(self.kind, parts))
        if TEXT in kinds:
            self.fail("text cannot be used in arithmetic", "compare it with == or !=")
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div | ast.FloorDiv | ast.Mod) and self._constant(tree.right) == 0:
            self.fail("it divides by zero", "take the 0 out")
        if not isfinite(self._constant(tree) or 0):
            self.fail("a number in it is too large, or none", "write smaller numbers")
        return self._joined(kinds) if keeps else ANY

    def _joined(self, kinds: list[str]) -> str:
        """The kind that all of them have."""
        found = list(dict.fromkeys(kind for kind in kinds if kind != ANY))
        if len(found) > 1 or (found == [TEXT] and ANY in kinds):
            message = " with ".join(_SAYS.get(kind, kind) for kind in (found if len(found) > 1 else [TEXT, "a number"]))
            self.fail(f"it compares {message}", "hold quantities of one kind against each other: memory < 80 GB, time < 80 ms")
        return found[0] if found else ANY

    def _constant(self, tree: ast.expr) -> float | None:
        """The value of ``tree``; None if it reads a column."""
        leaves = {part.id: self.leaves[part.id] for part in ast.walk(tree) if isinstance(part, ast.Name)}
        return float(Expression("", tree, leaves).value({})) if all(leaf.sort != NAME for leaf in leaves.values()) else None

    def is_condition(self, tree: ast.expr) -> bool:
        """Whether ``tree`` is true or false and no number: a comparison, a switch, ``fits``, or several by ``and``, ``or``, ``not``."""
        match tree:
            case ast.Name(id=sign):
                axis = self.workload.named.get(self.leaves[sign].value)
                return self.leaves[sign].value == FITS or (axis is not None and axis.kind == "flag")
            case ast.BoolOp(values=parts):
                return all(map(self.is_condition, parts))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return self.is_condition(part)
            case _:
                return isinstance(tree, ast.Compare)


def _unit_kind(unit: str) -> str:
    """The kind of a quantity in ``unit``, which may have a prefix."""
    return COUNT if unit in _COUNTED else next(known for known in _PHYSICAL if unit.endswith(known))
