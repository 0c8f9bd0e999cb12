"""A small language for derived axes and constraints: ``heads / 4``, ``memory < 80 GB and n * batch <= 65536``.

It has numbers with or without units, names of columns, quoted text, ``+ - * / // % **``, comparisons (which chain), ``and or not``, and the
functions ``min max ceil floor sqrt log2``. Python's parser reads it once numbers are in base units and each name has an underscore before
it, as the column ``pass`` is a word of Python. No other form is accepted. ``core/formula.py`` evaluates it, over texts and arrays of
float64.

Expressions without a meaning are refused: comparisons of different quantities, unknown words, division by zero. A bare number may stand
for any quantity, and so may a product or a quotient: ``n * d * 2 < 80 GB``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import pairwise
from math import isfinite, isinf
from typing import Any, NoReturn

import numpy as np

from perfmodel.core import formula
from perfmodel.core.errors import DataError, UsageError, cut, suggest
from perfmodel.core.frozen import dataclass
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
"""Functions by name: least number of arguments, and the function on arrays."""
_CALLED = {f"_{name}": function for name, (_, function) in _FUNCTIONS.items()}
"""The functions by their names in a tree."""
TEXT, ANY, COUNT = "text", "any", "a count"
"""Kinds of quantities besides the units of ``_PHYSICAL``; ANY is that of a bare number."""
_COUNTED = ("", "FLOP", "OP", "rows", "columns", "elements", "sequences", "tokens")
_PHYSICAL = ("FLOP/s", "OP/s", "FLOP/B", "B/s", "tokens/s", "requests/s", "Hz", "B", "s", "W")
"""Units that differ in kind from each other and from counts."""
_KIND_WORDS = {"B": "bytes", "s": "a time"}


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. ``tree``: Python's syntax tree, whose names are columns and functions behind an underscore.

    ``names``: the columns that it reads.
    """

    text: str
    tree: ast.expr
    names: tuple[str, ...]

    @property
    def alias(self) -> str | None:
        """The column, if it is a single name."""
        return self.tree.id if isinstance(self.tree, ast.Name) else None

    def value(self, columns: Mapping[str, Any]) -> Any:
        """The value for these ``columns``, in float64: integers would wrap around."""
        values: dict[str, Any] = {**_CALLED}
        for name in self.names:
            column = columns[name]
            values[name] = column if isinstance(column, str) else np.asarray(column, float)
        with np.errstate(all="ignore"):
            return formula.value(self.tree, values)


def parse(text: str, where: str, workload: SweepWorkload, *, constraint: bool = False) -> Expression:
    """``text`` as an expression over the numbers of ``workload``, or as a ``constraint`` on all of its inputs and columns.

    A text that is compared with an axis gets the axis's spelling. UsageError names the option ``where`` and the part without a meaning.

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
    expression = Expression(text, tree, tuple(reader.names))
    if constraint and not expression.names:
        raise UsageError(f"{reader.shown} names no axis or column", "write it like 'n * batch <= 65536'")
    if constraint and not reader.is_condition(tree):
        raise UsageError(f"{reader.shown} is a number and no condition", "compare it: 'n * batch <= 65536'")
    return expression


class _Reader:
    """Reads ``text`` as a tree and checks the meaning of its parts."""

    def __init__(self, text: str, where: str, workload: SweepWorkload, constraint: bool) -> None:
        self.text, self.workload, self.constraint = text, workload, constraint
        self.shown = f"{where} {text.strip()[:60]!r}"
        if len(text) > MAX_LENGTH:
            raise UsageError(f"{where}: longer than {MAX_LENGTH} characters", "split it into several constraints")
        if constraint:
            names = [*(axis.name for axis in workload.inputs), *(column.name for column in workload.columns)]
        else:
            names = [axis.name for axis in workload.inputs if not axis.choice]
        self.columns = {name: name for name in names} | (dict(workload.words) if constraint else {})  # columns by the words for them
        self.names: dict[str, None] = {}  # columns read so far, in a dict for their order
        self.number_kinds: dict[int, str] = {}  # kind of each number, by its place among the tokens
        self.tokens = self._tokens()

    def fail(self, what: str, fix: str | None = None) -> NoReturn:
        """Raises a UsageError that shows the text."""
        example = "memory < 80 GB and n * batch <= 65536"
        if not self.constraint:
            example = "64 or 64,128 or 512:131072:x2, or heads / 4 of another axis"
        raise UsageError(f"{self.shown}: {what}", fix or f"write it like: {example}")

    def _tokens(self) -> list[str]:
        """Tokens of the text for Python's parser; fills ``number_kinds``."""
        tokens: list[str] = []
        place = column = 0
        while self.text[place:].strip():
            match = _TOKEN.match(self.text, place)
            if match is None:
                self.fail(f"{self.text[place:].strip()[:1]!r} has no meaning")
            place = match.end()
            if match["number"]:
                value, self.number_kinds[column] = self._number(match["number"], match["unit"])
                tokens.append(repr(value))
            elif match["text"]:
                tokens.append(repr(match["text"][1:-1]))
            elif match["sign"] or match["name"] in ("and", "or", "not"):
                tokens.append(match["sign"] or match["name"])
            else:
                tokens.append(f"_{match['name']}")
            column += len(tokens[-1].encode()) + 1  # where Python's parser, which gets the tokens with spaces between, sees the next one
        if len(tokens) > MAX_TOKENS:
            self.fail(f"more than {MAX_TOKENS} words and signs")
        return tokens

    def _number(self, digits: str, unit: str | None) -> tuple[float, str]:
        """The number in base units, and its kind; 8k has no unit."""
        if isinf(float(digits)):
            self.fail(f"{cut(digits)} is too large")
        if unit is None or (len(unit.removesuffix("i")) == 1 and unit[0] in "kKMGT"):
            return float(parse_number(digits + (unit or ""))), ANY
        try:
            return float(parse_any(f"{digits} {unit}")), _unit_kind(unit)
        except DataError:
            self.fail(f"{unit!r} is no unit; known are B, s, FLOP/s, B/s, Hz, W with their prefixes")

    def tree(self) -> ast.expr:
        """The tree of the whole text."""
        try:
            return ast.parse(" ".join(self.tokens), mode="eval").body
        except SyntaxError as error:
            if "never closed" in error.msg or "forgot a comma" in error.msg:
                self.fail("a ')' is missing")
            place = 1
            for token in self.tokens:
                if error.offset and place >= error.offset:
                    self._fail_at(token)
                place += len(token) + 1
            self.fail("something is missing at its end")

    def _fail_at(self, token: str) -> NoReturn:
        """Raises a UsageError for a token where none of its kind may stand."""
        self.fail(f"{token if token[0].isdigit() else repr(token.removeprefix('_'))} does not belong here")

    def kind(self, tree: ast.AST) -> str:
        """The kind of quantity of ``tree``: TEXT, ANY, COUNT or a unit; UsageError for a form or a mixture of kinds that has no meaning.

        Words in it become the names of columns; texts that are compared with a named axis get its spelling.
        """
        match tree:
            case ast.Constant(value=str()):
                return TEXT
            case ast.Constant(value=float(number), col_offset=place):
                tree.value = np.float64(number)  # beyond its range it is infinite, and raises nothing
                return self.number_kinds[place]
            case ast.Name():
                return self._name(tree)
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                kinds = [self.kind(side) for side in sides]
                for side, neighbour in pairwise(sides):
                    self._spell(side, neighbour)
                    self._spell(neighbour, side)
                self._common_kind(kinds)
                return ANY
            case ast.BoolOp(values=parts):
                return self._operation_kind(tree, parts, keeps=False)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as sign, operand=part):
                return self._operation_kind(tree, [part], keeps=isinstance(sign, ast.USub))
            case ast.BinOp(left=left, op=sign, right=right):
                return self._operation_kind(tree, [left, right], keeps=isinstance(sign, ast.Add | ast.Sub))
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
                self._check_call(name[1:], len(parts))
                return self._operation_kind(tree, parts, keeps=name not in ("_sqrt", "_log2"))
            case _:
                return self._fail_at({ast.Tuple: ",", ast.Starred: "*", ast.UnaryOp: "+"}.get(type(tree), "("))

    def _name(self, tree: ast.Name) -> str:
        """The kind of a column, whose full name ``tree`` gets."""
        word = tree.id[1:]
        if word not in self.columns:
            self.fail(f"there is no column {word!r} ({suggest(word, list(self.columns))}); text stands in quotes")
        tree.id = self.columns[word]
        self.names[tree.id] = None
        axis = self.workload.named.get(tree.id)
        if axis is None:
            return _unit_kind(self.workload.column(tree.id).unit)
        if axis.kind == "name":
            return TEXT
        return _unit_kind(axis.unit) if axis.kind == "whole" else ANY

    def _check_call(self, name: str, arguments: int) -> None:
        """UsageError if there is no function called ``name``, or it does not take that number of ``arguments``."""
        if name not in _FUNCTIONS:
            self.fail(f"there is no function {name!r}; there are {', '.join(_FUNCTIONS)}")
        least, _ = _FUNCTIONS[name]
        if arguments < least or (least == 1 and arguments > 1):
            self.fail(f"{name} takes {'one number' if least == 1 else 'two numbers or more'}")

    def _spell(self, side: ast.AST, neighbour: ast.AST) -> None:
        """If ``side`` is an axis of words and ``neighbour`` a text, gives the text the spelling of the axis."""
        if isinstance(side, ast.Name) and isinstance(neighbour, ast.Constant) and isinstance(neighbour.value, str):
            axis = self.workload.named.get(side.id)
            if axis is not None and axis.kind == "name":
                neighbour.value = self._spelling(axis, neighbour.value)

    def _spelling(self, axis: SweepInput, text: str) -> str:
        """``text`` as ``axis`` spells it; UsageError if it is no value of the axis."""
        if axis.canonical is not None:
            try:
                return axis.canonical(text)
            except UsageError as error:
                self.fail(error.message, error.fix)
        if axis.names is not None and text not in axis.names():
            self.fail(f"{axis.name} is never {text!r}", suggest(text, list(axis.names())))
        return text

    def _operation_kind(self, tree: ast.expr, parts: list[ast.expr], *, keeps: bool) -> str:
        """The kind of the result of an operation on ``parts``: theirs if the operation ``keeps`` it, else ANY."""
        kinds = [self.kind(part) for part in parts]
        if TEXT in kinds:
            self.fail("text cannot be used in arithmetic", "compare it with == or !=")
        divides = isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div | ast.FloorDiv | ast.Mod)
        if divides and self._constant(parts[1]) == 0:
            self.fail("it divides by zero", "take the 0 out")
        if not isfinite(self._constant(tree) or 0):
            self.fail("a number in it is too large, or none", "write smaller numbers")
        return self._common_kind(kinds) if keeps else ANY

    def _common_kind(self, kinds: list[str]) -> str:
        """The kind of quantities that are added or compared; UsageError if they differ."""
        different = list(dict.fromkeys(kind for kind in kinds if kind != ANY))
        if different == [TEXT] and ANY in kinds:
            different.append("a number")
        if len(different) > 1:
            message = " with ".join(_KIND_WORDS.get(kind, kind) for kind in different)
            self.fail(f"it compares {message}", "hold quantities of one kind against each other: memory < 80 GB, time < 80 ms")
        return different[0] if different else ANY

    def _constant(self, tree: ast.expr) -> float | None:
        """The value of ``tree``; None if it reads a column."""
        reads = any(isinstance(part, ast.Name) and part.id not in _CALLED for part in ast.walk(tree))
        return None if reads else float(Expression("", tree, ()).value({}))

    def is_condition(self, tree: ast.expr) -> bool:
        """Whether ``tree`` is true or false and no number: a comparison, a switch, ``fits``, or several by ``and``, ``or``, ``not``."""
        match tree:
            case ast.Name(id=name):
                axis = self.workload.named.get(name)
                return name == FITS or (axis is not None and axis.kind == "flag")
            case ast.BoolOp(values=parts):
                return all(map(self.is_condition, parts))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return self.is_condition(part)
            case _:
                return isinstance(tree, ast.Compare)


def _unit_kind(unit: str) -> str:
    """The kind of a quantity in ``unit``, which may have a prefix."""
    return COUNT if unit in _COUNTED else next(kind for kind in _PHYSICAL if unit.endswith(kind))
