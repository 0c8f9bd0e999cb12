"""Text to tree, for the expressions of sweeps: recursive descent, one method per level of binding strength.

Trees are tuples that begin with their kind: number (its value, its unit as written or None), text, name, call, binary, compare,
negative, not, and, or.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isinf
from typing import Any, NoReturn

from perfmodel.core.errors import DataError, UsageError, cut, suggest
from perfmodel.core.units import parse_any

MAX_TOKENS = 200
MAX_DEPTH = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?:\s*(?!(?:and|or|not)\b)(?P<unit>[A-Za-z]+(?:/s)?(?![A-Za-z0-9_(])))?"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%<>(),]))"
)
CONSTRAINTS = ("where", "subject_to")
"""How the place of a constraint ends."""
_WORDS = ("and", "or", "not")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_LEVELS = (("+", "-"), ("*", "/", "//", "%"))
FUNCTIONS = {
    "min": (2, "minimum"),
    "max": (2, "maximum"),
    "ceil": (1, "ceil"),
    "floor": (1, "floor"),
    "sqrt": (1, "sqrt"),
    "log2": (1, "log2"),
}
"""How many arguments each takes at least, and what NumPy calls it."""


class Parser:
    """``known``: names that may stand in ``text``, by the column that each means; any if None. ``names`` collects what is read."""

    def __init__(self, text: str, where: str, known: Mapping[str, str] | None) -> None:
        self.text, self.where, self.known = text, where, known
        self.names: list[str] = []
        self.tokens = self._split()
        self.place = 0

    def fail(self, what: str) -> NoReturn:
        """UsageError with the text."""
        constraint = self.where.endswith(CONSTRAINTS)  # else it stands for an axis
        fix = "memory < 80 GB and n * batch <= 65536" if constraint else "64 or 64,128 or 512:131072:x2, or heads / 4 of another axis"
        raise UsageError(f"{self.where} {self.text.strip()[:60]!r}: {what}", f"write it like: {fix}")

    def _split(self) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        place = 0
        while self.text[place:].strip():
            match = _TOKEN.match(self.text, place)
            if match is None:
                self.fail(f"{self.text[place:].strip()[:1]!r} has no meaning")
            place = match.end()
            if match["number"]:
                found.append(("number", (self._number(match["number"], match["unit"]), match["unit"])))
            elif match["name"]:
                found.append(("sign" if match["name"] in _WORDS else "name", match["name"]))
            else:
                found.append(("text", match["text"][1:-1]) if match["text"] else ("sign", match["sign"]))
        if len(found) > MAX_TOKENS:
            self.fail(f"more than {MAX_TOKENS} words and signs")
        return found

    def _number(self, digits: str, unit: str | None) -> float:
        if isinf(float(digits)):
            self.fail(f"{cut(digits)} is too large")
        try:
            return float(digits) if unit is None else float(parse_any(f"{digits} {unit}"))
        except DataError:
            self.fail(f"{unit!r} is no unit; known are B, s, FLOP/s, B/s, Hz, W with their prefixes")

    def peek(self) -> Any:
        """The next token, None at the end."""
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def _taken(self, *signs: str) -> str | None:
        token = self.peek()
        if token is not None and token[0] == "sign" and token[1] in signs:
            self.place += 1
            return str(token[1])
        return None

    def tree(self) -> Any:
        """The whole text."""
        tree = self.either(0)
        if self.peek() is not None:
            kind, found = self.peek()
            self.fail(f"{found[0] if kind == 'number' else found!r} does not belong here")
        return tree

    def _descend(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")

    def either(self, depth: int) -> Any:
        """``or``."""
        self._descend(depth)
        tree = self._both(depth)
        while self._taken("or"):
            tree = ("or", tree, self._both(depth))
        return tree

    def _both(self, depth: int) -> Any:
        tree = self._negated(depth)
        while self._taken("and"):
            tree = ("and", tree, self._negated(depth))
        return tree

    def _negated(self, depth: int) -> Any:
        times = 0
        while self._taken("not"):
            times += 1
        tree = self._compared(depth)
        return ("not", tree) if times % 2 else tree

    def _compared(self, depth: int) -> Any:
        left = self._joined(depth, 0)
        parts = []
        while sign := self._taken(*_COMPARISONS):
            right = self._joined(depth, 0)
            parts.append(("compare", sign, left, right))
            left = right
        tree = parts[0] if parts else left
        for part in parts[1:]:
            tree = ("and", tree, part)
        return tree

    def _joined(self, depth: int, level: int) -> Any:
        if level == len(_LEVELS):
            return self._signed(depth)
        tree = self._joined(depth, level + 1)
        while sign := self._taken(*_LEVELS[level]):
            tree = ("binary", sign, tree, self._joined(depth, level + 1))
        return tree

    def _signed(self, depth: int) -> Any:
        self._descend(depth)
        if self._taken("-"):
            return ("negative", self._signed(depth + 1))
        tree = self._atom(depth)
        return ("binary", "**", tree, self._signed(depth + 1)) if self._taken("**") else tree

    def _atom(self, depth: int) -> Any:
        if self._taken("("):
            tree = self.either(depth + 1)
            self._close()
            return tree
        token = self.peek()
        if token is None or token[0] == "sign":
            self.fail("something is missing at its end" if token is None else f"{token[1]!r} does not belong here")
        self.place += 1
        if token[0] == "number":
            return ("number", *token[1])
        if token[0] != "name":
            return token
        return self._call(str(token[1]), depth) if self._taken("(") else self._name(str(token[1]))

    def _call(self, name: str, depth: int) -> Any:
        if name not in FUNCTIONS:
            self.fail(f"there is no function {name!r}; there are {', '.join(FUNCTIONS)}")
        least, function = FUNCTIONS[name]
        arguments = [self.either(depth + 1)]
        while self._taken(","):
            arguments.append(self.either(depth + 1))
        self._close()
        if len(arguments) < least or (least == 1 and len(arguments) > 1):
            self.fail(f"{name} takes {'one number' if least == 1 else 'two numbers or more'}")
        return ("call", function, *arguments)

    def _close(self) -> None:
        if not self._taken(")"):
            self.fail("a ')' is missing")

    def _name(self, name: str) -> Any:
        if self.known is not None and name not in self.known:
            self.fail(f"there is no column {name!r} ({suggest(name, list(self.known))}); text stands in quotes")
        self.names.append(name if self.known is None else self.known[name])
        return ("name", self.names[-1])
