"""A small language for derived axes and constraints: ``heads / 4``, ``memory < 80 GB and n * batch <= 65536``.

Numbers with or without units, names of columns, quoted text, ``+ - * / // % **``, comparisons (which chain), ``and or not``, and the
functions ``min max ceil floor sqrt log2``. Python's parser reads it with a placeholder for every number, name and text, no other form
is accepted, and no part of it is ever run as code. Values are numbers, texts or NumPy arrays of float64.

``typecheck`` refuses expressions that would hold for every row or for none: comparisons of different quantities, unknown words, division
by zero. A bare number may stand for any quantity, and so may a product or a quotient: ``n * d * 2 < 80 GB``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise
from math import isfinite, isinf
from typing import Any, NoReturn

import numpy as np

from perfmodel.core.errors import DataError, UsageError, cut, suggest
from perfmodel.core.units import parse_any, parse_number
from perfmodel.sweep.base import FITS, SweepInput, SweepWorkload

MAX_LENGTH, MAX_TOKENS, MAX_DEPTH = 1000, 200, 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?:\s*(?!(?:and|or|not)\b)(?P<unit>[A-Za-z]+(?:/s)?(?![A-Za-z0-9_(])))?"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%<>(),]))"
)
_CONSTRAINTS = ("where", "subject_to")
"""Options that hold constraints, as ``where`` ends with them; in any other option an expression gives an axis."""

NUMBER, TEXT, NAME = "number", "text", "name"
_KEEPS, _DIVIDES, _REAL, _COMPARES, _LOGIC = "keeps", "divides", "real", "compares", "logic"
"""Sorts of operations: result in the unit of the operands; division; other arithmetic; comparisons; and, or, not."""
_FUNCTIONS = {
    "min": (2, _KEEPS, np.minimum),
    "max": (2, _KEEPS, np.maximum),
    "ceil": (1, _KEEPS, np.ceil),
    "floor": (1, _KEEPS, np.floor),
    "sqrt": (1, _REAL, np.sqrt),
    "log2": (1, _REAL, np.log2),
}
"""Least number of arguments, sort, NumPy function."""
_SIGNS: dict[str, dict[Any, Any]] = {
    _KEEPS: {ast.Add: np.add, ast.Sub: np.subtract, ast.USub: np.negative},
    _REAL: {ast.Mult: np.multiply, ast.Pow: np.power},
    _DIVIDES: {ast.Div: np.divide, ast.FloorDiv: np.floor_divide, ast.Mod: np.mod},
    _COMPARES: {ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal}
    | {ast.Eq: np.equal, ast.NotEq: np.not_equal},
    _LOGIC: {ast.And: np.logical_and, ast.Or: np.logical_or, ast.Not: np.logical_not},
}
_OPERATIONS = {sign: (sort, function) for sort, signs in _SIGNS.items() for sign, function in signs.items()}
"""Sort and NumPy function of each sign."""

Tree = tuple[Any, ...]
"""A number with its unit as written or None, a text, a name; or an operation: its sort, NumPy's function, and the operands."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. ``names``: the columns that it reads."""

    text: str
    names: tuple[str, ...]
    tree: Tree

    @property
    def alias(self) -> str | None:
        """The column, if it is a single name."""
        return self.tree[1] if self.tree[0] == NAME else None

    def value(self, columns: Mapping[str, Any]) -> Any:
        """The value for these ``columns``, in float64: integers would wrap around."""
        with np.errstate(all="ignore"):
            return _value(self.tree, columns)


def parse(text: str, where: str, names: Mapping[str, str] | None = None) -> Expression:
    """``text`` as an expression; UsageError names the option ``where`` and the part that cannot be read.

    ``known``: allowed names and the column that each stands for; None allows any name.

    >>> float(parse("80 GB / heads", "--where").value({"heads": 4}))
    20000000000.0
    >>> bool(parse("1 <= n // 3 < 5 and not d == 64", "--where").value({"n": 12, "d": 32}))
    True
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"{where}: longer than {MAX_LENGTH} characters", "split it into several constraints")
    tree = _Reader(text, where, names).tree()
    return Expression(text, tuple(dict.fromkeys(_names(tree))), tree)


def _names(tree: Tree) -> list[str]:
    return [tree[1]] if tree[0] == NAME else [name for part in _parts(tree) for name in _names(part)]


def _parts(tree: Tree) -> Tree:
    return () if tree[0] in (NUMBER, TEXT, NAME) else tree[2:]


def _value(tree: Tree, columns: Mapping[str, Any]) -> Any:
    sort, first = tree[:2]
    if sort in (NUMBER, TEXT, NAME):
        return columns[first] if sort == NAME else first
    values = [_value(part, columns) for part in _parts(tree)]
    if sort in (_KEEPS, _DIVIDES, _REAL):
        text = next((value for value in values if isinstance(value, str)), None)
        if text is not None:
            raise UsageError(f"the text {text!r} cannot be used in arithmetic", "compare it with == or !=")
        values = [np.asarray(value, float) for value in values]
    return reduce(first, values) if len(values) > 1 else first(*values)


class _Reader:
    """Turns ``text`` into a tree."""

    def __init__(self, text: str, where: str, known: Mapping[str, str] | None) -> None:
        self.text, self.where, self.known = text, where, known
        self.leaves: dict[str, Tree] = {}
        self.signs = self._split()

    def fail(self, what: str) -> NoReturn:
        """Raises a UsageError that shows the text."""
        constraint = self.where.endswith(_CONSTRAINTS)  # else it stands for an axis
        fix = "memory < 80 GB and n * batch <= 65536" if constraint else "64 or 64,128 or 512:131072:x2, or heads / 4 of another axis"
        raise UsageError(f"{self.where} {self.text.strip()[:60]!r}: {what}", f"write it like: {fix}")

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
                self.leaves[tokens[-1]] = (NUMBER, *self._number(match["number"], match["unit"]))
            elif tokens[-1].startswith("_"):
                self.leaves[tokens[-1]] = (NAME, name) if name else (TEXT, match["text"][1:-1])
        if len(tokens) > MAX_TOKENS:
            self.fail(f"more than {MAX_TOKENS} words and signs")
        return tokens

    def _number(self, digits: str, unit: str | None) -> tuple[float, str | None]:
        """The number in base units, and its unit, which 8k has none of."""
        if isinf(float(digits)):
            self.fail(f"{cut(digits)} is too large")
        if unit is None or (len(unit.removesuffix("i")) == 1 and unit[0] in "kKMGT"):
            return float(parse_number(digits + (unit or ""))) if unit else float(digits), None
        try:
            return float(parse_any(f"{digits} {unit}")), unit
        except DataError:
            self.fail(f"{unit!r} is no unit; known are B, s, FLOP/s, B/s, Hz, W with their prefixes")

    def tree(self) -> Tree:
        """The tree of the whole text."""
        self._descend(max(accumulate((sign == "(") - (sign == ")") for sign in self.signs), default=0))
        try:
            return self._read(ast.parse(" ".join(self.signs), mode="eval").body, 0)
        except SyntaxError as error:
            self._unread(error)

    def _descend(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")

    def _unread(self, error: SyntaxError) -> NoReturn:
        """Description of the part that Python's parser cannot read."""
        if "never closed" in error.msg or "forgot a comma" in error.msg:
            self.fail("a ')' is missing")
        place = 1
        for sign in self.signs if error.offset else ():  # none at the end
            if place >= (error.offset or 0):
                self._stray(sign)
            place += len(sign) + 1
        self.fail("something is missing at its end")

    def _stray(self, sign: str) -> NoReturn:
        self.fail(f"{self.leaves.get(sign, (None, sign))[1]!r} does not belong here")

    def _read(self, tree: ast.AST, depth: int) -> Tree:
        """``tree`` as one of ours; what the language does not have is refused."""
        self._descend(depth)
        match tree:
            case ast.Name(id=sign):
                return self._leaf(sign)
            case ast.BinOp(left=left, right=right, op=sign):
                return (*_OPERATIONS[type(sign)], self._read(left, depth), self._read(right, depth + isinstance(sign, ast.Pow)))
            case ast.BoolOp(op=sign, values=parts):
                return (*_OPERATIONS[type(sign)], *(self._read(part, depth) for part in parts))
            case ast.UnaryOp(op=ast.Not() | ast.USub() as sign, operand=part):
                return (*_OPERATIONS[type(sign)], self._read(part, depth + isinstance(sign, ast.USub)))
            case ast.Compare(left=left, ops=signs, comparators=others):
                pairs = pairwise([self._read(part, depth) for part in (left, *others)])
                comparisons = [(*_OPERATIONS[type(sign)], *pair) for sign, pair in zip(signs, pairs, strict=True)]
                return comparisons[0] if len(comparisons) == 1 else (_LOGIC, np.logical_and, *comparisons)
            case ast.Call(func=ast.Name(id=sign), args=parts, keywords=[]):
                return self._call(self.leaves[sign], [self._read(part, depth + 1) for part in parts])
            case _:
                return self._stray({ast.Tuple: ",", ast.Starred: "*", ast.UnaryOp: "+"}.get(type(tree), "("))

    def _leaf(self, sign: str) -> Tree:
        sort, name = self.leaves[sign][:2]
        if sort != NAME:
            return self.leaves[sign]
        if self.known is not None and name not in self.known:
            self.fail(f"there is no column {name!r} ({suggest(name, list(self.known))}); text stands in quotes")
        return (NAME, name if self.known is None else self.known[name])

    def _call(self, leaf: Tree, parts: list[Tree]) -> Tree:
        name = leaf[1]
        if leaf[0] != NAME:
            self._stray("(")
        if name not in _FUNCTIONS:
            self.fail(f"there is no function {name!r}; there are {', '.join(_FUNCTIONS)}")
        least, sort, function = _FUNCTIONS[name]
        if len(parts) < least or (least == 1 and len(parts) > 1):
            self.fail(f"{name} takes {'one number' if least == 1 else 'two numbers or more'}")
        return (sort, function, *parts)


ANY, COUNT = "any", "a count"
_COUNTED = ("", "FLOP", "OP", "rows", "columns", "elements", "sequences", "tokens")
_PHYSICAL = ("FLOP/s", "OP/s", "FLOP/B", "B/s", "tokens/s", "requests/s", "Hz", "B", "s", "W")
"""Units that differ in kind from each other and from what is counted."""
_SAYS = {"B": "bytes", "s": "a time"}


def typecheck(expression: Expression, workload: SweepWorkload, where: str) -> Expression:
    """``expression`` with quoted words as the axes spell them. UsageError, naming option ``where``, if units or words do not fit."""
    checker = _Checker(expression, workload, where)
    tree = checker.named(expression.tree)
    if checker.kind(tree) == TEXT:
        raise UsageError(f"{where} {expression.text.strip()[:60]!r} is a text", "compare it with another, by == or !=")
    return replace(expression, tree=tree)


def is_condition(tree: Tree, workload: SweepWorkload) -> bool:
    """Whether ``tree`` is true or false and no number: a comparison, a switch, ``fits``, or several of them by ``and``, ``or``, ``not``."""
    if tree[0] == NAME:
        one = workload.named.get(tree[1])
        return tree[1] == FITS or (one is not None and one.kind == "flag")
    return tree[0] == _COMPARES or (tree[0] == _LOGIC and all(is_condition(part, workload) for part in _parts(tree)))


@dataclass(frozen=True, slots=True)
class _Checker:
    expression: Expression
    workload: SweepWorkload
    where: str

    def _refuse(self, what: str, fix: str | None) -> UsageError:
        return UsageError(f"{self.where} {self.expression.text.strip()[:60]!r}: {what}", fix)

    def named(self, tree: Tree) -> Tree:
        """``tree`` with every text that is compared with a named axis in the canonical spelling of that axis."""
        parts = [self.named(part) for part in _parts(tree)]
        if tree[0] == _COMPARES:
            for side, other in ((0, 1), (1, 0)):
                choice = self.workload.named.get(parts[side][1]) if parts[side][0] == NAME else None
                if choice is not None and choice.kind == "name" and parts[other][0] == TEXT:
                    parts[other] = (TEXT, self._word(choice, parts[other][1]))
        return (*tree[:2], *parts) if parts else tree

    def _word(self, choice: SweepInput, text: str) -> str:
        if choice.canonical is not None:
            try:
                return choice.canonical(text)
            except UsageError as error:
                raise self._refuse(error.message, error.fix) from None
        if choice.names is not None and text not in choice.names():
            raise self._refuse(f"{choice.name} is never {text!r}", suggest(text, list(choice.names())))
        return text

    def kind(self, tree: Tree) -> str:
        """The kind of quantity of ``tree``: TEXT, ANY, COUNT or a unit; UsageError where kinds do not go together."""
        sort = tree[0]
        if sort == NUMBER:
            return ANY if tree[2] is None else _unit_kind(tree[2])
        if sort in (TEXT, NAME):
            return TEXT if sort == TEXT else self._column_kind(tree[1])
        kinds = [self.kind(part) for part in _parts(tree)]
        if sort == _COMPARES:
            self._joined(kinds)
            return ANY
        if TEXT in kinds:
            raise self._refuse("text cannot be used in arithmetic", "compare it with == or !=")
        if sort == _DIVIDES and _constant(tree[3]) == 0:
            raise self._refuse("it divides by zero", "take the 0 out")
        if not isfinite(_constant(tree) or 0):
            raise self._refuse("a number in it is too large, or none", "write smaller numbers")
        return self._joined(kinds) if sort == _KEEPS else ANY

    def _column_kind(self, name: str) -> str:
        one = self.workload.named.get(name)
        if one is None:
            return _unit_kind(self.workload.column(name).unit)
        return {"name": TEXT, "flag": ANY, "number": ANY}.get(one.kind, _unit_kind(one.unit))

    def _joined(self, kinds: list[str]) -> str:
        """The kind that all of them have."""
        found = list(dict.fromkeys(kind for kind in kinds if kind != ANY))
        if len(found) > 1 or (found == [TEXT] and ANY in kinds):
            message = " with ".join(_SAYS.get(kind, kind) for kind in (found if len(found) > 1 else [TEXT, "a number"]))
            raise self._refuse(f"it compares {message}", "hold quantities of one kind against each other: memory < 80 GB, time < 80 ms")
        return found[0] if found else ANY


def _unit_kind(unit: str) -> str:
    """The kind of a quantity in ``unit``, which may have a prefix."""
    return COUNT if unit in _COUNTED else next(known for known in _PHYSICAL if unit.endswith(known))


def _constant(tree: Tree) -> float | None:
    """Value of ``tree``; None if it reads a column."""
    return None if _names(tree) else float(Expression("", (), tree).value({}))
